"""One coordinate after another."""

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
from .validate import positive_integer

__all__ = ["Cyclic"]


@final
@dataclass(frozen=True)
class Cyclic(Selection):
    """Take the coordinates in order, ``k`` at a time; the last step of a sweep may be shorter.

    The place in the sweep is the number of updates the parameter has had, so that a resumed run goes
    on where it stopped.

    Parameters
    ----------
    k : int
        How many coordinates a step takes.
    """

    k: int = 1

    sweeps = True

    def __post_init__(self) -> None:
        positive_integer("Cyclic", "k", self.k)

    @classmethod
    def examples(cls) -> Sequence[Cyclic]:
        """Sizes that differ."""
        return [cls(), cls(4)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Take the next ``k``."""
        start = self.k * (draw.step % self.steps_per_sweep(index))
        return torch.arange(start, min(start + self.k, index.count), device=draw.device), None

    def check(self, index: Index) -> None:
        """There must be ``k`` coordinates."""
        check_size(self, self.k, index)

    def steps_per_sweep(self, index: Index) -> int:
        """Return the number of steps that cover all coordinates."""
        return max(1, -(-index.count // self.k))
