"""Nonlinearities whose derivative can be told from their value, so that nothing else has to be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from ..kernels.pointwise import modrelu_

__all__ = ["NONLINEARITIES", "Nonlinearity"]


class Nonlinearity(ABC):
    """A function applied to every entry.

    Attributes
    ----------
    owns_bias : bool
        The bias belongs to the function, and is not added to its argument.
    number : int or None
        By which the compiled recurrence knows the function; None where it does not.
    """

    owns_bias: bool = False
    number: int | None = None

    @abstractmethod
    def apply_(self, z: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Apply the function in place; ``z`` and ``scratch`` are ``(B, d)``, ``bias`` is ``(d,)``."""

    @abstractmethod
    def slope(self, h: Tensor, out: Tensor) -> None:
        """Write the derivative where the function took the value ``h`` into ``out``, same shape."""

    def bias_gradient(self, h: Tensor, delta: Tensor, scratch: Tensor) -> Tensor:
        """Return the gradient of the bias, ``(d,)``; the others are ``(T, B, d)``."""
        return delta.sum((0, 1))


@final
class ModReLU(Nonlinearity):
    r""":math:`h = \mathrm{sign}(z)\max(|z| + b, 0)`; zero exactly where the slope is."""

    owns_bias = True
    number = 1

    def apply_(self, z: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Apply it in place."""
        if bias is not None:
            modrelu_(z, bias, scratch)

    def slope(self, h: Tensor, out: Tensor) -> None:
        """Return 1 where h is not zero."""
        torch.ne(h, 0, out=out)

    def bias_gradient(self, h: Tensor, delta: Tensor, scratch: Tensor) -> Tensor:
        """Return the sum of sign(h) delta."""
        return torch.sign(h, out=scratch).mul_(delta).sum((0, 1))


@final
class Tanh(Nonlinearity):
    """The hyperbolic tangent."""

    number = 3

    def apply_(self, z: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Apply it in place."""
        z.tanh_()

    def slope(self, h: Tensor, out: Tensor) -> None:
        """Return 1 - h²."""
        torch.mul(h, h, out=out)
        out.neg_().add_(1)


@final
class ReLU(Nonlinearity):
    """The positive part."""

    number = 2

    def apply_(self, z: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Apply it in place."""
        z.relu_()

    def slope(self, h: Tensor, out: Tensor) -> None:
        """Return 1 where h is positive."""
        torch.gt(h, 0, out=out)


@final
class Identity(Nonlinearity):
    """Nothing at all."""

    number = 0

    def apply_(self, z: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Leave it."""

    def slope(self, h: Tensor, out: Tensor) -> None:
        """Return 1."""
        out.fill_(1)


#: Those that the recurrence knows, by name.
NONLINEARITIES: dict[str, Nonlinearity] = {
    "modrelu": ModReLU(),
    "tanh": Tanh(),
    "relu": ReLU(),
    "identity": Identity(),
}
