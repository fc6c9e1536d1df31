r"""Positive definite matrices in the affine-invariant metric, through their Cholesky factor.

With :math:`X = LL^\top`, the coordinates are :math:`\eta = L S L^\top` for :math:`S = (E_{ij} +
E_{ji})/\sqrt2` and :math:`S = E_{ii}`, orthonormal in :math:`\langle U, V\rangle_X = \mathrm{tr}(X^{-1} U
X^{-1} V)`; the geodesic is :math:`L e^{tS} L^\top`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
import scipy.linalg
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, Index, linear
from ..kernels.factors import add_outer_, form_all, form_at, form_one, kept_factor, move_one_, put_rows_, rows
from ..kernels.symmetric import (
    Spread,
    product_of_exponential,
    symmetric_coordinate,
    symmetric_coordinates,
    symmetric_weight,
)
from .base import Basis, Example, State

__all__ = ["SPDBasis"]


@final
@dataclass(frozen=True)
class SPDBasis(Basis):
    r"""Columns of the Cholesky factor: :math:`\eta = L S L^\top`, affine-invariant metric.

    The pairs :math:`i < j` come first, in the order of `Index`, then the :math:`n` diagonal coordinates.
    With :math:`a = t/\sqrt2` and :math:`c = \sqrt{\cosh a}`,

    .. math::

        l_i \leftarrow c\,l_i + (\sinh a / c)\,l_j, \quad l_j \leftarrow l_j / c; \qquad
        l_i \leftarrow e^{t/2}\,l_i \text{ for } E_{ii},

    and :math:`\partial = \sqrt2\,l_i^\top G l_j`, or :math:`l_i^\top G l_i`, with the symmetric part of
    :math:`G`. One coordinate costs :math:`O(n)` on the factor and :math:`O(n^2)` on the stored matrix.

    The state keeps ``"factor"`` and ``"written"`` in double precision, and the number of ``"moves"``
    since the matrix was last written as :math:`LL^\top`, which happens every ``n`` of them.

    Examples
    --------
    >>> basis, X = SPDBasis(), torch.eye(2, dtype=torch.float64)
    >>> basis.move_(X, torch.tensor([1]), torch.tensor([math.log(4.0)], dtype=torch.float64))
    >>> X.round(decimals=6)
    tensor([[4., 0.],
            [0., 1.]], dtype=torch.float64)
    """

    pairs = True
    manifolds = (geoopt.SymmetricPositiveDefinite,)
    frame = "orthonormal"
    geodesic = True
    consistent = True

    def count(self, shape: Sequence[int]) -> int:
        """Return n(n+1)/2."""
        return shape[-1] * (shape[-1] + 1) // 2

    def index(self, shape: Sequence[int]) -> Index:
        """Return the index of pairs, followed by the diagonal."""
        return Index.of_pairs(shape[-1], singles=True)

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and its gradient."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one costs two products of the gradient with a column."""
        upper, _ = kept_factor(covector.point, {} if state is None else state, "SPDBasis")
        n = upper.shape[-1]
        if coords is not None and _is_one(upper, linear(coords)):
            i, j = symmetric_coordinate(int(linear(coords)), n)
            return form_one(upper, covector.grad, i, j) * (0.5 if i == j else _HALF)
        index = torch.arange(n * (n + 1) // 2, device=upper.device) if coords is None else linear(coords)
        lo, hi = symmetric_coordinates(index, n)
        slopes = form_all(upper, covector.grad) if coords is None else form_at(upper, covector.grad, lo, hi)
        return slopes * symmetric_weight(lo, hi).to(slopes.dtype)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move columns of the factor, and the stored matrix with them."""
        index, n = linear(coords), point.shape[-1]
        if index.shape[-1] == 0 or point.numel() == 0:
            return
        state = {} if state is None else state
        upper, written = kept_factor(point, state, "SPDBasis", moving=True)
        moves = state.get("moves", 0) + 1
        if _is_one(upper, index):
            move_one_(point, written, upper, *symmetric_coordinate(int(index), n), float(amounts))
            if moves < n:
                state["moves"] = moves
                return
        else:
            lo, hi = symmetric_coordinates(index, n)
            if index.shape[-1] == 1:
                _move_batch_(upper, written, lo, hi, amounts.double())
            elif not _move_set_(upper, written, Spread(lo, hi, amounts, n), index.dim() == 1):
                moves = n
        if moves >= n:
            # Increments leave rounding of the size of the largest matrix so far: now and then start afresh.
            moved = amounts.ne(0).any(-1)[..., None, None]
            written.copy_(torch.where(moved, upper.mT @ upper, written))
            moves = 0
        state["moves"] = moves
        point.copy_(written)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Small matrices."""
        manifold = geoopt.SymmetricPositiveDefinite()
        return [Example(cls(), manifold, (n, n), _exponential) for n in (4, 2, 1)]


#: 1/√2: the weight of a pair.
_HALF = math.sqrt(0.5)


def _is_one(upper: Tensor, index: Tensor) -> bool:
    """Return whether this is one coordinate of one matrix on the CPU, where whole numbers cost nothing."""
    return upper.dim() == 2 and index.shape == (1,) and upper.device.type == "cpu"


def _move_batch_(upper: Tensor, written: Tensor, lo: Tensor, hi: Tensor, t: Tensor) -> None:
    """Move one coordinate, t (*batch, 1), of the factor and of the matrix."""
    t = t.unsqueeze(-1)  # (*batch, 1, 1)
    single = (lo == hi).unsqueeze(-1)
    a = torch.where(single, t, t * _HALF)
    c = a.cosh().sqrt()
    first, second = rows(upper, lo), rows(upper, hi)  # (*batch, 1, n)
    # Where both are the same column, the second line has the last word.
    put_rows_(upper, hi, second / c)
    put_rows_(upper, lo, torch.where(single, first * (a / 2).exp(), c * first + (a.sinh() / c) * second))
    # exp(aσ) - 1 has the eigenvectors (1, ±1); of a single column the first sum is 2l, the second zero.
    vectors = torch.cat([first + second, first - second], -2)
    scale = torch.where(single, 0.25, 0.5)
    add_outer_(written, vectors, scale * torch.cat([a, -a], -2).expm1())


def _move_set_(upper: Tensor, written: Tensor, spread: Spread, shared: bool) -> bool:
    """Move a set, and the matrix with it unless a new product is no dearer: return whether it was moved."""
    n = upper.shape[-1]
    flat, matrix = upper.view(-1, n, n), written.view(-1, n, n)
    blocks = list(spread.blocks())
    few = shared and 2 * sum(nodes.numel() for (_, nodes), _ in blocks) < n
    for at, small in blocks:
        lower, vectors, weights = product_of_exponential(small[:, 0])
        old = flat[at]  # (B, c, r, n)
        flat[at] = lower.mT @ old
        if few:
            add_outer_(matrix, (vectors.mT @ old).flatten(1, 2), weights.flatten(1).unsqueeze(-1))
    return few


def _exponential(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
    """Return the dense oracle: scipy's exponential of the whole matrix, from the definition."""
    n = point.shape[-1]
    moved = torch.empty_like(point)
    for x, t, y in zip(
        point.reshape(-1, n, n), amounts.reshape(-1, amounts.shape[-1]), moved.view(-1, n, n), strict=True
    ):
        s = _direction(coords, t, n)
        lower = torch.linalg.cholesky(x)
        y.copy_(lower @ torch.from_numpy(scipy.linalg.expm(s.numpy())) @ lower.mT)
    return moved


def _direction(coords: Tensor, amounts: Tensor, n: int) -> Tensor:
    """Return the symmetric matrix with these coefficients: pairs row by row, then the diagonal."""
    names: list[Any] = [(i, j) for i in range(n) for j in range(i + 1, n)] + [(i, i) for i in range(n)]
    s = amounts.new_zeros(n, n)
    for at, t in zip(coords.tolist(), amounts, strict=True):
        i, j = names[at]
        if i == j:
            s[i, i] = t
        else:
            s[i, j] = s[j, i] = t / math.sqrt(2.0)
    return s
