"""Learning from past sweeps where the next ones would lead."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Problem, tangent

__all__ = ["Extrapolation"]

_TRUST = 0.5  # the longest step, in the Frobenius norm
_NEGLIGIBLE = 1e-12  # directions that are combinations of others to this precision say nothing new
_FLATTEST = 1e-6  # curvatures smaller than this, relative to the largest, are not trusted


class Extrapolation:
    r"""Extrapolate from the last few sweeps, away from saddle points.

    After a sweep at :math:`X`, with the Riemannian gradients :math:`r` at this point and :math:`r_i` at
    earlier ones :math:`X_i`, steps :math:`\sum_i \alpha_i d_i` along :math:`d_i = X_i - X` are modelled by
    their slopes :math:`\langle r, d_i\rangle` and curvatures
    :math:`B_{ij} = \langle d_i, r_j - r\rangle`. The small model is minimised with every curvature
    replaced by its modulus, so that a direction in which the loss bends down is followed and not climbed
    back: sweeps linger where singular values are flipped in pairs, and that is how they get away. The
    step is kept only if it lowers the loss.

    Parameters
    ----------
    problem : Problem
    remember : int
        How many earlier points are kept.
    """

    def __init__(self, problem: Problem, remember: int) -> None:
        self.problem = problem
        self.remember = remember
        self._past: list[tuple[Tensor, Tensor]] = []  # points (n, p) and Riemannian gradients there

    def improve(self, x: Tensor, r: Tensor, value: float) -> Tensor | None:
        """Return a better matrix than ``x``; None when there is none.

        Parameters
        ----------
        x, r : Tensor
            ``(n, p)``, the point and the Riemannian gradient there.
        value : float
            The loss there.
        """
        direction = self._direction(x, r)
        self.remember_(x, r)
        if direction is None:
            return None
        for fraction in (1.0, 0.25):
            moved = orthonormalized(x + fraction * direction)
            if self.problem.value(moved) < value:
                return moved.contiguous()
        # The model is wrong here: what it was made of is forgotten.
        self._past = self._past[-1:]
        return None

    def remember_(self, x: Tensor, r: Tensor) -> None:
        """Note down a point that sweeps start from, and the Riemannian gradient there."""
        self._past.append((x.clone(), r))
        self._past = self._past[-2 * self.remember :]

    def _direction(self, x: Tensor, r: Tensor) -> Tensor | None:
        # Points that are the same to rounding say nothing about what lies between them.
        least = torch.finfo(x.dtype).eps
        near = [(y - x, s) for y, s in self._past if least < torch.linalg.norm(y - x) < 2 * _TRUST]
        if not near:
            return None
        # Differences of points are tangent up to their square; the step as a whole is projected below.
        d = torch.stack([y.flatten() for y, _ in near])  # (m, n p)
        change = torch.stack([(s - r).flatten() for _, s in near])
        curvature = d @ change.mT
        length, axes = torch.linalg.eigh(d @ d.mT)
        keep = length > _NEGLIGIBLE * length[-1]
        axes = axes[:, keep] / length[keep].sqrt()  # combinations of d that are orthonormal
        bent, frame = torch.linalg.eigh(axes.mT @ (curvature + curvature.mT) @ axes / 2)
        bent = bent.abs()
        bent = torch.maximum(bent, _FLATTEST * bent.max())
        axes = axes @ frame
        alpha = -axes @ ((axes.mT @ (d @ r.flatten())) / bent)
        step = tangent(x, (alpha @ d).view_as(x))
        norm = torch.linalg.norm(step)
        if not torch.isfinite(norm) or norm == 0:
            return None
        return step * torch.clamp(_TRUST / norm, max=1.0)


def orthonormalized(y: Tensor) -> Tensor:
    """Return the orthonormal factor of a well-conditioned matrix ``(n, p)`` (QR from its Gram matrix)."""
    r = torch.linalg.cholesky(y.mT @ y, upper=True)
    q: Tensor = torch.linalg.solve_triangular(r, y, upper=True, left=False)
    return q
