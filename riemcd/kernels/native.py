"""The door to the compiled kernels; every function says whether it could serve the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, c_char

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from ..index import PairSet
from . import team
from .clique_tasks import LARGEST, CliqueTask, small_cliques
from .tasks import CHUNKS, PairTask, layout, transposed

__all__ = ["descend_", "move_together_", "only_torch", "rotate_", "serves", "steepest"]
__all__ += ["upper", "wedge"]

_enabled = True
_DTYPES = (torch.float32, torch.float64)
_STRIDED = torch.strided
_NO_DISPATCH = Tensor.__torch_dispatch__
_SEVEN, _EIGHT = (0,) * 7, (0,) * 8

TILE = 128  # as in the compiled module, which is imported only where numba is


@contextmanager
def only_torch() -> Iterator[None]:
    """Do without the compiled kernels inside this context: for comparisons."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def serves(x: Tensor) -> bool:
    """Return whether the compiled kernels can read and write this tensor."""
    return (
        x.is_cpu
        and x.dtype in _DTYPES
        and x.layout is _STRIDED
        and type(x).__torch_dispatch__ is _NO_DISPATCH  # a wrapper has no memory of its own
        and not (x.requires_grad and torch.is_grad_enabled())  # nothing here is recorded
        and not x.is_neg()
        and _enabled
        and not is_compiling()
        and team.available()
        and x.numel() > 0
    )


def _agree(x: Tensor, y: Tensor) -> bool:
    """Return whether both tensors are what the kernels serve, and of one type and shape."""
    return serves(x) and serves(y) and y.dtype is x.dtype and y.shape == x.shape


def _on_cpu(pairs: PairSet) -> bool:
    if pairs.single is not None:
        return True
    if pairs.cliques:
        return small_cliques(pairs)
    return (pairs.lo if pairs.order is None else pairs.order).is_cpu and pairs.size > 0


def _per_pair(x: Tensor, k: int) -> Tensor:
    """Return an uninitialised ``(*batch, k)``."""
    return torch.empty(k if x.dim() == 2 else (*x.shape[:-2], k), dtype=x.dtype)


def wedge(u: Tensor, v: Tensor, pairs: PairSet, scale: float) -> Tensor | None:
    """Return the slopes of some pairs, ``(*batch, k)``, from factors ``(*batch, rows, d)``."""
    if not (_agree(u, v) and _on_cpu(pairs)):
        return None
    at_u, at_v = layout(u), layout(v)
    if at_u is None or at_v is None:
        return None
    slopes = _per_pair(u, pairs.size)
    out, by = (slopes.data_ptr(), 0), (scale, 1.0, 0.0)
    if not pairs.cliques:
        PairTask(pairs, u).read(at_u, at_v, out, 0, by)
    elif at_u[2] == 1 == at_v[2]:
        CliqueTask(pairs, u).read(at_u, at_v, out, by)
    else:
        return None
    return slopes


def rotate_(x: Tensor, pairs: PairSet, amounts: Tensor, turn: float, rows: bool = False) -> bool:
    """Rotate columns of ``x``, ``(*batch, n, d)``, or its rows, in place by ``turn * amounts``.

    The pairs are disjoint, or those of cliques.
    """
    if not (serves(x) and amounts.is_cpu and _on_cpu(pairs)):
        return False
    at = layout(x)
    if at is None:
        return False
    at = transposed(at) if rows else at
    if pairs.cliques and 1 not in at[2:]:
        return False
    if amounts.dtype is not x.dtype or not amounts.is_contiguous():
        amounts = amounts.to(x.dtype).contiguous()
    task = CliqueTask(pairs, x, rows) if pairs.cliques else PairTask(pairs, x, rows)
    task.move(at, amounts.data_ptr(), turn)
    increment_version(x)
    return True


def move_together_(x: Tensor, nodes: Tensor, increment: Tensor) -> bool:
    """Add to some columns of ``x`` in place what a small matrix makes of them, where they are contiguous.

    Parameters
    ----------
    x : Tensor
        ``(B, rows, d)``
    nodes : Tensor
        ``(c, r)``, columns in groups that have none in common
    increment : Tensor
        ``(B, c, r, r)``, ``x[..., nodes] += x[..., nodes] @ increment``
    """
    if not (serves(x) and nodes.is_cpu and x.stride(-2) == 1 and nodes.shape[-1] <= LARGEST):
        return False
    (groups, r), size = nodes.shape, x.element_size()
    nodes, increment = nodes.contiguous(), increment.to(x.dtype).contiguous()
    slots = max(1, torch.get_num_threads())
    near = torch.empty(slots * (r + 1) * TILE, dtype=x.dtype)
    numbers = (
        *(x.data_ptr(), x.stride(0), x.stride(2), nodes.data_ptr(), increment.data_ptr(), near.data_ptr()),
        *(groups, r, x.shape[1], x.shape[0], slots, (r + 1) * TILE * size, *_EIGHT),
    )
    team.run("cliques", size, numbers, (0.0, 0.0, 0.0), x.shape[0] * nodes.numel() * x.shape[1])
    increment_version(x)
    return True


def descend_(
    x: Tensor,
    grad: Tensor,
    pairs: PairSet,
    rows: bool,
    scale: float,
    rate: float,
    check: bool,
    move: bool = True,
    whole: bool = False,
) -> tuple[Tensor, int] | None:
    """Read slopes and rotate along them, in one pass where memory allows.

    Parameters
    ----------
    x, grad : Tensor
        ``(*batch, n, p)``, the point and the gradient of the loss there.
    pairs : PairSet
        Disjoint, or those of cliques.
    rows : bool
        The pairs are pairs of rows.
    scale : float
        What a wedge is multiplied with to be a slope, and an amount with to be an angle.
    rate : float
        What a slope is multiplied with to be an amount.
    check : bool
        Count slopes that are not finite, and do not move along them.
    move : bool
        Whether to rotate at all.
    whole : bool
        Rotate nothing where a slope is not finite.

    Returns
    -------
    The amounts, ``(*batch, k)``, and how many slopes were not finite; None when this cannot be done.
    """
    if not ((pairs.disjoint or pairs.cliques) and _agree(x, grad) and _on_cpu(pairs)):
        return None
    at_x, at_g = layout(x), layout(grad)
    if at_x is None or at_g is None:
        return None
    u, v, turn = at_x, at_g, scale
    if rows:  # the same on the transposed, where u = G' and v = W', and rows turn the other way
        at_x = transposed(at_x)
        u, v, turn = transposed(at_g), at_x, -scale
    if pairs.cliques and not u[2] == 1 == v[2]:
        return None
    amounts = _per_pair(x, pairs.size)
    # Bytes of Python: looking through them takes no call of torch.
    bad = bytearray(amounts.numel() if check else 1)
    out = (amounts.data_ptr(), addressof(c_char.from_buffer(bad)))
    if pairs.cliques:
        group = CliqueTask(pairs, x, rows)
        group.read(u, v, (out[0], out[1] if check else 0), (scale, rate, 0.0))
        if move and not (whole and 1 in bad):
            group.move(at_x, out[0], turn)
            increment_version(x)
        return amounts, bad.count(1)
    task = PairTask(pairs, x, rows)
    at_once = move and (not whole or amounts.numel() == 1)  # one that is not finite is not moved anyway
    if move and u[2] == 1 == v[2]:
        task.vectors(u, v, at_x, out, (1, 1 if at_once else 2, int(check)), (scale, rate, turn))
    elif at_once and task.few:
        task.few_pairs(u, v, out, (1, 1, int(check), int(rows)), (scale, rate, turn))
    elif at_once and u[2] != 1 != v[2]:
        task.columns(u, v, at_x, out, (1, 1, int(check)), (scale, rate, turn))
    else:
        task.read(u, v, out, int(check), (scale, rate, 0.0))
        if move and not (whole and 1 in bad):
            task.move(at_x, out[0], turn)
    if move:
        increment_version(x)
    return amounts, bad.count(1)


def upper(product: Tensor, scale: float) -> Tensor | None:
    """Return ``scale (a_ij - a_ji)`` above the diagonal, ``(*batch, d(d-1)/2)``; None if not served."""
    if not (serves(product) and product.is_contiguous()):
        return None
    d = product.shape[-1]
    out = torch.empty((*product.shape[:-2], d * (d - 1) // 2), dtype=product.dtype)
    _upper(product, (out.data_ptr(), d, out.shape[-1], 0, 0), 1, scale)
    return out


def steepest(product: Tensor) -> Tensor | None:
    """Return where ``|a_ij - a_ji|`` is largest above the diagonal, ``(*batch, 1)``; None if not served."""
    if not (serves(product) and product.is_contiguous() and product.shape[-1] > 1):
        return None
    batch = product.shape[:-2].numel()
    size = torch.empty((CHUNKS, batch), dtype=torch.float64)
    where = torch.empty((CHUNKS, batch), dtype=torch.int64)
    _upper(product, (0, product.shape[-1], 0, size.data_ptr(), where.data_ptr()), 0, 1.0)
    # Slots hold bands of rows, not in order: among equals the lowest index wins.
    where.masked_fill_(size < size.amax(0), torch.iinfo(torch.int64).max)
    return where.amin(0).view(*product.shape[:-2], 1)


def _upper(product: Tensor, out: tuple[int, int, int, int, int], writes: int, scale: float) -> None:
    d = product.shape[-1]
    batch = product.numel() // (d * d)
    numbers = (product.data_ptr(), d * d, *out, *_SEVEN, batch, writes, CHUNKS, 0, 0, 0)
    team.run("upper", product.element_size(), numbers, (scale, 0.0, 0.0), product.numel())
