"""Plain SRCD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.optim.sgd import SGD, sgd

from ..coordstate import CoordinateState
from ..index import Coordinates
from .base import StepSize

__all__ = ["Constant"]


@final
@dataclass(frozen=True)
class Constant(StepSize):
    r"""Move by :math:`t_i = -\mathrm{lr}\,\partial_i`: the step of the paper, and the default."""

    has_torch_twin = True
    proportional = True

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Scale the slopes."""
        return slopes * -lr

    def torch_optimizer(self, params: Iterable[Tensor], **options: Any) -> Optimizer:
        """Return ``torch.optim.SGD``."""
        return SGD(params, **options)

    def euclidean_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Do what ``torch.optim.SGD`` does."""
        buffers = [state.get("momentum_buffer") for state in states]
        options = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        sgd(
            list(params),
            list(grads),
            buffers,
            has_sparse_grad=any(grad.is_sparse for grad in grads),
            **{name: group[name] for name in options},
        )
        if group["momentum"] != 0:
            for state, buffer in zip(states, buffers, strict=True):
                state["momentum_buffer"] = buffer
