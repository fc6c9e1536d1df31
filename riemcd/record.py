"""What the last step did, for those who want to look."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .bases import Basis
from .descent import Moved
from .index import linear

__all__ = ["StepRecord"]


@dataclass(eq=False)
class StepRecord:
    """What one step of the optimizer did; nothing is computed before it is asked for.

    Attributes
    ----------
    moved : dict
        By parameter name: what was moved, and by how much.
    """

    moved: dict[str, Moved] = field(default_factory=dict)
    _bases: dict[str, Basis] = field(default_factory=dict, repr=False)

    def add(self, name: str, basis: Basis, moved: Moved) -> None:
        """Note down one parameter."""
        self.moved[name] = moved
        self._bases[name] = basis

    @property
    def coordinates(self) -> dict[str, Tensor]:
        """The coordinates that were moved, by parameter name."""
        return {name: linear(moved.coords) for name, moved in self.moved.items()}

    @property
    def largest_angle(self) -> float:
        """The largest rotation (the largest amount where nothing turns), over all parameters."""
        angles = [
            float(moved.amounts.abs().max()) / self._bases[name].arclength(1.0)
            for name, moved in self.moved.items()
            if moved.amounts.numel()
        ]
        return max(angles, default=0.0)

    @property
    def clipped(self) -> int:
        """How many amounts were cut short."""
        return _total([moved.clipped for moved in self.moved.values()])

    @property
    def skipped(self) -> int:
        """How many coordinates were left alone because their slope was NaN or infinite."""
        return _total([moved.skipped for moved in self.moved.values()])


def _total(counts: list[Tensor | int | None]) -> int:
    return int(sum(int(torch.as_tensor(count).sum()) for count in counts if count is not None))
