r"""The hyperboloid :math:`-x_0^2 + x_1^2 + \dots + x_n^2 = -k`: axes carried from the origin.

Parallel transport from :math:`(\sqrt k, 0, \dots, 0)` along the geodesic to :math:`x` takes the axes to

.. math:: \eta_i = e_i + c_0 x_i (x + \sqrt k\, e_0), \qquad c_0 = \frac{1}{k + \sqrt k\, x_0},
          \qquad i \ge 1,

an orthonormal basis that is a smooth function of the point, with
:math:`\partial_i = g_i + c_0 x_i (\langle g, x\rangle + \sqrt k\, g_0)` (plain dot products). With
:math:`T = |t|`, :math:`c = \sum_i t_i x_i` and :math:`s = \sinh(T/\sqrt k)/(T/\sqrt k)` a move is

.. math:: x_i \leftarrow (\cosh(T/\sqrt k) + s\, c_0\, c)\, x_i + s\, t_i, \qquad
          x_0 \leftarrow \sqrt{k + x_1^2 + \dots + x_n^2} .
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
from .entries import Entries, add_, entries_of, in_wide_precision_, length, ratio, row_dot, take, total

__all__ = ["LorentzBasis"]


@final
@dataclass(frozen=True)
class LorentzBasis(Basis):
    """The axes of hyperbolic space, carried from the origin; a move is a geodesic.

    The curvature is read from the manifold at every step, so that it may be learned meanwhile: points
    are then taken as their entries 1, ..., n say, and entry 0 follows when they move.

    Parameters
    ----------
    manifold : geoopt.Lorentz

    Examples
    --------
    >>> basis, x = LorentzBasis(geoopt.Lorentz()), torch.tensor([1.0, 0.0, 0.0])
    >>> basis.move_(x, torch.tensor([1]), torch.tensor([2.0]))
    >>> x
    tensor([3.7622, 0.0000, 3.6269])
    """

    manifold: geoopt.Lorentz

    manifolds = (geoopt.Lorentz,)
    frame = "orthonormal"
    geodesic = True
    consistent = True
    point_dims = 1

    def __post_init__(self) -> None:
        if self.manifold.k.numel() != 1:
            raise ValueError(
                f"LorentzBasis reads one curvature, got k of shape {tuple(self.manifold.k.shape)}: "
                "give each curvature a manifold and a parameter of its own."
            )

    def count(self, shape: Sequence[int]) -> int:
        """Return the dimension, one less than the number of entries."""
        return shape[-1] - 1

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        r"""Return :math:`g_i + c_0 x_i (\langle g, x\rangle + \sqrt k\, g_0)`."""
        x, g = (y.float() if y.dtype.itemsize < 4 else y for y in (covector.point, covector.grad))
        k, root = self._curvature(x)
        x = self._current(x, root)
        along = row_dot(x, g).add_(root * g[..., :1]).mul_(self._c0(x, k, root))
        index = slice(1, None) if coords is None else entries_of(coords, x.shape[-1] - 1, 1)
        return torch.addcmul(take(g, index), take(x, index), along)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Go along a geodesic; the point is put back onto the hyperboloid on the way."""
        index = entries_of(coords, point.shape[-1] - 1, 1)
        in_wide_precision_(point, lambda x: self._move_(x, index, amounts.to(x.dtype)))

    def _move_(self, x: Tensor, index: Entries, t: Tensor) -> None:
        k, root = self._curvature(x)
        size = length(t)
        tau = size / root
        s = ratio(torch.sinh, tau)
        grown = total(t * take(x, index)).mul_(s).mul_(self._c0(self._current(x, root), k, root))
        first = x[..., :1]
        still, before = size == 0, first.clone()
        x.mul_(grown.add_(torch.cosh(tau)))
        add_(x, index, t * s)
        first.copy_(torch.where(still, before, self._lifted(x, root)))

    def _curvature(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and its root as they are now, without asking the device for their values."""
        k: Tensor = self.manifold.k.detach().reshape(()).to(x)
        return k, k.sqrt()

    def _lifted(self, x: Tensor, root: Tensor) -> Tensor:
        """Return the entry 0 that belongs to the others; overwrites the one that is there."""
        x[..., :1] = root
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return norm

    def _current(self, x: Tensor, root: Tensor) -> Tensor:
        """Return the point on the hyperboloid of now: entry 0 may be that of an earlier k."""
        if not self.manifold.k.requires_grad:
            return x
        lifted = x.clone()
        lifted[..., :1] = self._lifted(lifted, root)
        return lifted

    @staticmethod
    def _c0(x: Tensor, k: Tensor, root: Tensor) -> Tensor:
        return (x[..., :1] * root).add_(k).reciprocal_()

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Several curvatures and dimensions."""
        return [_example(k, n) for k, n in ((1.0, 5), (0.5, 3), (3.0, 2))]


def _example(k: float, n: int) -> Example:
    manifold = geoopt.Lorentz(torch.tensor(k, dtype=torch.float64))

    def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        point: Tensor = manifold.projx(torch.randn(shape, dtype=torch.float64))
        return point.to(dtype)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        # From the chord, which is accurate for close points too.
        square = (x - y).square()
        chord = (square[..., 1:].sum(-1) - square[..., 0]).clamp(min=0).sqrt()
        root: Tensor = manifold.k.detach().sqrt()
        return 2 * root * torch.asinh(chord / (2 * root))

    return Example(LorentzBasis(manifold), manifold, (n,), distance=distance, random=random)


@basis_for.register(geoopt.Lorentz)
def _lorentz(manifold: geoopt.Lorentz) -> Basis:
    return LorentzBasis(manifold)
