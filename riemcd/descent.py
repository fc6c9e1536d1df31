"""The whole path of a step, for one parameter, in one readable place.

Reading and moving are two halves, so that an optimizer can read the slopes of every parameter, check
them, and only then move anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from .bases import Basis
from .coordstate import CoordinateState, Rows
from .covector import Covector
from .draw import Draw
from .index import Coordinates, Index
from .partials import Partials
from .selections import Selection
from .stepsizes import StepSize

__all__ = ["Direct", "Moved", "Reading", "aim", "coordinate_step_", "move_", "raise_if_not_finite", "read"]


@dataclass(frozen=True, eq=False)
class Reading:
    """What was read before anything moves."""

    index: Index
    coords: Coordinates  # (k,) or (*batch, k)
    slopes: Tensor  # (*batch, k), weighted where the rule corrects its sampling
    state: dict[str, Any]  # the parameter's state as the step will leave it
    active: Tensor | None = None  # (*batch, 1), false where a point has no gradient
    rows: Rows | None = None  # the points of a table that were read, where it was not all of them


@dataclass(slots=True, eq=False)  # frozen ones take longer to make than a small rotation
class Moved:
    """What a step did to one parameter."""

    coords: Coordinates
    amounts: Tensor  # (*batch, k)
    skipped: Tensor | int | None = None  # number of non-finite slopes that were left alone
    clipped: Tensor | None = None  # number of amounts cut short
    rows: Rows | None = None  # the points of a table that took part, where it was not all of them


def read(
    covector: Covector,
    basis: Basis,
    selection: Selection,
    index: Index,
    draw: Draw,
    state: dict[str, Any],
    active: Tensor | None = None,
    rows: Rows | None = None,
) -> Reading:
    """Choose coordinates and read their slopes; a rule that looks at nothing has nothing computed.

    With ``rows`` the covector is that of these points of a table only; what a basis keeps between
    steps is about the whole table and not used.
    """
    kept = state if rows is None else None
    partials = Partials(
        lambda coords: basis.partials(covector, coords, kept),
        index.count,
        lambda: basis.steepest(covector, kept),
    )
    coords, weights = selection.select(index, partials, draw, state)
    coords = index.resolve(coords)
    slopes = partials.at(coords)
    return Reading(index, coords, slopes if weights is None else slopes * weights, state, active, rows)


def move_(
    point: Tensor,
    reading: Reading,
    basis: Basis,
    stepsize: StepSize,
    lr: float | Tensor,
    skip_nonfinite: bool = False,
) -> Moved:
    """Move ``point`` in place along what was read."""
    slopes, skipped, keep = reading.slopes, None, reading.active
    if skip_nonfinite:
        finite = torch.isfinite(slopes)
        skipped = (~finite).sum()
        slopes = torch.where(finite, slopes, 0)
        keep = finite if keep is None else keep & finite
    batch, state, rows = point.shape[: point.dim() - basis.point_dims], reading.state, reading.rows
    memory = CoordinateState(state, reading.coords, batch, reading.index.count, slopes, keep, rows)
    amounts = stepsize.amounts(slopes, reading.coords, lr=lr, basis=basis, state=memory)
    if keep is not None:
        amounts = torch.where(keep, amounts, 0)
    if rows is None:
        basis.move_(point, reading.coords, amounts, state)
    else:
        points = point[rows]
        basis.move_(points, reading.coords, amounts)
        point.index_put_(rows, points)
    return Moved(reading.coords, amounts, skipped, memory.clipped, rows)


@dataclass(slots=True, eq=False)
class Direct:
    """A step of a ``proportional`` rule in a basis with ``one_pass``: no slope is seen by anybody else."""

    coords: Coordinates  # (k,) or (*batch, k)
    rate: float  # amounts are this times the slopes
    amounts: Tensor | None  # (*batch, k) where they had to be checked before anything moves
    bad: int = 0  # how many of them are not finite
    done: bool = False  # the move was made at once

    def move_(self, point: Tensor, grad: Tensor, basis: Basis, skip_nonfinite: bool) -> Moved:
        """Move ``point`` in place."""
        if self.amounts is not None:
            if not self.done:
                basis.move_(point, self.coords, self.amounts)
            return Moved(self.coords, self.amounts)
        done = basis.descend_(point, grad, self.coords, self.rate, skip_nonfinite, True)
        if done is not None:
            return Moved(self.coords, done[0], done[1] if skip_nonfinite else None)
        slopes, skipped = basis.partials(basis.covector(point, grad), self.coords), None
        amounts = slopes * self.rate
        if skip_nonfinite:
            finite = torch.isfinite(slopes)
            amounts, skipped = torch.where(finite, amounts, 0), (~finite).sum()
        basis.move_(point, self.coords, amounts)
        return Moved(self.coords, amounts, skipped)


def aim(
    point: Tensor,
    grad: Tensor,
    basis: Basis,
    selection: Selection,
    index: Index,
    draw: Draw,
    state: dict[str, Any],
    rate: float,
    check: bool,
    alone: bool = False,
) -> Direct | None:
    """Choose coordinates without looking at slopes; with ``check`` find the amounts, moving nothing.

    With ``alone`` there is nothing else to move in this step: then all is moved at once unless a slope is not
    finite. Returns None where reading and moving have
    to go separate ways after all.
    """
    coords, weights = selection.select(index, _UNSEEN, draw, state)
    if weights is not None:
        return None
    coords = index.resolve(coords)
    if not check:
        return Direct(coords, rate, None)
    found = basis.descend_(point, grad, coords, rate, True, alone, True)
    return None if found is None else Direct(coords, rate, *found, alone)


def _nobody_looks(coords: Coordinates | None) -> Tensor:
    raise AssertionError("a rule that does not look at slopes has asked for some")


_UNSEEN = Partials(_nobody_looks, 0)


def raise_if_not_finite(readings: Sequence[tuple[str, Reading | Direct]]) -> None:
    """Raise when a slope is NaN or infinite, with one question to the device for all parameters.

    Parameters
    ----------
    readings : sequence of (str, Reading or Direct)
        How a sentence names the parameter, and what was read of it.
    """
    sums = [reading.slopes.sum() for _, reading in readings if isinstance(reading, Reading)]
    if sums:
        # A sum is finite only if its terms are; that finite terms overflow is sorted out below.
        total = sum((one.to(sums[0].device) for one in sums[1:]), sums[0])
        fine = isfinite(float(total))
    else:
        fine = True
    for where, reading in readings:
        if isinstance(reading, Direct):
            bad, slopes = reading.bad, reading.amounts
        else:
            bad, slopes = 0 if fine else int((~torch.isfinite(reading.slopes)).sum()), reading.slopes
        if bad:
            assert slopes is not None
            raise ValueError(
                f"{bad} of {slopes.numel()} slopes are NaN or infinite ({where}); nothing was changed. "
                "Use nonfinite='skip' to leave such coordinates alone."
            )


@torch.no_grad()
def coordinate_step_(
    point: Tensor,
    covector: Covector,
    *,
    basis: Basis,
    selection: Selection,
    stepsize: StepSize,
    lr: float | Tensor,
    draw: Draw,
    state: dict[str, Any],
) -> Moved:
    """Take one step of coordinate descent on one parameter, in place.

    Parameters
    ----------
    point : Tensor
        ``(*batch, *point_shape)``, on the manifold of the basis.
    covector : Covector
        The derivative of the loss there, from ``basis.covector(point, grad)`` or from a layer.
    basis, selection, stepsize
        Which directions there are, which of them to take, and how far.
    lr : float or Tensor
    draw : Draw
        The random numbers of this step.
    state : dict
        What the plug-ins keep between steps.
    """
    reading = read(covector, basis, selection, basis.index(point.shape), draw, state)
    return move_(point, reading, basis, stepsize, lr)
