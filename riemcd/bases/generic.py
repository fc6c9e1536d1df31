r"""Any manifold of geoopt: ambient directions, projected, and the manifold's own retraction.

The projection :math:`P_x` = ``proju(x, .)`` is linear, so that the slopes along all projected axes are one
vector, :math:`(P_x^\top g)_i = \langle g, P_x e_i \rangle`, which reverse-mode differentiation of
``proju`` gives at the price of one projection, and a set is moved by one retraction:
:math:`\sum_i t_i P_x e_i = P_x \sum_i t_i e_i`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
import torch
from geoopt.manifolds.siegel.siegel import SiegelManifold
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, linear
from .base import Basis, Example, State

__all__ = ["GenericBasis"]

#: Manifolds whose ``proju`` is a polynomial in the entries of the point.
_SMOOTH = (
    *(geoopt.Sphere, geoopt.SphereExact, geoopt.Lorentz),
    *(geoopt.EuclideanStiefel, geoopt.EuclideanStiefelExact, geoopt.SymmetricPositiveDefinite),
    *(geoopt.UpperHalf, geoopt.BoundedDomain, geoopt.Stereographic, geoopt.StereographicExact),
    *(geoopt.PoincareBall, geoopt.PoincareBallExact, geoopt.SphereProjection, geoopt.SphereProjectionExact),
)


@final
@dataclass(frozen=True)
class GenericBasis(Basis):
    r"""Projected ambient axes :math:`\eta_i = P_x e_i`, moved by the manifold's retraction.

    .. math:: \partial_i = \langle g, P_x e_i \rangle, \qquad
        x \leftarrow \mathrm{Retr}_x\Bigl(\sum_i t_i P_x e_i\Bigr)

    Correct on every manifold whose ``proju`` is linear, differentiable by torch and onto the tangent
    space, and whose ``retr`` leaves along its tangent vector. It is not cheap: one coordinate costs as
    much as all of them, one projection and one retraction, so that all of them are taken by default.
    Each term of :math:`-\sum_i \partial_i \eta_i` goes downhill, and so does the sum. Whatever the
    manifold learns (a curvature, say) is read at every step.

    On complex points the coordinates are the real axes, followed by the imaginary ones, and
    :math:`\langle g, \eta \rangle` is the real part of :math:`\sum \bar g \eta`.

    Parameters
    ----------
    manifold : geoopt.Manifold
        Asked for ``ndim``, ``proju`` and ``retr``.
    complex_points : bool
        The points are complex; always so on geoopt's Siegel spaces.

    Examples
    --------
    >>> basis, x = GenericBasis(geoopt.Sphere()), torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> basis.partials(basis.covector(x, torch.tensor([2.0, 5.0], dtype=torch.float64)))
    tensor([2., 0.], dtype=torch.float64)
    """

    manifold: geoopt.Manifold
    complex_points: bool = False

    cheap = False

    def __post_init__(self) -> None:
        if not isinstance(self.manifold, geoopt.Manifold):
            kind = type(self.manifold).__name__
            raise TypeError(f"GenericBasis needs a geoopt.Manifold, got an object of type {kind}.")
        if isinstance(self.manifold, geoopt.CanonicalStiefel):
            raise ValueError(
                "GenericBasis needs a retraction that leaves along its tangent vector, which that of "
                "CanonicalStiefel does not do: it goes up to twice as far. Use LeftGivens or RightGivens."
            )
        if isinstance(self.manifold, geoopt.Scaled):
            raise ValueError(
                "GenericBasis needs a retraction that leaves along its tangent vector, which that of "
                "Scaled does not do: it divides by the scale. Use ScaledBasis around a basis of its base."
            )
        if isinstance(self.manifold, SiegelManifold):
            object.__setattr__(self, "complex_points", True)

    @property
    def point_dims(self) -> int:  # type: ignore[override]
        """The number of dimensions of a point, as the manifold says."""
        dims: int = self.manifold.ndim
        return dims

    @property
    def consistent(self) -> bool:  # type: ignore[override]
        """True where the projection is known to be a smooth function of the point."""
        return type(self.manifold) in _SMOOTH

    def _split(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        cut = len(shape) - self.point_dims
        return tuple(shape[:cut]), tuple(shape[cut:])

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of real entries of a point."""
        return math.prod(self._split(shape)[1]) * (2 if self.complex_points else 1)

    def check(self, manifold: Any) -> None:
        """The projection and the retraction must be those of the parameter's manifold."""
        if type(manifold) is not type(self.manifold):
            raise ValueError(f"GenericBasis was made for {self.manifold}, got {manifold}.")

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient as they are."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return slopes; all of them are computed whatever is asked for."""
        point, grad = _wide(covector.point), _wide(covector.grad)
        pulled = torch.zeros_like(grad) if grad.numel() == 0 else self._pull(point, grad)
        batch, shape = self._split(point.shape)
        slopes = pulled.reshape(*batch, math.prod(shape))
        if slopes.is_complex():
            slopes = torch.cat([slopes.real, slopes.imag], -1)
        if coords is None:
            return slopes
        index = linear(coords)
        return slopes[..., index] if index.dim() == 1 else slopes.gather(-1, index)

    def _pull(self, point: Tensor, grad: Tensor) -> Tensor:
        """Return the transposed projection of the gradient: reverse mode through ``proju``."""
        with torch.enable_grad():
            axes = torch.zeros_like(point).requires_grad_()
            # A copy: manifolds may work in place on the vector, which torch forbids on a leaf.
            tangent = self.manifold.proju(point, axes.clone())
            (pulled,) = torch.autograd.grad(tangent, axes, grad)
        return pulled

    @torch.no_grad()  # else a learned curvature would make the moved point part of its graph
    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Retract along the sum of the chosen directions, in place; points without a move keep their bits."""
        if point.numel() == 0 or amounts.shape[-1] == 0:
            return
        batch, shape = self._split(point.shape)
        wide = _wide(point)
        index = linear(coords).expand(amounts.shape)
        real = wide.real.dtype if wide.is_complex() else wide.dtype
        entries = amounts.new_zeros((*batch, self.count(point.shape)), dtype=real)
        entries.scatter_(-1, index, amounts.to(real))
        axes = torch.complex(*entries.chunk(2, -1)) if self.complex_points else entries
        tangent = self.manifold.proju(wide, axes.reshape(point.shape))
        moved = amounts.ne(0).any(-1).reshape(*batch, *(1,) * len(shape))
        point.copy_(torch.where(moved, self.manifold.retr(wide, tangent), wide))

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Real points of one and two dimensions, and complex ones."""
        spd = geoopt.SymmetricPositiveDefinite()
        cases = [
            (geoopt.Sphere(), (4,), None),
            (geoopt.EuclideanStiefel(), (4, 2), None),
            (spd, (2, 2), None),
            (geoopt.BoundedDomain(), (2, 2), _inside),
        ]
        return [
            Example(cls(manifold), manifold, shape, _summed_retraction(manifold), random=random)
            for manifold, shape, random in cases
        ]


def _wide(x: Tensor) -> Tensor:
    """Return a plain tensor, detached, in single precision at least."""
    x = x.detach()
    return x.float() if x.dtype.itemsize < 4 else x


def _inside(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return points of the bounded domain well away from its boundary, where geoopt clamps."""
    z = torch.complex(*torch.randn(2, *shape, dtype=dtype))
    z = z + z.mT
    inside: Tensor = 0.3 * z / torch.linalg.matrix_norm(z, 2, keepdim=True)
    return inside


def _summed_retraction(manifold: geoopt.Manifold) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the dense oracle: each axis projected by itself, added up and retracted."""

    def move(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
        size = math.prod(point.shape[point.dim() - manifold.ndim :])
        tangent = torch.zeros_like(point)
        for i, t in zip(coords.tolist(), amounts.unbind(-1), strict=True):
            axis = torch.eye(size, dtype=point.dtype)[i % size] * (1j if i >= size else 1)
            axis = axis.reshape(point.shape[point.dim() - manifold.ndim :]).expand(point.shape)
            spread = t.reshape(*t.shape, *(1,) * manifold.ndim)
            tangent = tangent + spread * manifold.proju(point, axis)
        moved: Tensor = manifold.retr(point, tangent)
        return moved

    return move
