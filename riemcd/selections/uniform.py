"""Every coordinate equally likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection, check_size
from .validate import positive_integer

__all__ = ["Uniform"]


@final
@dataclass(frozen=True)
class Uniform(Selection):
    """Take ``k`` different coordinates, every set equally likely: the rule of the theorem (SRCD-U).

    Parameters
    ----------
    k : int
        How many coordinates a step takes.
    """

    k: int = 1

    grows = "k"

    def __post_init__(self) -> None:
        positive_integer("Uniform", "k", self.k)

    @classmethod
    def examples(cls) -> Sequence[Uniform]:
        """Sizes that differ."""
        return [cls(), cls(3)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Draw without looking at any slope."""
        if self.k == 1 and index.count > 0:
            return index.one(draw.integer(index.count), draw.device), None
        return draw.sample(index.count, min(self.k, index.count)), None

    def check(self, index: Index) -> None:
        """There must be ``k`` coordinates."""
        check_size(self, self.k, index)

    def inclusion(self, index: Index) -> float | None:
        """Return k/D."""
        return min(1.0, self.k / index.count) if index.count else 1.0
