r"""Siegel's upper half space, through the Cholesky factor of the imaginary part.

With :math:`Z = X + iLL^\top`, the coordinates are :math:`\eta = L(R + iS)L^\top`, orthonormal in
:math:`\langle U, V\rangle_Z = \mathrm{Re\,tr}(Y^{-1} U Y^{-1} \bar V)`. A geodesic is that of
:math:`iI` carried to :math:`Z` by :math:`W \mapsto X + LWL^\top`, and at :math:`iI`

.. math::

    W(t) = (iA + B)(iC + D)^{-1}, \qquad
    \begin{pmatrix} A & B \\ C & D \end{pmatrix}
    = \exp \frac t2 \begin{pmatrix} S & R \\ R & -S \end{pmatrix} .
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import geoopt
import scipy.linalg
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, Index, linear
from ..kernels.factors import add_outer_, form_all, form_at, kept_factor, put_rows_, rows
from ..kernels.symmetric import (
    Spread,
    geodesic_of_siegel,
    symmetric_coordinates,
    symmetric_weight,
)
from .base import Basis, Example, State

__all__ = ["UpperHalfBasis"]


@final
@dataclass(frozen=True)
class UpperHalfBasis(Basis):
    r"""Columns of the Cholesky factor of the imaginary part: exact geodesics of the upper half space.

    The imaginary coordinates come first, pairs and then the diagonal, and after them the real ones in the
    same order. Imaginary ones move :math:`L` as `SPDBasis` does. Real ones shear: with :math:`a = t/\sqrt2`
    for a pair,

    .. math::

        X \mathrel{+}= \tanh(a)\,(l_k l_l^\top + l_l l_k^\top), \quad
        l_k, l_l \leftarrow l_k \sqrt{\operatorname{sech} a},\; l_l \sqrt{\operatorname{sech} a}; \qquad
        X \mathrel{+}= \tanh(t)\,l_k l_k^\top, \quad l_k \leftarrow l_k \sqrt{\operatorname{sech} t} .

    Slopes are those of `SPDBasis`, read from the real and from the imaginary part of the gradient as torch
    has it, :math:`\partial f/\partial X + i\,\partial f/\partial Y`. One coordinate costs :math:`O(n)` on
    the factor and :math:`O(n^2)` on the stored matrix; the state keeps what that of `SPDBasis` does.

    The metric option of geoopt's manifold only changes its ``dist``; gradients are Riemannian in all.

    Examples
    --------
    >>> basis, Z = UpperHalfBasis(), 1j * torch.eye(1, dtype=torch.complex128)
    >>> basis.move_(Z, torch.tensor([0]), torch.tensor([math.log(2.0)], dtype=torch.float64))
    >>> basis.move_(Z, torch.tensor([1]), torch.tensor([math.atanh(0.6)], dtype=torch.float64))
    >>> complex(round(Z.real.item(), 6), round(Z.imag.item(), 6))
    (1.2+1.6j)
    """

    pairs = True
    manifolds = (geoopt.UpperHalf,)
    frame = "orthonormal"
    geodesic = True
    consistent = True
    complex_points = True

    def count(self, shape: Sequence[int]) -> int:
        """Return n(n+1)."""
        return shape[-1] * (shape[-1] + 1)

    def index(self, shape: Sequence[int]) -> Index:
        """Return two layers of pairs followed by the diagonal."""
        return Index.of_pairs(shape[-1], singles=True, layers=2)

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and its gradient."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one costs four products of a part of the gradient with a column."""
        upper, _ = kept_factor(covector.point, {} if state is None else state, "UpperHalfBasis")
        n, grad = upper.shape[-1], covector.grad
        index = torch.arange(n * (n + 1), device=upper.device) if coords is None else linear(coords)
        lo, hi, real = _coordinates(index, n)
        if coords is None:
            slopes = torch.cat([form_all(upper, grad.imag), form_all(upper, grad.real)], -1)
        else:
            slopes = torch.where(real, form_at(upper, grad.real, lo, hi), form_at(upper, grad.imag, lo, hi))
        return slopes * symmetric_weight(lo, hi).to(slopes.dtype)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move columns of the factor, and the stored matrix with them."""
        index, n = linear(coords), point.shape[-1]
        if index.shape[-1] == 0 or point.numel() == 0:
            return
        state = {} if state is None else state
        upper, written = kept_factor(point, state, "UpperHalfBasis", moving=True)
        lo, hi, real = _coordinates(index, n)
        moves = state.get("moves", 0) + 1
        if index.shape[-1] == 1:
            _move_one_(upper, written, lo, hi, real, amounts.double())
        else:
            written.real.add_(_move_set_(upper, Spread(lo, hi, amounts, n, real.long(), layers=2)))
            moves = n
        if moves >= n:
            # Increments leave rounding of the size of the largest matrix so far: now and then start afresh.
            moved = amounts.ne(0).any(-1)[..., None, None]
            written.imag.copy_(torch.where(moved, upper.mT @ upper, written.imag))
            moves = 0
        state["moves"] = moves
        point.copy_(written)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Small matrices; geoopt has the distance but no exponential."""
        manifold = geoopt.UpperHalf()
        return [Example(cls(), manifold, (n, n), _symplectic_action, random=_random) for n in (3, 2, 1)]


def _coordinates(index: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pairs, as `symmetric_coordinates` does, and which of them are real."""
    layer = n * (n + 1) // 2
    lo, hi = symmetric_coordinates(index % layer, n)
    return lo, hi, index >= layer


def _move_one_(upper: Tensor, written: Tensor, lo: Tensor, hi: Tensor, real: Tensor, t: Tensor) -> None:
    """Move one coordinate, t (*batch, 1), of the factor and of the matrix."""
    t = t.unsqueeze(-1)  # (*batch, 1, 1)
    single, real = (lo == hi).unsqueeze(-1), real.unsqueeze(-1)
    a = torch.where(single, t, t * math.sqrt(0.5))
    c = a.cosh().sqrt()
    first, second = rows(upper, lo), rows(upper, hi)  # (*batch, 1, n)
    grown = torch.where(single, first * (a / 2).exp(), c * first + (a.sinh() / c) * second)
    # Where both are the same column, the second line has the last word.
    put_rows_(upper, hi, second / c)
    put_rows_(upper, lo, torch.where(real, first / c, grown))
    # Both parts have the eigenvectors (1, ±1); of a single column the first sum is 2l, the second zero.
    vectors = torch.cat([first + second, first - second], -2)
    scale, both = torch.where(single, 0.25, 0.5), torch.cat([a, -a], -2)
    shrunk = -2 * (both / 2).sinh().square() / both.cosh()  # sech - 1 without cancellation
    add_outer_(written.imag, vectors, scale * torch.where(real, shrunk, both.expm1()))
    add_outer_(written.real, vectors, torch.where(real, scale * both.tanh(), 0.0))


def _move_set_(upper: Tensor, spread: Spread) -> Tensor:
    """Move the factor along a set, and return the increment of the real part."""
    n = upper.shape[-1]
    flat = upper.view(-1, n, n)
    before, middle = flat.clone(), torch.zeros_like(flat)
    for (element, nodes), small in spread.blocks():
        lower, real = geodesic_of_siegel(small[:, 0], small[:, 1])
        flat[element, nodes] = lower.mT @ flat[element, nodes]
        middle[element[..., None], nodes.unsqueeze(-1), nodes.unsqueeze(-2)] = real
    return (before.mT @ middle @ before).view(upper.shape)


def _symplectic_action(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
    """Return the dense oracle: scipy's exponential of the symplectic matrix, acting on iI."""
    n = point.shape[-1]
    names = [(i, j) for i in range(n) for j in range(i + 1, n)] + [(i, i) for i in range(n)]
    moved = torch.empty_like(point)
    for z, t, w in zip(
        point.reshape(-1, n, n), amounts.reshape(-1, amounts.shape[-1]), moved.view(-1, n, n), strict=True
    ):
        parts = torch.zeros(2, n, n, dtype=torch.float64)
        for at, amount in zip(coords.tolist(), t, strict=True):
            i, j = names[at % len(names)]
            parts[at // len(names), i, j] = parts[at // len(names), j, i] = (
                amount if i == j else amount / math.sqrt(2.0)
            )
        s, r = parts
        algebra = 0.5 * torch.cat([torch.cat([s, r], 1), torch.cat([r, -s], 1)])
        g = torch.from_numpy(scipy.linalg.expm(algebra.numpy())).to(point.dtype)
        acted = (1j * g[:n, :n] + g[:n, n:]) @ torch.linalg.inv(1j * g[n:, :n] + g[n:, n:])
        lower = torch.linalg.cholesky(z.imag).to(point.dtype)
        w.copy_(z.real + lower @ acted @ lower.mT)
    return moved


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return points whose imaginary part is far from singular."""
    x, y = torch.randn(2, *shape, dtype=torch.float64).mul_(0.5).unbind(0)
    eye = torch.eye(shape[-1], dtype=torch.float64)
    return torch.complex(x + x.mT, y @ y.mT + 0.5 * eye)
