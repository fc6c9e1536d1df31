r"""Rows of :math:`X` turned against those of :math:`M`, in a frame that turns along.

With :math:`a_{ij} = x_i \cdot m_j` the exact rotation of rows :math:`i, j` of :math:`X` makes
:math:`a_{ij} = a_{ji}`. The same two rows of :math:`X` *and* of :math:`M` are then turned together, which
changes no inner product between the two matrices as a whole, such that :math:`a_{ij} = a_{ji} = 0`: pairs
that are diagonal do not disturb each other, and sweeps end in quadratic convergence (Kogbetliantz' method).

Rows lie in blocks, and two blocks beside each other are a group. The small matrix
:math:`X_I M_I^\top` of a group is all that its rotations need; they are collected in two small orthogonal
matrices, and the long rows are turned by matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from . import native, team

__all__ = ["Schedule", "turn_blocks_"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Rounds of disjoint pairs of the rows of a group.

    Parameters
    ----------
    first, second : Tensor
        ``(rounds, r)``
    """

    first: Tensor
    second: Tensor

    @classmethod
    def across(cls, r: int, device: torch.device) -> Schedule:
        """Every row of the first block with every one of the second, once."""
        i = torch.arange(r, device=device)
        return cls(i.expand(r, r).contiguous(), r + (i + i[:, None]) % r)

    @classmethod
    def everybody(cls, r: int, device: torch.device) -> Schedule:
        """Every two rows of both blocks, once: the circle method of tournaments."""
        m = 2 * r - 1
        away = torch.arange(1, r, device=device)
        rest = torch.arange(m, device=device)[:, None]
        last = torch.full_like(rest, m)
        a, b = torch.cat([rest, (rest + away) % m], 1), torch.cat([last, (rest - away) % m], 1)
        return cls(torch.minimum(a, b), torch.maximum(a, b))

    @cached_property
    def flat(self) -> tuple[Tensor, Tensor]:
        """Both ends of every pair, round after round."""
        return self.first.flatten().contiguous(), self.second.flatten().contiguous()


def turn_blocks_(a: Tensor, real: Tensor, schedule: Schedule, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Turn pairs of rows in groups, and return how; ``a`` is used up.

    Parameters
    ----------
    a : Tensor
        ``(groups, w, w)`` in double precision, the inner products of rows of X with rows of M.
    real : Tensor
        ``(groups, w)``, which rows there are; the others only fill up.
    schedule : Schedule
    least : float
        Inner products up to this are rounding: no rotation is due to them.

    Returns
    -------
    The rotations of X and those of M, ``(groups, w, w)`` each, and the largest angle of an exact rotation.
    """
    groups, w, _ = a.shape
    of_x = torch.eye(w, dtype=a.dtype, device=a.device).repeat(groups, 1, 1)
    of_m = of_x.clone()
    if native.serves(a) and a.is_contiguous() and real.is_contiguous():
        first, second = schedule.flat
        angles = torch.zeros(groups, dtype=a.dtype)
        addresses = tuple(t.data_ptr() for t in (a, of_x, of_m, real, first, second, angles))
        count = first.shape[0]
        numbers = (*addresses, count, w, groups, *(0,) * 10)
        team.run("frames", 8, numbers, (least, 0.0, 0.0), 4 * groups * count * w)
        return of_x, of_m, angles.max()
    largest = a.new_zeros(())
    for i, j in zip(schedule.first, schedule.second, strict=True):
        both = real[:, i] & real[:, j]
        c, s = _symmetrize(a, i, j, both, least)
        largest = torch.maximum(largest, torch.atan2(s, c).abs().max())
        e, f = _diagonalize(a, i, j, c, s, both, least)
        c, s = c * e - s * f, s * e + c * f
        _turn_(a, i, j, c, s)
        _turn_(of_x, i, j, c, s)
        _turn_(a.mT, i, j, e, f)
        _turn_(of_m, i, j, e, f)
    return of_x, of_m, largest


def _symmetrize(a: Tensor, i: Tensor, j: Tensor, both: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the exact angles, ``(groups, r)``."""
    along, across = a[:, i, i] + a[:, j, j], a[:, j, i] - a[:, i, j]
    size = torch.hypot(along, across)
    due = both & ((across.abs() > least) | (along < -least))
    return torch.where(due, along / size, 1.0), torch.where(due, across / size, 0.0)


def _diagonalize(
    a: Tensor, i: Tensor, j: Tensor, c: Tensor, s: Tensor, both: Tensor, least: float
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines that diagonalise what those of the exact angles leave, ``(groups, r)``."""
    off = c * a[:, i, j] + s * a[:, j, j]
    apart = c * (a[:, i, i] - a[:, j, j]) + s * (a[:, j, i] + a[:, i, j])
    z = apart / (2 * off)
    t = torch.copysign(1 / (z.abs() + torch.sqrt(1 + z * z)), z)
    t = torch.where(both & (off.abs() > least), t, 0.0)
    cosine = 1 / torch.sqrt(1 + t * t)
    return cosine, t * cosine


def _turn_(a: Tensor, i: Tensor, j: Tensor, c: Tensor, s: Tensor) -> None:
    """Rotate rows of ``a``, ``(groups, w, w)``, by increments, in place."""
    sign = torch.where(c < 0, -1.0, 1.0)
    c, s = (sign * c)[..., None], (sign * s)[..., None]
    x, y, tau = a[:, i], a[:, j], s / (1 + c)
    a[:, i] = sign[..., None] * (x + s * (y - tau * x))
    a[:, j] = sign[..., None] * (y - s * (x + tau * y))
