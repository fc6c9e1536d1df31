"""Random cliques: from a matching to the full gradient step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection
from .validate import positive_integer

__all__ = ["Partition"]


@final
@dataclass(frozen=True)
class Partition(Selection):
    r"""Deal all columns (or rows) at random into groups of ``size`` and take every pair inside a group.

    The groups commute, and each moves by one small exponential. ``Partition(2)`` is a random matching;
    ``Partition(d)`` takes every coordinate, like `All`. What does not fill a group makes a smaller
    one. A coordinate is taken with probability :math:`\sum_b r_b (r_b - 1) / (d (d - 1))`.

    Parameters
    ----------
    size : int
        How many columns make a group, at least 2.
    """

    size: int

    pairs = True
    grows = "size"

    def __post_init__(self) -> None:
        positive_integer("Partition", "size", self.size)
        if self.size < 2:
            raise ValueError("Partition: size must be at least 2, got 1: one column has no pair.")

    @classmethod
    def examples(cls) -> Sequence[Partition]:
        """Sizes that divide the columns, and sizes that leave a rest."""
        return [cls(2), cls(3), cls(64)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Deal the columns without looking at any slope."""
        if 2 < index.nodes <= self.size:  # one group, whatever the order
            return index.everything(draw.device), None
        groups, rest = self._groups(index)
        order = draw.permutation(index.nodes)
        full = order[: groups * self.size].view(groups, self.size)
        if self.size == 2:
            return index.matching(full[:, 0], full[:, 1]), None
        return index.partition((full, order[groups * self.size :].view(1, rest))), None

    def inclusion(self, index: Index) -> float | None:
        """Return the probability that two columns meet; single coordinates make it uneven."""
        if index.singles:
            return None
        groups, rest = self._groups(index)
        taken = groups * self.size * (self.size - 1) + rest * (rest - 1)
        return taken / (2 * index.pairs) if index.pairs else 1.0

    def _groups(self, index: Index) -> tuple[int, int]:
        """Return how many full groups there are, and how many columns are left over."""
        return divmod(index.nodes, self.size)
