r"""The oblique manifold, matrices whose columns have unit norm, and coordinates for it.

The coordinates are the entries, projected: at the entry :math:`(i, k)`, with :math:`x_k` the column,

.. math:: \eta_{ik} = e_i - x_{ik}\, x_k, \qquad \partial_{ik} = g_{ik} - x_{ik} \langle g_k, x_k\rangle,

a Parseval frame, and a set of them moves every touched column along a great circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import geoopt
import torch
from torch import Tensor

from riemcd.bases import Basis, Example, basis_for
from riemcd.covector import Ambient
from riemcd.index import Coordinates, linear


def _norms(x: Tensor) -> Tensor:
    """Return the norms of columns, ``(*batch, 1, p)``."""
    return x.square().sum(-2, keepdim=True).sqrt()


class Oblique(geoopt.Manifold):  # type: ignore[misc]  # geoopt has no types
    """Matrices with columns of unit norm, a product of spheres; geoopt has none."""

    name = "Oblique"
    ndim = 2
    reversible = False

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        norms = _norms(x)
        ok = torch.allclose(norms, torch.ones_like(norms), atol=atol, rtol=rtol)
        return ok, None if ok else f"a column has a norm other than 1 with atol={atol}, rtol={rtol}"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        along = (x * u).sum(-2)
        ok = torch.allclose(along, torch.zeros_like(along), atol=atol, rtol=rtol)
        return ok, None if ok else f"a column of the vector has a part along x, atol={atol}, rtol={rtol}"

    def inner(self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False) -> Tensor:
        """Return the Frobenius inner product."""
        return (u * (u if v is None else v)).sum((-2, -1), keepdim=keepdim)

    def projx(self, x: Tensor) -> Tensor:
        """Return the columns divided by their norms."""
        return x / _norms(x)

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the columns of ``u`` without their parts along those of ``x``."""
        return u - x * (x * u).sum(-2, keepdim=True)

    egrad2rgrad = proju

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the projection of ``x + u``."""
        return self.projx(x + u)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Return where the great circles of the columns lead."""
        s = _norms(u)
        return torch.cos(s) * x + torch.sinc(s / torch.pi) * u

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the root of the summed squared angles; half-chords are accurate for small ones too."""
        angles = 2 * torch.atan2(_norms(x - y), _norms(x + y))
        return angles.square().sum((-2, -1), keepdim=keepdim).sqrt()

    def random(self, *size: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        """Return columns that are uniform on the sphere."""
        x = self.projx(torch.randn(*size, dtype=dtype, device=device))
        found: Tensor = geoopt.ManifoldTensor(x, manifold=self)
        return found


@final
@dataclass(frozen=True)
class ObliqueBasis(Basis):
    """Entries, projected onto the spheres of their columns; coordinate ``i * p + k`` is entry (i, k)."""

    frame = "parseval"
    geodesic = True
    consistent = True
    fixed_norm = True
    manifolds = (Oblique,)

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of entries."""
        return shape[-2] * shape[-1]

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient: nothing is computed yet."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: dict[str, Any] | None = None
    ) -> Tensor:
        """Return the slopes; a set reads the columns it touches, and nothing else."""
        x, g = covector.point, covector.grad  # (*batch, n, p)
        if coords is None:
            return (g - x * (x * g).sum(-2, keepdim=True)).flatten(-2)
        row, columns, place = _touched(linear(coords), x.shape[-1])
        x, g = x[..., columns], g[..., columns]
        along = (x * g).sum(-2).expand(*x.shape[:-2], -1)
        return _at(g, row, place) - _at(x, row, place) * _pick(along, place)

    def move_(
        self, point: Tensor, coords: Coordinates, amounts: Tensor, state: dict[str, Any] | None = None
    ) -> None:
        """Turn the touched columns along their great circles."""
        row, columns, place = _touched(linear(coords), point.shape[-1])
        x = point[..., columns]  # a copy, (*batch, n, m)
        u = torch.zeros_like(x).flatten(-2)
        flat = (row * columns.numel() + place).expand(amounts.shape)
        u = u.scatter_add_(-1, flat, amounts.to(x.dtype)).view(x.shape)
        u = u - x * (x * u).sum(-2, keepdim=True)
        s = _norms(u)
        point[..., columns] = torch.cos(s) * x + torch.sinc(s / torch.pi) * u

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Tall, wide and a single column."""
        return [Example(cls(), Oblique(), shape) for shape in ((4, 3), (2, 5), (5, 1))]


def _touched(coords: Tensor, p: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of the entries, the columns that occur, and which of these each entry is in."""
    columns, place = (coords % p).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    return coords // p, columns, place


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """Return ``values``, ``(*batch, m)``, at places ``(k,)`` shared by the batch or ``(*batch, k)``."""
    return values[..., places] if places.dim() == 1 else values.gather(-1, places)


def _at(x: Tensor, row: Tensor, place: Tensor) -> Tensor:
    return _pick(x.flatten(-2), row * x.shape[-1] + place)


@basis_for.register(Oblique)
def _oblique(manifold: Oblique) -> Basis:
    return ObliqueBasis()
