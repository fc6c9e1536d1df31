"""Where a layer leaves slopes for the optimizer that owns its weight.

The optimizer puts up a slot for a parameter; a layer that finds one leaves the two factors of the
derivative there during backward, instead of multiplying them into a weight gradient. Neither keeps the
other alive: parameters and slots are held weakly here, and a layer that finds no slot does what any
layer does.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["Slot", "assign", "find", "withdraw"]


class Slot(ABC):
    r"""What a layer sees of the optimizer that owns its weight :math:`M`, ``(n, p)``.

    Where moves rotate columns the factors of :math:`M^\top G` are wanted, else those of
    :math:`G M^\top`.
    """

    @property
    @abstractmethod
    def turns(self) -> Literal["columns", "rows"]:
        """Return whether moves rotate columns of the weight, or rows."""

    @abstractmethod
    def columns(self) -> Tensor | None:
        """Return which columns of the factors will be read, sorted, where they are few; else None.

        Asking fixes the coordinates of the coming step where that can be done without slopes.
        """

    @abstractmethod
    def post(self, u: Tensor, v: Tensor, *, few: bool = False) -> None:
        r"""Add factors of the derivative, :math:`M^\top G = U^\top V` or :math:`G M^\top = U^\top V`.

        Parameters
        ----------
        u, v : Tensor
            ``(rows, d)``, or with ``few`` only the columns that `columns` named.
        few : bool
        """


# parameter -> weak reference to its slot
_slots = WeakTensorKeyDictionary()


def assign(param: Tensor, slot: Slot) -> None:
    """Put up a slot for a parameter, in the place of any other."""
    _slots[param] = weakref.ref(slot)


def withdraw(param: Tensor) -> None:
    """Take down the slot of a parameter, if there is one."""
    _slots.pop(param, None)  # type: ignore[no-untyped-call]


def find(param: Tensor) -> Slot | None:
    """Return the slot of a parameter, or None."""
    reference = _slots.get(param)  # type: ignore[no-untyped-call]
    slot: Slot | None = None if reference is None else reference()
    return slot
