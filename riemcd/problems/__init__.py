"""Problems: losses that say how they change along a rotation, for exact angles."""

from .base import Problem, Sweeps, Work
from .extrapolation import Extrapolation
from .interpolated import Interpolated
from .joint_diagonalization import JointDiagonalization
from .linear_trace import LinearTrace
from .quadratic_trace import QuadraticTrace

__all__ = [
    "Extrapolation",
    "Interpolated",
    "JointDiagonalization",
    "LinearTrace",
    "Problem",
    "QuadraticTrace",
    "Sweeps",
    "Work",
]
