"""Describing tensors to the compiled kernels; every function says whether it could serve them.

The task of each kernel is twenty integers (addresses, strides in elements, sizes) and three doubles; their
places are those that :mod:`riemcd.kernels.compiled` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from ..index import PairSet
from . import team

__all__ = ["descend_", "only_torch", "rotate_", "steepest", "upper", "wedge"]

_enabled = True
_DTYPES = (torch.float32, torch.float64)
_STRIDED = torch.strided
_NO_DISPATCH = Tensor.__torch_dispatch__
_NOWHERE = (0, 0, 0, 0)
_EIGHT = (0,) * 8
_CHUNKS = 16  # of rows, when columns are summed: shapes decide them, never the number of threads

Layout = tuple[int, int, int, int]  # address, and strides over the batch, the rows and the columns


@contextmanager
def only_torch() -> Iterator[None]:
    """Do without the compiled kernels inside this context: for comparisons."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def _serves(x: Tensor) -> bool:
    return (
        x.is_cpu
        and x.dtype in _DTYPES
        and x.layout is _STRIDED
        and type(x).__torch_dispatch__ is _NO_DISPATCH  # a wrapper has no memory of its own
        and _enabled
        and not is_compiling()
        and team.available()
        and x.numel() > 0
    )


def _layout(x: Tensor) -> Layout | None:
    """Return where ``x``, ``(*batch, rows, d)``, lies; None when its batch has no single stride."""
    stride = x.stride()
    if len(stride) == 2:
        return x.data_ptr(), 0, stride[0], stride[1]
    for outer, inner, size in zip(stride[:-3], stride[1:-2], x.shape[1:-2], strict=True):
        if outer != inner * size:
            return None
    return x.data_ptr(), stride[-3], stride[-2], stride[-1]


class _Pairs:
    """Pairs as the kernels read them, and how often they are read."""

    __slots__ = (
        "batch",
        "columns",
        "hi",
        "k",
        "keep",
        "lo",
        "rows",
        "size",
        "stride",
    )  # keep: alive until read

    def __init__(self, pairs: PairSet, x: Tensor) -> None:
        shape = x.shape
        self.k, self.rows, self.columns = pairs.size, shape[-2], shape[-1]
        self.stride = 0
        if pairs.order is not None and pairs.order.is_contiguous():
            self.lo = pairs.order.data_ptr()
            self.hi = self.lo + 8 * self.k
        else:
            lo, hi = pairs.ends
            if not (lo.is_contiguous() and hi.is_contiguous()):
                lo, hi = lo.contiguous(), hi.contiguous()
            self.lo, self.hi, self.keep = lo.data_ptr(), hi.data_ptr(), (lo, hi)
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

    def columns_read(
        self, u: Layout, v: Layout, out: tuple[int, int], skips: int, by: tuple[float, float, float]
    ) -> None:
        """Read columns row by row."""
        chunks = min(_CHUNKS, self.rows)
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
        d, size, chunks = self.columns, self.size, min(_CHUNKS, self.rows)
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


def _agree(x: Tensor, y: Tensor) -> bool:
    """Return whether both tensors are what the kernels serve, and of one type and shape."""
    return _serves(x) and y.is_cpu and y.dtype is x.dtype and y.shape == x.shape and y.layout is _STRIDED


def _on_cpu(pairs: PairSet) -> bool:
    return (pairs.lo if pairs.order is None else pairs.order).is_cpu and pairs.size > 0


def _per_pair(x: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised ``(*batch, k)``."""
    return torch.empty(k, dtype=dtype) if x.dim() == 2 else torch.empty((*x.shape[:-2], k), dtype=dtype)


def wedge(u: Tensor, v: Tensor, pairs: PairSet, scale: float) -> Tensor | None:
    """Return the slopes of some pairs, ``(*batch, k)``, from factors ``(*batch, rows, d)``."""
    if not (_agree(u, v) and _on_cpu(pairs)):
        return None
    at_u, at_v = _layout(u), _layout(v)
    if at_u is None or at_v is None:
        return None
    task = _Pairs(pairs, u)
    slopes = _per_pair(u, task.k, u.dtype)
    out = (slopes.data_ptr(), 0)
    if at_u[2] == 1 == at_v[2]:
        task.vectors(at_u, at_v, _NOWHERE, out, (1, 0, 0), (scale, 1.0, 0.0))
    else:
        task.columns_read(at_u, at_v, out, 0, (scale, 1.0, 0.0))
    return slopes


def rotate_(x: Tensor, pairs: PairSet, amounts: Tensor, turn: float) -> bool:
    """Rotate disjoint pairs of columns of ``x``, ``(*batch, rows, d)``, in place by ``turn * amounts``."""
    if not (_serves(x) and amounts.is_cpu and _on_cpu(pairs)):
        return False
    at = _layout(x)
    if at is None:
        return False
    task = _Pairs(pairs, x)
    if amounts.dtype is not x.dtype or not amounts.is_contiguous():
        amounts = amounts.to(x.dtype).contiguous()
    if at[2] == 1:
        task.vectors(_NOWHERE, _NOWHERE, at, (amounts.data_ptr(), 0), (0, 1, 0), (0.0, 0.0, turn))
    else:
        task.columns_move(at, amounts.data_ptr(), turn)
    increment_version(x)
    return True


def descend_(
    x: Tensor, grad: Tensor, pairs: PairSet, *, rows: bool, scale: float, rate: float, skip: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Read the slopes of disjoint pairs and rotate along them, in one pass where memory allows.

    Parameters
    ----------
    x, grad : Tensor
        ``(*batch, n, p)``, the point and the gradient of the loss there.
    pairs : PairSet
    rows : bool
        The pairs are pairs of rows.
    scale : float
        What a wedge is multiplied with to be a slope, and an amount with to be an angle.
    rate : float
        What a slope is multiplied with to be an amount.
    skip : bool
        Leave pairs alone whose slope is not finite, and count them.

    Returns
    -------
    The amounts and which pairs were left alone, ``(*batch, k)``; None when this cannot be done.
    """
    if not (_agree(x, grad) and _on_cpu(pairs)):
        return None
    at_x, at_g = _layout(x), _layout(grad)
    if at_x is None or at_g is None:
        return None
    turn = scale
    task = _Pairs(pairs, x)
    u, v, w = at_x, at_g, at_x
    if rows:  # the same on the transposed, where u = G' and v = W', and rows turn the other way
        task.rows, task.columns = task.columns, task.rows
        w = (at_x[0], at_x[1], at_x[3], at_x[2])
        u, v, turn = (at_g[0], at_g[1], at_g[3], at_g[2]), w, -scale
    amounts = _per_pair(x, task.k, x.dtype)
    skipped = _per_pair(x, task.k, torch.bool) if skip else None
    out = (amounts.data_ptr(), 0 if skipped is None else skipped.data_ptr())
    if u[2] == 1 == v[2]:
        task.vectors(u, v, w, out, (1, 1, int(skip)), (scale, rate, turn))
    else:
        task.columns_read(u, v, out, int(skip), (scale, rate, 0.0))
        if w[2] == 1:
            task.vectors(_NOWHERE, _NOWHERE, w, out, (0, 1, 0), (0.0, 0.0, turn))
        else:
            task.columns_move(w, out[0], turn)
    increment_version(x)
    return amounts, skipped


def upper(product: Tensor, scale: float) -> Tensor | None:
    """Return ``scale (a_ij - a_ji)`` above the diagonal, ``(*batch, d(d-1)/2)``; None if not served."""
    if not (_serves(product) and product.is_contiguous()):
        return None
    d = product.shape[-1]
    out = torch.empty((*product.shape[:-2], d * (d - 1) // 2), dtype=product.dtype)
    _upper(product, (out.data_ptr(), d, out.shape[-1], 0, 0), 1, scale)
    return out


def steepest(product: Tensor) -> Tensor | None:
    """Return where ``|a_ij - a_ji|`` is largest above the diagonal, ``(*batch, 1)``; None if not served."""
    if not (_serves(product) and product.is_contiguous() and product.shape[-1] > 1):
        return None
    batch = product.shape[:-2].numel()
    size = torch.empty((_CHUNKS, batch), dtype=torch.float64)
    where = torch.empty((_CHUNKS, batch), dtype=torch.int64)
    _upper(product, (0, product.shape[-1], 0, size.data_ptr(), where.data_ptr()), 0, 1.0)
    # Slots hold bands of rows, not in order: among equals the lowest index wins.
    where.masked_fill_(size < size.amax(0), torch.iinfo(torch.int64).max)
    return where.amin(0).view(*product.shape[:-2], 1)


def _upper(product: Tensor, out: tuple[int, int, int, int, int], writes: int, scale: float) -> None:
    d = product.shape[-1]
    batch = product.numel() // (d * d)
    numbers = (product.data_ptr(), d * d, *out, *_EIGHT[:7], batch, writes, _CHUNKS, 0, 0, 0)
    team.run("upper", product.element_size(), numbers, (scale, 0.0, 0.0), product.numel())
