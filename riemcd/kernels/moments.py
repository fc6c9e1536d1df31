"""The door to compiled running means: a dozen passes over the coordinates in torch are one here."""

from __future__ import annotations

import math
from array import array

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import native, team

__all__ = ["adam"]

_REST = (0,) * 12


def adam(
    slopes: Tensor,
    coords: Tensor,
    visits: Tensor,
    means: Tensor,
    squares: Tensor,
    betas: tuple[float, float],
    eps: float,
    lr: float,
) -> Tensor | None:
    """Update the moments of some coordinates and return their amounts, ``(k,)``; None if not served.

    Parameters
    ----------
    slopes, coords : Tensor
        ``(k,)``; no coordinate comes twice.
    visits, means, squares : Tensor
        ``(count,)``, of all coordinates; changed in place.
    betas, eps, lr
        As in `riemcd.stepsizes.Adam`.
    """
    kept = (visits, means, squares)
    if not (native.serves(slopes) and slopes.dim() == 1 and coords.shape == slopes.shape):
        return None
    if not (coords.is_cpu and coords.dtype is torch.int64 and visits.dtype is torch.int32):
        return None
    if any(not (x.is_cpu and x.shape == visits.shape and x.is_contiguous()) for x in kept):
        return None
    if not means.dtype is squares.dtype is slopes.dtype:
        return None
    first, last = torch.aminmax(coords)
    if not 0 <= int(first) <= int(last) < visits.shape[0]:  # torch says what is wrong with them
        return None
    slopes, coords = slopes.contiguous(), coords.contiguous()
    amounts = torch.empty_like(slopes)
    each = (value for beta in betas for value in (beta, 1 - beta, math.log(beta) if beta else -math.inf))
    factors = array("d", (*each, eps, lr))
    places = (x.data_ptr() for x in (coords, slopes, *kept, amounts))
    numbers = (*places, slopes.shape[0], factors.buffer_info()[0], *_REST)
    team.run("adam", slopes.element_size(), numbers, (0.0, 0.0, 0.0), 8 * slopes.shape[0])
    for x in kept:
        increment_version(x)
    return amounts
