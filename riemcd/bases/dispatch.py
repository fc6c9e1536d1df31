"""Which basis a manifold gets when the user names none: an open registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import geoopt

from .base import Basis
from .birkhoff import BirkhoffBasis
from .euclidean import EuclideanBasis
from .generic import GenericBasis
from .givens import LeftGivens, RightGivens
from .spd import SPDBasis
from .upper_half import UpperHalfBasis

__all__ = ["BasisRegistry", "basis_for"]

Maker = Callable[..., Basis]
M = TypeVar("M", bound=Maker)


class BasisRegistry:
    """Call it with a manifold to get a basis; the most derived registered class decides.

    A maker is a function of the manifold, or of the manifold and the shape of the parameter::

        @basis_for.register(MyManifold)
        def _(manifold):
            return MyBasis(manifold.radius)
    """

    def __init__(self) -> None:
        self._makers: dict[type, Maker] = {}

    def register(self, manifold_class: type) -> Callable[[M], M]:
        """Register the decorated maker for a class of manifolds and its subclasses."""
        if not isinstance(manifold_class, type):
            raise TypeError(f"register takes a manifold class, got {manifold_class!r}.")

        def add(maker: M) -> M:
            self._makers[manifold_class] = maker
            return maker

        return add

    def __call__(self, manifold: Any, shape: Sequence[int] | None = None) -> Basis:
        """Return the basis for a manifold; ``shape`` decides where tall and square differ.

        Without a shape a Stiefel manifold is taken to hold square matrices.
        """
        for kind in type(manifold).__mro__:
            maker = self._makers.get(kind)
            if maker is not None:
                wants_shape = len(inspect.signature(maker).parameters) > 1
                basis = maker(manifold, shape) if wants_shape else maker(manifold)
                return basis if shape is None else basis.for_shape(shape)
        name = type(manifold).__name__
        raise ValueError(
            f"there is no basis for manifold {name}. "
            f"Pass basis=..., or register one with @basis_for.register({name})."
        )

    def has(self, manifold: Any) -> bool:
        """Return whether some basis is registered for this manifold."""
        return any(kind in self._makers for kind in type(manifold).__mro__)


basis_for = BasisRegistry()


@basis_for.register(geoopt.Stiefel)
def _stiefel(manifold: geoopt.Stiefel, shape: Sequence[int] | None) -> Basis:
    canonical = isinstance(manifold, geoopt.CanonicalStiefel)
    if shape is None or shape[-1] == shape[-2]:
        return RightGivens(canonical)
    return LeftGivens(canonical)


@basis_for.register(geoopt.Euclidean)
def _euclidean(manifold: geoopt.Euclidean) -> Basis:
    return EuclideanBasis()


@basis_for.register(geoopt.SymmetricPositiveDefinite)
def _positive_definite(manifold: geoopt.SymmetricPositiveDefinite) -> Basis:
    # The coordinates are orthonormal in the affine-invariant metric only.
    return SPDBasis() if manifold.default_metric.name == "AIM" else GenericBasis(manifold)


@basis_for.register(geoopt.UpperHalf)
def _upper_half(manifold: geoopt.UpperHalf) -> Basis:
    return UpperHalfBasis()


@basis_for.register(geoopt.BirkhoffPolytope)
def _birkhoff(manifold: geoopt.BirkhoffPolytope) -> Basis:
    return BirkhoffBasis()


@basis_for.register(geoopt.Manifold)
def _any(manifold: geoopt.Manifold) -> Basis:
    return GenericBasis(manifold)
