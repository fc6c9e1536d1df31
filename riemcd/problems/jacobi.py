"""What the methods of Jacobi share: a square matrix of columns, and symmetric matrices seen in it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..index import PairSet
from ..kernels import rotate_
from .base import Work

__all__ = ["complete", "turn_congruent_"]


def complete(x: Tensor) -> Tensor:
    """Return a square orthogonal matrix ``(n, n)`` whose first columns are those of ``x``, ``(n, p)``."""
    n, p = x.shape
    if n == p:
        return x.clone()
    # Full QR leaves an orthonormal basis of the complement behind the first p columns.
    rest = torch.linalg.qr(x, mode="complete").Q[:, p:]
    rest = torch.linalg.qr(rest - x @ (x.mT @ rest)).Q
    return torch.cat([x, rest], 1)


def turn_congruent_(work: Work, pairs: PairSet, angles: Tensor) -> None:
    """Turn columns of Q, and both sides of every C = Qᵀ A Q in the cache, ``(..., n, n)``."""
    cache: Tensor = work.cache
    shared = angles.expand(*cache.shape[:-2], -1)
    rotate_(work.point, pairs, angles)
    rotate_(cache, pairs, shared)
    rotate_(cache.mT, pairs, shared)
