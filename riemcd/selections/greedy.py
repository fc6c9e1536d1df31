"""The steepest coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection, check_size
from .validate import positive_integer, proper_fraction

__all__ = ["GaussSouthwell"]


@final
@dataclass(frozen=True)
class GaussSouthwell(Selection):
    """Take the coordinates with the largest slopes (SRCD-GS; with several of them, block SRCD-GS).

    Name one of the three; ``GaussSouthwell()`` takes one coordinate. Ties go to the lowest index.

    Parameters
    ----------
    k : int, optional
        How many coordinates a step takes.
    fraction : float, optional
        Which share of the ``D`` coordinates a step takes: ``max(1, round(fraction * D))``.
    """

    k: int | None = None
    fraction: float | None = None

    looks_at_slopes = True

    def __post_init__(self) -> None:
        if self.k is not None and self.fraction is not None:
            raise ValueError("GaussSouthwell takes k or fraction, not both.")
        if self.fraction is not None:
            proper_fraction("GaussSouthwell", "fraction", self.fraction)
        elif self.k is None:
            object.__setattr__(self, "k", 1)
        else:
            positive_integer("GaussSouthwell", "k", self.k)

    def size(self, index: Index) -> int:
        """Return how many coordinates a step takes."""
        if self.k is not None:
            return min(self.k, index.count)
        assert self.fraction is not None
        return min(max(1, round(self.fraction * index.count)), index.count)

    @classmethod
    def examples(cls) -> Sequence[GaussSouthwell]:
        """Sizes that differ."""
        return [cls(), cls(k=3), cls(fraction=0.3), cls(fraction=1.0)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Read every slope and keep the largest."""
        return largest(partials.all().abs(), self.size(index)), None

    def check(self, index: Index) -> None:
        """There must be ``k`` coordinates."""
        check_size(self, self.k or 1, index)


def largest(magnitude: Tensor, k: int) -> Tensor:
    """Return where the ``k`` largest entries along the last dimension are, the lowest index first.

    NaN counts as largest, so that it is seen by whoever looks at the chosen slopes.
    """
    if k == 1:
        return magnitude.argmax(-1, keepdim=True)
    if k == 0:
        return magnitude.new_zeros((*magnitude.shape[:-1], 0), dtype=torch.int64)
    magnitude = magnitude.nan_to_num(nan=torch.inf, posinf=torch.inf)
    threshold = magnitude.topk(k, -1).values[..., -1:]
    above, tied = magnitude > threshold, magnitude == threshold
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= room))
    return chosen.nonzero()[:, -1].view(*magnitude.shape[:-1], k)
