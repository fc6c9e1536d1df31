"""Checks of a rule's own numbers, at construction."""

from __future__ import annotations

from typing import Any

__all__ = ["number"]


def number(
    rule: str, name: str, value: Any, low: float, high: float, *, from_low: bool = True, to_high: bool = False
) -> None:
    """Raise unless ``value`` lies between ``low`` and ``high``; the flags say whether these count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{rule}: {name} must be a number, got {value!r}.")
    above = value >= low if from_low else value > low
    below = value <= high if to_high else value < high
    if not (above and below):
        interval = f"{'[' if from_low else '('}{low:g}, {high:g}{']' if to_high else ')'}"
        raise ValueError(f"{rule}: {name} must lie in {interval}, got {value}.")
