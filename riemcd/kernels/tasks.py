"""Tasks for the compiled kernels: where tensors lie, and which kernels run over them.

A task is twenty integers (addresses, strides in elements, sizes) and three doubles; their places are those
that :mod:`riemcd.kernels.compiled` and :mod:`riemcd.kernels.compiled_columns` read.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from ..index import PairSet
from . import team

__all__ = ["CHUNKS", "NOWHERE", "Layout", "PairTask", "layout", "transposed"]

#: The layout of a tensor that is not there.
NOWHERE = (0, 0, 0, 0)
_EIGHT, _NONE = (0,) * 8, (0.0, 0.0, 0.0)
LINE, VECTOR = 64, 32  # bytes, as in the compiled module, which is imported only where numba is
SHARED = range(1 << 21, 1 << 24 | 1)  # bytes that a shared cache may hold, but not that of one core
CHUNKS = 16  # of rows, when columns are summed: shapes decide them, never the number of threads

Layout = tuple[int, int, int, int]  # address, and strides over the batch, the rows and the columns


def layout(x: Tensor) -> Layout | None:
    """Return where ``x``, ``(*batch, rows, d)``, lies; None when its batch has no single stride."""
    stride = x.stride()
    if len(stride) == 2:
        return x.data_ptr(), 0, stride[0], stride[1]
    for outer, inner, size in zip(stride[:-3], stride[1:-2], x.shape[1:-2], strict=True):
        if outer != inner * size:
            return None
    return x.data_ptr(), stride[-3], stride[-2], stride[-1]


def transposed(at: Layout) -> Layout:
    """Return where the transposed of a matrix lies."""
    return at[0], at[1], at[3], at[2]


class PairTask:
    """Pairs of columns (of rows, where ``rows`` says so) of some tensors, as the kernels read them."""

    __slots__ = ("batch", "hi", "k", "keep", "lo", "rows", "size", "stride", "width")

    def __init__(self, pairs: PairSet, x: Tensor, rows: bool = False) -> None:
        shape = x.shape
        self.k, self.rows, self.width = pairs.size, shape[-2], shape[-1]
        if rows:
            self.rows, self.width = shape[-1], shape[-2]
        self.stride = 0
        self.keep: Any = None  # alive until the kernels have read the ends
        if pairs.single is not None:
            ends = array("q", pairs.single)
            self.keep, self.lo = ends, ends.buffer_info()[0]
            self.hi = self.lo + 8
        elif pairs.order is not None and pairs.order.is_contiguous():
            self.lo = pairs.order.data_ptr()
            self.hi = self.lo + 8 * self.k
        else:
            lo, hi = pairs.ends
            if not (lo.is_contiguous() and hi.is_contiguous()):
                lo, hi = lo.contiguous(), hi.contiguous()
            self.keep = lo, hi
            self.lo, self.hi = lo.data_ptr(), hi.data_ptr()
            self.stride = 0 if lo.dim() == 1 else self.k
        self.batch = 1 if len(shape) == 2 else shape[:-2].numel()
        self.size = x.element_size()

    @property
    def work(self) -> int:
        return 2 * self.batch * self.k * self.rows

    def vectors(
        self,
        u: Layout,
        v: Layout,
        x: Layout,
        out: tuple[int, int],
        does: tuple[int, int, int],
        by: tuple[float, float, float],
    ) -> None:
        """Read or move contiguous vectors."""
        at = (u[0], u[1], u[3], v[0], v[1], v[3], x[0], x[1], x[3], self.lo, self.hi, self.stride)
        threads = team.size()
        if threads > 1 == self.batch and does[0] and does[1] and 2 * self.work * self.size in SHARED:
            room = torch.empty(threads * (self.k + self.width), dtype=torch.int64)
            numbers = (*at, *out, room.data_ptr(), self.k, self.rows, self.width, *does[1:])
            team.run("in_order", self.size, numbers, by, self.work)
            return
        team.run("vectors", self.size, (*at, *out, self.batch, self.k, self.rows, *does), by, self.work)

    def read(
        self, u: Layout, v: Layout, out: tuple[int, int], skips: int, by: tuple[float, float, float]
    ) -> None:
        """Write ``by[0] * by[1]`` times the wedges to ``out``, and whether they are finite where asked to."""
        if u[2] == 1 == v[2]:
            self.vectors(u, v, NOWHERE, out, (1, 0, skips), by)
        elif self.few:
            self.few_pairs(u, v, out, (1, 0, skips, 0), by)
        else:
            self.columns(u, v, NOWHERE, out, (1, 0, skips), by)

    def move(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate by ``turn`` times the amounts."""
        if x[2] == 1:
            self.vectors(NOWHERE, NOWHERE, x, (amounts, 0), (0, 1, 0), (0.0, 0.0, turn))
        elif self.few:
            self.few_pairs(x, NOWHERE, (amounts, 0), (0, 1, 0, 0), (0.0, 0.0, turn))
        else:
            self.columns(NOWHERE, NOWHERE, x, (amounts, 0), (0, 1, 0), (0.0, 0.0, turn))

    @property
    def few(self) -> bool:
        """Whether the pairs are so few that rows are not worth going through."""
        return 16 * self.k <= self.width

    def few_pairs(
        self,
        u: Layout,
        v: Layout,
        out: tuple[int, int],
        does: tuple[int, int, int, int],
        by: tuple[float, float, float],
    ) -> None:
        """Read or move vectors of any stride; the last of ``does`` says that the point is ``v``."""
        at = (self.lo, self.hi, self.stride)
        team.run("few", self.size, (*u, *v, *at, *out, self.batch, self.k, self.rows, *does), by, self.work)

    def columns(
        self,
        u: Layout,
        v: Layout,
        x: Layout,
        out: tuple[int, int],
        does: tuple[int, int, int],
        by: tuple[float, float, float],
    ) -> None:
        """Read or move columns row by row; ``does`` says whether to read, to move and to skip."""
        each, size = self.batch * self.k, self.size
        chunks = max(1, min(CHUNKS, -(-self.rows * size // LINE)))
        slots = max(1, torch.get_num_threads())
        # Zeros, a line for each column and a vector for each pair.
        near = LINE * (1 + self.width + -(-self.k // 2))
        scratch = torch.empty(slots * near + (chunks + 2) * each * size + LINE, dtype=torch.uint8)
        buffer = -(-scratch.data_ptr() // LINE) * LINE
        s = buffer + slots * near
        tau, sums = s + each * size, s + 2 * each * size
        at, shape = (self.lo, self.hi, self.stride), (self.batch, self.k, self.rows)
        whole = self.width * size >= VECTOR
        if does[0] and whole and u[3] == 1 == v[3]:
            numbers = (*u, *v, buffer, *at, sums, near, *shape, chunks, self.width, slots)
            team.run("read_tiles", size, numbers, _NONE, self.work)
        elif does[0]:
            numbers = (*u, *v, 0, *at, sums, 0, *shape, chunks, 0, size)
            team.run("read_columns", size, numbers, _NONE, self.work)
        numbers = (sums, s, tau, *_EIGHT[:6], *at, *out, self.batch, self.k, chunks, *does)
        team.run("finish", size, numbers, by, each)
        if does[1] and whole and x[3] == 1:
            numbers = (*x, s, tau, 0, 0, buffer, *at, 0, near, *shape, chunks, self.width, slots)
            team.run("turn_tiles", size, numbers, _NONE, self.work)
        elif does[1]:
            numbers = (*x, s, tau, 0, 0, 0, *at, 0, 0, *shape, 0, 0, 0)
            team.run("turn_columns", size, numbers, _NONE, self.work)
