"""Every coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection

__all__ = ["All"]


@final
@dataclass(frozen=True)
class All(Selection):
    """Take every coordinate: Riemannian gradient descent, with the exponential map on square matrices."""

    sweeps = True

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Take them all, in order."""
        return index.everything(draw.device), None

    def steps_per_sweep(self, index: Index) -> int:
        """Return 1."""
        return 1
