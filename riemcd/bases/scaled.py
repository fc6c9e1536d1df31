"""A manifold with all its lengths multiplied by a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
from torch import Tensor

from ..covector import Covector
from ..index import Coordinates, Index
from .base import Basis, Example, State
from .dispatch import basis_for
from .givens import LeftGivens
from .spd import SPDBasis

__all__ = ["ScaledBasis"]


def _of_base(flag: str) -> Any:
    """Return a flag that is the base's own."""
    return property(lambda self: getattr(self.inner, flag), doc=f"The ``{flag}`` of the base.")


@final
@dataclass(frozen=True)
class ScaledBasis(Basis):
    r"""The coordinates of the base in the longer unit: :math:`\eta_i / s`.

    .. math:: \partial_i \to \partial_i / s, \qquad t \to t / s

    Where all lengths are multiplied by :math:`s`, a direction of unit length is :math:`s` times shorter;
    a plain step moves by :math:`\mathrm{lr}/s^2` of the base's gradient. The scale is read at every step,
    so that it may be learned. Everything else is as in the base.

    Parameters
    ----------
    inner : Basis
        A basis of ``manifold.base``.
    manifold : geoopt.Scaled
        Where the scale is read from.

    Examples
    --------
    >>> sphere = geoopt.Scaled(geoopt.Sphere(), 2.0)
    >>> import torch
    >>> basis, x = basis_for(sphere), torch.tensor([1.0, 0.0])
    >>> basis.move_(x, torch.tensor([1]), torch.tensor([torch.pi]))  # a quarter of a circle of radius 2
    >>> x.round(decimals=6).abs()
    tensor([0., 1.])
    """

    inner: Basis
    manifold: geoopt.Scaled

    pairs = _of_base("pairs")
    frame = _of_base("frame")
    spans = _of_base("spans")
    geodesic = _of_base("geodesic")
    reversible = _of_base("reversible")
    consistent = _of_base("consistent")
    fixed_norm = _of_base("fixed_norm")
    cheap = _of_base("cheap")
    complex_points = _of_base("complex_points")
    point_dims = _of_base("point_dims")
    default_selection = _of_base("default_selection")

    def __post_init__(self) -> None:
        if not isinstance(self.manifold, geoopt.Scaled):
            kind = type(self.manifold).__name__
            raise TypeError(f"ScaledBasis reads the scale of a geoopt.Scaled, got an object of type {kind}.")
        if self.manifold.scale.numel() != 1:
            raise ValueError(
                f"ScaledBasis reads one scale, got shape {tuple(self.manifold.scale.shape)}: "
                "give each scale a manifold and a parameter of its own."
            )

    @property
    def _scale(self) -> Tensor:
        """The scale as it is now, without asking the device for its value."""
        scale: Tensor = self.manifold.scale.detach().reshape(())
        return scale

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of coordinates of the base."""
        return self.inner.count(shape)

    def index(self, shape: Sequence[int]) -> Index:
        """Return the index of the base."""
        return self.inner.index(shape)

    def for_shape(self, shape: Sequence[int]) -> ScaledBasis:
        """Return the basis with the flags for this shape."""
        return ScaledBasis(self.inner.for_shape(shape), self.manifold)

    def check(self, manifold: Any) -> None:
        """The base must be one that the inner basis serves."""
        if not isinstance(manifold, geoopt.Scaled):
            raise ValueError(f"ScaledBasis is for geoopt.Scaled, got {manifold}: use {self.inner!r} itself.")
        self.inner.check(manifold.base)

    def covector(self, point: Tensor, grad: Tensor) -> Covector:
        """Return the covector of the base."""
        return self.inner.covector(point, grad)

    def partials(
        self, covector: Covector, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes of the base, divided by the scale."""
        return self.inner.partials(covector, coords, state) / self._scale

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move as the base does, by amounts divided by the scale."""
        self.inner.move_(point, coords, amounts / self._scale, state)

    def arclength(self, angle: float) -> float:
        """Return the amount that turns a coordinate by ``angle``."""
        return self.inner.arclength(angle) * float(self._scale)

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say what the base has to say."""
        return self.inner.note(manifold.base, shape)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """A basis that keeps state, and one that is read from factors."""
        cases = [(SPDBasis.examples()[1], 2.0), (LeftGivens.examples()[-1], 0.5)]
        return [_scaled(example, scale) for example, scale in cases]


@basis_for.register(geoopt.Scaled)
def _of_scaled(manifold: geoopt.Scaled, shape: Sequence[int] | None) -> Basis:
    return ScaledBasis(basis_for(manifold.base, shape), manifold)


class _Lengthened(geoopt.Scaled):  # type: ignore[misc]
    """geoopt's ``Scaled`` with a metric that knows of the scale: vectors are velocities here, as they are."""

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False, **more: Any
    ) -> Any:
        return self.scale**2 * self.base.inner(x, u, v, keepdim=keepdim, **more)

    def egrad2rgrad(self, x: Tensor, u: Tensor, **more: Any) -> Any:
        return self.base.egrad2rgrad(x, u, **more) / self.scale**2


def _scaled(base: Example, scale: float) -> Example:
    manifold = _Lengthened(base.manifold, scale)

    def exponential(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
        assert base.exponential is not None
        return base.exponential(point, coords, amounts / scale)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        length: Tensor = (base.distance or base.manifold.dist)(x, y)
        return scale * length

    return Example(
        ScaledBasis(base.basis, manifold), manifold, base.shape, exponential, distance, base.random
    )
