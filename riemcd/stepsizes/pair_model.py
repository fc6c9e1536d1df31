"""A loss along one rotation, as a trigonometric polynomial."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PairModel"]

_NEWTON_STEPS = 6


@dataclass(frozen=True, eq=False)
class PairModel:
    r"""How a loss changes when each of ``k`` pairs is turned by an angle of its own.

    .. math:: f(\theta) = \mathrm{const} + \sum_h a_h \cos h\theta + b_h \sin h\theta

    Parameters
    ----------
    harmonics : tuple of int
        The frequencies :math:`h` that occur.
    cos, sin : Tensor
        ``(len(harmonics), k)``, the coefficients :math:`a_h` and :math:`b_h` of each pair.

    Examples
    --------
    >>> model = PairModel((1,), torch.tensor([[0.0]]), torch.tensor([[1.0]]))  # f = sin
    >>> model.minimizer()
    tensor([-1.5708])
    """

    harmonics: tuple[int, ...]
    cos: Tensor  # (len(harmonics), k)
    sin: Tensor  # (len(harmonics), k)

    def at(self, angles: Tensor) -> Tensor:
        """Return the loss up to its constant at ``angles``, ``(..., k)``."""
        return self._derivative(angles, 0)

    def minimizer(self) -> Tensor:
        r"""Return the angle of least loss, ``(k,)``.

        One harmonic has the closed form :math:`\theta^* = \mathrm{atan2}(-b, -a)/h`, the minimiser nearest
        to zero. Several are searched on a grid finer than the wiggles of the highest one and polished
        by Newton's method.
        """
        if len(self.harmonics) == 1:
            turned = torch.atan2(-self.sin[0], -self.cos[0]) / self.harmonics[0]
            return torch.where((self.sin[0] == 0) & (self.cos[0] == 0), 0.0, turned)
        points = 16 * max(self.harmonics)
        grid = torch.arange(points, dtype=self.cos.dtype, device=self.cos.device) * (2 * math.pi / points)
        grid = torch.where(grid > math.pi, grid - 2 * math.pi, grid)
        best = grid[self.at(grid[:, None]).argmin(0)]  # (k,)
        for _ in range(_NEWTON_STEPS):
            slope, curvature = self._derivative(best, 1), self._derivative(best, 2)
            safe = torch.where(curvature > 0, curvature, 1.0)
            step = torch.where(curvature > 0, -slope / safe, 0.0).clamp(-math.pi / points, math.pi / points)
            best = best + step
        # Where nothing is gained nothing moves.
        return torch.where(self.at(best) < self.at(torch.zeros_like(best)), best, 0.0)

    def _derivative(self, angles: Tensor, order: int) -> Tensor:
        total = torch.zeros_like(angles)
        for h, a, b in zip(self.harmonics, self.cos, self.sin, strict=True):
            phase = h * angles + order * math.pi / 2  # each derivative shifts by a quarter turn
            total = total + h**order * (a * torch.cos(phase) + b * torch.sin(phase))
        return total
