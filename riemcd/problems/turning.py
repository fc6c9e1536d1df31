"""Sweeps of exact rotations whose frame turns along, block by block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..kernels.frames import Schedule, turn_blocks_
from .base import Sweeps

__all__ = ["TurningFrame"]

_BLOCK = 32  # rows: enough for matrix products to pay, while what they are made of stays in the cache


class TurningFrame(Sweeps):
    r"""Maximise :math:`\langle X, M\rangle` by rotations of the rows of :math:`V^\top X`.

    Which directions the rotations of a pair of rows are depends on the orthonormal frame :math:`V` that the
    rows belong to. Here :math:`V` is turned with every pair such that
    :math:`(V^\top X)(V^\top M)^\top` becomes diagonal, pair by pair: see :mod:`riemcd.kernels.frames`.

    The span of the columns of :math:`X` and :math:`M` contains the best matrix. Where it is smaller than the
    whole space, the frame spans it and nothing else: there are no more rows than twice the columns.

    A sweep turns every pair of rows once. Blocks meet as in a tournament, and the first meeting turns
    the pairs within the blocks, too.

    Parameters
    ----------
    x, m : Tensor
        ``(n, p)``, where to start, and what it is to be aligned with.
    """

    def __init__(self, x: Tensor, m: Tensor) -> None:
        n, p = x.shape
        size = float(m.abs().max())
        m = m / size if 0 < size < math.inf else m  # only angles matter, and squares must not leave the range
        self._target = m
        self.matrix = x.clone(memory_format=torch.contiguous_format)
        # M is triangular to begin with: rows of it that are zero, as in tall matrices and those of
        # low rank, stay zero, where rounding would give them angles of its own.
        frame = torch.linalg.qr(m if n == p else torch.cat([m, x], 1)).Q.mT  # (min(n, 2p), n)
        x, m = frame @ x, frame @ m
        rows = x.shape[0]
        self._blocks = 2 * max(1, round(rows / (2 * _BLOCK)))
        self._height = -(-rows // self._blocks)
        # Blocks of equal height: those that have one row less are filled up.
        row = torch.arange(rows, device=x.device)
        place = row % self._blocks * self._height + row // self._blocks
        total = self._blocks * self._height
        self._x = x.new_zeros(total, p).index_copy_(0, place, x)
        # What only the frame turns: M and V, both transposed into it.
        self._m = x.new_zeros(total, p + n).index_copy_(0, place, torch.cat([m, frame], 1))
        self._real = torch.zeros(total, dtype=torch.bool, device=x.device).index_fill_(0, place, True)
        self._next = self._meeting(x.device)
        self._within = Schedule.everybody(self._height, x.device)
        self._across = Schedule.across(self._height, x.device)
        self._least = 2 * torch.finfo(x.dtype).eps * float(torch.linalg.norm(m))

    def sweep_(self) -> Tensor:
        """Turn every pair of rows once, and return the largest angle."""
        largest = self._round_(self._within)
        for _ in range(self._blocks - 2):
            largest = torch.maximum(largest, self._round_(self._across))
        p = self._x.shape[1]
        self.matrix = self._m[:, p:].mT @ self._x
        return largest

    def is_minimum(self) -> bool:
        r"""Return whether :math:`X^\top M`, symmetric where there is no gradient, is positive enough.

        Rotations of a square matrix keep its determinant: there, one eigenvalue may be negative if
        no other is smaller in size.
        """
        n, p = self.matrix.shape
        product = self.matrix.mT @ self._target
        values = torch.linalg.eigvalsh((product + product.mT) / 2)
        lowest = values[0] + values[1] if n == p else values[0]
        return bool(lowest >= -1e4 * torch.finfo(values.dtype).eps * values.abs().max())

    def _round_(self, schedule: Schedule) -> Tensor:
        """Let blocks that lie beside each other meet, and lay beside each other those that meet next."""
        groups, p = self._blocks // 2, self._x.shape[1]
        x, m = (t.view(groups, -1, t.shape[1]) for t in (self._x, self._m))
        a = torch.bmm(x, m[:, :, :p].mT).double()
        of_x, of_m, largest = turn_blocks_(a, self._real.view(groups, -1), schedule, self._least)
        self._x, self._m = (self._turned(t, by) for t, by in ((x, of_x), (m, of_m)))
        self._real = self._real[self._next]
        return largest

    def _turned(self, rows: Tensor, by: Tensor) -> Tensor:
        # As increments: what is rounded is the change, and not the rows.
        by.diagonal(dim1=-2, dim2=-1).sub_(1)
        return torch.baddbmm(rows, by.to(rows.dtype), rows).flatten(0, 1).index_select(0, self._next)

    def _meeting(self, device: torch.device) -> Tensor:
        """Return which rows come next to each other: all blocks but the first move on by one seat."""
        upper, lower = list(range(0, self._blocks, 2)), list(range(1, self._blocks, 2))
        if self._blocks > 2:
            upper, lower = [upper[0], lower[0], *upper[1:-1]], [*lower[1:], upper[-1]]
        seats = [block for pair in zip(upper, lower, strict=True) for block in pair]
        start = torch.tensor(seats, device=device) * self._height
        return (start[:, None] + torch.arange(self._height, device=device)).flatten()
