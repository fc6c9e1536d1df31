r"""Symmetric coordinates, and the exponentials of sets of them.

The coordinates of symmetric matrices are the pairs :math:`(E_{ij} + E_{ji})/\sqrt2`, :math:`i < j`, in the
order of `Index`, and after them the diagonal :math:`E_{ii}`. A set of them joins some columns; each connected
component is a small matrix with an exponential of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..components import Block
from ..index import PairSet, linear_to_pair

__all__ = [
    "Spread",
    "geodesic_of_siegel",
    "product_of_exponential",
    "symmetric_coordinate",
    "symmetric_coordinates",
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


def symmetric_coordinate(i: int, n: int) -> tuple[int, int]:
    """Return what `symmetric_coordinates` does, for one of them and in whole numbers.

    >>> [symmetric_coordinate(i, 3) for i in range(6)]
    [(0, 1), (0, 2), (1, 2), (0, 0), (1, 1), (2, 2)]
    """
    last = n * (n - 1) // 2 - 1 - i  # counted from the last pair, the rows behind it are a triangle
    if last < 0:
        return -last - 1, -last - 1
    behind = (math.isqrt(8 * last + 1) - 1) // 2
    return n - 2 - behind, n - 1 - (last - behind * (behind + 1) // 2)


def symmetric_weight(lo: Tensor, hi: Tensor) -> Tensor:
    """Return 1/√2 for pairs and 1/2 for diagonal coordinates: what makes ``S + Sᵀ`` a unit direction."""
    weight = torch.full(lo.shape, math.sqrt(0.5), dtype=torch.float64, device=lo.device)
    return weight.masked_fill_(lo == hi, 0.5)


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

    def blocks(self) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
        """Yield where rows of a transposed factor ``(B, n, n)`` are, and the matrices acting on them.

        ``factor[at]`` is ``(B, c, r, n)`` for coordinates shared by the batch, and ``(1, c, r, n)`` where
        every component has an element of its own; the matrices are ``(B or 1, layers, c, r, r)``.
        """
        for block in self._pairs.blocks:
            if block.element is None:
                element = torch.arange(self._batch, device=block.nodes.device)[:, None, None]
                yield (element, block.nodes), self._matrices(block, self._values)
            else:
                at = (block.element[None, :, None], block.nodes)
                yield at, self._matrices(block, self._values.reshape(1, -1))

    def _matrices(self, block: Block, values: Tensor) -> Tensor:
        c, r = block.nodes.shape
        small = values.new_zeros(values.shape[0], self.layers, c, r, r)
        layer = self._layer.flatten()[block.edges]
        small[:, layer, block.which, block.a, block.b] = values[:, block.edges]
        return small + small.mT


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


def _signs(upper: Tensor) -> Tensor:
    """Return what to multiply rows with, ``(*batch, r, 1)``, so that the diagonal is positive."""
    return torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype).unsqueeze(-1)
