"""Disjoint pairs: many rotations at the price of one pass over the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection

__all__ = ["RandomMatching"]


@final
@dataclass(frozen=True)
class RandomMatching(Selection):
    """Pair off all columns (or rows) at random: half as many disjoint rotations as there are columns.

    Every pair is equally likely. With an odd number one column is left out. Where single coordinates
    exist besides pairs, all of them are taken too.
    """

    pairs = True
    disjoint = True

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Draw a perfect matching without looking at any slope."""
        return index.halves(draw.permutation(index.nodes)), None

    def inclusion(self, index: Index) -> float | None:
        """Return 2 floor(d/2) / (d(d-1)); single coordinates, always taken, make it uneven."""
        if index.singles:
            return None
        return index.nodes // 2 / index.pairs if index.pairs else 1.0
