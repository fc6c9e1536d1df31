"""Coordinate bases: the directions at a point, slopes along them and motion along them."""

from .base import Basis, Example
from .birkhoff import BirkhoffBasis
from .dispatch import basis_for
from .euclidean import EuclideanBasis
from .generic import GenericBasis
from .givens import LeftGivens, RightGivens
from .lorentz import LorentzBasis
from .product import ProductBasis
from .scaled import ScaledBasis
from .spd import SPDBasis
from .sphere import SphereBasis, SphereGivens
from .stereographic import StereographicBasis
from .tall_stiefel import TallStiefelBasis
from .upper_half import UpperHalfBasis

__all__ = [
    "Basis",
    "BirkhoffBasis",
    "EuclideanBasis",
    "Example",
    "GenericBasis",
    "LeftGivens",
    "LorentzBasis",
    "ProductBasis",
    "RightGivens",
    "SPDBasis",
    "ScaledBasis",
    "SphereBasis",
    "SphereGivens",
    "StereographicBasis",
    "TallStiefelBasis",
    "UpperHalfBasis",
    "basis_for",
]
