"""The hot loops, one function each; every implementation gives the same results to rounding."""

from .native import descend_, only_torch
from .rotations import rotate_
from .wedges import wedge_all, wedge_at, wedge_steepest

__all__ = ["descend_", "only_torch", "rotate_", "wedge_all", "wedge_at", "wedge_steepest"]
