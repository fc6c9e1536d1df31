r"""The unit sphere: axes projected onto the tangent space, or rotations of two entries.

Axes: :math:`\eta_i = P_x e_i = e_i - x_i x` of length :math:`\sqrt{1 - x_i^2}`, a Parseval frame, with
:math:`\partial_i = g_i - x_i \langle g, x\rangle`. With :math:`u = \sum_i t_i e_i` and
:math:`c = \langle u, x\rangle` a move is the great circle

.. math:: x \leftarrow (\cos s - \tfrac{\sin s}{s}\, c)\, x + \tfrac{\sin s}{s}\, u,
          \qquad s^2 = |u|^2 - c^2 .

Rotations: :math:`\eta_{ij} = x_j e_i - x_i e_j`, :math:`\partial_{ij} = g_i x_j - g_j x_i`, two entries each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
import torch
from torch import Tensor

from ..covector import Ambient, Wedge
from ..index import Coordinates, Index, PairSet, linear_to_pair
from ..kernels import rotate_, wedge_all, wedge_at
from .base import Basis, Example, State
from .dispatch import basis_for
from .entries import (
    Entries,
    add_,
    entries_of,
    in_wide_precision_,
    length,
    ratio,
    row_dot,
    row_square,
    take,
    total,
)

__all__ = ["SphereBasis", "SphereGivens"]


def _projector(manifold: Any) -> Tensor | None:
    projector: Tensor | None = getattr(manifold, "projector", None)
    return projector


@final
@dataclass(frozen=True)
class SphereBasis(Basis):
    r"""Axes projected onto the tangent space, moved along great circles; the default for spheres.

    On a sphere inside a subspace (``Sphere(intersection=)``, ``Sphere(complement=)``) the axes are
    projected onto the subspace as well, which costs its projector instead of one entry.

    Parameters
    ----------
    manifold : geoopt.Sphere, optional
        Where the subspace is read from; not needed for the whole sphere.

    Examples
    --------
    >>> basis, x = SphereBasis(), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    >>> basis.move_(x, torch.tensor([1]), torch.tensor([torch.pi / 6], dtype=torch.float64))
    >>> x.round(decimals=4)
    tensor([0.8660, 0.5000, 0.0000], dtype=torch.float64)
    """

    manifold: geoopt.Sphere | None = None

    manifolds = (geoopt.Sphere,)
    frame = "parseval"
    geodesic = True
    consistent = True
    fixed_norm = True
    point_dims = 1

    def __post_init__(self) -> None:
        projector = _projector(self.manifold)
        if projector is not None and projector.dim() > 2:
            raise ValueError(
                f"SphereBasis reads one subspace for all points, got {tuple(projector.shape[:-2])} of them: "
                "give each subspace a manifold and a parameter of its own."
            )

    def check(self, manifold: Any) -> None:
        """Refuse a subspace that this basis does not know."""
        super().check(manifold)
        if _projector(manifold) is not None and self.manifold is None:
            raise ValueError(
                "SphereBasis() would leave the subspace of this sphere: write SphereBasis(manifold)."
            )

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of entries."""
        return shape[-1]

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        r"""Return :math:`g_i - x_i \langle g, x\rangle`."""
        x, g = (y.float() if y.dtype.itemsize < 4 else y for y in (covector.point, covector.grad))
        along = row_dot(x, g)
        projector = _projector(self.manifold)
        if projector is not None:
            g = g @ projector.to(g)
        index = slice(None) if coords is None else entries_of(coords, x.shape[-1])
        return take(g, index) - take(x, index) * along

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Go along a great circle; the norm is put right on the way, so that rounding does not add up."""
        index = entries_of(coords, point.shape[-1])
        in_wide_precision_(point, lambda x: self._move_(x, index, amounts.to(x.dtype)))

    def _move_(self, x: Tensor, index: Entries, t: Tensor) -> None:
        projector = _projector(self.manifold)
        squared = row_square(x)
        c = total(t * take(x, index))
        if projector is None:
            u, size = None, length(t)
        else:
            u = torch.zeros_like(x)
            add_(u, index, t)
            u = u @ projector.to(u)
            size = length(u)
        s = (size.square() - c.square() / squared).clamp_(min=0).sqrt_()
        beta = ratio(torch.sin, s)
        alpha = torch.cos(s) - beta * c / squared
        norm = (alpha.square() * squared + 2 * alpha * beta * c + (beta * size).square()).sqrt_()
        still = size == 0
        x.mul_(torch.where(still, 1, alpha / norm))
        beta = torch.where(still, 0, beta / norm)
        if u is None:
            add_(x, index, beta * t)
        else:
            x.addcmul_(beta, u)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """The whole sphere, a circle, and a sphere inside a subspace."""
        span = torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).view(5, 3).cos().cumsum(0)
        parts = [geoopt.SphereExact(intersection=span), geoopt.SphereExact(complement=span[:, :1])]
        return [
            Example(cls(), geoopt.SphereExact(), (5,), distance=_angle),
            Example(cls(), geoopt.SphereExact(), (2,), distance=_angle),
            *(Example(cls(part), part, (5,), distance=_angle, random=_random_in(part)) for part in parts),
        ]


@final
@dataclass(frozen=True)
class SphereGivens(Basis):
    r"""Rotate two entries: :math:`(x_i, x_j)` turns by :math:`t`, whatever the dimension.

    The path is a small circle, feasible but no geodesic unless there are only two entries. The
    directions are a Parseval frame, and a random matching of the entries moves all of them at once.
    """

    pairs = True
    manifolds = (geoopt.Sphere,)
    frame = "parseval"
    reversible = True
    consistent = True
    fixed_norm = True
    point_dims = 1

    def check(self, manifold: Any) -> None:
        """Refuse a subspace: a rotation of two entries does not keep it."""
        super().check(manifold)
        if _projector(manifold) is not None:
            raise ValueError(
                "rotations of two entries would leave the subspace of this sphere: use SphereBasis(manifold)."
            )

    def count(self, shape: Sequence[int]) -> int:
        """Return n(n-1)/2."""
        return shape[-1] * (shape[-1] - 1) // 2

    def index(self, shape: Sequence[int]) -> Index:
        """Return the index of pairs of entries."""
        return Index.of_pairs(shape[-1])

    def covector(self, point: Tensor, grad: Tensor) -> Wedge:
        """Return the wedge of the gradient and the point."""
        return Wedge(grad.unsqueeze(-2), point.unsqueeze(-2))

    def partials(
        self, covector: Wedge, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; one costs two entries of the point and two of the gradient."""
        u, v = covector.u, covector.v
        return wedge_all(u, v) if coords is None else wedge_at(u, v, PairSet.of(coords, u.shape[-1]))

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Rotate entries in place."""
        rotate_(point.unsqueeze(-2), PairSet.of(coords, point.shape[-1]), -amounts)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Spheres of odd and even dimension."""
        return [Example(cls(), geoopt.SphereExact(), (n,), _rotation) for n in (5, 4)]


def _angle(x: Tensor, y: Tensor) -> Tensor:
    """Return the dense oracle: the angle between unit vectors, accurate for close ones too."""
    chord, sum_ = (torch.linalg.vector_norm(z, dim=-1) for z in (x - y, x + y))
    angle: Tensor = 2 * torch.atan2(chord, sum_)
    return angle


def _random_in(manifold: geoopt.Sphere) -> Callable[[tuple[int, ...], torch.dtype], Tensor]:
    """Return a sampler of points whose precision need not be that of the projector."""

    def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        point: Tensor = manifold.projx(torch.randn(shape, dtype=torch.float64))
        return point.to(dtype)

    return random


def _rotation(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
    """Return the dense oracle: a full matrix exponential from the definition of the coordinates."""
    n = point.shape[-1]
    i, j = linear_to_pair(coords, n)
    omega = amounts.new_zeros(*amounts.shape[:-1], n, n)
    omega[..., i, j] = amounts
    q: Tensor = torch.linalg.matrix_exp(omega - omega.mT)
    return (q @ point.unsqueeze(-1)).squeeze(-1)


@basis_for.register(geoopt.Sphere)
def _sphere(manifold: geoopt.Sphere) -> Basis:
    return SphereBasis(None if manifold.projector is None else manifold)
