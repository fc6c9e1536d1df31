"""A heavy ball per coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..coordstate import CoordinateState
from ..index import Coordinates
from .base import StepSize
from .constant import Constant

__all__ = ["Momentum"]


@final
@dataclass(frozen=True)
class Momentum(StepSize):
    r"""Wrap a rule in momentum, one number per coordinate; made by ``SRCD(momentum=)``.

    .. math:: b \leftarrow \mu b + (1 - \delta) d, \qquad t = \mathrm{lr}\, b

    where :math:`d` is what the inner rule would do at ``lr = 1``; with ``nesterov``,
    :math:`t = \mathrm{lr}(d + \mu b)`. As in ``torch.optim.SGD`` the first visit of a coordinate sets
    :math:`b = d`. In a frame that is a smooth function of the point a coefficient means the same
    direction everywhere, so nothing is transported. A coordinate that is not touched waits.

    Parameters
    ----------
    inner : StepSize
    momentum, dampening : float
    nesterov : bool
    """

    inner: StepSize
    momentum: float
    dampening: float = 0.0
    nesterov: bool = False

    stateful = True

    @classmethod
    def examples(cls) -> Sequence[Momentum]:
        """Plain, dampened and Nesterov."""
        plain = Constant()
        return [cls(plain, 0.9), cls(plain, 0.9, dampening=0.5), cls(plain, 0.9, nesterov=True)]

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Average what the inner rule would do."""
        wanted = self.inner.amounts(slopes, coords, lr=1.0, basis=basis, state=state)
        buffer = state.read("momentum_buffer")
        ball = self.momentum * buffer + (1 - self.dampening) * wanted
        if self.dampening != 0:
            seen = state.read("momentum_seen", torch.bool)
            ball = torch.where(seen, ball, wanted)
            state.write("momentum_seen", torch.ones_like(seen))
        state.write("momentum_buffer", ball)
        return (wanted + self.momentum * ball if self.nesterov else ball) * lr
