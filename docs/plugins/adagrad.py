"""A step size: slopes divided by the root of the sum of their squares, as in AdaGrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from riemcd.coordstate import CoordinateState
from riemcd.index import Coordinates
from riemcd.stepsizes import StepSize


@final
@dataclass(frozen=True)
class AdaGrad(StepSize):
    r"""Slow down every coordinate by its own history.

    .. math:: v_i \leftarrow v_i + \partial_i^2, \qquad
              t_i = -\mathrm{lr}\, \partial_i / (\sqrt{v_i} + \epsilon)
    """

    eps: float = 1e-10

    stateful = True  # one number per coordinate: bases whose directions are not consistent refuse it

    def amounts(
        self,
        slopes: Tensor,  # (*batch, k)
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Add to the sums of the touched coordinates, and divide by their roots."""
        total = state.read("sum") + slopes.square()
        state.write("sum", total)
        return -lr * slopes / (total.sqrt() + self.eps)
