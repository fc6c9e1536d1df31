"""The hot loops, one function each; every implementation gives the same results to rounding."""

from .rotations import rotate_
from .wedges import wedge_all, wedge_at

__all__ = ["rotate_", "wedge_all", "wedge_at"]
