"""Slopes that layers leave during backward, kept until the step that takes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from . import mailbox
from .amp import Scaling, unscaled
from .covector import Accumulated, Wedge
from .descent import Direct, Reading, read
from .draw import Draw
from .index import Coordinates, PairSet
from .partials import Partials
from .plan import Plan, gradient

__all__ = ["PostOffice", "Posted", "all_finite"]

_AS_IT_IS = {"weight_decay": 0, "maximize": False}

#: Returns the draw of a parameter's coming step, and a copy of its state.
Opening = Callable[[], tuple[Draw, dict[str, Any]]]


@dataclass(eq=False)
class _Pending:
    """What has come since the last step."""

    state: dict[str, Any]  # the parameter's state as the step will leave it
    coords: PairSet | None = None  # (k,), None when the rule looks at slopes
    weights: Tensor | None = None  # (k,), where sampling must be corrected
    few: Tensor | None = None  # the columns that the coordinates touch, where these are few
    among: PairSet | None = None  # the coordinates, numbered among those columns
    slopes: Tensor | None = None  # (k,)
    product: Tensor | None = None  # (d, d), the sum of uᵀv for rules that look at slopes
    averaged: bool = False  # an ordinary gradient is in it already, and other ranks' shares


class Posted(mailbox.Slot):
    r"""The slot of one parameter.

    The first backward after a step fixes the coordinates of the next one where the rule does not look
    at slopes: every backward then leaves :math:`k` numbers. For other rules the product
    :math:`U^\top V`, ``(d, d)``, is summed.

    Parameters
    ----------
    plan : Plan
    opening : callable
        Returns the draw of the coming step and a copy of the parameter's state, after `plan` has taken
        over what was changed since the last step.
    """

    def __init__(self, plan: Plan, opening: Opening) -> None:
        self.plan = plan
        self._opening = opening
        self._pending: _Pending | None = None

    @property
    def turns(self) -> Literal["columns", "rows"]:
        """Return whether moves rotate columns of the weight, or rows."""
        self._open()
        assert self.plan.basis is not None and self.plan.basis.turns is not None
        return self.plan.basis.turns

    @property
    def empty(self) -> bool:
        """Whether nothing has come since the last step."""
        return self._pending is None or (self._pending.slopes is None and self._pending.product is None)

    def clear(self) -> None:
        """Forget what has come."""
        self._pending = None

    def columns(self) -> Tensor | None:
        """Return which columns of the factors will be read, sorted, where they are few."""
        return self._open().few

    def post(self, u: Tensor, v: Tensor, *, few: bool = False) -> None:
        """Add factors of the derivative, ``(rows, d)``."""
        pending, basis = self._open(), self.plan.basis
        assert basis is not None
        if pending.coords is None:
            wide = torch.promote_types(u.dtype, torch.float32)
            u, v = u.to(wide), v.to(wide)
            if pending.product is None:
                pending.product = u.mT @ v
            else:
                pending.product.addmm_(u.mT, v)
            return
        if few or pending.few is None:
            coords = pending.among if few else pending.coords
        else:
            u, v, coords = u.index_select(-1, pending.few), v.index_select(-1, pending.few), pending.among
        slopes = basis.partials(Wedge(u, v), coords, pending.state)
        pending.slopes = slopes if pending.slopes is None else pending.slopes + slopes

    def reading(self, param: Tensor, group: dict[str, Any], by: Scaling) -> Reading:
        """Return what a step needs, coordinates and slopes; an ordinary gradient is added.

        Parameters
        ----------
        param : Tensor
            ``(n, p)``
        group : dict
        by : Scaling
            What the loss was multiplied with.
        """
        pending, plan = self._open(), self.plan
        assert plan.basis is not None
        found = unscaled(self.local(param), by)
        found = -found if group["maximize"] else found
        if pending.coords is not None:
            slopes = found if pending.weights is None else found * pending.weights
            return Reading(plan.index, pending.coords, slopes, pending.state)
        draw, state = self._opening()[0], dict(pending.state)
        return read(Accumulated(found), plan.basis, plan.selection, plan.index, draw, state)

    def local(self, param: Tensor) -> Tensor:
        """Return what has come, slopes ``(k,)`` or a product ``(d, d)``, and what an ordinary gradient adds.

        Where nothing has come these are zeros.

        Parameters
        ----------
        param : Tensor
            ``(n, p)``
        """
        pending, plan = self._open(), self.plan
        coords, basis = pending.coords, plan.basis
        assert basis is not None
        total = pending.product if coords is None else pending.slopes
        if total is None:
            shape = (plan.index.nodes,) * 2 if coords is None else coords.lo.shape
            total = param.new_zeros(shape, dtype=torch.promote_types(param.dtype, torch.float32))
        if param.grad is None or pending.averaged:
            return total
        found = gradient(plan, param, _AS_IT_IS, False)
        extra = basis.covector(found.points, found.values)
        if coords is not None:
            return total + basis.partials(extra, coords, pending.state)
        assert isinstance(extra, Wedge)
        return total + extra.u.to(total.dtype).mT @ extra.v.to(total.dtype)

    def receive(self, averaged: Tensor) -> None:
        """Put the average over all ranks in the place of what has come to this one."""
        pending = self._open()
        pending.averaged = True
        if pending.coords is None:
            pending.product = averaged
        else:
            pending.slopes = averaged

    def _open(self) -> _Pending:
        if self._pending is None:
            draw, state = self._opening()
            pending = _Pending(state)
            if not self.plan.selection.looks_at_slopes:
                nothing = Partials(self._refuse, self.plan.index.count)
                index = self.plan.index
                coords, pending.weights = self.plan.selection.select(index, nothing, draw, state)
                pending.coords = pairs = PairSet.of(coords, index.nodes)
                pending.few, pending.among = _few(pairs)
            self._pending = pending
        return self._pending

    def _refuse(self, coords: Coordinates | None) -> Tensor:
        raise RuntimeError(
            f"{self.plan.selection!r} says that it does not look at slopes, but it asked for some."
        )


def _few(pairs: PairSet) -> tuple[Tensor | None, PairSet | None]:
    """Return the columns that the pairs touch and the pairs among these, where that spares reading."""
    k = pairs.size
    if pairs.cliques or 4 * k > pairs.nodes:
        return None, None
    columns, place = torch.unique(torch.cat([pairs.lo, pairs.hi]), return_inverse=True)
    return columns, PairSet(place[:k], place[k:], columns.shape[0], disjoint=pairs.disjoint)


class PostOffice:
    """The slots that one optimizer has put up.

    Parameters
    ----------
    opening : bound method
        ``opening(number, param)`` takes over what was changed in the group, and returns the draw of the
        coming step and a copy of the state; held weakly, so that slots do not keep an optimizer alive.
    """

    def __init__(self, opening: Callable[[int, Tensor], tuple[Draw, dict[str, Any]]]) -> None:
        self._opening = weakref.WeakMethod(opening)
        self._slots: dict[Tensor, Posted] = {}
        self._asked: dict[int, bool] = {}

    @property
    def serves(self) -> bool:
        """Whether any slot is up."""
        return bool(self._slots)

    def __contains__(self, param: object) -> bool:
        """Whether a parameter has a slot."""
        return param in self._slots

    def asked(self, number: int) -> bool | None:
        """Return whether group ``number`` skipped weight gradients when it was last arranged."""
        return self._asked.get(number)

    @property
    def slots(self) -> list[tuple[Tensor, Posted]]:
        """All parameters that have a slot, and the slots."""
        return list(self._slots.items())

    def slot(self, param: Tensor) -> Posted | None:
        """Return the slot of a parameter in which something lies, or None."""
        slot = self._slots.get(param)
        return None if slot is None or slot.empty else slot

    def arrange(self, number: int, group: dict[str, Any], plans: dict[Tensor, Plan]) -> None:
        """Put up slots for the parameters of a group that skips weight gradients, and take down others.

        What lies in a slot stays there when only the rule of selection has changed.
        """
        skips = group["skip_weight_grad"]
        for param in group["params"]:
            slot = self.slot(param)
            if slot is not None and slot.plan.basis != plans[param].basis:
                raise ValueError(
                    f"the basis was changed between backward and step ({slot.plan.where}), but "
                    "skip_weight_grad=True has kept slopes along the old one. Call zero_grad() first."
                )
        self._asked[number] = skips
        for param in group["params"]:
            plan, slot = plans[param], self._slots.pop(param, None)
            if not skips or plan.basis is None or plan.basis.turns is None:
                mailbox.withdraw(param)
                continue
            if slot is None:
                slot = Posted(plan, partial(_open, self._opening, number, param))
                mailbox.assign(param, slot)
            slot.plan = plan
            self._slots[param] = slot

    def clear(self) -> None:
        """Forget everything that has come."""
        for slot in self._slots.values():
            slot.clear()


def _open(opening: weakref.WeakMethod[Any], number: int, param: Tensor) -> tuple[Draw, dict[str, Any]]:
    method = opening()
    if method is None:
        raise RuntimeError("the optimizer of this weight is gone; make one before backward.")
    opened: tuple[Draw, dict[str, Any]] = method(number, param)
    return opened


def all_finite(readings: list[Reading | Direct]) -> bool:
    """Return whether every slope that was read is finite."""
    slopes = [reading.slopes for reading in readings if isinstance(reading, Reading)]
    return all(bool(torch.isfinite(some).all()) for some in slopes)
