"""A selection: sweeps through the coordinates, each in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from riemcd.draw import Draw
from riemcd.index import Coordinates, Index
from riemcd.partials import Partials
from riemcd.selections import Selection


@final
@dataclass(frozen=True)
class Shuffled(Selection):
    """Take every coordinate once before any comes again, ``k`` at a time, in random order.

    The order is a draw that depends on the seed, the number of the sweep and the parameter: nothing has
    to be kept between steps, and a resumed run goes on in the same order. Drawing it takes as long as
    there are coordinates.
    """

    k: int = 1

    sweeps = True

    @classmethod
    def examples(cls) -> Sequence[Shuffled]:
        """Sizes that differ."""
        return [cls(), cls(4)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Take the next ``k`` of this sweep's order; ``partials`` is not asked for anything."""
        sweep, place = divmod(draw.step, self.steps_per_sweep(index))
        order = Draw(draw.seed, sweep, draw.ordinal, draw.device).permutation(index.count)
        return order[place * self.k : (place + 1) * self.k], None

    def steps_per_sweep(self, index: Index) -> int:
        """Return the number of steps that cover all coordinates."""
        return max(1, -(-index.count // self.k))
