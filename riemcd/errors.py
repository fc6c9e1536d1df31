"""The sentences a user reads when something is wrong.

An error says what must hold, what came (value, shape, parameter name) and what to do about it.
``ValueError`` is for values, ``TypeError`` for kinds of things.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["ManifoldLostWarning", "WeightDecayWarning", "at_parameter", "wrong_kind"]


class ManifoldLostWarning(UserWarning):
    """A parameter that should lie on a manifold no longer carries one."""


class WeightDecayWarning(UserWarning):
    """Weight decay was asked of a parameter whose norm is fixed by its manifold."""


def at_parameter(name: str, shape: Iterable[int]) -> str:
    """Name a parameter inside a sentence: ``parameter 'enc.w', shape (64, 17)``."""
    return f"parameter '{name}', shape {tuple(shape)}"


def wrong_kind(option: str, must_be: str, got: Any) -> TypeError:
    """Build the error for a plug-in of the wrong kind: a string, or a class where an instance belongs.

    >>> str(wrong_kind("selection", "a riemcd.selections.Selection", "uniform"))
    "selection must be a riemcd.selections.Selection (or None for the default), got the str 'uniform'."
    """
    if isinstance(got, type):
        return TypeError(
            f"{option} must be {must_be} (or None for the default), got the class {got.__name__}: "
            f"write {got.__name__}() to make an instance."
        )
    shown = repr(got) if isinstance(got, str | int | float | bool) else "object"
    return TypeError(
        f"{option} must be {must_be} (or None for the default), got the {type(got).__name__} {shown}."
    )
