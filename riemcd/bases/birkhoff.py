r"""Doubly stochastic matrices: four entries at a time, so that rows and columns keep their sums.

The coordinate of rows :math:`i < j` and columns :math:`k < l` is :math:`(e_i - e_j)(e_k - e_l)^\top`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, linear, linear_to_pair
from ..kernels.symmetric import symmetric_coordinate
from ..kernels.wedges import accumulator
from .base import Basis, Example, State

__all__ = ["BirkhoffBasis"]


@final
@dataclass(frozen=True)
class BirkhoffBasis(Basis):
    r"""Add :math:`t` to two entries of a matrix and take it from two others, inside its bounds.

    .. math::

        x_{ik}, x_{jl} \mathrel{+}= t, \quad x_{il}, x_{jk} \mathrel{-}= t, \qquad
        -\min(x_{ik}, x_{jl}) < t < \min(x_{il}, x_{jk}), \qquad
        \partial = g_{ik} - g_{il} - g_{jk} + g_{jl}

    Coordinates are numbered by pairs of rows, then by pairs of columns; there are :math:`(n(n-1)/2)^2`.
    Sets move by the sum. Where a move would leave the polytope, all of it is scaled by the one factor
    that leaves the share ``margin`` of the entry that would vanish first. An amount is the change of an
    entry, not a length. Moving by :math:`t` and then by :math:`-t` is the identity as long as no bound
    cuts either short, which is why the basis does not call itself reversible.

    Parameters
    ----------
    margin : float
        Between 0 and 1, exclusive.

    Examples
    --------
    >>> basis, X = BirkhoffBasis(), torch.full((2, 2), 0.5)
    >>> basis.move_(X, torch.tensor([0]), torch.tensor([0.25]))
    >>> X
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]])
    """

    margin: float = 1e-3

    manifolds = (geoopt.BirkhoffPolytope,)
    frame = "spanning"
    consistent = True

    def __post_init__(self) -> None:
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"BirkhoffBasis needs a margin between 0 and 1, got {self.margin!r}.")

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of pairs of rows times that of pairs of columns."""
        return int((shape[-1] * (shape[-1] - 1) // 2) ** 2)

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the gradient as it is."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one reads four entries."""
        grad = covector.grad.to(accumulator(covector.grad.dtype))
        n = grad.shape[-1]
        if coords is None:
            lo, hi = torch.triu_indices(n, n, 1, device=grad.device)
            rows = grad.index_select(-2, lo) - grad.index_select(-2, hi)
            return (rows.index_select(-1, lo) - rows.index_select(-1, hi)).flatten(-2)
        ik, il, jk, jl = _take_flat(grad.flatten(-2), _cells(linear(coords), n)).chunk(4, -1)
        return ik - il - jk + jl

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Change four entries for one coordinate, and in place; a set costs a pass over the matrix."""
        index, n = linear(coords), point.shape[-1]
        if index.shape[-1] == 0 or point.numel() == 0:
            return
        cells, tiny = _cells(index, n), torch.finfo(point.dtype).tiny
        signed = torch.cat([amounts, -amounts, -amounts, amounts], -1).double()
        flat = point.flatten(-2)  # a copy where no view exists
        if index.shape[-1] == 1:
            before = _take_flat(flat, cells).double()
            _put_flat_(flat, cells, (before + self._inside(before, signed, tiny)).to(point.dtype))
        else:
            change = torch.zeros(flat.shape, dtype=torch.float64, device=point.device)
            change.scatter_add_(-1, cells.expand(signed.shape), signed)
            before = flat.double()
            flat.copy_(before + self._inside(before, change, tiny))
        if flat.untyped_storage().data_ptr() != point.untyped_storage().data_ptr():
            point.copy_(flat.view(point.shape))

    def _inside(self, entries: Tensor, change: Tensor, tiny: float) -> Tensor:
        """Scale a change of entries, ``(*batch, m)``, by one factor into the open bounds."""
        # An entry whose share would be rounded to zero is not made smaller.
        room = torch.where(entries * self.margin > tiny, entries * (1.0 - self.margin), 0.0)
        allowed = torch.where(change < 0, room / -change, torch.inf).amin(-1, keepdim=True)
        return torch.where(allowed < 1, change * allowed, change)

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say what an amount is here."""
        return "an amount is the change of an entry, not a length"

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Small matrices, and one small enough to have a single coordinate."""
        manifold = geoopt.BirkhoffPolytope()
        return [Example(cls(), manifold, (n, n), _scaled_sum, random=_random) for n in (4, 2)]


def _cells(index: Tensor, n: int) -> Tensor:
    """Return where the entries of coordinates are in a flat matrix, ``(..., 4 k)``: ik, il, jk, jl."""
    pairs = max(n * (n - 1) // 2, 1)
    if index.shape == (1,) and index.device.type == "cpu":
        # One coordinate in whole numbers: a dozen times faster than in tensors of one entry.
        (p, q), (r, s) = (symmetric_coordinate(number, n) for number in divmod(int(index), pairs))
        return torch.tensor([p * n + r, p * n + s, q * n + r, q * n + s])
    i, j = linear_to_pair(index // pairs, n)
    k, l = linear_to_pair(index % pairs, n)
    return torch.cat([i * n + k, i * n + l, j * n + k, j * n + l], -1)


def _take_flat(flat: Tensor, cells: Tensor) -> Tensor:
    return flat.index_select(-1, cells) if cells.dim() == 1 else flat.gather(-1, cells)


def _put_flat_(flat: Tensor, cells: Tensor, values: Tensor) -> None:
    if cells.dim() == 1:
        flat.index_copy_(-1, cells, values)
    else:
        flat.scatter_(-1, cells, values)


def _scaled_sum(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
    """Return the dense oracle: outer products, added up and scaled back entry by entry."""
    n = point.shape[-1]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    eye = torch.eye(n, dtype=point.dtype)
    change = torch.zeros_like(point)
    for at, t in zip(coords.tolist(), amounts.unbind(-1), strict=True):
        (i, j), (k, l) = pairs[at // len(pairs)], pairs[at % len(pairs)]
        change = change + t[..., None, None] * torch.outer(eye[i] - eye[j], eye[k] - eye[l])
    factor = torch.ones(point.shape[:-2], dtype=point.dtype)
    for p in range(n):
        for q in range(n):
            x, d = point[..., p, q], change[..., p, q]
            factor = torch.where(d < 0, torch.minimum(factor, 0.999 * x / -d), factor)
    return point + factor[..., None, None] * change


def _random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return matrices well inside the polytope whose sums are one to rounding."""
    x = 0.5 + torch.rand(shape, dtype=torch.float64)
    for _ in range(200):
        x = x / x.sum(-1, keepdim=True)
        x = x / x.sum(-2, keepdim=True)
    return x.to(dtype)
