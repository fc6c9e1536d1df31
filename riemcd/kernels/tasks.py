"""Tasks for the compiled kernels: where tensors lie, and which kernels run over them.

A task is twenty integers (addresses, strides in elements, sizes) and three doubles; their places are those
that :mod:`riemcd.kernels.compiled` and :mod:`riemcd.kernels.compiled_columns` read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..index import PairSet
from . import team

__all__ = ["CHUNKS", "NOWHERE", "Layout", "PairTask", "layout", "transposed"]

NOWHERE = (0, 0, 0, 0)
_EIGHT = (0,) * 8
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

    __slots__ = ("batch", "columns", "hi", "k", "keep", "lo", "rows", "size", "stride")

    def __init__(self, pairs: PairSet, x: Tensor, rows: bool = False) -> None:
        shape = x.shape
        self.k, self.rows, self.columns = pairs.size, shape[-2], shape[-1]
        if rows:
            self.rows, self.columns = shape[-1], shape[-2]
        self.stride = 0
        if pairs.order is not None and pairs.order.is_contiguous():
            self.lo = pairs.order.data_ptr()
            self.hi = self.lo + 8 * self.k
        else:
            lo, hi = pairs.ends
            if not (lo.is_contiguous() and hi.is_contiguous()):
                lo, hi = lo.contiguous(), hi.contiguous()
            self.keep = lo, hi  # alive until the kernels have read them
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
        team.run("vectors", self.size, (*at, *out, self.batch, self.k, self.rows, *does), by, self.work)

    def read(
        self, u: Layout, v: Layout, out: tuple[int, int], skips: int, by: tuple[float, float, float]
    ) -> None:
        """Write ``by[0] * by[1]`` times the wedges to ``out``, and whether they are finite where asked to."""
        if u[2] == 1 == v[2]:
            self.vectors(u, v, NOWHERE, out, (1, 0, skips), by)
        else:
            self.columns_read(u, v, out, skips, by)

    def move(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate by ``turn`` times the amounts."""
        if x[2] == 1:
            self.vectors(NOWHERE, NOWHERE, x, (amounts, 0), (0, 1, 0), (0.0, 0.0, turn))
        else:
            self.columns_move(x, amounts, turn)

    def columns_read(
        self, u: Layout, v: Layout, out: tuple[int, int], skips: int, by: tuple[float, float, float]
    ) -> None:
        """Read columns row by row."""
        chunks = min(CHUNKS, self.rows)
        sums = torch.empty(self.batch * chunks * self.k * self.size, dtype=torch.uint8)
        at, shape = (self.lo, self.hi, self.stride), (self.batch, self.k, self.rows, chunks, self.columns)
        numbers = (*u, *v, 0, *at, sums.data_ptr(), 0, *shape, self.size)
        team.run("read_columns", self.size, numbers, (0.0, 0.0, 0.0), self.work)
        numbers = (sums.data_ptr(), *_EIGHT, *at, *out, self.batch, self.k, chunks, 1, 0, skips)
        team.run("finish", self.size, numbers, by, self.batch * self.k)

    def columns_move(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate columns row by row."""
        each, size, at = self.batch * self.k, self.size, (self.lo, self.hi, self.stride)
        if x[3] == 1 and 4 * self.k > self.columns:
            self._matrix_move(x, amounts, turn)
            return
        angles = torch.empty(2 * each * size, dtype=torch.uint8)
        s = angles.data_ptr()
        tau = s + each * size
        numbers = (0, s, tau, *_EIGHT[:6], *at, amounts, 0, self.batch, self.k, 0, 0, 1, 0)
        team.run("finish", size, numbers, (0.0, 0.0, turn), each)
        numbers = (*x, s, tau, 0, 0, 0, *at, 0, 0, self.batch, self.k, self.rows, 0, 0, 0)
        team.run("turn_columns", size, numbers, (0.0, 0.0, 0.0), self.work)

    def _matrix_move(self, x: Layout, amounts: int, turn: float) -> None:
        """Rotate nearly all columns: each finds its partner, its sine and its half tangent in arrays."""
        d, size, chunks = self.columns, self.size, min(CHUNKS, self.rows)
        each = self.batch * d
        scratch = torch.empty(each * (8 + (2 + chunks) * size), dtype=torch.uint8)
        if 2 * self.k < d:  # those without a partner turn with themselves, by nothing
            scratch.zero_()
            scratch[: 8 * each].view(torch.int64).view(self.batch, d).copy_(torch.arange(d))
        partner = scratch.data_ptr()
        s = partner + 8 * each
        tau = s + size * each
        at = (self.lo, self.hi, self.stride)
        numbers = (0, s, tau, partner, d, *_EIGHT[:4], *at, amounts, 0, self.batch, self.k, 0, 0, 1, 0)
        team.run("finish", size, numbers, (0.0, 0.0, turn), self.batch * self.k)
        shape = (self.batch, self.k, self.rows, chunks, d, 0)
        numbers = (*x, s, tau, partner, tau + size * each, *_EIGHT[:6], *shape)
        team.run("turn_matrix", size, numbers, (0.0, 0.0, 0.0), self.work)
