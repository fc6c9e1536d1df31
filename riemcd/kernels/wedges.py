"""Reading slopes of rotations from two factors."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..index import PairSet
from . import native
from .cliques import clique_products

__all__ = ["steepest_of_product", "wedge_all", "wedge_at", "wedge_of_product", "wedge_steepest"]

#: How many numbers the torch loops on the CPU hold at a time, beside the columns they work on.
_PIECE = 1 << 16


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to compute for tensors of ``dtype``: float32 at least."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def pieces(x: Tensor, k: int, width: int = 1) -> Iterator[tuple[slice, slice]]:
    """Cut work on ``k`` groups of ``width`` columns of ``x``, ``(*batch, rows, d)``, into (rows, groups).

    On the CPU a piece fits into the cache and no temporary is as large as the matrix; elsewhere a
    call costs more than memory does. Pieces follow the order in which the matrix is stored.
    """
    rows = x.shape[-2]
    each = max(1, x.shape[:-2].numel()) * width  # numbers in a row of a group
    if not x.is_cpu or each * rows * k <= _PIECE:
        yield slice(None), slice(None)
    elif x.stride(-2) == 1:
        step = max(1, _PIECE // (each * rows))
        yield from ((slice(None), slice(at, at + step)) for at in range(0, k, step))
    else:
        step = max(1, _PIECE // (each * k))
        yield from ((slice(at, at + step), slice(None)) for at in range(0, rows, step))


def _product(u: Tensor, v: Tensor) -> Tensor:
    wide = accumulator(u.dtype)
    product: Tensor = u.to(wide).mT @ v.to(wide)
    return product


def wedge_all(u: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    """Return the wedge of every pair, ``(*batch, d(d-1)/2)``, from factors ``(*batch, rows, d)``."""
    return wedge_of_product(_product(u, v), None, scale)


def wedge_of_product(product: Tensor, pairs: PairSet | None = None, scale: float = 1.0) -> Tensor:
    """Return the wedges of some pairs, or of all, from the product of the factors, ``(*batch, d, d)``."""
    if pairs is None:
        every = native.upper(product, scale)
        if every is not None:
            return every
        d = product.shape[-1]
        lo, hi = torch.triu_indices(d, d, 1, device=product.device)
    else:
        lo, hi = pairs.lo, pairs.hi
    return (product[..., lo, hi] - product[..., hi, lo]).mul_(scale)


def wedge_steepest(u: Tensor, v: Tensor) -> Tensor:
    """Return the number of the pair with the largest wedge, ``(*batch, 1)``; NaN counts as largest."""
    return steepest_of_product(_product(u, v))


def steepest_of_product(product: Tensor) -> Tensor:
    """Return what `wedge_steepest` returns, from the product of the factors, ``(*batch, d, d)``."""
    found = native.steepest(product)
    if found is not None:
        return found
    size = (product - product.mT).abs_().triu_(1).flatten(-2)
    at = size.argmax(-1, keepdim=True)
    d = product.shape[-1]
    lo, hi = at // d, at % d
    return torch.where(lo < hi, lo * (2 * d - 3 - lo) // 2 + hi - 1, 0)  # the diagonal wins when all is zero


def wedge_at(u: Tensor, v: Tensor, pairs: PairSet, scale: float = 1.0) -> Tensor:
    """Return the wedge of some pairs, ``(*batch, k)``, reading only the columns they name."""
    wide = accumulator(u.dtype)
    wedges = native.wedge(u, v, pairs, scale)
    if wedges is not None:
        return wedges
    if pairs.cliques:
        return torch.cat([_of_cliques(u, v, nodes, scale) for nodes in pairs.cliques], -1)

    def columns(x: Tensor, at: Tensor) -> Tensor:  # (*batch, rows, k)
        if at.dim() == 1:
            return take(x, at).to(wide)
        return x.gather(-1, at.unsqueeze(-2).expand(*x.shape[:-1], -1)).to(wide)

    k = pairs.lo.shape[-1]
    wedges = torch.zeros((*u.shape[:-2], k), dtype=wide, device=u.device)
    for rows, some in pieces(u, k):
        lo, hi, a, b = pairs.lo[..., some], pairs.hi[..., some], u[..., rows, :], v[..., rows, :]
        product = columns(a, lo) * columns(b, hi)
        product -= columns(a, hi) * columns(b, lo)
        wedges[..., some] += product.sum(-2)
    return wedges.mul_(scale)


def _of_cliques(u: Tensor, v: Tensor, nodes: Tensor, scale: float) -> Tensor:
    """Return the wedges inside cliques, ``(c, r)`` columns: one small product each, r x rows x r."""
    if nodes.shape[-1] == u.shape[-1]:  # one group of all columns, in their order
        return wedge_all(u, v, scale)
    product = clique_products(u, v, nodes)
    if product is None:
        (c, r), wide = nodes.shape, accumulator(u.dtype)
        product = torch.zeros((*u.shape[:-2], c, r, r), dtype=wide, device=u.device)
        rooms = Room(), Room()
        for rows, some in pieces(u, c, r):
            left, right = (
                columns_of(x[..., rows, :], nodes[some], wide, room)
                for x, room in zip((u, v), rooms, strict=True)
            )
            product[..., some, :, :] += left.mT @ right
    return wedge_of_product(product.contiguous(), None, scale).flatten(-2)


class Room:
    """Memory that pieces of one pass share: to ask for it anew takes longer than to fill it."""

    def __init__(self) -> None:
        self._all: Tensor | None = None

    def of(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialised tensor; the one before is lost."""
        size = math.prod(shape)
        if self._all is None or self._all.numel() < size:
            self._all = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._all[:size].view(shape)


def take(x: Tensor, at: Tensor, room: Room | None = None) -> Tensor:
    """Return the columns ``at``, ``(k,)``, of ``x``, ``(*batch, rows, d)``, as they are stored.

    Asked for columns of a transposed matrix, torch would copy the matrix.
    """
    k = at.shape[0]
    if x.stride(-2) == 1:
        shape = (*x.shape[:-2], k, x.shape[-2])
        return torch.index_select(x.mT, -2, at, out=room.of(shape, x) if room else None).mT
    shape = (*x.shape[:-1], k)
    return torch.index_select(x, -1, at, out=room.of(shape, x) if room else None)


def put_(x: Tensor, at: Tensor, columns: Tensor) -> None:
    """Write the columns ``at`` of ``x`` in place."""
    if x.stride(-2) == 1:
        x.mT.index_copy_(-2, at, columns.mT.to(x.dtype))
    else:
        x.index_copy_(-1, at, columns.to(x.dtype))


def columns_of(x: Tensor, nodes: Tensor, wide: torch.dtype, room: Room | None = None) -> Tensor:
    """Return the columns ``nodes``, ``(c, r)``, of ``x``, ``(*batch, rows, d)``: ``(*batch, c, rows, r)``."""
    chosen = take(x, nodes.flatten(), room).to(wide)
    if x.stride(-2) == 1:
        return chosen.mT.reshape(*x.shape[:-2], *nodes.shape, x.shape[-2]).mT
    return chosen.view(*x.shape[:-2], x.shape[-2], *nodes.shape).movedim(-2, -3)
