"""The socket for problems: losses that say how they change along a rotation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..bases import Basis
from ..index import PairSet
from ..kernels.exact import Rounds
from ..stepsizes import PairModel

__all__ = ["Problem", "Sweeps", "Work", "check_tensor", "tangent"]


@dataclass(eq=False)
class Work:
    """What varies while a problem is solved.

    Parameters
    ----------
    point : Tensor
        What the rotations act on, in place: the matrix itself, or a square one that completes it.
    columns : int
        How many columns of ``point`` are the matrix.
    cache : object
        What makes the next model cheap; `Problem.turn_` keeps it true.
    """

    point: Tensor  # (n, p) or (n, n)
    columns: int
    cache: Any = None

    @property
    def matrix(self) -> Tensor:
        """The matrix ``(n, p)`` itself."""
        return self.point[:, : self.columns]


class Sweeps(ABC):
    """Sweeps of exact rotations in an order of the problem's own.

    Attributes
    ----------
    matrix : Tensor
        ``(n, p)``, where the last sweep ended, or the start.
    """

    matrix: Tensor

    @abstractmethod
    def sweep_(self) -> Tensor:
        """Turn every pair once, and return the largest angle."""

    def is_minimum(self) -> bool:
        """Return whether a point without a gradient is what was looked for, and not a saddle."""
        return True


class Problem(ABC):
    """A loss on matrices with orthonormal columns that knows its exact angles.

    The problem is static; what varies is in the `Work` that `start` makes of the first matrix.

    Attributes
    ----------
    separable : bool
        Disjoint pairs do not see each other: turning each to its minimum is exact for a whole matching.
        Pairs of other problems are turned one after another.
    remember : int
        How many sweeps `riemcd.minimize` remembers to extrapolate from them; 0 where sweeps end
        in quadratic convergence anyway.
    """

    separable: bool = True
    remember: int = 0

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return the loss at a matrix ``(n, p)``."""

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """Return the Euclidean gradient, ``(n, p)``."""

    @abstractmethod
    def basis(self, work: Work) -> Basis:
        """Return the rotations that the pairs mean."""

    @abstractmethod
    def model(self, work: Work, pairs: PairSet) -> PairModel:
        """Return the loss along the rotation of each pair, by angle."""

    def check(self, x: Tensor) -> None:  # noqa: B027 - not every loss has a shape of its own
        """Raise a ValueError when the loss is not defined for such matrices."""

    def start(self, x: Tensor) -> Work:
        """Return what is worked on, a copy made from a matrix ``(n, p)``."""
        return Work(x.clone(), x.shape[1])

    def covector_gradient(self, work: Work) -> Tensor:
        """Return the Euclidean gradient with respect to ``work.point``."""
        return self.gradient(work.matrix)

    def turn_(self, work: Work, pairs: PairSet, angles: Tensor) -> None:
        """Turn disjoint pairs in place, of the point and of what is cached."""
        basis = self.basis(work)
        basis.move_(work.point, pairs, angles * basis.arclength(1.0))

    def sweep_(self, work: Work, rounds: Rounds, relax: float) -> Tensor:
        """Turn matchings by ``relax`` times their exact angles in place, and return the largest angle."""
        largest = work.point.new_zeros((), dtype=torch.float64)
        for pairs in rounds.matchings:
            angles = relax * self.model(work, pairs).minimizer()
            self.turn_(work, pairs, angles)
            largest = torch.maximum(largest, angles.abs().max().double())
        return largest

    def sweeps(self, x: Tensor) -> Sweeps | None:
        """Return sweeps from ``x``, ``(n, p)``, in an order of the problem's own; None if it has none."""
        return None

    def reflect_(self, work: Work) -> bool:
        """Go to the other determinant in place where the loss can be lower there; return whether."""
        return False


def check_tensor(problem: str, name: str, value: Any, dims: int = 2) -> None:
    """Raise unless ``value`` is a real floating-point tensor of ``dims`` dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{problem}: {name} must be a Tensor, got the {type(value).__name__}.")
    if not value.is_floating_point() or value.dim() != dims:
        raise ValueError(
            f"{problem}: {name} must be real with {dims} dimensions, "
            f"got {value.dtype} of shape {tuple(value.shape)}."
        )


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """Project ``v`` onto the tangent space at ``x``, both ``(n, p)``, in the Frobenius metric."""
    a = x.mT @ v
    return v - x @ ((a + a.mT) / 2)
