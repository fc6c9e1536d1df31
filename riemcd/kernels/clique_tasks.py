"""Tasks for the compiled kernels that move groups of vectors together; see :mod:`.compiled_cliques`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..index import PairSet
from . import team
from .tasks import LINE, NOWHERE, Layout

__all__ = ["LARGEST", "CliqueTask", "small_cliques"]

#: Groups of more columns than this are better left to matrix products.
LARGEST = 64
_INCREMENTS = 1 << 20  # bytes for the increments of some matrices of a batch, or of one
_TILE, _STRIP = 128, 64  # as in the compiled modules, which are imported only where numba is


def small_cliques(pairs: PairSet) -> bool:
    """Return whether the pairs are all those of small groups, on the CPU."""
    return bool(pairs.cliques) and all(c.is_cpu and c.shape[-1] <= LARGEST for c in pairs.cliques)


class CliqueTask:
    """Groups of columns (of rows, where ``rows`` says so) of some tensors, as the kernels read them."""

    __slots__ = ("batch", "cliques", "k", "length", "size")

    def __init__(self, pairs: PairSet, x: Tensor, rows: bool = False) -> None:
        self.cliques = tuple(clique.contiguous() for clique in pairs.cliques)
        self.k, self.length = pairs.size, x.shape[-1 if rows else -2]
        self.batch, self.size = x.shape[:-2].numel(), x.element_size()

    def read(self, u: Layout, v: Layout, out: tuple[int, int], by: tuple[float, float, float]) -> None:
        """Write ``by[0] * by[1]`` times the wedges to ``out``, and whether they are finite where asked to."""
        self._run("read_cliques", u, v, out, by)

    def move(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate by ``turn`` times the amounts."""
        if x[2] == 1:
            self._run("turn_cliques", x, NOWHERE, (amounts, 0), (0.0, 0.0, turn))
        else:
            self._move_columns(x, amounts, turn)

    def _run(
        self, name: str, x: Layout, y: Layout, out: tuple[int, int], by: tuple[float, float, float]
    ) -> None:
        slots, offset = max(1, torch.get_num_threads()), 0
        for nodes in self.cliques:
            groups, r = nodes.shape
            whole = -(-r // 8) * 8
            # Seven small matrices of doubles, and a piece of each vector beside four results.
            room = 8 * (7 * whole * whole + (whole + 4) * _TILE)
            scratch = torch.empty(slots * room + LINE, dtype=torch.uint8)
            numbers = (
                *(x[0], x[1], x[3], y[0], y[1], y[3], nodes.data_ptr(), groups, r, self.length, self.batch),
                *(out[0], self.k, offset, out[1], slots, room, _aligned(scratch), 0, 0),
            )
            team.run(name, self.size, numbers, by, self.batch * nodes.numel() * self.length)
            offset += groups * (r * (r - 1) // 2)

    def _move_columns(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate columns of contiguous rows."""
        slots, offset = max(1, torch.get_num_threads()), 0
        for nodes in self.cliques:
            groups, r = nodes.shape
            whole = -(-r // 8) * 8
            # Six small matrices of doubles, or a few rows of each column before and after.
            room = 8 * whole * max(6 * whole, 2 * _STRIP)
            each = 8 * (whole * whole + 1)  # of a group: its increment, and the largest entry of that
            some = max(1, min(self.batch, _INCREMENTS // (groups * each)))  # matrices at a time
            scratch = torch.empty(slots * room + some * groups * each + LINE, dtype=torch.uint8)
            buffer = _aligned(scratch)
            increments = buffer + slots * room
            for first in range(0, self.batch, some):
                batch = min(some, self.batch - first)
                largest = increments + batch * groups * (each - 8)
                numbers = (
                    *(x[0] + first * x[1] * self.size, x[1], x[2], increments, largest, 0, nodes.data_ptr()),
                    *(groups, r, self.length, batch, amounts + first * self.k * self.size, self.k, offset),
                    *(0, slots, room, buffer, 0, 0),
                )
                by = (0.0, 0.0, turn)
                team.run("exponentials", self.size, numbers, by, batch * groups * whole**3)
                work = batch * nodes.numel() * self.length
                team.run("turn_column_cliques", self.size, numbers, by, work)
            offset += groups * (r * (r - 1) // 2)


def _aligned(scratch: Tensor) -> int:
    """Return the first address of a line in the memory of a tensor."""
    return -(-scratch.data_ptr() // LINE) * LINE
