"""Step sizes: how far along each coordinate."""

from .adam import Adam
from .base import StepSize
from .clipped import Clipped
from .constant import Constant
from .exact import Exact
from .momentum import Momentum
from .pair_model import PairModel
from .plain import plain_step_
from .rmsprop import RMSProp
from .robbins_monro import RobbinsMonroLR, TheoremLR

__all__ = [
    "Adam",
    "Clipped",
    "Constant",
    "Exact",
    "Momentum",
    "PairModel",
    "RMSProp",
    "RobbinsMonroLR",
    "StepSize",
    "TheoremLR",
    "plain_step_",
]
