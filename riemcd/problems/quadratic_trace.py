"""Principal components and Brockett's function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..bases import Basis, RightGivens
from ..index import PairSet
from ..kernels.exact import Rounds
from ..stepsizes import PairModel
from .base import Problem, Work, check_tensor
from .jacobi import complete, turn_congruent_

__all__ = ["QuadraticTrace"]


@final
@dataclass(frozen=True, eq=False)
class QuadraticTrace(Problem):
    r"""The loss :math:`f(X) = -\mathrm{tr}(X^\top A X N)` with symmetric :math:`A` and diagonal :math:`N`.

    Without weights, :math:`N = I`, the columns of the best X span the principal components of :math:`A`;
    with different weights they are its eigenvectors (Brockett's function; negative weights, or
    :math:`-A`, ask for the smallest).

    X is completed to a square :math:`Q` whose columns are rotated, with weights :math:`n_j = 0` for the
    new ones: Jacobi's method on :math:`C = Q^\top A Q`. Turning columns :math:`j, l` by :math:`\theta`
    gives, up to a constant,

    .. math:: \tfrac12 (n_j - n_l)(c_{ll} - c_{jj}) \cos 2\theta + (n_j - n_l)\, c_{jl} \sin 2\theta .

    Parameters
    ----------
    A : Tensor
        ``(n, n)``, symmetric.
    weights : Tensor, optional
        ``(p,)``, the diagonal of N; ones when not given.
    """

    A: Tensor  # (n, n)
    weights: Tensor | None = None  # (p,)

    def __post_init__(self) -> None:
        check_tensor("QuadraticTrace", "A", self.A)
        if self.A.shape[0] != self.A.shape[1] or not torch.allclose(self.A, self.A.mT):
            raise ValueError(
                f"QuadraticTrace: A must be symmetric, got one of shape {tuple(self.A.shape)} that is not."
            )
        if self.weights is not None:
            check_tensor("QuadraticTrace", "weights", self.weights, 1)
        object.__setattr__(self, "A", (self.A.detach() + self.A.detach().mT) / 2)

    def check(self, x: Tensor) -> None:
        """X must have the rows of A and the columns of the weights."""
        p = x.shape[1] if self.weights is None else self.weights.shape[0]
        if x.shape != (self.A.shape[0], p):
            raise ValueError(
                f"QuadraticTrace: X must have shape ({self.A.shape[0]}, {p}), got {tuple(x.shape)}."
            )

    def value(self, x: Tensor) -> Tensor:
        """Return the weighted sum of −x·Ax over the columns."""
        return -(self._weighted(x) * (self.A @ x)).sum()

    def gradient(self, x: Tensor) -> Tensor:
        """Return −2 A X N."""
        return -2 * self.A @ self._weighted(x)

    def start(self, x: Tensor) -> Work:
        """Complete X to Q, and look at A from there."""
        q = complete(x)
        return Work(q, x.shape[1], q.mT @ self.A @ q)

    def basis(self, work: Work) -> Basis:
        """Rotate columns of the completed matrix."""
        return RightGivens()

    def covector_gradient(self, work: Work) -> Tensor:
        """Return the gradient, zero in the columns that complete X."""
        gradient = torch.zeros_like(work.point)
        gradient[:, : work.columns] = self.gradient(work.matrix)
        return gradient

    def model(self, work: Work, pairs: PairSet) -> PairModel:
        """Return the second harmonic."""
        n = self._padded(work)
        return self._harmonic(work, pairs, n[pairs.lo] - n[pairs.hi])

    def sweep_(self, work: Work, rounds: Rounds, relax: float) -> Tensor:
        """Turn pairs of equal weight too, as if the first weighed more.

        They do not change the loss, but without them C would not become diagonal, and Jacobi's method
        would not end in quadratic convergence.
        """
        n, largest = self._padded(work), work.point.new_zeros((), dtype=torch.float64)
        for pairs in rounds.matchings:
            apart = n[pairs.lo] - n[pairs.hi]
            model = self._harmonic(work, pairs, torch.where(apart == 0, 1.0, apart))
            angles = relax * model.minimizer()
            self.turn_(work, pairs, angles)
            largest = torch.maximum(largest, angles.abs().max().double())
        return largest

    def turn_(self, work: Work, pairs: PairSet, angles: Tensor) -> None:
        """Turn columns of Q, and both sides of C."""
        turn_congruent_(work, pairs, angles)

    def _harmonic(self, work: Work, pairs: PairSet, apart: Tensor) -> PairModel:
        diagonal = work.cache.diagonal()
        cos = apart * (diagonal[pairs.hi] - diagonal[pairs.lo]) / 2
        return PairModel((2,), cos[None], (apart * work.cache[pairs.lo, pairs.hi])[None])

    def _weighted(self, x: Tensor) -> Tensor:
        return x if self.weights is None else x * self.weights

    def _padded(self, work: Work) -> Tensor:
        n = work.point.new_zeros(work.point.shape[0])
        n[: work.columns] = 1 if self.weights is None else self.weights
        return n
