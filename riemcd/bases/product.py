"""Products of manifolds: the coordinates of every factor, and one selection over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import geoopt
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, linear
from .base import Basis, Example, Frame, State
from .dispatch import basis_for
from .euclidean import EuclideanBasis
from .generic import GenericBasis
from .givens import LeftGivens
from .spd import SPDBasis
from .sphere import SphereBasis
from .stereographic import StereographicBasis
from .upper_half import UpperHalfBasis

__all__ = ["ProductBasis"]


def _every(flag: str) -> Any:
    """Return the flag of a product that holds when it holds for every factor."""
    doc = f"Whether every factor has ``{flag}``."
    return property(lambda self: all(getattr(basis, flag) for basis in self.factors), doc=doc)


@dataclass(frozen=True)
class _Part:
    """One point of one factor: which entries and which coordinates of the whole are its own."""

    key: str  # what its state is kept under
    basis: Basis
    shape: tuple[int, ...]
    entry: int
    first: int
    count: int

    def view(self, x: Tensor) -> Tensor:
        """Return this part of ``x``, ``(*batch, entries)``: splitting a dimension never copies."""
        return x.narrow(-1, self.entry, math.prod(self.shape)).view(*x.shape[:-1], *self.shape)


@final
@dataclass(frozen=True)
class ProductBasis(Basis):
    r"""The union of the coordinates of the factors, numbered factor by factor.

    A point is the vector of all entries of all factors, as ``geoopt.ProductManifold`` stores it; moving
    a set moves every factor along the coordinates that the set has there. What is promised of the
    product is what every factor promises: its frame is orthonormal when all of theirs are, and so on.
    A factor that holds several points (a sphere of shape ``(2, 3)``) counts as so many factors. State
    of a factor is kept under its number, ``"0.factor"``.

    Parameters
    ----------
    factors : tuple of Basis
    shapes : tuple of tuple of int
        The shape of each factor, ``manifold.shapes``.

    Examples
    --------
    >>> torus = geoopt.ProductManifold((geoopt.Sphere(), 2), (geoopt.Sphere(), 2))
    >>> basis_for(torus).count((4,))
    4
    """

    factors: tuple[Basis, ...]
    shapes: tuple[tuple[int, ...], ...]

    point_dims = 1

    def __post_init__(self) -> None:
        if len(self.factors) != len(self.shapes) or not self.factors:
            raise ValueError(
                f"ProductBasis needs a shape for each factor, got {len(self.factors)} factors "
                f"and {len(self.shapes)} shapes."
            )
        shapes = tuple(tuple(shape) for shape in self.shapes)
        for basis, shape in zip(self.factors, shapes, strict=True):
            if len(shape) < basis.point_dims:
                need = f"{type(basis).__name__} needs at least {basis.point_dims} dimensions"
                raise ValueError(f"{need}, got a factor of shape {shape}.")
        factors = tuple(basis.for_shape(shape) for basis, shape in zip(self.factors, shapes, strict=True))
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "shapes", shapes)

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        """The weakest of the factors' frames."""
        kinds: tuple[Frame, ...] = ("orthonormal", "parseval", "spanning")
        return max((basis.frame for basis in self.factors), key=kinds.index)

    spans = _every("spans")
    geodesic = _every("geodesic")
    reversible = _every("reversible")
    consistent = _every("consistent")
    fixed_norm = _every("fixed_norm")
    cheap = _every("cheap")
    complex_points = _every("complex_points")

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        parts: list[_Part] = []
        entry = first = 0
        for number, (basis, shape) in enumerate(zip(self.factors, self.shapes, strict=True)):
            cut = len(shape) - basis.point_dims
            own, count = shape[cut:], basis.count(shape)
            for element in range(math.prod(shape[:cut])):
                key = f"{number}.{element}." if cut else f"{number}."
                parts.append(_Part(key, basis, own, entry, first, count))
                entry, first = entry + math.prod(own), first + count
        return tuple(parts)

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of coordinates of all factors."""
        return sum(part.count for part in self._parts)

    def for_shape(self, shape: Sequence[int]) -> ProductBasis:
        """Check that a point has as many entries as the factors."""
        entries = sum(math.prod(part) for part in self.shapes)
        if not shape or shape[-1] != entries:
            raise ValueError(f"the factors of a product have {entries} entries, got shape {tuple(shape)}.")
        return self

    def check(self, manifold: Any) -> None:
        """Each factor must be one of the manifold's, in this order."""
        if [math.prod(s) for s in self.shapes] != [math.prod(s) for s in getattr(manifold, "shapes", ())]:
            raise ValueError(f"factors of shapes {self.shapes} are not those of {manifold}.")
        for basis, factor in zip(self.factors, manifold.manifolds, strict=True):
            basis.check(factor)

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient; each factor makes its own of its part when it is asked."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; factors without a chosen coordinate are not asked."""

        def slopes(part: _Part, at: Tensor | None) -> Tensor:
            own = part.basis.covector(part.view(covector.point), part.view(covector.grad))
            with _kept(state, part.key) as kept:
                return part.basis.partials(own, at, kept)

        if coords is None:
            return torch.cat([slopes(part, None) for part in self._parts], -1)
        index = linear(coords)
        if index.shape[-1] == 0:
            return slopes(self._parts[0], index)
        if index.dim() == 1:
            chosen = self._chosen(index)
            values = torch.cat([slopes(part, index[where] - part.first) for part, where in chosen], -1)
            return values[..., torch.cat([where for _, where in chosen]).argsort()]
        result: Tensor | float = 0.0
        for part in self._parts:
            if part.count:
                at = (index - part.first).clamp(0, part.count - 1)
                result = torch.where(_inside(index, part), slopes(part, at), result)
        return torch.as_tensor(result)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move every factor along its own coordinates, in place."""
        index = linear(coords)
        if index.dim() == 1:
            for part, where in self._chosen(index):
                at, along = index[where] - part.first, amounts[..., where]
                self._move_part_(part, point, at, along, state)
            return
        for part in self._parts:
            size = min(part.count, index.shape[-1])
            if size == 0:
                continue
            # Elements have differently many coordinates in a factor: each gets as many as the most
            # can have, filled up with others of amount zero.
            slots = torch.where(_inside(index, part), index - part.first, part.count)
            shape = (*index.shape[:-1], part.count + 1)
            marks = torch.zeros(shape, dtype=torch.int8, device=index.device).scatter_(-1, slots, 1)
            spread = amounts.new_zeros(shape).scatter_(-1, slots, amounts)
            chosen = marks[..., :-1].topk(size, -1).indices
            self._move_part_(part, point, chosen, spread.gather(-1, chosen), state)

    def _move_part_(
        self, part: _Part, point: Tensor, at: Tensor, amounts: Tensor, state: State | None
    ) -> None:
        chosen: Coordinates = at
        if at.dim() == 1 and at.shape[0] == part.count:
            # All of them: in their own order they are a structure that nobody has to search for.
            amounts = amounts[..., at.argsort()]
            chosen = part.basis.index(part.shape).everything(at.device)
        with _kept(state, part.key) as kept:
            part.basis.move_(part.view(point), chosen, amounts, kept)

    def _chosen(self, index: Tensor) -> list[tuple[_Part, Tensor]]:
        """Return the parts that hold some of the coordinates ``(k,)``, and which of them each holds."""
        ends = torch.tensor([part.first + part.count for part in self._parts], device=index.device)
        owner = torch.bucketize(index, ends, right=True)
        parts = [self._parts[n] for n in owner.unique().tolist()]  # type: ignore[no-untyped-call]
        return [(part, _inside(index, part).nonzero().squeeze(-1)) for part in parts]

    def arclength(self, angle: float) -> float:
        """Return the amount that turns no factor by more than ``angle``."""
        return min(basis.arclength(angle) for basis in self.factors)

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say what the factors have to say."""
        own = zip(self.factors, manifold.manifolds, self.shapes, strict=True)
        notes = [basis.note(factor, shape) for basis, factor, shape in own]
        return "; ".join(f"factor {number}: {note}" for number, note in enumerate(notes) if note)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Geodesic factors, one with several points; pairs beside state; complex factors."""
        circle = geoopt.SphereExact()
        ball = StereographicBasis.examples()[3]
        flat = EuclideanBasis.examples()[0]
        points = replace(SphereBasis.examples()[0], manifold=circle, shape=(2, 3))
        return [
            _together(points, ball, flat),
            _together(SPDBasis.examples()[1], *LeftGivens.examples()[-1:]),
            _together(UpperHalfBasis.examples()[0], GenericBasis.examples()[-1]),
        ]


def _inside(index: Tensor, part: _Part) -> Tensor:
    return (index >= part.first) & (index < part.first + part.count)


@contextmanager
def _kept(state: State | None, key: str) -> Iterator[State | None]:
    """Give the state of one part as a flat dictionary of its own, and write it back in the end."""
    if state is None:
        yield None
        return
    own = {name.removeprefix(key): value for name, value in state.items() if name.startswith(key)}
    yield own
    state.update({key + name: value for name, value in own.items()})


@basis_for.register(geoopt.ProductManifold)
def _of_product(manifold: geoopt.ProductManifold) -> Basis:
    factors: list[Basis] = []
    shapes: list[tuple[int, ...]] = []
    for factor, shape in zip(manifold.manifolds, manifold.shapes, strict=True):
        if isinstance(factor, geoopt.Euclidean):  # one vector, whatever geoopt takes for a point of it
            factors.append(EuclideanBasis())
            shapes.append((math.prod(shape),))
        else:
            factors.append(basis_for(factor, shape))
            shapes.append(tuple(shape) or (1,))
    return ProductBasis(tuple(factors), tuple(shapes))


def _together(*factors: Example) -> Example:
    """Return the product of some examples, with the oracles of each factor on its part."""
    manifold = geoopt.ProductManifold(*((factor.manifold, factor.shape) for factor in factors))
    basis = ProductBasis(tuple(f.basis for f in factors), tuple(f.shape for f in factors))
    counts = [basis.count(()) for basis in (ProductBasis((f.basis,), (f.shape,)) for f in factors)]

    def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        parts = []
        for factor in factors:
            size = (*shape[:-1], *factor.shape)
            part = factor.random(size, dtype) if factor.random else factor.manifold.random(size, dtype=dtype)
            parts.append(part.as_subclass(Tensor))
        packed: Tensor = manifold.pack_point(*parts)
        return packed

    def distance(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(x.shape[:-1], dtype=x.dtype)
        for number, factor in enumerate(factors):
            pair = (manifold.take_submanifold_value(z, number) for z in (x, y))
            parts = (factor.distance or factor.manifold.dist)(*pair)
            total = total + parts.square().reshape(*total.shape, -1).sum(-1)
        return total.sqrt()

    def exponential(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
        parts, first = [], 0
        for number, (factor, count) in enumerate(zip(factors, counts, strict=True)):
            here = (coords >= first) & (coords < first + count)
            part = manifold.take_submanifold_value(point, number)
            if factor.exponential is not None and here.any():
                part = factor.exponential(part, coords[here] - first, amounts[..., here])
            parts.append(part)
            first += count
        packed: Tensor = manifold.pack_point(*parts)
        return packed

    known = all(factor.exponential is not None for factor in factors)
    return Example(basis, manifold, (manifold.n_elements,), exponential if known else None, distance, random)
