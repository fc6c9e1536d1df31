r"""The :math:`\kappa`-stereographic model: Poincaré ball, flat space and projected sphere in one.

The metric is :math:`\lambda_x^2` times the Euclidean one, :math:`\lambda_x = 2/(1 + \kappa |x|^2)`, so
that :math:`\eta_i = e_i/\lambda_x` is an orthonormal basis and :math:`\partial_i = g_i/\lambda_x`. With
:math:`u = \sum_i t_i e_i`, :math:`T = |t|` and :math:`y = \tan_\kappa(T/2)\, u/T` a move is the geodesic

.. math:: x \leftarrow x \oplus_\kappa y
          = \frac{(1 - 2\kappa\langle x, y\rangle - \kappa|y|^2)\, x + (1 + \kappa|x|^2)\, y}
                 {1 - 2\kappa\langle x, y\rangle + \kappa^2|x|^2|y|^2} .
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import geoopt
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates
from .base import Basis, Example, State
from .dispatch import basis_for
from .entries import Entries, add_, entries_of, in_wide_precision_, length, ratio, row_square, take, total

__all__ = ["StereographicBasis"]


@final
@dataclass(frozen=True)
class StereographicBasis(Basis):
    r"""The axes in units of the metric, :math:`e_i/\lambda_x`; a move is a geodesic.

    Serves ``Stereographic``, ``PoincareBall``, ``SphereProjection`` and their exact variants. The
    curvature is read from the manifold at every step, whatever its sign, so that it may be learned
    meanwhile. In the ball points are kept at the distance from the boundary that geoopt keeps; where a
    learned curvature has drawn the ball in around them, they are read and moved as if projected first.

    Parameters
    ----------
    manifold : geoopt.Stereographic

    Examples
    --------
    >>> basis, x = StereographicBasis(geoopt.PoincareBall()), torch.zeros(2)
    >>> basis.move_(x, torch.tensor([1]), torch.tensor([2.0]))
    >>> x
    tensor([0.0000, 0.7616])
    """

    manifold: geoopt.Stereographic

    manifolds = (geoopt.Stereographic,)
    frame = "orthonormal"
    geodesic = True
    consistent = True
    point_dims = 1

    def __post_init__(self) -> None:
        if self.manifold.k.numel() != 1:
            raise ValueError(
                f"StereographicBasis reads one curvature, got k of shape {tuple(self.manifold.k.shape)}: "
                "give each curvature a manifold and a parameter of its own."
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
        r"""Return :math:`g_i/\lambda_x`."""
        x, g = (y.float() if y.dtype.itemsize < 4 else y for y in (covector.point, covector.grad))
        k, squared = self._curvature(x), row_square(x)
        if self._ball_may_shrink:
            squared = squared * self._inside(squared, k).square_()
        scale = (squared * k).add_(1).mul_(0.5)
        return scale * (g if coords is None else take(g, entries_of(coords, x.shape[-1])))

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Go along a geodesic."""
        index = entries_of(coords, point.shape[-1])
        in_wide_precision_(point, lambda x: self._move_(x, index, amounts.to(x.dtype)))

    def _move_(self, x: Tensor, index: Entries, t: Tensor) -> None:
        k = self._curvature(x)
        size = length(t)
        beta = self._half_tangent(size, k)  # y = beta u
        squared, step = row_square(x), (beta * size).square_()
        if self._ball_may_shrink:
            back = torch.where(size > 0, self._inside(squared, k), 1)
            x.mul_(back)
            squared.mul_(back.square_())
        inner = total(t * take(x, index)).mul_(beta)
        first = 1 - 2 * k * inner
        bottom = first + k * k * squared * step
        factor = bottom.reciprocal()
        if not isinstance(self.manifold, geoopt.SphereProjection):
            moved = (squared + 2 * inner + step) * factor  # the square of the norm of the sum
            factor *= torch.where(size > 0, self._inside(moved, k), 1)
        x.mul_((first - k * step) * factor)
        add_(x, index, (1 + k * squared) * beta * factor * t)

    def _half_tangent(self, size: Tensor, k: Tensor) -> Tensor:
        r"""Return :math:`\tan_\kappa(T/2)/T`, whose limit is 1/2."""
        half = (0.5 * k.abs().sqrt()) * size
        if isinstance(self.manifold, geoopt.PoincareBall):
            return 0.5 * ratio(torch.tanh, half)
        if isinstance(self.manifold, geoopt.SphereProjection):
            return 0.5 * ratio(torch.tan, half)
        # The sign is known to the device alone, and asking for it would make the step wait.
        return 0.5 * ratio(lambda z: torch.where(k < 0, torch.tanh(z), torch.tan(z)), half)

    @property
    def _ball_may_shrink(self) -> bool:
        # Of a Poincaré ball k is computed from what is learned, and a step computes without gradients.
        learned = any(param.requires_grad for param in self.manifold.parameters())
        return learned and not isinstance(self.manifold, geoopt.SphereProjection)

    def _inside(self, squared: Tensor, k: Tensor) -> Tensor:
        """Return what keeps points whose norms have these squares off the boundary of the ball."""
        margin = 1e-5 if squared.dtype.itemsize > 4 else 4e-3
        norm = (squared * -k).clamp_(min=0).sqrt_()  # 1 on the boundary, 0 where there is none
        return torch.where(norm > 1 - margin, (1 - margin) / norm, 1)

    def _curvature(self, x: Tensor) -> Tensor:
        """Return the curvature as it is now, without asking the device for its value."""
        k: Tensor = self.manifold.k.detach().reshape(()).to(x)
        return k

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Every class, curvatures of every sign."""

        def number(k: float) -> Tensor:
            return torch.tensor(k, dtype=torch.float64)

        manifolds = [
            geoopt.StereographicExact(number(-0.7)),
            geoopt.StereographicExact(number(0.0)),
            geoopt.Stereographic(number(0.6)),
            geoopt.PoincareBall(number(1.0)),
            geoopt.PoincareBallExact(number(0.4)),
            geoopt.SphereProjectionExact(number(1.0)),
        ]
        return [_example(manifold, n) for manifold, n in zip(manifolds, (5, 4, 3, 4, 1, 4), strict=True)]


def _example(manifold: geoopt.Stereographic, n: int) -> Example:
    def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).mul_(0.3).to(dtype)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        # The chord of the sphere, or of the hyperboloid, that the model is a projection of.
        k: Tensor = manifold.k.detach()
        scale = (1 + k * x.square().sum(-1)) * (1 + k * y.square().sum(-1))
        half = ((x - y).square().sum(-1) / scale).sqrt()
        root = k.abs().sqrt()
        if k == 0:
            return 2 * half
        return 2 / root * (torch.asinh(root * half) if k < 0 else torch.asin(root * half))

    return Example(StereographicBasis(manifold), manifold, (n,), distance=distance, random=random)


@basis_for.register(geoopt.Stereographic)
def _stereographic(manifold: geoopt.Stereographic) -> Basis:
    return StereographicBasis(manifold)
