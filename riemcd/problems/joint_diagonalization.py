"""One basis for many symmetric matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..bases import Basis, RightGivens
from ..index import PairSet
from ..stepsizes import PairModel
from .base import Problem, Work, check_tensor
from .jacobi import turn_congruent_

__all__ = ["JointDiagonalization"]


@final
@dataclass(frozen=True, eq=False)
class JointDiagonalization(Problem):
    r"""The loss :math:`f(X) = \sum_k \mathrm{off}(X^\top A_k X)`: how far from diagonal all of them are.

    :math:`\mathrm{off}` is the sum of the squares beside the diagonal. Turning columns :math:`j, l` by
    :math:`\theta` gives, with :math:`h_k = c_{jj} - c_{ll}` and :math:`g_k = 2 c_{jl}` of
    :math:`C_k = X^\top A_k X`, up to a constant,

    .. math:: \tfrac14 \sum_k (g_k^2 - h_k^2) \cos 4\theta + \tfrac12 \sum_k h_k g_k \sin 4\theta .

    Sweeps of exact angles are the method of Bunse-Gerstner, Byers and Mehrmann and of Cardoso and
    Souloumiac; they end in quadratic convergence when the matrices commute.

    Parameters
    ----------
    matrices : Tensor
        ``(k, n, n)``, each symmetric.
    """

    matrices: Tensor  # (k, n, n)

    def __post_init__(self) -> None:
        check_tensor("JointDiagonalization", "matrices", self.matrices, 3)
        A = self.matrices.detach()
        if A.shape[1] != A.shape[2] or not torch.allclose(A, A.mT):
            raise ValueError(f"JointDiagonalization: not all of these {len(A)} matrices are symmetric.")
        object.__setattr__(self, "matrices", (A + A.mT) / 2)

    def check(self, x: Tensor) -> None:
        """X must be square, of the size of the matrices."""
        n = self.matrices.shape[-1]
        if x.shape != (n, n):
            raise ValueError(f"JointDiagonalization: X must have shape ({n}, {n}), got {tuple(x.shape)}.")

    def value(self, x: Tensor) -> Tensor:
        """Return the sum of the squares beside the diagonals."""
        C = x.mT @ self.matrices @ x
        return (C - torch.diag_embed(C.diagonal(dim1=-2, dim2=-1))).square().sum()

    def gradient(self, x: Tensor) -> Tensor:
        r"""Return :math:`-4 \sum_k A_k X\, \mathrm{diag}(X^\top A_k X)`, the diagonals' part."""
        AX = self.matrices @ x
        diagonal = (x * AX).sum(-2, keepdim=True)  # (k, 1, n)
        return -4 * (AX * diagonal).sum(0)

    def start(self, x: Tensor) -> Work:
        """Look at all matrices from X."""
        return Work(x.clone(), x.shape[1], x.mT @ self.matrices @ x)

    def basis(self, work: Work) -> Basis:
        """Rotate columns."""
        return RightGivens()

    def model(self, work: Work, pairs: PairSet) -> PairModel:
        """Return the fourth harmonic."""
        j, l = pairs.lo, pairs.hi
        diagonal = work.cache.diagonal(dim1=-2, dim2=-1)
        h, g = diagonal[:, j] - diagonal[:, l], 2 * work.cache[:, j, l]
        cos, sin = (g.square() - h.square()).sum(0) / 4, (h * g).sum(0) / 2
        return PairModel((4,), cos[None], sin[None])

    def turn_(self, work: Work, pairs: PairSet, angles: Tensor) -> None:
        """Turn columns of X, and both sides of every C."""
        turn_congruent_(work, pairs, angles)
