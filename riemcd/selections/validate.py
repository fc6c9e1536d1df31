"""Checks of a rule's own numbers, at construction."""

from __future__ import annotations

from typing import Any

__all__ = ["positive_integer", "proper_fraction"]


def positive_integer(rule: str, name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{rule}: {name} must be an integer, got {value!r}.")
    if value < 1:
        raise ValueError(f"{rule}: {name} must be at least 1, got {value}.")


def proper_fraction(rule: str, name: str, value: Any) -> None:
    """Raise unless ``value`` lies in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{rule}: {name} must be a number, got {value!r}.")
    if not 0 < value <= 1:
        raise ValueError(f"{rule}: {name} must lie in (0, 1], got {value}.")
