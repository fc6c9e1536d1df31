"""Selections: which coordinates to take now."""

from .all import All
from .base import Selection
from .cyclic import Cyclic
from .greedy import GaussSouthwell
from .greedymatching import GreedyMatching
from .growing import Growing
from .importance import Importance
from .matching import RandomMatching
from .partition import Partition
from .roundrobin import RoundRobin
from .uniform import Uniform

__all__ = [
    "All",
    "Cyclic",
    "GaussSouthwell",
    "GreedyMatching",
    "Growing",
    "Importance",
    "Partition",
    "RandomMatching",
    "RoundRobin",
    "Selection",
    "Uniform",
]
