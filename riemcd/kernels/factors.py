r"""Cholesky factors that are kept between steps and moved by columns.

A positive definite matrix :math:`Y = LL^\top` has the coordinates :math:`L S L^\top`, with :math:`S` one of
:math:`(E_{ij} + E_{ji})/\sqrt2` and :math:`E_{ii}`. Multiplying columns of :math:`L` by a lower triangular
matrix, rows and columns in increasing order, leaves :math:`L` lower triangular with a positive diagonal:
it stays *the* Cholesky factor of :math:`Y`, a smooth function of the point.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import native
from .wedges import accumulator

__all__ = [
    "add_outer_",
    "form_all",
    "form_at",
    "form_one",
    "kept_factor",
    "move_one_",
    "put_rows_",
    "rows",
]

_HALF = math.sqrt(0.5)


def rows(x: Tensor, at: Tensor) -> Tensor:
    """Return rows of ``x``, ``(*batch, k, n)``; ``at`` is ``(k,)`` or ``(*batch, k)``."""
    if at.dim() == 1:
        return x.index_select(-2, at)
    return x.gather(-2, at.unsqueeze(-1).expand(*at.shape, x.shape[-1]))


def put_rows_(x: Tensor, at: Tensor, values: Tensor) -> None:
    """Write rows of ``x`` in place: the counterpart of `rows`."""
    if at.dim() == 1:
        x.index_copy_(-2, at, values)
    else:
        x.scatter_(-2, at.unsqueeze(-1).expand(*at.shape, x.shape[-1]), values)


def kept_factor(
    point: Tensor, state: dict[str, Any], owner: str, *, moving: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the transposed Cholesky factor of ``point``, and a wide copy of it.

    Of a complex point, the factor is that of its imaginary part. Both are float64 (complex128) tensors
    under ``"factor"`` and ``"written"`` of the state. A point that is not, bit for bit, the rounding of
    what was last written is factorised anew; in a batch, only such points are. New tensors replace old
    ones in the dictionary: nothing is written to in place. ``"seen"`` is there from reading slopes until
    the move that follows, which need not compare again what nobody has written to in between.

    Parameters
    ----------
    point : Tensor
        ``(*batch, n, n)``
    state : dict
    owner : str
        Whose error it is when a matrix is not positive definite.
    moving : bool
        Called by a move, and not to read slopes.

    Returns
    -------
    upper, written : Tensor
        ``(*batch, n, n)``; the columns of :math:`L` are the rows of ``upper``, where they are contiguous.
    """
    known, seen = None, state.pop("seen", None)
    if not moving:
        state["seen"] = point._version
    if "factor" in state and "written" in state:
        factor, written = state["factor"], state["written"]
        if moving and seen == point._version:
            return factor, written
        rounded = written.to(point.dtype)
        if _same(point, rounded):
            return factor, written
        known = (point == rounded).flatten(-2).all(-1)[..., None, None]
    wide = torch.complex128 if point.is_complex() else torch.float64
    fresh = torch.empty(point.shape, dtype=wide, device=point.device).copy_(point.detach())
    definite = fresh.imag if fresh.is_complex() else fresh
    lower, info = torch.linalg.cholesky_ex((definite + definite.mT) / 2)
    upper = lower.mT.contiguous()
    if known is not None:
        info = torch.where(known[..., 0, 0], 0, info)
        upper, fresh = torch.where(known, factor, upper), torch.where(known, written, fresh)
    if info.any():
        part = "imaginary part of a point" if point.is_complex() else "matrix"
        raise ValueError(
            f"{owner} needs a positive definite {part}, but {int(info.ne(0).sum())} of {info.numel()} "
            f"have no Cholesky factor (shape {tuple(point.shape)}); nothing was changed. "
            "Call .proj_() on the parameter, or take smaller steps."
        )
    state["factor"], state["written"] = upper, fresh
    return upper, fresh


def _same(a: Tensor, b: Tensor) -> bool:
    loops = _loops(a)
    if loops is not None:
        return bool(loops.same(a.detach().numpy(), b.numpy()))
    if a.is_cpu and a.dtype.itemsize >= 4:
        # Four times faster there than torch.equal, which compares number by number.
        return np.array_equal(a.detach().numpy(), b.numpy())
    return torch.equal(a, b)


@cache
def _compiled() -> Any:
    """Return the compiled loops; found out once, when they are first wanted."""
    try:
        from . import compiled_factors
    except ImportError:
        return None
    return compiled_factors


def _loops(x: Tensor) -> Any:
    """Return the compiled loops if they serve this matrix, or None; the kept ones are as they want them."""
    if x.dtype is torch.float64 and x.dim() == 2 and x.is_contiguous() and native.serves(x):
        return _compiled()
    return None


def form_one(upper: Tensor, grad: Tensor, i: int, j: int) -> Tensor:
    """Return what `form_at` returns for one pair of one matrix, ``(1,)``; both are ``(n, n)``."""
    loops = _loops(grad)
    if loops is not None:
        return grad.new_tensor([loops.form(upper.numpy(), grad.detach().numpy(), i, j)])
    wide = accumulator(grad.dtype)
    # A matrix is read faster than it is cut down to the part behind which the columns start.
    grad, a, b = grad.to(wide), upper[i].to(wide), upper[j].to(wide)
    form = torch.dot(a, torch.mv(grad, b))
    return (form + (form if i == j else torch.dot(b, torch.mv(grad, a)))).unsqueeze(0)


def move_one_(point: Tensor, written: Tensor, upper: Tensor, i: int, j: int, t: float) -> None:
    """Move one matrix along the pair ``i < j`` or the diagonal coordinate ``i = j``, in plain numbers.

    Parameters
    ----------
    point, written, upper : Tensor
        ``(n, n)``: the stored matrix, its wide copy and the transposed factor.
    i, j : int
    t : float
    """
    loops = _loops(point)
    if loops is not None:
        loops.move_(point.detach().numpy(), written.numpy(), upper.numpy(), i, j, t)
        increment_version(point)
        return
    a = max(min(t if i == j else _HALF * t, 700.0), -700.0)  # where math would raise, a tensor just overflows
    first, second = upper[i], upper[j]
    if i == j:
        add_outer_(written, first[None], torch.tensor([[math.expm1(a)]], dtype=torch.float64))
        first.mul_(math.exp(a / 2))
    else:
        weights = torch.tensor([[math.expm1(a) / 2], [math.expm1(-a) / 2]], dtype=torch.float64)
        add_outer_(written, torch.stack([first + second, first - second]), weights)
        c = math.sqrt(math.cosh(a))
        first.mul_(c).add_(second, alpha=math.sinh(a) / c)
        second.div_(c)
    point.copy_(written)


def form_at(upper: Tensor, grad: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Return :math:`l_i^\top (G + G^\top) l_j` for some pairs, ``(*batch, k)``.

    One costs two products of ``G`` with a vector; from ``n`` of them on a product of matrices is shared.

    Parameters
    ----------
    upper, grad : Tensor
        ``(*batch, n, n)``
    lo, hi : Tensor
        ``(k,)`` or ``(*batch, k)``
    """
    n, k = upper.shape[-1], lo.shape[-1]
    wide = accumulator(grad.dtype)
    grad = grad.to(wide)
    if k > 2 * n:  # reading a finished form is then cheaper than k products of columns
        form = _form(upper.to(wide), grad)
        if lo.dim() == 1:
            return form[..., lo, hi]
        return form.flatten(-2).gather(-1, lo * n + hi)
    a, b = rows(upper, lo).to(wide), rows(upper, hi).to(wide)
    if k < n:
        left, right = (torch.cat([a, b], -2) @ grad).chunk(2, -2)  # one pass over G
        return (left * b).sum(-1) + (right * a).sum(-1)
    product = upper.to(wide) @ grad
    return (rows(product, lo) * b).sum(-1) + (rows(product, hi) * a).sum(-1)


def form_all(upper: Tensor, grad: Tensor) -> Tensor:
    """Return what `form_at` returns, for every pair and then for the diagonal, ``(*batch, n(n+1)/2)``."""
    wide = accumulator(grad.dtype)
    form = _form(upper.to(wide), grad.to(wide))
    n = form.shape[-1]
    lo, hi = torch.triu_indices(n, n, 1, device=form.device)
    return torch.cat([form[..., lo, hi], form.diagonal(dim1=-2, dim2=-1)], -1)


def _form(upper: Tensor, grad: Tensor) -> Tensor:
    form = upper @ grad @ upper.mT
    return form + form.mT


def add_outer_(x: Tensor, vectors: Tensor, weights: Tensor) -> None:
    r"""Add :math:`\sum_a w_a v_a v_a^\top` to ``x``, ``(*batch, n, n)``, in place; no bit where all are zero.

    The weights are shared between both sides as square roots, so that entries :math:`(p, q)` and
    :math:`(q, p)` are sums of the same products.

    Parameters
    ----------
    x : Tensor
        ``(*batch, n, n)``
    vectors : Tensor
        ``(*batch, m, n)``
    weights : Tensor
        ``(*batch, m, 1)``
    """
    right = vectors * weights.abs().sqrt()
    left = (right * weights.sign()).mT
    if x.dim() == 2:
        x.addmm_(left, right)
    else:
        x.add_(left @ right)
