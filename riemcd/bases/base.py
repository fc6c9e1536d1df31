"""The socket for coordinate bases: the directions at a point, slopes along them, motion along them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..covector import Covector
from ..index import Coordinates, Index

__all__ = ["Basis", "Example", "Frame", "State"]

Frame = Literal["orthonormal", "parseval", "spanning"]
State = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A place where the laws try a basis.

    Parameters
    ----------
    basis : Basis
    manifold : geoopt.Manifold
        Random points, the inner product and ``dist`` come from here.
    shape : tuple of int
        A shape of one point, without batch dimensions.
    exponential : callable, optional
        Dense oracle ``(point, coords, amounts) -> point`` for moving along a set; ``expmap`` of the
        summed directions by default.
    distance : callable, optional
        Dense oracle ``(point, point) -> distance`` where geoopt has no ``dist``.
    random : callable, optional
        ``(shape, dtype) -> point`` where ``manifold.random`` does not serve.
    """

    basis: Basis
    manifold: Any
    shape: tuple[int, ...]
    exponential: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    distance: Callable[[Tensor, Tensor], Tensor] | None = None
    random: Callable[[tuple[int, ...], torch.dtype], Tensor] | None = None


class Basis(ABC):
    """Directions :math:`\\eta_i` at a point of a manifold, and motion along them.

    The flags promise what the laws of :mod:`riemcd.testing` check. They hold no tensors and no
    randomness; whatever has to be kept between steps lives in the ``state`` passed in.

    Attributes
    ----------
    pairs : bool
        Coordinates are pairs of columns or rows: rules that choose pairs apply.
    frame : {"orthonormal", "parseval", "spanning"}
        How the directions sit in the tangent space, in the manifold's metric.
    spans : bool
        The directions span the tangent space.
    geodesic : bool
        A move along one coordinate is a geodesic of length ``|t|`` times that of the direction.
    reversible : bool
        Moving by ``t`` and then by ``-t`` along one coordinate is the identity.
    consistent : bool
        Directions are smooth functions of the point, so that momentum and adaptive steps may keep one
        number per coordinate and need no vector transport.
    fixed_norm : bool
        The Frobenius norm of a point is fixed, so that weight decay does nothing.
    cheap : bool
        One coordinate costs less than a full gradient step.
    one_pass : bool
        `descend_` may read and move in one pass over the memory.
    turns : {"columns", "rows"} or None
        Moves rotate columns, or rows, of a matrix, and slopes are read from a `Wedge`: the factors that
        a linear layer has at hand then serve as well as a gradient does.
    complex_points : bool
        Points are complex tensors.
    point_dims : int
        How many trailing dimensions make one point; those before are batch dimensions.
    default_selection : Selection or None
        The rule an optimizer takes when the user names none; None means ``RandomMatching`` for pairs
        and ``Uniform`` otherwise.
    manifolds : tuple of types
        The geoopt manifolds whose points stay on them; empty where nobody can tell by the class.
    """

    pairs: bool = False
    frame: Frame = "spanning"
    spans: bool = True
    geodesic: bool = False
    reversible: bool = False
    consistent: bool = False
    fixed_norm: bool = False
    cheap: bool = True
    one_pass: bool = False
    turns: Literal["columns", "rows"] | None = None
    complex_points: bool = False
    point_dims: int = 2
    default_selection: ClassVar[Any] = None
    manifolds: ClassVar[tuple[type, ...]] = ()

    @abstractmethod
    def count(self, shape: Sequence[int]) -> int:
        """Return the number of coordinates of a point in a tensor of this shape."""

    @abstractmethod
    def covector(self, point: Tensor, grad: Tensor) -> Covector:
        """Return the derivative of the loss in the form that `partials` reads."""

    @abstractmethod
    def partials(
        self, covector: Any, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes :math:`Df[\\eta_i]`, ``(*batch, k)``; all of them when ``coords`` is None."""

    @abstractmethod
    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move ``point`` in place by ``amounts``, ``(*batch, k)``, along ``coords``."""

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
        """Move ``point`` in place by ``rate`` times the slopes along ``coords``, in one pass.

        With ``check`` slopes that are not finite are counted and not moved along; with ``whole`` nothing
        moves at all where there is one; without ``move`` nothing does. Returns the amounts,
        ``(*batch, k)``, and the count; None, and nothing has changed, where there is no such pass.
        """
        return None

    def steepest(self, covector: Any, state: State | None = None) -> Tensor | None:
        """Return the coordinate with the largest slope, ``(*batch, 1)``; None where `partials` must tell."""
        return None

    def arclength(self, angle: float) -> float:
        """Return the amount that turns a coordinate by ``angle``; the amount itself where nothing turns."""
        return angle

    def index(self, shape: Sequence[int]) -> Index:
        """Return what selections may know of the coordinates."""
        return Index(self.count(shape))

    def for_shape(self, shape: Sequence[int]) -> Basis:
        """Return the basis whose flags hold for tensors of this shape."""
        return self

    def for_manifold(self, manifold: Any) -> Basis:
        """Return the basis in the metric of a manifold, where that was left open."""
        return self

    def check(self, manifold: Any) -> None:
        """Raise a ValueError when moves along this basis would leave the manifold."""
        if self.manifolds and not isinstance(manifold, self.manifolds):
            names = " or ".join(kind.__name__ for kind in self.manifolds)
            raise ValueError(
                f"{type(self).__name__} moves points of {names}, and would take one of "
                f"{type(manifold).__name__} off its manifold."
            )

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Return what `riemcd.report` should say about this choice; empty when there is nothing."""
        return "" if self.cheap else "correct, not cheap"

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Return the places where the laws try this basis."""
        return ()
