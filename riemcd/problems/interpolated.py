"""Any loss whose restriction to a rotation is a trigonometric polynomial."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..bases import Basis, LeftGivens, RightGivens
from ..index import PairSet
from ..kernels import rotate_
from ..stepsizes import PairModel
from .base import Problem, Work

__all__ = ["Interpolated"]


@final
@dataclass(frozen=True, eq=False)
class Interpolated(Problem):
    r"""A loss given as a function, read off along each rotation from ``2 * degree + 1`` evaluations.

    A polynomial of degree :math:`m` in the entries of X is a trigonometric polynomial of degree
    :math:`m` in an angle. Equally spaced evaluations give its coefficients exactly, and so the exact
    angle. Columns are rotated when X is square, rows when it is tall. Pairs are turned one after another:
    correct, not cheap.

    Parameters
    ----------
    loss : callable
        ``loss(x)`` returns a number from ``(n, p)``, differentiably.
    degree : int
        Its degree in the entries of X.

    Examples
    --------
    >>> import riemcd
    >>> problem = Interpolated(lambda x: -(x**3).sum(), degree=3)
    >>> x = torch.linalg.qr(torch.arange(16.0, dtype=torch.float64).cos().view(4, 4)).Q
    >>> round(riemcd.minimize(problem, x, max_sweeps=20).value, 6)
    -4.0
    """

    loss: Callable[[Tensor], Tensor]
    degree: int

    separable = False

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or not isinstance(self.degree, int):
            raise TypeError(f"Interpolated: degree must be an integer, got {self.degree!r}.")
        if self.degree < 1:
            raise ValueError(f"Interpolated: degree must be at least 1, got {self.degree}.")

    def value(self, x: Tensor) -> Tensor:
        """Call the loss."""
        return self.loss(x)

    def gradient(self, x: Tensor) -> Tensor:
        """Differentiate the loss."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.loss(x), x)
        return gradient

    def basis(self, work: Work) -> Basis:
        """Rotate columns of a square matrix, rows of a tall one."""
        n, p = work.point.shape
        return RightGivens() if n == p else LeftGivens().for_shape((n, p))

    def model(self, work: Work, pairs: PairSet) -> PairModel:
        """Evaluate the loss around the circle of each pair."""
        n, p = work.point.shape
        points = 2 * self.degree + 1
        grid = torch.arange(points, dtype=work.point.dtype, device=work.point.device) * (2 * math.pi / points)
        values = work.point.new_empty(points, pairs.lo.shape[0])
        for k in range(pairs.lo.shape[0]):
            pair = PairSet(pairs.lo[k : k + 1], pairs.hi[k : k + 1], pairs.nodes, disjoint=True)
            for at, angle in enumerate(grid):
                turned = work.point.clone()
                # As the bases do: rows turn the other way round when columns of the transposed are turned.
                if n == p:
                    rotate_(turned, pair, angle[None])
                else:
                    rotate_(turned.mT, pair, -angle[None])
                values[at, k] = self.loss(turned)
        harmonics = torch.arange(1, self.degree + 1, dtype=grid.dtype, device=grid.device)
        phase = harmonics[:, None] * grid  # (degree, points)
        cos, sin = (2 / points * f(phase) @ values for f in (torch.cos, torch.sin))
        return PairModel(tuple(range(1, self.degree + 1)), cos, sin)
