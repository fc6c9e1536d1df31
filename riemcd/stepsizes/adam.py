"""Averaged slopes over the root of averaged squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from ..coordstate import CoordinateState
from ..index import Coordinates
from ..kernels import moments
from .base import StepSize
from .validate import number

__all__ = ["Adam"]

_USUAL = (torch.float32, torch.float64)


@final
@dataclass(frozen=True)
class Adam(StepSize):
    r"""Adam, with moments and a count of visits for every coordinate.

    .. math:: m_i \leftarrow \beta_1 m_i + (1 - \beta_1) \partial_i, \quad
              v_i \leftarrow \beta_2 v_i + (1 - \beta_2) \partial_i^2, \quad
              t_i = -\mathrm{lr}\, \frac{m_i / (1 - \beta_1^{k_i})}
                                       {\sqrt{v_i / (1 - \beta_2^{k_i})} + \epsilon}

    where :math:`k_i` counts how often coordinate :math:`i` was visited, this time included. The bias that
    is taken out is that of the coordinate itself: with the number of steps in the place of
    :math:`k_i`, a coordinate first visited at step 1000 would move :math:`(1 - \beta_1)/\sqrt{1 - \beta_2}`
    = 3.2 times too far. Moments wait between visits: letting them decay by the steps missed would leave
    nothing of them after the :math:`d - 1` steps between two visits of a pair, and Adam would be a step
    by the sign of the slope.

    Parameters
    ----------
    betas : (float, float)
        How much of the running means a visit keeps.
    eps : float
        Added to the denominator.
    amsgrad : bool
        Divide by the largest :math:`v_i` so far.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False

    stateful = True
    has_torch_twin = True

    def __post_init__(self) -> None:
        betas: Any = self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise TypeError(f"Adam: betas must be two numbers, got {betas!r}.")
        object.__setattr__(self, "betas", tuple(betas))
        for beta in self.betas:
            number("Adam", "betas", beta, 0, 1)
        number("Adam", "eps", self.eps, 0, float("inf"))
        if not isinstance(self.amsgrad, bool):
            raise TypeError(f"Adam: amsgrad must be True or False, got {self.amsgrad!r}.")

    @classmethod
    def examples(cls) -> Sequence[Adam]:
        """With and without the largest mean square."""
        return [cls(), cls(amsgrad=True)]

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Update the moments of the touched coordinates and move by their corrected ratio."""
        found = self._at_once(slopes, lr, state)
        if found is not None:
            return found
        beta1, beta2 = self.betas
        visits = state.read("visits", torch.int32) + 1
        mean = state.read("exp_avg").lerp(slopes, 1 - beta1)
        square = torch.addcmul(state.read("exp_avg_sq") * beta2, slopes, slopes, value=1 - beta2)
        state.write("visits", visits)
        state.write("exp_avg", mean)
        state.write("exp_avg_sq", square)
        if self.amsgrad:
            square = torch.maximum(state.read("max_exp_avg_sq"), square)
            state.write("max_exp_avg_sq", square)
        count = visits.to(torch.float64)
        # 1 - beta^count; ten times faster than a power
        bias1, bias2 = (-torch.expm1(count * (math.log(beta) if beta else -math.inf)) for beta in self.betas)
        denominator = (square.sqrt() / bias2.sqrt().to(square.dtype)).add_(self.eps)
        return mean / denominator * (-lr / bias1).to(mean.dtype)

    def _at_once(self, slopes: Tensor, lr: float | Tensor, state: CoordinateState) -> Tensor | None:
        """Do so in one pass, where a compiled one serves."""
        if self.amsgrad or isinstance(lr, Tensor) or not state.direct:
            return None
        kept = (state.buffer("visits", torch.int32), state.buffer("exp_avg"), state.buffer("exp_avg_sq"))
        return moments.adam(slopes, state.coords, *kept, self.betas, self.eps, lr)

    def wrapped_by(self, wrap: Callable[[StepSize], StepSize]) -> StepSize:
        """Refuse a second momentum."""
        raise ValueError(
            "Adam averages slopes itself: momentum= must be 0 with it. Change its betas, or use RMSProp."
        )

    def torch_optimizer(self, params: Iterable[Tensor], **options: Any) -> Optimizer:
        """Return a ``torch.optim.Adam``."""
        return torch.optim.Adam(params, betas=self.betas, eps=self.eps, amsgrad=self.amsgrad, **options)

    def euclidean_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Do what ``torch.optim.Adam`` does."""
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))
        for param, state in zip(params, states, strict=True):
            for name in names:
                if name not in state:
                    state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        if self._all_at_once_(params, grads, states, group):
            return
        beta1, beta2 = self.betas
        adam(
            list(params),
            [grad.to_dense() if grad.is_sparse else grad for grad in grads],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if self.amsgrad else [],
            # The optimizer counts a step when it is done; torch counts it before.
            [torch.tensor(float(state.get("step", 0))) for state in states],
            has_complex=any(param.is_complex() for param in params),
            amsgrad=self.amsgrad,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.eps,
            maximize=group["maximize"],
        )

    def _all_at_once_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> bool:
        """Do so for all parameters together: for small ones, calls take longer than what they do.

        The operations are those of torch, in its order, so that no bit differs. Returns False where a
        parameter, its gradient or an option is out of the ordinary, with nothing done.
        """
        lr, step = group["lr"], states[0].get("step", 0)
        unusual = self.amsgrad or group["weight_decay"] or group["maximize"] or isinstance(lr, Tensor)
        if unusual or any(state.get("step", 0) != step for state in states):
            return False
        # Numbers of half the width are rounded at other places when they are worked on together.
        if any(param.dtype not in _USUAL for param in params) or any(grad.is_sparse for grad in grads):
            return False
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        beta1, beta2 = self.betas
        count = float(step) + 1
        params, grads = list(params), list(grads)
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2**count) ** 0.5)
        torch._foreach_add_(roots, self.eps)
        torch._foreach_addcdiv_(params, means, roots, value=-(lr / (1 - beta1**count)))
        return True
