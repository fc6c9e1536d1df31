"""The socket for step sizes: how far along each coordinate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..coordstate import CoordinateState
from ..index import Coordinates

__all__ = ["StepSize"]


class StepSize(ABC):
    """A rule that turns slopes into amounts.

    Attributes
    ----------
    stateful : bool
        The rule keeps numbers per coordinate, and so needs a basis whose frame is ``consistent``.
    has_torch_twin : bool
        torch has an optimizer of this name: `euclidean_` does to plain parameters what that one does.
        For other rules every entry of a plain parameter is a coordinate.
    proportional : bool
        Amounts are ``-lr`` times the slopes, whatever the coordinates.
    needs_problem : bool
        The rule reads more of the loss than its slopes: it serves `riemcd.minimize`, not `SRCD`.
    """

    stateful: bool = False
    has_torch_twin: bool = False
    proportional: bool = False
    needs_problem: bool = False

    @abstractmethod
    def amounts(
        self,
        slopes: Tensor,
        coords: Coordinates,
        *,
        lr: float | Tensor,
        basis: Any,
        state: CoordinateState,
    ) -> Tensor:
        """Return how far to move, ``(*batch, k)``, given the slopes ``(*batch, k)``."""

    def wrapped_by(self, wrap: Callable[[StepSize], StepSize]) -> StepSize:
        """Return this rule inside ``wrap``, which adds momentum; wrappers pass it on to what they hold."""
        return wrap(self)

    @classmethod
    def examples(cls) -> Sequence[StepSize]:
        """Return rules of this kind for the laws to try; the plain one unless told otherwise."""
        return [cls()]

    def torch_optimizer(self, params: Iterable[Tensor], **options: Any) -> Optimizer:
        """Return the torch optimizer that plain parameters follow, where there is a twin."""
        raise TypeError(f"{self!r} has no twin among torch's optimizers.")

    def euclidean_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        """Update plain parameters in place with torch's own functional code, where there is a twin."""
        raise TypeError(f"{self!r} has no twin among torch's optimizers.")
