"""The best angle itself, for losses that are trigonometric along a rotation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..coordstate import CoordinateState
from ..index import Coordinates
from .base import StepSize
from .pair_model import PairModel
from .validate import number

__all__ = ["Exact"]


@final
@dataclass(frozen=True)
class Exact(StepSize):
    r"""Turn every pair to the least loss it can reach, :math:`\theta = \omega\,\theta^*`; no learning rate.

    It needs to know the loss along a rotation, not its slope only, and so a problem of
    `riemcd.problems`: use it with `riemcd.minimize`.

    Parameters
    ----------
    relax : float
        The over-relaxation :math:`\omega` in (0, 2): 1 goes to the minimum of each pair, more goes beyond.
    reflections : bool
        Start from the other determinant where the loss is lower there, for problems that can tell.

    Examples
    --------
    >>> import torch, riemcd
    >>> M = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)).roll(1, 0)
    >>> found = riemcd.minimize(riemcd.problems.LinearTrace(M), torch.eye(3, dtype=torch.float64))
    >>> round(found.value, 6)
    -6.0
    """

    relax: float = 1.0
    reflections: bool = False

    needs_problem = True

    def __post_init__(self) -> None:
        number("Exact", "relax", self.relax, 0, 2, from_low=False)
        if not isinstance(self.reflections, bool):
            raise TypeError(f"Exact: reflections must be True or False, got {self.reflections!r}.")

    @classmethod
    def examples(cls) -> Sequence[Exact]:
        """Exact and over-relaxed."""
        return [cls(), cls(relax=1.8)]

    def angles(self, model: PairModel) -> Tensor:
        """Return how far to turn each pair, ``(k,)``."""
        return self.relax * model.minimizer()

    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Refuse: a slope does not say where the minimum is."""
        raise TypeError("Exact needs a problem and not slopes: use riemcd.minimize(problem, x0).")

    def wrapped_by(self, wrap: Callable[[StepSize], StepSize]) -> StepSize:
        """Refuse momentum."""
        raise ValueError("Exact knows how far to go and takes no momentum: leave momentum=0.")
