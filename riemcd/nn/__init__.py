"""Layers with orthonormal weights, which can train without ever forming the weight gradient."""

from . import functional, init
from .activations import ModReLU
from .linear import OrthogonalLinear
from .rnn import OrthogonalRNN

__all__ = ["ModReLU", "OrthogonalLinear", "OrthogonalRNN", "functional", "init"]
