r"""Exact angles of a loss that is linear in the point: rows of :math:`X` against those of :math:`M`.

.. math:: \theta^* = \mathrm{atan2}(m_i \cdot x_j - m_j \cdot x_i,\; m_i \cdot x_i + m_j \cdot x_j)

and the rotation :math:`x_i \leftarrow c\,x_i + s\,x_j`, :math:`x_j \leftarrow c\,x_j - s\,x_i` by
:math:`\omega\,\theta^*`. The compiled loop reads a pair of rows and turns it while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..index import PairSet
from . import native

__all__ = ["Rounds", "align_", "pair_products"]


@dataclass(frozen=True, eq=False)
class Rounds:
    """Matchings that are turned one after another.

    Parameters
    ----------
    matchings : tuple of PairSet
        None of them empty.
    """

    matchings: tuple[PairSet, ...]

    @cached_property
    def lo(self) -> Tensor:
        """The first of every pair, round after round."""
        return torch.cat([pairs.lo for pairs in self.matchings])

    @cached_property
    def hi(self) -> Tensor:
        """The second of every pair, round after round."""
        return torch.cat([pairs.hi for pairs in self.matchings])


def pair_products(x: Tensor, m: Tensor, pairs: PairSet) -> tuple[Tensor, Tensor]:
    """Return what turning a pair of rows can gain, ``(k,)`` each: its cosine part and its sine part.

    Parameters
    ----------
    x, m : Tensor
        ``(n, p)``
    pairs : PairSet
        Disjoint pairs of rows, ``(k,)``.
    """
    xi, xj = x.index_select(0, pairs.lo), x.index_select(0, pairs.hi)
    mi, mj = m.index_select(0, pairs.lo), m.index_select(0, pairs.hi)
    return (mi * xi + mj * xj).sum(-1), (mi * xj - mj * xi).sum(-1)


def align_(x: Tensor, m: Tensor, rounds: Rounds, relax: float) -> Tensor:
    """Turn pairs of rows of ``x`` towards those of ``m`` in place, and return the largest angle.

    Parameters
    ----------
    x, m : Tensor
        ``(n, p)``, the point and what it is to be aligned with.
    rounds : Rounds
        Matchings of the rows, one after another.
    relax : float
        The over-relaxation.
    """
    loop = _compiled() if _serves(x, m) and rounds.lo.is_cpu else None
    if loop is not None:
        arrays = (t.numpy() for t in (x, m, rounds.lo, rounds.hi))
        largest = torch.tensor(loop(*arrays, relax), dtype=torch.float64)
        increment_version(x)
        return largest
    largest = x.new_zeros((), dtype=torch.float64)
    for pairs in rounds.matchings:
        along, across = pair_products(x, m, pairs)
        angles = relax * torch.atan2(across, along).double()[:, None]
        s, tau = torch.sin(angles).to(x.dtype), torch.tan(angles / 2).to(x.dtype)
        xi, xj = x.index_select(0, pairs.lo), x.index_select(0, pairs.hi)
        x.index_copy_(0, pairs.lo, xi + s * (xj - tau * xi))
        x.index_copy_(0, pairs.hi, xj - s * (xi + tau * xj))
        largest = torch.maximum(largest, angles.abs().max())
    return largest


def _serves(x: Tensor, m: Tensor) -> bool:
    alike = m.dtype is x.dtype and m.is_cpu and x.is_contiguous() and m.is_contiguous()
    return native.serves(x) and alike and not x.requires_grad and not m.requires_grad


@cache
def _compiled() -> Callable[..., Any] | None:
    try:
        from .compiled_exact import align
    except ImportError:
        return None
    loop: Callable[..., Any] = align
    return loop
