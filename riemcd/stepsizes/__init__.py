"""Step sizes: how far along each coordinate."""

from .base import StepSize
from .constant import Constant
from .momentum import Momentum
from .plain import plain_step_

__all__ = ["Constant", "Momentum", "StepSize", "plain_step_"]
