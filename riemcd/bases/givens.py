r"""Rotations of two columns, or of two rows, of an orthonormal matrix.

Right: :math:`\eta_{jl} = W H_{jl}`, :math:`H_{jl} = (e_j e_l^\top - e_l e_j^\top)/\sqrt2`, the paper's
basis; :math:`\partial_{jl} = (a_{jl} - a_{lj})/\sqrt2` with :math:`A = W^\top G`, and a move by :math:`t`
turns columns :math:`j, l` by :math:`t/\sqrt2`. Left: :math:`\eta_{jl} = H_{jl} W`, :math:`A = G W^\top`.
In the canonical metric the unit coordinate has no :math:`1/\sqrt2` and the angle is :math:`t` itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
from torch import Tensor

from ..covector import Accumulated, Wedge
from ..index import Coordinates, Index, PairSet
from ..kernels import descend_, rotate_, wedge_all, wedge_at, wedge_steepest
from ..kernels.wedges import steepest_of_product, wedge_of_product
from .base import Basis, Example, Frame, State
from .group_oracles import group_distance, group_exponential

__all__ = ["LeftGivens", "RightGivens"]

_FROBENIUS = math.sqrt(0.5)


def _wedge(covector: Wedge | Accumulated, coords: Coordinates | None, scale: float) -> Tensor:
    if isinstance(covector, Accumulated):
        product = covector.product
        return wedge_of_product(
            product, None if coords is None else PairSet.of(coords, product.shape[-1]), scale
        )
    u, v = covector.u, covector.v
    scale = scale if covector.scale is None else covector.scale
    if coords is None:
        return wedge_all(u, v, scale)
    return wedge_at(u, v, PairSet.of(coords, u.shape[-1]), scale)


def _steepest(covector: Wedge | Accumulated) -> Tensor | None:
    if isinstance(covector, Accumulated):
        return steepest_of_product(covector.product) if covector.product.shape[-1] > 1 else None
    return wedge_steepest(covector.u, covector.v) if covector.u.shape[-1] > 1 else None


def _metric(canonical: bool | None, manifold: Any) -> bool:
    return isinstance(manifold, geoopt.CanonicalStiefel) if canonical is None else canonical


@final
@dataclass(frozen=True)
class RightGivens(Basis):
    """Rotate two columns: the paper's basis :math:`W H_{jl}`, the default for square matrices.

    On tall matrices it only moves inside the span of the columns.

    Parameters
    ----------
    canonical : bool, optional
        Use the canonical metric (geoopt's default ``Stiefel()``) instead of the Frobenius one; left open,
        the manifold of the parameter decides.
    tall : bool
        Set by `for_shape`: the flags are those for fewer columns than rows.

    Examples
    --------
    >>> import torch
    >>> basis, W = RightGivens(), torch.eye(3, dtype=torch.float64)
    >>> basis.move_(W, torch.tensor([0]), torch.tensor([math.sqrt(2) * math.pi / 2], dtype=torch.float64))
    >>> W.round(decimals=6)[:2, :2].abs()
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """

    canonical: bool | None = None
    tall: bool = False

    manifolds = (geoopt.Stiefel,)
    pairs = True
    geodesic = True
    reversible = True
    consistent = True
    fixed_norm = True
    one_pass = True
    turns = "columns"

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """Orthonormal, though of a subspace only when tall."""
        return "orthonormal"

    @property
    def spans(self) -> bool:  # type: ignore[override]
        """Whether all tangent directions are reached."""
        return not self.tall

    @property
    def _scale(self) -> float:
        return 1.0 if self.canonical else _FROBENIUS

    def count(self, shape: Sequence[int]) -> int:
        """Return p(p-1)/2."""
        return shape[-1] * (shape[-1] - 1) // 2

    def index(self, shape: Sequence[int]) -> Index:
        """Return the index of pairs of columns."""
        return Index.of_pairs(shape[-1])

    def covector(self, point: Tensor, grad: Tensor) -> Wedge:
        """Return the wedge of W and G."""
        return Wedge(point, grad)

    def partials(
        self, covector: Wedge, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one costs four column reads."""
        return _wedge(covector, coords, self._scale)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Rotate columns in place."""
        rotate_(point, PairSet.of(coords, point.shape[-1]), amounts, self._scale)

    def descend_(
        self,
        point: Tensor,
        grad: Tensor,
        coords: Coordinates,
        rate: float,
        check: bool,
        move: bool,
        whole: bool = False,
    ) -> tuple[Tensor, int] | None:
        """Read and rotate disjoint columns, or groups of them."""
        pairs = PairSet.of(coords, point.shape[-1])
        return descend_(point, grad, pairs, False, self._scale, rate, check, move, whole)

    def steepest(self, covector: Wedge, state: State | None = None) -> Tensor | None:
        """Look through the product of the factors."""
        return _steepest(covector)

    def arclength(self, angle: float) -> float:
        """Return the amount that turns two columns by ``angle``."""
        return angle / self._scale

    def for_manifold(self, manifold: Any) -> RightGivens:
        """Return the basis in the metric of the manifold, where it was left open."""
        return RightGivens(_metric(self.canonical, manifold), self.tall)

    def for_shape(self, shape: Sequence[int]) -> RightGivens:
        """Return the basis with the flags for this shape."""
        return RightGivens(self.canonical, shape[-1] < shape[-2])

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say that a tall matrix keeps its column span."""
        return "moves inside the span of the columns only" if shape[-1] < shape[-2] else ""

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Square and tall, both metrics."""
        return [
            Example(
                cls(canonical),
                geoopt.CanonicalStiefel() if canonical else geoopt.EuclideanStiefelExact(),
                shape,
                group_exponential("right", canonical),
                group_distance(canonical),
            )
            for canonical in (False, True)
            for shape in ((5, 5), (6, 3))
        ]


@final
@dataclass(frozen=True)
class LeftGivens(Basis):
    r"""Rotate two rows: :math:`H_{jl} W`; the default for tall matrices.

    For fewer columns than rows the directions :math:`(E_{ij} - E_{ji}) X` are a Parseval frame of the
    canonical metric, and the angle is the amount itself whichever metric the manifold has.

    Parameters
    ----------
    canonical : bool, optional
        Use the canonical metric for square matrices too; left open, the manifold of the parameter decides.
    tall : bool
        Set by `for_shape`: the flags are those for fewer columns than rows.
    """

    canonical: bool | None = None
    tall: bool = False

    manifolds = (geoopt.Stiefel,)
    pairs = True
    reversible = True
    consistent = True
    fixed_norm = True
    one_pass = True
    turns = "rows"

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """Orthonormal for square matrices, Parseval (canonical metric) for tall ones."""
        return "parseval" if self.tall else "orthonormal"

    @property
    def geodesic(self) -> bool:  # type: ignore[override]
        """A geodesic for square matrices only."""
        return not self.tall

    def _scale(self, rows: int, columns: int) -> float:
        return 1.0 if self.canonical or columns < rows else _FROBENIUS

    def count(self, shape: Sequence[int]) -> int:
        """Return n(n-1)/2."""
        return shape[-2] * (shape[-2] - 1) // 2

    def index(self, shape: Sequence[int]) -> Index:
        """Return the index of pairs of rows."""
        return Index.of_pairs(shape[-2])

    def covector(self, point: Tensor, grad: Tensor) -> Wedge:
        """Return the wedge of the transposed G and W."""
        return Wedge(grad.mT, point.mT, self._scale(point.shape[-2], point.shape[-1]))

    def partials(
        self, covector: Wedge, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one costs four row reads."""
        return _wedge(covector, coords, 1.0 / self.arclength(1.0))

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Rotate rows in place."""
        scale = self._scale(point.shape[-2], point.shape[-1])
        rotate_(point, PairSet.of(coords, point.shape[-2]), amounts, -scale, rows=True)

    def descend_(
        self,
        point: Tensor,
        grad: Tensor,
        coords: Coordinates,
        rate: float,
        check: bool,
        move: bool,
        whole: bool = False,
    ) -> tuple[Tensor, int] | None:
        """Read and rotate disjoint rows, each pair while it is in the cache, or groups of them."""
        pairs = PairSet.of(coords, point.shape[-2])
        scale = self._scale(point.shape[-2], point.shape[-1])
        return descend_(point, grad, pairs, True, scale, rate, check, move, whole)

    def steepest(self, covector: Wedge, state: State | None = None) -> Tensor | None:
        """Look through the product of the factors."""
        return _steepest(covector)

    def arclength(self, angle: float) -> float:
        """Return the amount that turns two rows by ``angle``."""
        return angle / self._scale(2 if self.tall else 1, 1)

    def for_manifold(self, manifold: Any) -> LeftGivens:
        """Return the basis in the metric of the manifold, where it was left open."""
        return LeftGivens(_metric(self.canonical, manifold), self.tall)

    def for_shape(self, shape: Sequence[int]) -> LeftGivens:
        """Return the basis with the flags for this shape."""
        return LeftGivens(self.canonical, shape[-1] < shape[-2])

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say which gradient is descended on a tall matrix with the Frobenius metric."""
        if shape[-1] < shape[-2] and isinstance(manifold, geoopt.EuclideanStiefel):
            return "descends the canonical gradient"
        return ""

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Square in both metrics, and tall."""
        cases = [(False, (5, 5)), (True, (5, 5)), (True, (6, 3))]
        return [
            Example(
                cls(canonical),
                geoopt.CanonicalStiefel() if canonical else geoopt.EuclideanStiefelExact(),
                shape,
                group_exponential("left", canonical or shape[0] > shape[1]),
                group_distance(canonical),
            )
            for canonical, shape in cases
        ]
