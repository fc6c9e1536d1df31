r"""Upper bounds of L in closed form, for rotations of the columns or rows of an orthonormal matrix.

Along :math:`c(t) = W e^{t\Omega}` the point :math:`c(s)` is as good a start as :math:`W`, so the remainder of
Assumption 1 is at most :math:`\tfrac12 t^2 \sup |\varphi''(0)|` with the supremum over points and unit
directions. A move by amounts :math:`t_i` turns by the angles :math:`s\,t_i`, so that
:math:`\|\Omega\|_F^2 = 2 s^2 \sum_i t_i^2`, with :math:`s = 1/\sqrt2` in the Frobenius metric of square
matrices and :math:`s = 1` elsewhere. The derivations are on the theory page of the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ..bases import LeftGivens, RightGivens
from ..problems import JointDiagonalization, LinearTrace, QuadraticTrace
from .variables import Variable

__all__ = [
    "Certificate",
    "JointQuadratic",
    "joint_diagonalization_bound",
    "linear_trace_bound",
    "lipschitz_bound",
    "quadratic_trace_bound",
    "upper_bound",
]

_FROBENIUS = math.sqrt(0.5)


@dataclass(frozen=True)
class Certificate:
    """An L for which Assumption 1 holds, and why."""

    value: float
    proof: str


@singledispatch
def upper_bound(f: Any, start: Sequence[Variable]) -> Certificate | None:
    """Return a proved upper bound of L for a loss, or None; register closed forms for your own losses.

    Parameters
    ----------
    f : object
        The loss; its type decides.
    start : sequence of Variable
        Its arguments, with the bases along which they move.
    """
    return None


def angle_scale(variable: Variable) -> float | None:
    """Return the angle by which an amount of one turns two columns or rows; None where nothing turns."""
    if isinstance(variable.basis, RightGivens | LeftGivens):
        return 1.0 / variable.basis.arclength(1.0)
    return None


def linear_trace_bound(M: Tensor, scale: float = _FROBENIUS) -> float:
    r"""Return :math:`s^2 (\sigma_1 + \sigma_2)(M)`, the L of :math:`f(W) = \pm\langle M, W \rangle`.

    It is attained, at the polar factor of M and the rotation of its two leading singular directions.

    Parameters
    ----------
    M : Tensor
        ``(n, p)``
    scale : float
        The angle s of an amount of one.

    Examples
    --------
    >>> round(linear_trace_bound(torch.diag(torch.tensor([3.0, 2.0, 1.0]))), 6)
    2.5
    """
    sigma = torch.linalg.svdvals(M)
    return scale**2 * float(sigma[..., :2].sum())


def spread(A: Tensor) -> float:
    """Return the distance between the extreme eigenvalues of the symmetric part of ``A``, ``(n, n)``."""
    values = torch.linalg.eigvalsh((A + A.mT) / 2)
    return float(values[-1] - values[0])


def quadratic_trace_bound(
    A: Tensor, N: Tensor, scale: float = _FROBENIUS, *, tall: bool = False, factor: float = 1.0
) -> float:
    r"""Return :math:`2 s^2 c\,\mathrm{spread}(A)\,\mathrm{spread}(N)`, the L of quadratic traces.

    The loss is :math:`f(W) = c\,\mathrm{tr}(W^\top A W N)`. The spread is the distance between the extreme
    eigenvalues, those of N together with 0 when W is tall. It is attained, where W diagonalises A in the
    order of N, by turning the two extreme directions.

    Parameters
    ----------
    A : Tensor
        ``(n, n)``, symmetric.
    N : Tensor
        ``(p, p)`` symmetric, or ``(p,)`` the diagonal of it.
    scale : float
        The angle s of an amount of one.
    tall : bool
        Fewer columns than rows, moved by rotations of the rows.
    factor : float
        The c in front.

    Examples
    --------
    >>> A = torch.diag(torch.tensor([5.0, 3.0, 1.0]))
    >>> round(quadratic_trace_bound(A, torch.tensor([1.0, 2.0, 4.0])), 6)  # (5 - 1)(4 - 1)
    12.0
    """
    values = N if N.dim() == 1 else torch.linalg.eigvalsh((N + N.mT) / 2)
    low, high = float(values.min()), float(values.max())
    if tall:
        low, high = min(low, 0.0), max(high, 0.0)
    return 2 * scale**2 * abs(factor) * spread(A) * (high - low)


def joint_diagonalization_bound(matrices: Tensor, scale: float = _FROBENIUS, *, factor: float = 1.0) -> float:
    r"""Return :math:`5 s^2 c \sum_k \mathrm{spread}(A_k)^2`, an L of joint diagonalisation.

    The loss is :math:`f(W) = c \sum_k \|\mathrm{off}(W^\top A_k W)\|_F^2`.

    Parameters
    ----------
    matrices : Tensor
        ``(m, n, n)``, symmetric.
    scale : float
        The angle s of an amount of one.
    factor : float
        The c in front.
    """
    return 5 * scale**2 * abs(factor) * sum(spread(A) ** 2 for A in matrices)


def lipschitz_bound(lipschitz: float, gradient: float, scale: float = _FROBENIUS) -> float:
    r"""Return an L from a Lipschitz constant of the Euclidean gradient and a bound of that gradient.

    .. math:: L = \max(1, 2 s^2)\,\ell + \sqrt2 s^2\,\Gamma

    This is what the remark after Assumption 1 in the paper should say. The constant :math:`\ell` alone is
    not enough: rotations bend in the ambient space, and :math:`\Gamma \ge \|\partial_W f\|_F` over the region
    of the iterates is the price of that.

    Parameters
    ----------
    lipschitz : float
        The constant of the Euclidean gradient of f in (X, W).
    gradient : float
        The largest Frobenius norm of the Euclidean gradient with respect to W.
    scale : float
        The angle s of an amount of one.
    """
    return max(1.0, 2 * scale**2) * lipschitz + math.sqrt(2) * scale**2 * gradient


@dataclass(frozen=True, eq=False)
class JointQuadratic:
    r"""A quadratic in a free matrix and an orthogonal one, on a ball of the free one.

    .. math:: f(X, W) = \tfrac12 z^\top Q z + c^\top z, \qquad z = (\mathrm{vec} X, \mathrm{vec} W),
              \qquad \|X\|_F \le r

    Its L depends on r: this is the class of losses for which the remark in the paper fails.

    Parameters
    ----------
    Q : Tensor
        ``(a + b, a + b)`` symmetric, for X of a entries and W of b.
    c : Tensor
        ``(a + b,)``
    radius : float
        The r of the ball.
    """

    Q: Tensor  # (a + b, a + b)
    c: Tensor  # (a + b,)
    radius: float

    def __call__(self, X: Tensor, W: Tensor) -> Tensor:
        """Return the value at X and W."""
        z = torch.cat([X.reshape(-1), W.reshape(-1)])
        value: Tensor = 0.5 * z @ (self.Q @ z) + self.c @ z
        return value

    def inside(self, X: Tensor, W: Tensor) -> bool:
        """Return whether X lies in the ball."""
        return float(torch.linalg.vector_norm(X)) <= self.radius

    def bound(self, rows: int, columns: int, scale: float = _FROBENIUS) -> float:
        """Return an L for W of this shape: `lipschitz_bound` with the extremes on the ball."""
        a = self.Q.shape[0] - rows * columns
        lipschitz = float(torch.linalg.matrix_norm(self.Q, 2))
        across = float(torch.linalg.matrix_norm(self.Q[a:, :a], 2)) if a else 0.0
        within = float(torch.linalg.matrix_norm(self.Q[a:, a:], 2))
        gradient = across * self.radius + within * math.sqrt(columns)
        gradient += float(torch.linalg.vector_norm(self.c[a:]))
        return lipschitz_bound(lipschitz, gradient, scale)


@upper_bound.register
def _(f: JointQuadratic, start: Sequence[Variable]) -> Certificate | None:
    if len(start) != 2 or start[0].basis is not None:
        return None
    scale = angle_scale(start[1])
    if scale is None:
        return None
    rows, columns = start[1].value.shape[-2:]
    return Certificate(
        f.bound(rows, columns, scale), "Lipschitz gradient and bounded partial gradient on a ball"
    )


def _rotated(start: Sequence[Variable]) -> tuple[float, bool] | None:
    """Return the scale of a single rotated matrix, and whether rows of a tall one are; None otherwise."""
    scale = angle_scale(start[0]) if len(start) == 1 else None
    if scale is None:
        return None
    rows, columns = start[0].value.shape[-2:]
    return scale, columns < rows and isinstance(start[0].basis, LeftGivens)


@upper_bound.register
def _(f: LinearTrace, start: Sequence[Variable]) -> Certificate | None:
    found = _rotated(start)
    if found is None:
        return None
    return Certificate(linear_trace_bound(f.M, found[0]), "the two largest singular values of M")


@upper_bound.register
def _(f: QuadraticTrace, start: Sequence[Variable]) -> Certificate | None:
    found = _rotated(start)
    if found is None:
        return None
    weights = f.A.new_ones(start[0].value.shape[-1]) if f.weights is None else f.weights
    bound = quadratic_trace_bound(f.A, weights, found[0], tall=found[1])
    return Certificate(bound, "the spreads of A and of the weights")


@upper_bound.register
def _(f: JointDiagonalization, start: Sequence[Variable]) -> Certificate | None:
    found = _rotated(start)
    if found is None:
        return None
    return Certificate(joint_diagonalization_bound(f.matrices, found[0]), "the spreads of all matrices")
