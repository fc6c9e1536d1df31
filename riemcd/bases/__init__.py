"""Coordinate bases: the directions at a point, slopes along them and motion along them."""

from .base import Basis, Example
from .dispatch import basis_for
from .euclidean import EuclideanBasis
from .givens import LeftGivens, RightGivens

__all__ = ["Basis", "EuclideanBasis", "Example", "LeftGivens", "RightGivens", "basis_for"]
