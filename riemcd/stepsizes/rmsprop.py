"""Steps scaled by the size of recent slopes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.optim.rmsprop import rmsprop

from ..coordstate import CoordinateState
from ..index import Coordinates
from .base import StepSize
from .momentum import Momentum
from .plain import plain_step_
from .validate import number

__all__ = ["RMSProp"]


@final
@dataclass(frozen=True)
class RMSProp(StepSize):
    r"""Divide every slope by a running root mean square of its own.

    .. math:: v_i \leftarrow \alpha v_i + (1 - \alpha) \partial_i^2, \qquad
              t_i = -\mathrm{lr}\, \partial_i / (\sqrt{v_i} + \epsilon)

    The frame turns with the point, so :math:`v_i` keeps its meaning and nothing is transported. A
    coordinate that is not touched waits: it sees ``torch.optim.RMSprop`` run on its own visits, however
    rare they are. As there, :math:`v_i` starts at zero without correction, so that the first visits of a
    coordinate are up to :math:`1/\sqrt{1 - \alpha}` times longer than ``lr``.

    Parameters
    ----------
    alpha : float
        How much of the running mean a visit keeps.
    eps : float
        Added to the denominator.

    Examples
    --------
    >>> import geoopt, riemcd
    >>> W = geoopt.ManifoldParameter(torch.eye(4), manifold=geoopt.EuclideanStiefel())
    >>> opt = riemcd.SRCD([W], lr=1e-3, stepsize=riemcd.stepsizes.RMSProp())
    """

    alpha: float = 0.99
    eps: float = 1e-8

    stateful = True
    has_torch_twin = True

    def __post_init__(self) -> None:
        number("RMSProp", "alpha", self.alpha, 0, 1)
        number("RMSProp", "eps", self.eps, 0, float("inf"))

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Update the mean squares of the touched coordinates and divide by their roots."""
        square = torch.addcmul(state.read("square_avg") * self.alpha, slopes, slopes, value=1 - self.alpha)
        state.write("square_avg", square)
        return slopes / square.sqrt().add_(self.eps) * -lr

    def torch_optimizer(self, params: Iterable[Tensor], **options: Any) -> Optimizer:
        """Return a ``torch.optim.RMSprop``."""
        return torch.optim.RMSprop(params, alpha=self.alpha, eps=self.eps, **options)

    def euclidean_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Do what ``torch.optim.RMSprop`` does; it knows neither dampening nor Nesterov's momentum."""
        momentum, dampening, nesterov = group["momentum"], group["dampening"], group["nesterov"]
        if momentum != 0 and (dampening != 0 or nesterov):
            rule = Momentum(self, momentum, dampening, nesterov)
            for param, grad, state in zip(params, grads, states, strict=True):
                plain_step_(rule, param, grad, state, group)
            return
        names = ("square_avg", "momentum_buffer") if momentum != 0 else ("square_avg",)
        for param, state in zip(params, states, strict=True):
            for name in names:
                if name not in state:
                    state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        rmsprop(
            list(params),
            [grad.to_dense() if grad.is_sparse else grad for grad in grads],
            [state["square_avg"] for state in states],
            [],
            [state["momentum_buffer"] for state in states] if momentum != 0 else [],
            [torch.tensor(float(state.get("step", 0))) for state in states],
            has_complex=any(param.is_complex() for param in params),
            maximize=group["maximize"],
            lr=group["lr"],
            alpha=self.alpha,
            eps=self.eps,
            weight_decay=group["weight_decay"],
            momentum=momentum,
            centered=False,
        )
