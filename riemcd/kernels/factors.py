r"""Cholesky factors that are kept between steps and moved by columns.

A positive definite matrix :math:`Y = LL^\top` has the coordinates :math:`L S L^\top`, with :math:`S` one of
:math:`(E_{ij} + E_{ji})/\sqrt2` and :math:`E_{ii}`. Multiplying columns of :math:`L` by a lower triangular
matrix, rows and columns in increasing order, leaves :math:`L` lower triangular with a positive diagonal:
it stays *the* Cholesky factor of :math:`Y`, a smooth function of the point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..components import Block
from ..index import PairSet, linear_to_pair
from .wedges import accumulator

__all__ = [
    "Spread",
    "columns",
    "form_all",
    "form_at",
    "geodesic_of_siegel",
    "kept_factor",
    "product_of_exponential",
    "put_columns_",
    "symmetric_coordinates",
    "symmetric_outer",
    "symmetric_weight",
]


def symmetric_coordinates(index: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the pairs ``lo < hi``, and ``lo == hi`` for the diagonal coordinates that follow them.

    >>> symmetric_coordinates(torch.arange(6), 3)
    (tensor([0, 0, 1, 0, 1, 2]), tensor([1, 2, 2, 0, 1, 2]))
    """
    pairs = n * (n - 1) // 2
    lo, hi = linear_to_pair(index.clamp(max=max(pairs - 1, 0)), n)
    single = index >= pairs
    return torch.where(single, index - pairs, lo), torch.where(single, index - pairs, hi)


def columns(x: Tensor, at: Tensor) -> Tensor:
    """Return columns of ``x``, ``(*batch, rows, k)``; ``at`` is ``(k,)`` or ``(*batch, k)``."""
    if at.dim() == 1:
        return x.index_select(-1, at)
    return x.gather(-1, at.unsqueeze(-2).expand(*x.shape[:-1], -1))


def put_columns_(x: Tensor, at: Tensor, values: Tensor) -> None:
    """Write columns of ``x`` in place: the counterpart of `columns`."""
    if at.dim() == 1:
        x.index_copy_(-1, at, values)
    else:
        x.scatter_(-1, at.unsqueeze(-2).expand(*x.shape[:-1], -1), values)


def kept_factor(point: Tensor, state: dict[str, Any] | None, owner: str) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor of ``point`` (of its imaginary part where complex), and a wide copy of it.

    Both are float64 (complex128) tensors under ``"factor"`` and ``"written"`` of the state. A point that
    is not, bit for bit, the rounding of what was last written is factorised anew; in a batch, only such
    points are. New tensors replace old ones in the dictionary: nothing is written to in place.

    Parameters
    ----------
    point : Tensor
        ``(*batch, n, n)``
    state : dict or None
    owner : str
        Whose error it is when a matrix is not positive definite.
    """
    state = {} if state is None else state
    known = None
    if "factor" in state and "written" in state:
        factor, written = state["factor"], state["written"]
        rounded = written.to(point.dtype)
        if torch.equal(point, rounded):
            return factor, written
        known = (point == rounded).flatten(-2).all(-1)[..., None, None]
    wide = torch.complex128 if point.is_complex() else torch.float64
    fresh = torch.empty(point.shape, dtype=wide, device=point.device).copy_(point.detach())
    definite = fresh.imag if fresh.is_complex() else fresh
    lower, info = torch.linalg.cholesky_ex((definite + definite.mT) / 2)
    if known is not None:
        info = torch.where(known[..., 0, 0], 0, info)
        lower, fresh = torch.where(known, factor, lower), torch.where(known, written, fresh)
    if info.any():
        part = "imaginary part of a point" if point.is_complex() else "matrix"
        raise ValueError(
            f"{owner} needs a positive definite {part}, but {int(info.ne(0).sum())} of {info.numel()} "
            f"have no Cholesky factor (shape {tuple(point.shape)}); nothing was changed. "
            "Call .proj_() on the parameter, or take smaller steps."
        )
    state["factor"], state["written"] = lower, fresh
    return lower, fresh


def form_at(factor: Tensor, grad: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    r"""Return :math:`l_i^\top (G + G^\top) l_j` for some pairs, ``(*batch, k)``.

    One costs two products of ``G`` with a vector; from ``n`` of them on a product of matrices is shared.

    Parameters
    ----------
    factor, grad : Tensor
        ``(*batch, n, n)``
    lo, hi : Tensor
        ``(k,)`` or ``(*batch, k)``
    """
    n, k = factor.shape[-1], lo.shape[-1]
    wide = accumulator(grad.dtype)
    grad = grad.to(wide)
    if k > 2 * n:  # reading a finished form is then cheaper than k products of columns
        form = _form(factor.to(wide), grad)
        if lo.dim() == 1:
            return form[..., lo, hi]
        return form.flatten(-2).gather(-1, lo * n + hi)
    a, b = columns(factor, lo).to(wide), columns(factor, hi).to(wide)
    if k < n:
        return (a * (grad @ b)).sum(-2) + (b * (grad @ a)).sum(-2)
    product = grad @ factor.to(wide)
    return (a * columns(product, hi)).sum(-2) + (b * columns(product, lo)).sum(-2)


def form_all(factor: Tensor, grad: Tensor) -> Tensor:
    """Return what `form_at` returns, for every pair and then for the diagonal, ``(*batch, n(n+1)/2)``."""
    wide = accumulator(grad.dtype)
    form = _form(factor.to(wide), grad.to(wide))
    n = form.shape[-1]
    lo, hi = torch.triu_indices(n, n, 1, device=form.device)
    return torch.cat([form[..., lo, hi], form.diagonal(dim1=-2, dim2=-1)], -1)


def _form(factor: Tensor, grad: Tensor) -> Tensor:
    form = factor.mT @ grad @ factor
    return form + form.mT


def symmetric_outer(vectors: Tensor, weights: Tensor) -> Tensor:
    r"""Return :math:`\sum_a w_a v_a v_a^\top`, ``(*batch, n, n)``, exactly zero where the weights are.

    The weights are shared between both sides as square roots, so that entries :math:`(p, q)` and
    :math:`(q, p)` are sums of the same products.

    Parameters
    ----------
    vectors : Tensor
        ``(*batch, n, m)``
    weights : Tensor
        ``(*batch, m)``
    """
    left = vectors * weights.abs().sqrt().unsqueeze(-2)
    return left @ (left * weights.sign().unsqueeze(-2)).mT


class Spread:
    """A set of symmetric coordinates, as small matrices on the columns that it joins.

    Parameters
    ----------
    lo, hi : Tensor
        ``(k,)`` or ``(*batch, k)``; equal where a coordinate is a diagonal one.
    amounts : Tensor
        ``(*batch, k)``
    n : int
    layer : Tensor, optional
        Which of ``layers`` matrices each coordinate belongs to; the shape of ``lo``.
    """

    def __init__(
        self, lo: Tensor, hi: Tensor, amounts: Tensor, n: int, layer: Tensor | None = None, layers: int = 1
    ) -> None:
        self.layers = layers
        self._pairs = PairSet(lo, hi, n)
        values = amounts.double() * symmetric_weight(lo, hi)
        self._batch = int(amounts.shape[:-1].numel())
        self._values = values.reshape(self._batch, -1)
        self._layer = torch.zeros_like(lo) if layer is None else layer

    def blocks(self) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
        """Yield where rows of a transposed factor ``(B, n, n)`` are, and the matrices acting on them.

        ``factor[at]`` is ``(B, c, r, n)`` for coordinates shared by the batch, and ``(1, c, r, n)`` where
        every component has an element of its own; the matrices are ``(B, layers, c, r, r)``.
        """
        for block in self._pairs.blocks:
            if block.element is None:
                element = torch.arange(self._batch, device=block.nodes.device)[:, None, None]
                yield (element, slice(None), block.nodes), self._matrices(block, self._values)
            else:
                at = (block.element[None, :, None], slice(None), block.nodes)
                yield at, self._matrices(block, self._values.reshape(1, -1))

    def _matrices(self, block: Block, values: Tensor) -> Tensor:
        c, r = block.nodes.shape
        small = values.new_zeros(values.shape[0], self.layers, c, r, r)
        layer = self._layer.flatten()[block.edges]
        small[:, layer, block.which, block.a, block.b] = values[:, block.edges]
        return small + small.mT


def symmetric_weight(lo: Tensor, hi: Tensor) -> Tensor:
    """Return 1/√2 for pairs and 1/2 for diagonal coordinates: what makes ``S + Sᵀ`` a unit direction."""
    weight = torch.full(lo.shape, math.sqrt(0.5), dtype=torch.float64, device=lo.device)
    return weight.masked_fill_(lo == hi, 0.5)


def product_of_exponential(symmetric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return lower triangular :math:`C` with :math:`CC^\top = e^S`, and eigenvectors, :math:`e^\lambda - 1`.

    :math:`C^\top` is the triangular factor of :math:`e^{\Lambda/2} V^\top`, rows in decreasing order: the
    exponential itself, whose condition number is the square of that, is never formed.

    Parameters
    ----------
    symmetric : Tensor
        ``(*batch, r, r)``, float64
    """
    values, vectors = torch.linalg.eigh(symmetric)
    graded = (vectors * (values / 2).exp().unsqueeze(-2)).flip(-1).mT
    upper = torch.linalg.qr(graded, mode="r").R
    lower = (upper * _signs(upper)).mT
    still = symmetric.eq(0).flatten(-2).all(-1)[..., None, None]
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.where(still, eye, lower), vectors, torch.expm1(values)


def _signs(upper: Tensor) -> Tensor:
    """Return what to multiply rows with, ``(*batch, r, 1)``, so that the diagonal is positive."""
    return torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype).unsqueeze(-1)


def geodesic_of_siegel(imaginary: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return where the geodesic from :math:`iI` along :math:`R + iS` is at time one.

    With :math:`e^{H} = \begin{pmatrix} A & B \\ C & D \end{pmatrix}`,
    :math:`H = \tfrac12 \begin{pmatrix} S & R \\ R & -S \end{pmatrix} = V \Lambda V^\top`, and
    :math:`K_t = e^\Lambda V_t^\top`, :math:`K_b = e^\Lambda V_b^\top` for the upper and lower rows of
    :math:`V`,

    .. math:: (iA + B)(iC + D)^{-1} = K_t^\top K_b (K_b^\top K_b)^{-1} + i (K_b^\top K_b)^{-1} .

    A triangular factorisation of :math:`K_b` with its columns reversed gives the inverse as :math:`CC^\top`
    with lower triangular :math:`C`, without forming the square of anything.

    Parameters
    ----------
    imaginary, real : Tensor
        :math:`S, R`, ``(*batch, r, r)``, float64

    Returns
    -------
    lower, real : Tensor
        The Cholesky factor of the imaginary part, and the real part.
    """
    r = real.shape[-1]
    algebra = torch.cat(
        [torch.cat([imaginary, real], -1), torch.cat([real, -imaginary], -1)], -2
    )  # (*batch, 2r, 2r)
    values, vectors = torch.linalg.eigh(algebra / 2)
    graded = (vectors * values.exp().unsqueeze(-2)).flip(-1).mT
    top, bottom = graded[..., :r], graded[..., r:]
    q, upper = torch.linalg.qr(bottom.flip(-1))
    signs = _signs(upper)
    q, upper = q * signs.mT, upper * signs
    eye = torch.eye(r, dtype=real.dtype, device=real.device)
    inverse = torch.linalg.solve_triangular(upper, eye.expand_as(upper), upper=True)
    moved = top.mT @ q @ inverse.mT.flip(-1)
    lower = inverse.flip(-1, -2)
    still = algebra.eq(0).flatten(-2).all(-1)[..., None, None]
    return torch.where(still, eye, lower), torch.where(still, 0.0, (moved + moved.mT) / 2)
