"""The steepest coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials, largest
from .base import Selection, check_size
from .validate import positive_integer, proper_fraction

__all__ = ["GaussSouthwell"]


@final
@dataclass(frozen=True)
class GaussSouthwell(Selection):
    """Take the coordinates with the largest slopes (SRCD-GS; with several of them, block SRCD-GS).

    Name a ``k`` or a ``fraction``; ``GaussSouthwell()`` takes one coordinate. With ``candidates`` only
    so many randomly drawn coordinates are looked at, and no product of matrices is formed. Ties go to
    the lowest index, among candidates to the first drawn.

    Parameters
    ----------
    k : int, optional
        How many coordinates a step takes.
    fraction : float, optional
        Which share of the ``D`` coordinates a step takes: ``max(1, round(fraction * D))``.
    candidates : int, optional
        Out of how many randomly drawn coordinates; all of them where there are not so many.
    """

    k: int | None = None
    fraction: float | None = None
    candidates: int | None = None

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
        if self.candidates is None:
            return
        positive_integer("GaussSouthwell", "candidates", self.candidates)
        if self.fraction is not None:
            raise ValueError("GaussSouthwell takes fraction or candidates, not both: give k candidates.")
        if self.k is not None and self.k > self.candidates:
            raise ValueError(f"GaussSouthwell cannot take {self.k} out of {self.candidates} candidates.")

    @property
    def grows(self) -> str:  # type: ignore[override]
        """The share or the number of coordinates, whichever was given."""
        return "k" if self.fraction is None else "fraction"

    def size(self, index: Index) -> int:
        """Return how many coordinates a step takes."""
        if self.k is not None:
            return min(self.k, index.count)
        assert self.fraction is not None
        return min(max(1, round(self.fraction * index.count)), index.count)

    @classmethod
    def examples(cls) -> Sequence[GaussSouthwell]:
        """Sizes that differ."""
        return [cls(), cls(k=3), cls(fraction=0.3), cls(fraction=1.0), cls(candidates=4)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Read every slope, or those of the candidates, and keep the largest."""
        size = self.size(index)
        if self.candidates is None:
            return partials.largest(size), None
        candidates = draw.sample(index.count, min(self.candidates, index.count))
        return candidates[largest(partials.at(index.resolve(candidates)).abs(), size)], None

    def check(self, index: Index) -> None:
        """There must be ``k`` coordinates."""
        check_size(self, self.k or 1, index)
