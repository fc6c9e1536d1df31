"""One place where a basis is tried: a point, a loss and what is independent of the basis's own formulas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..bases import Basis, Example
from ..covector import Covector

__all__ = ["BasisCase", "wide"]

_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def wide(x: Tensor) -> Tensor:
    """Return the same numbers in double precision: an oracle does not round as what it judges does."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


@dataclass(frozen=True)
class BasisCase:
    """A basis at a random point, with a random smooth loss.

    Parameters
    ----------
    example : Example
    batch : tuple of int
        Leading dimensions of the point.
    dtype : torch.dtype
        Of the point; complex where the basis has complex points.
    seed : int
    """

    example: Example
    batch: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64
    seed: int = 0

    @cached_property
    def basis(self) -> Basis:
        """The basis, with the flags that hold for this shape."""
        return self.example.basis.for_shape(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor of points."""
        return (*self.batch, *self.example.shape)

    @property
    def single(self) -> bool:
        """Whether single precision is being tried."""
        return self.dtype.itemsize == 4

    @property
    def tolerance(self) -> float:
        """What rounding may do to numbers of order one."""
        return 2e-4 if self.single else 1e-10

    @property
    def reach(self) -> float:
        """How far to go for a finite difference: errors of the stencil and of rounding are then alike."""
        return 0.03 if self.single else 1e-3

    @property
    def slack(self) -> float:
        """What may be wrong with a finite difference of numbers of order one."""
        return 2e-3 if self.single else 1e-7

    @cached_property
    def point(self) -> Tensor:
        """A random point, ``(*batch, *point_shape)``; clone it before moving it."""
        with torch.random.fork_rng():
            torch.manual_seed(1000 + self.seed)
            if self.example.random is not None:
                return self.example.random(self.shape, torch.float64).to(self._storage)
            point: Tensor = self.example.manifold.random(self.shape, dtype=torch.float64)
            # Rounding in the manifold's sampler is not the basis's: start from an exact point.
            point = self.example.manifold.projx(point.as_subclass(Tensor))
            return point.to(self._storage)

    @property
    def _storage(self) -> torch.dtype:
        if not self.example.basis.complex_points:
            return self.dtype
        return torch.complex64 if self.single else torch.complex128

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        real = self.point.real if self.point.is_complex() else self.point
        shape = (2, *real.shape, 2)
        linear, square = torch.randn(shape, generator=generator, dtype=torch.float64).unbind(0)
        return linear, square

    def loss(self, point: Tensor) -> Tensor:
        """Return a smooth function of each point, ``(*batch,)``, in double precision."""
        parts = torch.view_as_real(point) if point.is_complex() else point.unsqueeze(-1)
        parts = parts.double()
        linear, square = (w[..., : parts.shape[-1]] for w in self._weights)
        values = linear * parts + 0.5 * (square * parts).square()
        return values.reshape(*self.batch, -1).sum(-1)

    @cached_property
    def grad(self) -> Tensor:
        """The Euclidean gradient of the summed loss at the point."""
        with torch.enable_grad():
            point = self.point.detach().clone().requires_grad_()
            (grad,) = torch.autograd.grad(self.loss(point).sum(), point)
        return grad

    @cached_property
    def covector(self) -> Covector:
        """The derivative of the loss, as the basis wants it."""
        return self.basis.covector(self.point, self.grad)

    @property
    def count(self) -> int:
        """How many coordinates there are."""
        return self.basis.count(self.shape)

    def some(self, k: int, seed: int = 0) -> Tensor:
        """Return at most ``k`` different coordinates, in random order."""
        generator = torch.Generator().manual_seed(77 * self.seed + seed)
        return torch.randperm(self.count, generator=generator)[:k]

    def amounts(self, k: int, size: float = 0.3, seed: int = 0) -> Tensor:
        """Return random amounts, ``(*batch, k)``, below ``size``."""
        generator = torch.Generator().manual_seed(99 * self.seed + seed)
        drawn = 2 * torch.rand(*self.batch, k, generator=generator, dtype=torch.float64) - 1
        return (size * drawn).to(self.dtype)

    def moved(self, coords: Tensor, amounts: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the point (or ``start``) moved, leaving the original alone."""
        point = (self.point if start is None else start).clone()
        self.basis.move_(point, coords, amounts.to(self.dtype))
        return point

    def along(self, coords: Tensor, amounts: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the velocity with which ``t -> move(t * amounts)`` leaves, by finite differences."""
        h = self.reach
        return sum((w / h * self.moved(coords, n * h * amounts, start) for n, w in _STENCIL), 0 * self.point)

    @cached_property
    def directions(self) -> Tensor:
        """All directions by finite differences of moves, ``(count, *shape)``."""
        one = torch.ones(*self.batch, 1, dtype=self.dtype)
        return torch.stack([self.along(torch.tensor([i]), one) for i in range(self.count)])

    def inner(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the manifold's inner product of tangent vectors, ``(*batch,)``."""
        # Without keepdim geoopt's Stereographic.inner multiplies (*batch, 1) with (*batch,).
        value: Tensor = self.example.manifold.inner(wide(self.point), wide(u), wide(v), keepdim=True)
        value = value.real if value.is_complex() else value
        return value.reshape(*self.batch, -1).sum(-1)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the geodesic distance, ``(*batch,)``, from an oracle."""
        measure = self.example.distance or self.example.manifold.dist
        value: Tensor = measure(x, y)
        # Elementwise manifolds (geoopt.Euclidean(1) and its like) may keep dimensions of size one.
        return value.reshape(self.batch)
