"""Step sizes for the problems: what was best with a seed of its own, and how that is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["KINDS", "RATES", "best_of", "rates_of", "widened"]

#: Whose step sizes are looked for; the other rules of SRCD take that of the matching.
KINDS = {"sgd": "RiemannianSGD", "adam": "RiemannianAdam", "coordinate": "SRCD matching"}
#: By rows, problem and kind; those of Procrustes but Adam's are in units of one over its largest singular
#: value.
RATES: dict[int, dict[str, dict[str, float]]] = {
    100: {
        "procrustes": {"sgd": 1.5, "adam": 6.4, "coordinate": 3.0},
        "pca": {"sgd": 0.5, "adam": 0.8, "coordinate": 6.0},
        "brockett": {"sgd": 0.2, "adam": 1.6, "coordinate": 2.0},
        "joint": {"sgd": 0.01, "adam": 3.2, "coordinate": 0.025},
        "ica": {"sgd": 6.0, "adam": 3.2, "coordinate": 6.0},
    },
    300: {
        "procrustes": {"sgd": 1.5, "adam": 25.6, "coordinate": 3.0},
        "pca": {"sgd": 1.0, "adam": 0.2, "coordinate": 12.0},
        "brockett": {"sgd": 0.2, "adam": 1.6, "coordinate": 8.0},
        "joint": {"sgd": 0.01, "adam": 6.4, "coordinate": 0.4},
        "ica": {"sgd": 6.0, "adam": 3.2, "coordinate": 6.0},
    },
}
_WIDER = 2.0  # by how much a grid is widened


def rates_of(size: int, problem: str) -> dict[str, float]:
    """Return the step sizes of a problem by kind, those for the nearest size that has some."""
    return RATES[min(RATES, key=lambda known: abs(known - size))][problem]


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row that reached the goal first, or got nearest to it where none did."""

    def place(row: dict[str, Any]) -> tuple[bool, float]:
        gap = row["gap"] if math.isfinite(row["gap"]) else math.inf  # where it diverged
        return not row["reached"], row["seconds"] if row["reached"] else gap

    return min(rows, key=place)


def widened(middle: float, attempt: Callable[[float], dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Try a step size and its neighbours, then beyond the better end until the best is inside.

    Parameters
    ----------
    middle : float
        Where to begin.
    attempt : callable
        Returns a row with its ``rate``, or None to stop.
    """
    rows: list[dict[str, Any]] = []
    waiting = [middle, middle / _WIDER, middle * _WIDER]
    while waiting:
        row = attempt(float(f"{waiting.pop(0):.3g}"))
        if row is None:
            break
        rows.append(row)
        if not waiting:
            tried = [one["rate"] for one in rows]
            best = best_of(rows)["rate"]
            waiting = [best / _WIDER] if best == min(tried) else [best * _WIDER] if best == max(tried) else []
    return rows
