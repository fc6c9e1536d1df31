"""Disjoint pairs, all of them in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection

__all__ = ["RoundRobin"]


@final
@dataclass(frozen=True)
class RoundRobin(Selection):
    r"""Take perfect matchings in turn, such that a sweep rotates every pair exactly once.

    The circle method of tournaments: round :math:`r` pairs the columns whose numbers add up to
    :math:`r` modulo :math:`m`. With odd :math:`m = d` one column rests in each round; with even
    :math:`d` the first :math:`m = d - 1` columns do so, and the one that would rest meets the last.
    A sweep has :math:`m` rounds, and the place in it is the number of updates the parameter has had.
    Where single coordinates exist besides pairs, :math:`m = d` and those take their turn who would
    meet themselves.
    """

    pairs = True
    disjoint = True
    sweeps = True

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Take the next matching."""
        d, m = index.nodes, self.steps_per_sweep(index)
        r = draw.step % m
        if m % 2:
            rest = r * ((m + 1) // 2) % m  # twice this is r modulo m
            away = torch.arange(1, (m + 1) // 2, device=draw.device)
            alone = away.new_tensor([rest])
            a, b = (rest + away) % m, (rest - away) % m
            if m < d:
                a, b = torch.cat([a, alone]), torch.cat([b, away.new_tensor([d - 1])])
            return index.matching(a, b, alone), None
        a = torch.arange(m, device=draw.device)
        b = (r - a) % m
        return index.matching(a[a < b], b[a < b], a[a == b]), None

    def steps_per_sweep(self, index: Index) -> int:
        """Return d-1 for even d, d for odd d and where there are single coordinates."""
        d = index.nodes
        return max(1, d if index.singles else d - 1 + d % 2)
