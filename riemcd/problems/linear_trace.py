"""Procrustes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..bases import Basis, LeftGivens
from ..index import PairSet
from ..kernels.exact import Rounds, align_, pair_products
from ..stepsizes import PairModel
from .base import Problem, Sweeps, Work, check_tensor
from .turning import TurningFrame

__all__ = ["LinearTrace"]


@final
@dataclass(frozen=True, eq=False)
class LinearTrace(Problem):
    r"""The loss :math:`f(X) = -\mathrm{tr}(X^\top M)`: the orthogonal matrix nearest to :math:`M`.

    Procrustes' problem :math:`\min_X \|X A - B\|_F` is that of :math:`M = B A^\top`. Rows are rotated, by

    .. math:: \theta^* = \mathrm{atan2}(m_i \cdot x_j - m_j \cdot x_i,\; m_i \cdot x_i + m_j \cdot x_j).

    By default `riemcd.minimize` turns the frame of the rows with them, such that :math:`X M^\top` becomes
    diagonal there: sweeps then end in quadratic convergence.

    Rotations keep the determinant of a square matrix. The least value is minus the sum of the singular
    values :math:`\sigma` of :math:`M` where :math:`\det X` and :math:`\det M` have the same sign or
    :math:`X` is tall, and :math:`2\sigma_{\min}` more otherwise; ``Exact(reflections=True)`` changes sides.

    Parameters
    ----------
    M : Tensor
        ``(n, p)``
    """

    M: Tensor  # (n, p)

    # In a frame that stays, sweeps converge linearly, slowed down by small singular values of M:
    # extrapolation helps.
    remember = 5

    def __post_init__(self) -> None:
        check_tensor("LinearTrace", "M", self.M)
        object.__setattr__(self, "M", self.M.detach().contiguous())

    def check(self, x: Tensor) -> None:
        """X must be shaped as M."""
        if x.shape != self.M.shape:
            raise ValueError(
                f"LinearTrace: X must have the shape of M, {tuple(self.M.shape)}, got {tuple(x.shape)}."
            )
        if x.dtype is not self.M.dtype or x.device != self.M.device:
            raise ValueError(
                f"LinearTrace: X must have the type and the device of M, {self.M.dtype} on {self.M.device}, "
                f"got {x.dtype} on {x.device}."
            )

    def value(self, x: Tensor) -> Tensor:
        """Return minus the inner product."""
        return -(x * self.M).sum()

    def gradient(self, x: Tensor) -> Tensor:
        """Return −M."""
        return -self.M

    def start(self, x: Tensor) -> Work:
        """Copy X, row after row in memory."""
        return Work(x.clone(memory_format=torch.contiguous_format), x.shape[1])

    def basis(self, work: Work) -> Basis:
        """Rotate rows."""
        return LeftGivens().for_shape(work.point.shape)

    def model(self, work: Work, pairs: PairSet) -> PairModel:
        """Return one harmonic."""
        along, across = pair_products(work.point, self.M, pairs)
        return PairModel((1,), -along[None], -across[None])

    def sweep_(self, work: Work, rounds: Rounds, relax: float) -> Tensor:
        """Find the angles and turn in one pass."""
        return align_(work.point, self.M, rounds, relax)

    def sweeps(self, x: Tensor) -> Sweeps | None:
        """Turn the frame of the rows along; two rows are a single rotation, and need none."""
        return TurningFrame(x, self.M) if x.shape[0] > 2 and x.shape[1] > 0 else None

    def reflect_(self, work: Work) -> bool:
        """Turn around the row that is aligned worst, where the determinants of a square X and M differ."""
        x = work.point
        if x.shape[0] != x.shape[1]:
            return False
        if torch.linalg.slogdet(x).sign * torch.linalg.slogdet(self.M).sign >= 0:
            return False
        x[(x * self.M).sum(1).argmin()] *= -1
        return True
