r"""Rotating columns in place.

A pair turns by :math:`w_j \leftarrow c\,w_j - s\,w_l`, :math:`w_l \leftarrow s\,w_j + c\,w_l`, applied
as an increment: with :math:`s = \sin\theta` and :math:`\tau = \tan(\theta/2)` computed in float64,

.. math:: w_j \mathrel{-}= s (w_l + \tau w_j), \qquad w_l \mathrel{+}= s (w_j - \tau w_l).

Rounding then hits the small increment and not the whole column, which keeps single-precision
matrices orthogonal ten times longer than plain cosines do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..components import Block
from ..index import PairSet
from . import native
from .wedges import Room, accumulator, columns_of, pieces, put_, take

__all__ = ["rotate_", "skew_exponential"]


def rotate_(x: Tensor, pairs: PairSet, angles: Tensor, turn: float = 1.0, rows: bool = False) -> None:
    """Multiply ``x`` from the right by the exponential of all the rotations together, in place.

    Parameters
    ----------
    x : Tensor
        ``(*batch, rows, d)``, any strides.
    pairs : PairSet
        Which columns; overlapping pairs are moved exactly, component by component.
    angles : Tensor
        ``(*batch, k)``
    turn : float
        What the angles are multiplied with.
    rows : bool
        Rotate the columns of the transposed ``x``.
    """
    if angles.shape[-1] == 0 or x.numel() == 0:
        return
    if (pairs.disjoint or pairs.cliques) and native.rotate_(x, pairs, angles, turn, rows):
        return
    x, angles = x.mT if rows else x, angles * turn
    if pairs.disjoint and pairs.lo.dim() == 1:
        _rotate_pairs_(x, pairs.lo, pairs.hi, angles)
        return
    flat = x.unsqueeze(0) if x.dim() == 2 else x.flatten(0, -3)  # a copy where no view exists
    flat_angles = angles.reshape(flat.shape[0], -1)
    for block in pairs.blocks:
        if block.element is None:
            _rotate_shared_(flat, block, flat_angles)
        else:
            _rotate_own_(flat, block, flat_angles.flatten())
    if flat.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        x.copy_(flat.view(x.shape))


def _rotate_pairs_(x: Tensor, lo: Tensor, hi: Tensor, angles: Tensor) -> None:
    wide = accumulator(x.dtype)
    angles = angles.double().unsqueeze(-2)  # (*batch, 1, k)
    sines, tangents = torch.sin(angles).to(wide), torch.tan(angles / 2).to(wide)
    for rows, some in pieces(x, lo.shape[0]):
        part, i, j, s, tau = x[..., rows, :], lo[some], hi[some], sines[..., some], tangents[..., some]
        a, b = take(part, i).to(wide), take(part, j).to(wide)
        put_(part, i, a - s * (b + tau * a))
        put_(part, j, b + s * (a - tau * b))


def _rotate_shared_(x: Tensor, block: Block, angles: Tensor) -> None:
    """Move the same components of every batch element: x (B, rows, d), angles (B, k)."""
    c, r = block.nodes.shape
    chosen = angles[:, block.edges]
    if r == 2:  # one pair each, whatever order the components came in
        lo, hi = block.nodes[block.which, 0], block.nodes[block.which, 1]
        if not native.rotate_(x, PairSet(lo, hi, x.shape[-1], disjoint=True), chosen, 1.0):
            _rotate_pairs_(x, lo, hi, chosen)
        return
    skew = x.new_zeros((x.shape[0], c, r, r), dtype=torch.float64)
    skew[:, block.which, block.a, block.b] = chosen.double()
    # The increment is exact to float64 and rounded once: what is lost is a part of the increment. A large
    # one is also applied in float64, or its own rounding would add up.
    increment = skew_exponential(skew - skew.mT)
    large = x.is_cpu and float(increment.abs().max()) > 0.1
    wide = torch.float64 if large else accumulator(x.dtype)
    increment = increment.to(wide)
    if wide is x.dtype and native.move_together_(x, block.nodes, increment):
        return
    room, other = Room(), Room()
    for rows, some in pieces(x, c, r):
        part, at = x[..., rows, :], block.nodes[some].flatten()
        columns = columns_of(part, block.nodes[some], wide, room)  # (B, some, rows, r)
        turn = increment[:, some]
        if part.stride(-2) == 1:  # columns are contiguous, and stay so
            each = columns.mT.reshape(-1, r, columns.shape[-2])  # (B some, r, rows)
            out = other.of(each.shape, each)
            torch.baddbmm(each, turn.mT.flatten(0, 1), each, out=out)
            put_(part, at, out.view(x.shape[0], -1, out.shape[-1]).mT)
        else:
            columns += columns @ turn
            put_(part, at, columns.movedim(1, -2).flatten(-2))


def _rotate_own_(x: Tensor, block: Block, angles: Tensor) -> None:
    """Move components that belong to one batch element each: x (B, rows, d), angles (B*k,)."""
    c, r = block.nodes.shape
    assert block.element is not None
    skew = x.new_zeros((c, r, r), dtype=torch.float64)
    skew[block.which, block.a, block.b] = angles[block.edges].double()
    increment = skew_exponential(skew - skew.mT)
    at = (block.element[:, None], slice(None), block.nodes)
    columns = x[at].double()  # (c, r, rows)
    x[at] = (columns + increment.mT @ columns).to(x.dtype)


#: Above this 1-norm the series below is not exact to float64; torch's own matrix_exp is wrong by up to
#: 2e-10 for 1-norms between 3.4e-4 and 5e-2, and slow on many small matrices.
_SERIES = 0.5


def skew_exponential(skew: Tensor) -> Tensor:
    r"""Return :math:`e^S - I` for skew-symmetric float64 ``S``, ``(*batch, r, r)``.

    The series of the exponential of :math:`S/2^s`, without its one, and :math:`s` times
    :math:`(I + P)^2 - I = 2P + P^2`: nothing near one is ever rounded. One Newton-Schulz step then takes the
    rounding out, so that :math:`e^S` is orthogonal to working precision however large ``S`` is.
    """
    norm = float(skew.abs().sum(-1).amax()) if skew.numel() else 0.0
    squarings = math.ceil(math.log2(norm / _SERIES)) if _SERIES < norm < math.inf else 0
    p = _series(skew / 2.0**squarings)
    for _ in range(squarings):
        p = 2 * p + p @ p
    error = p + p.mT + p.mT @ p  # what is left of the product with the transposed, beside one
    return p - 0.5 * (error + p @ error)


def _series(a: Tensor) -> Tensor:
    """Return the sum of a^k / k! for k = 1, ..., 15, by powers of a^4."""
    a2 = a @ a
    a3, a4 = a2 @ a, a2 @ a2
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)

    def four(k: int) -> Tensor:
        one, two, three = (1 / math.factorial(k + i) for i in (1, 2, 3))
        terms = one * a + two * a2 + three * a3
        return terms if k == 0 else terms + eye / math.factorial(k)

    total = four(12)
    for k in (8, 4, 0):
        total = four(k) + a4 @ total
    return total
