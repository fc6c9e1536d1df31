"""Coordinate bases: the directions at a point, slopes along them and motion along them."""

from .base import Basis, Example
from .dispatch import basis_for
from .euclidean import EuclideanBasis
from .generic import GenericBasis
from .givens import LeftGivens, RightGivens
from .lorentz import LorentzBasis
from .sphere import SphereBasis, SphereGivens
from .stereographic import StereographicBasis

__all__ = [
    "Basis",
    "EuclideanBasis",
    "Example",
    "GenericBasis",
    "LeftGivens",
    "LorentzBasis",
    "RightGivens",
    "SphereBasis",
    "SphereGivens",
    "StereographicBasis",
    "basis_for",
]
