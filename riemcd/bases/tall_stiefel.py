r"""Columns of a tall orthonormal matrix: turned into each other, or out of their span.

The tangent space at :math:`X`, :math:`n \times p`, is :math:`\{X\Omega + N : \Omega^\top = -\Omega,\ X^\top
N = 0\}`. Rotations of two columns are a basis of the first part; the second is spanned by the projected
axes :math:`q_i = (I - XX^\top) e_i`, one family for each column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import geoopt
import torch
from torch import Tensor

from ..covector import Ambient
from ..index import Coordinates, PairSet, linear, linear_to_pair
from ..kernels import rotate_, wedge_all, wedge_at
from ..kernels.rotations import skew_exponential
from ..kernels.wedges import accumulator
from .base import Basis, Example, State

__all__ = ["TallStiefelBasis"]


class _Columns(NamedTuple):
    """What coordinates mean; each part is ``(k,)`` or ``(*batch, k)`` and only holds where it applies."""

    normal: Tensor  # whether the coordinate leaves the span
    row: Tensor  # i of a normal
    lo: Tensor  # k of a normal, the first column of a rotation
    hi: Tensor  # the second column of a rotation, k again for a normal


@final
@dataclass(frozen=True)
class TallStiefelBasis(Basis):
    r"""Column rotations and column normals: exact geodesics in both metrics.

    Coordinate :math:`kn + i` moves column :math:`k` along :math:`q_i = (I - XX^\top) e_i`, which has
    length :math:`\ell_i = \sqrt{1 - \|x^i\|^2}` with :math:`x^i` the row of :math:`X`:

    .. math:: \partial = g_{ik} - x^i \cdot X^\top g_k, \qquad
        x_k \leftarrow \cos(t \ell_i)\, x_k + \frac{\sin(t \ell_i)}{\ell_i}\, q_i .

    Coordinate :math:`np + j` rotates the :math:`j`-th pair of columns as `RightGivens` does. Together they
    are a Parseval frame of the metric. A set moves along the geodesic of its sum,

    .. math:: X \leftarrow \begin{pmatrix} X & N \end{pmatrix} \exp\begin{pmatrix} 2\Omega & -N^\top N \\
        I & 0 \end{pmatrix} \begin{pmatrix} I \\ 0 \end{pmatrix} \exp(-\Omega)

    (canonical metric: :math:`\Omega` for :math:`2\Omega` and no factor at the end), on the columns that
    the set touches. The coordinates :math:`kn, \dots, kn + n - 1` together are the tangent subspace of
    column :math:`k`: all of them at once is the rule of tangent subspace descent for that column.

    Parameters
    ----------
    canonical : bool
        Use the canonical metric (geoopt's default ``Stiefel()``) instead of the Frobenius one.

    Examples
    --------
    >>> basis, X = TallStiefelBasis(), torch.eye(3, 2, dtype=torch.float64)
    >>> basis.move_(X, torch.tensor([2]), torch.tensor([math.pi / 2], dtype=torch.float64))
    >>> X.round(decimals=6).abs()
    tensor([[0., 0.],
            [0., 1.],
            [1., 0.]], dtype=torch.float64)
    """

    canonical: bool = False

    frame = "parseval"
    geodesic = True
    consistent = True
    fixed_norm = True

    @property
    def _scale(self) -> float:
        return 1.0 if self.canonical else math.sqrt(0.5)

    def count(self, shape: Sequence[int]) -> int:
        """Return np + p(p-1)/2."""
        n, p = shape[-2:]
        return n * p + p * (p - 1) // 2

    def check(self, manifold: Any) -> None:
        """Columns must be orthonormal."""
        if not isinstance(manifold, geoopt.Stiefel):
            raise ValueError(f"TallStiefelBasis moves orthonormal columns, got {manifold}.")

    def note(self, manifold: Any, shape: Sequence[int]) -> str:
        """Say which gradient is descended where it is not that of the manifold."""
        if self.canonical == isinstance(manifold, geoopt.CanonicalStiefel):
            return ""
        return f"descends the {'canonical' if self.canonical else 'Frobenius'} gradient"

    def covector(self, point: Tensor, grad: Tensor) -> Ambient:
        """Return the point and the gradient as they are."""
        return Ambient(point, grad)

    def partials(
        self, covector: Ambient, coords: Coordinates | None = None, state: State | None = None
    ) -> Tensor:
        """Return the slopes; a normal one costs one product of X with a column, O(np)."""
        wide = accumulator(covector.point.dtype)
        x, g = covector.point.to(wide), covector.grad.to(wide)
        n, p = x.shape[-2:]
        if coords is None:
            normals = (g - x @ (x.mT @ g)).mT.flatten(-2)
            return torch.cat([normals, self._scale * wedge_all(x, g)], -1)
        index = linear(coords)
        if index.shape[-1] >= p:  # as many products as all of them need
            slopes = self.partials(covector)
            return slopes[..., index] if index.dim() == 1 else slopes.gather(-1, index)
        at = _columns_of(index, n, p)
        row, column = at.row.expand(*x.shape[:-2], -1), at.lo.expand(*x.shape[:-2], -1)
        g_k = _gather(g, column, -1)  # (*batch, n, k)
        inside = (_gather(x, row, -2).mT * (x.mT @ g_k)).sum(-2)
        normals = g_k.gather(-2, row.unsqueeze(-2)).squeeze(-2) - inside
        turns = self._scale * wedge_at(x, g, PairSet(at.lo, at.hi, p))
        return torch.where(at.normal, normals, turns)

    def move_(self, point: Tensor, coords: Coordinates, amounts: Tensor, state: State | None = None) -> None:
        """Move the touched columns along the geodesic of the sum, in place."""
        n, p = point.shape[-2:]
        index = linear(coords)
        if point.numel() == 0 or index.shape[-1] == 0:
            return
        at = _columns_of(index, n, p)
        if index.dim() == 1 and not at.normal.any():
            rotate_(point, PairSet(at.lo, at.hi, p, disjoint=index.numel() == 1), amounts * self._scale)
            return
        if index.dim() == 1 and index.numel() == 1:
            _turn_out_(point, at.row, at.lo, amounts)
            return
        touched, slot = _touched(at, p)  # (c,) or (*batch, c), and where each column went
        batch, c = point.shape[:-2], touched.shape[-1]
        lo, hi = (slot.gather(-1, k).expand(*batch, -1) for k in (at.lo, at.hi))
        t = amounts.double().expand(*batch, -1)
        ambient = t.new_zeros(*batch, n * c).scatter_add_(-1, at.row * c + lo, t * at.normal)
        omega = t.new_zeros(*batch, c * c).scatter_add_(-1, lo * c + hi, t * ~at.normal * self._scale)
        omega = omega.view(*batch, c, c)
        wide = point.to(accumulator(point.dtype))
        normal = ambient.view(*batch, n, c).to(wide.dtype)
        for _ in range(2):  # twice is enough, also where X itself has lost some orthogonality
            normal = normal - wide @ (wide.mT @ normal)
        normal = normal.double()
        inside, outside = self._exponential(omega - omega.mT, normal.mT @ normal)
        columns = touched.expand(*batch, -1)
        old = _gather(wide, columns, -1).double()
        new = old + (old @ inside + normal @ outside)
        point.scatter_(-1, columns.unsqueeze(-2).expand(new.shape), new.to(point.dtype))

    def _exponential(self, omega: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and B of the geodesic ``X + X A + N B``, from X'Delta and N'N, ``(*batch, c, c)``."""
        eye = torch.eye(omega.shape[-1], dtype=omega.dtype, device=omega.device).expand_as(omega)
        # A norm of at least one keeps out of the range where torch's matrix_exp is inaccurate.
        tau = gram.diagonal(dim1=-2, dim2=-1).sum(-1).sqrt().clamp_min(1)[..., None, None]
        top = torch.cat([omega if self.canonical else 2 * omega, -gram / tau], -1)
        flow: Tensor = torch.linalg.matrix_exp(torch.cat([top, torch.cat([tau * eye, 0 * eye], -1)], -2))
        a, b = flow[..., : omega.shape[-1]].chunk(2, -2)
        if self.canonical:
            return a - eye, b / tau
        back = skew_exponential(-omega)
        return a - eye + a @ back, (b + b @ back) / tau

    @classmethod
    def examples(cls) -> Sequence[Example]:
        """Tall and square, both metrics."""
        return [
            Example(
                cls(canonical),
                geoopt.CanonicalStiefel() if canonical else geoopt.EuclideanStiefelExact(),
                shape,
                _dense_exponential(canonical),
                _one_part_distance(canonical),
            )
            for canonical, shape in ((False, (5, 2)), (True, (5, 2)), (False, (4, 1)), (True, (3, 3)))
        ]


def _turn_out_(x: Tensor, row: Tensor, column: Tensor, t: Tensor) -> None:
    """Turn one column towards one projected axis, in place: x (*batch, n, p), t (*batch, 1)."""
    wide = x.to(accumulator(x.dtype))
    q = -(wide @ wide.index_select(-2, row).mT)  # (*batch, n, 1)
    q.index_add_(-2, row, torch.ones_like(q[..., :1, :]))
    q = (q - wide @ (wide.mT @ q)).double()
    t = t.double().unsqueeze(-1)
    angle = t * torch.linalg.vector_norm(q, dim=-2, keepdim=True)
    old = wide.index_select(-1, column).double()
    new = old + (t * torch.sinc(angle / math.pi) * q - 2 * (angle / 2).sin().square() * old)
    x.index_copy_(-1, column, new.to(x.dtype))


def _columns_of(index: Tensor, n: int, p: int) -> _Columns:
    normal = index < n * p
    lo, hi = linear_to_pair((index - n * p).clamp_min(0), max(p, 2))
    column = torch.div(index, n, rounding_mode="floor")
    return _Columns(
        normal,
        torch.where(normal, index % n, 0),
        torch.where(normal, column, lo),
        torch.where(normal, column, hi),
    )


def _touched(at: _Columns, p: int) -> tuple[Tensor, Tensor]:
    """Return columns that hold all touched ones, ``(c,)`` or ``(*batch, c)``, and the place of each."""
    both = torch.cat([at.lo, at.hi], -1)
    if both.dim() == 1:
        columns: Tensor = both.unique()  # type: ignore[no-untyped-call]
    else:
        # Elements may touch differently many: fill up with columns that then do not move.
        marks = both.new_zeros(*both.shape[:-1], p).scatter_(-1, both, 1)
        columns = marks.topk(min(p, both.shape[-1]), -1).indices
    slot = columns.new_zeros(*columns.shape[:-1], p)
    return columns, slot.scatter_(
        -1, columns, torch.arange(columns.shape[-1], device=columns.device).expand_as(columns)
    )


def _gather(x: Tensor, at: Tensor, dim: int) -> Tensor:
    """Return columns (dim -1) or rows (dim -2) of matrices: x (*batch, n, p), at (*batch, k)."""
    if dim == -1:
        return x.gather(-1, at.unsqueeze(-2).expand(*x.shape[:-1], -1))
    return x.gather(-2, at.unsqueeze(-1).expand(*at.shape, x.shape[-1]))


def _dense_exponential(canonical: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the dense oracle: the directions from their definition, and the geodesic by the QR of N."""

    def move(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
        n, p = point.shape[-2:]
        pairs = [(j, l) for j in range(p) for l in range(j + 1, p)]
        delta = torch.zeros_like(point)
        for c, t in zip(coords.tolist(), amounts.unbind(-1), strict=True):
            t = t[..., None, None]
            if c < n * p:
                axis = torch.eye(n, dtype=point.dtype)[:, c % n, None]
                column = torch.eye(p, dtype=point.dtype)[c // n]
                delta = delta + t * (axis - point @ (point.mT @ axis)) * column
            else:
                j, l = pairs[c - n * p]
                turn = torch.zeros(p, p, dtype=point.dtype)
                turn[j, l], turn[l, j] = 1.0, -1.0
                delta = delta + t * point @ turn / (1.0 if canonical else math.sqrt(2.0))
        a = point.mT @ delta
        q, r = torch.linalg.qr(delta - point @ a)
        block = torch.cat(
            [torch.cat([a if canonical else 2 * a, -r.mT], -1), torch.cat([r, torch.zeros_like(r)], -1)], -2
        )
        # Ones on the diagonal keep out of the range where torch's matrix_exp is inaccurate.
        flow = torch.linalg.matrix_exp(block + torch.eye(2 * p, dtype=point.dtype)) / math.e
        moved = torch.cat([point, q], -1) @ flow[..., :p]
        back = torch.linalg.matrix_exp(torch.eye(p, dtype=point.dtype) - a) / math.e
        end: Tensor = moved if canonical else moved @ back
        return end

    return move


def _one_part_distance(canonical: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the dense oracle for points that differ inside the span, or by turning it, and not by both."""

    def distance(x: Tensor, y: Tensor) -> Tensor:
        u, _, vt = torch.linalg.svd(x.mT @ y)
        inside = torch.linalg.eigvals(u @ vt).angle().square().sum(-1)
        sines = torch.linalg.svdvals(y - x @ (x.mT @ y)).clamp_max(1)
        total: Tensor = (inside / 2 if canonical else inside) + sines.asin().square().sum(-1)
        return total.sqrt()

    return distance
