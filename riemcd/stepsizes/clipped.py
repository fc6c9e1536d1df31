"""A bound on how far a step may turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..coordstate import CoordinateState
from ..index import Coordinates
from .base import StepSize
from .constant import Constant
from .validate import number

__all__ = ["Clipped"]


@final
@dataclass(frozen=True)
class Clipped(StepSize):
    r"""Let another rule decide, but turn no coordinate by more than ``max_angle``.

    Where a coordinate does not turn, the bound is one on the amount itself. Momentum goes inside: the
    buffer keeps what the inner rule wanted, and what is cut is the move. How many moves were cut is in
    ``opt.last_step.clipped``. Plain parameters get the inner rule as it is.

    Parameters
    ----------
    inner : StepSize
    max_angle : float
        In radians.

    Examples
    --------
    >>> Clipped(Constant(), max_angle=0.1)
    Clipped(inner=Constant(), max_angle=0.1)
    """

    inner: StepSize
    max_angle: float

    def __post_init__(self) -> None:
        if not isinstance(self.inner, StepSize):
            raise TypeError(f"Clipped: inner must be a riemcd.stepsizes.StepSize, got {self.inner!r}.")
        number("Clipped", "max_angle", self.max_angle, 0, float("inf"), from_low=False)

    @classmethod
    def examples(cls) -> Sequence[Clipped]:
        """Around the plain step."""
        return [cls(Constant(), 0.01)]

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        """Whether the inner rule remembers."""
        return self.inner.stateful

    @property
    def has_torch_twin(self) -> bool:  # type: ignore[override]
        """Whether the inner rule has one."""
        return self.inner.has_torch_twin

    @property
    def needs_problem(self) -> bool:  # type: ignore[override]
        """Whether the inner rule needs one."""
        return self.inner.needs_problem

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Cut what the inner rule wants."""
        wanted = self.inner.amounts(slopes, coords, lr=lr, basis=basis, state=state)
        if basis is None:  # entries of a plain parameter
            return wanted
        limit = basis.arclength(self.max_angle)
        cut = (wanted.abs() > limit).sum()
        state.clipped = cut if state.clipped is None else state.clipped + cut
        return wanted.clamp(-limit, limit)

    def wrapped_by(self, wrap: Callable[[StepSize], StepSize]) -> StepSize:
        """Put the momentum inside."""
        return Clipped(self.inner.wrapped_by(wrap), self.max_angle)

    def torch_optimizer(self, params: Iterable[Tensor], **options: Any) -> Optimizer:
        """Return that of the inner rule."""
        return self.inner.torch_optimizer(params, **options)

    def euclidean_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Do what the inner rule does."""
        self.inner.euclidean_(params, grads, states, group)
