"""Noticing that a parameter has lost its manifold, or that its model has lost the parameter."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Container
from typing import Any

from torch import Tensor

from .errors import ManifoldLostWarning
from .plan import Plan

__all__ = ["complain", "held_by_nobody_else", "no_manifold", "orphaned", "swapped"]


def complain(sentence: str, strict: bool, stacklevel: int) -> None:
    """Raise under ``strict``, and warn otherwise."""
    if strict:
        raise ValueError(sentence)
    warnings.warn(sentence, ManifoldLostWarning, stacklevel=stacklevel + 1)


def no_manifold() -> str:
    """Say that an optimizer for manifolds was given none."""
    return (
        "no parameter handed to SRCD has a manifold, so all of them are trained by plain SGD. "
        "A manifold is easily lost in to('meta'), load_state_dict(assign=True) or FSDP; declare "
        "geoopt.ManifoldParameters, or give the group a 'manifold'."
    )


def swapped(params: list[Tensor], plans: dict[Tensor, Plan], group_manifold: Any) -> str | None:
    """Say which parameter had a manifold at the last step and has none now, or return None.

    ``torch.utils.swap_tensors``, and modules told to use it, exchange what a parameter is in place.
    """
    if group_manifold is not None:
        return None
    for param in params:
        if plans[param].manifold is not None and not hasattr(param, "manifold"):
            return (
                f"a parameter has lost its manifold {type(plans[param].manifold).__name__} since it was "
                f"handed to SRCD ({plans[param].where}), so it is trained by plain SGD. Give its group a "
                "'manifold'."
            )
    return None


def orphaned(
    params: list[Tensor], plans: dict[Tensor, Plan], moved: Container[Any], served: Container[Any] = ()
) -> str | None:
    """Say which point without a gradient is in no model any more, or return None.

    Points that have ``moved`` before are looked at; all of them when no parameter has a gradient. Those that
    are ``served`` by a slot for slopes are held by it too, in two places.
    """
    still = all(param.grad is None for param in plans)
    for number in range(len(params)):  # a loop variable would be one more reference
        if (
            params[number].grad is None
            and plans[params[number]].basis is not None
            and (still or params[number] in moved)
            and held_by_nobody_else(params, number, _own(params, number, moved, served))
        ):
            return (
                f"only the optimizer holds this parameter, which therefore gets no gradient "
                f"({plans[params[number]].where}): to('meta'), to_empty or load_state_dict(assign=True) have "
                "put another one into the model, without its manifold. Make the optimizer after them, and "
                "give the group a 'manifold' or constrain_ the module again."
            )
    return None


def _own(params: list[Tensor], number: int, moved: Container[Any], served: Container[Any]) -> int:
    """Return how many references an optimizer has to a parameter, beside its list."""
    return 1 + (params[number] in moved) + 2 * (params[number] in served)


def held_by_nobody_else(params: list[Tensor], number: int, own: int) -> bool:
    """Return whether only the list ``params`` and ``own`` more references hold an object.

    Whatever the interpreter counts besides, it counts for an object that is in one list only as well.
    """
    alone = [object()]
    return sys.getrefcount(params[number]) - sys.getrefcount(alone[0]) <= own
