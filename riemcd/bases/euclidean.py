"""Entries of a tensor: the coordinates everybody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import geoopt
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, linear
from .base import Basis, Example, State

__all__ = ["EuclideanBasis"]


@final
@dataclass(frozen=True)
class EuclideanBasis(Basis):
    r"""The coordinate axes :math:`e_i` of vectors: :math:`x_i \leftarrow x_i + t`, :math:`\partial_i = g_i`.

    The last dimension is the vector, those before it are batch dimensions.
    """

    manifolds = (geoopt.Euclidean,)
    frame = "orthonormal"
    geodesic = True
    reversible = True
    consistent = True
    point_dims = 1

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of entries."""
        return shape[-1]

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the gradient as it is."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return entries of the gradient."""
        if coords is None:
            return covector.grad
        index = linear(coords)
        if index.dim() == 1:
            return covector.grad[..., index]
        return covector.grad.gather(-1, index)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Add to entries."""
        index = linear(coords)
        amounts = amounts.to(point.dtype)
        if index.dim() == 1:
            point.index_add_(-1, index, amounts)
        else:
            point.scatter_add_(-1, index, amounts)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Vectors of some length."""
        return [Example(cls(), geoopt.Euclidean(1), (5,))]
