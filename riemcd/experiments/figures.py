"""Figures that can be read without telling red from green, in print and on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["COLOURS", "close", "least", "new_figure", "running_mean", "style"]

#: The palette of Okabe and Ito for the colour-blind, with a brown in the place of its yellow, which is hard
#: to see on white. What is nearly alike, brown and vermilion without red, markers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))


def style(number: int, dashes: int = 0) -> dict[str, Any]:
    """Return colour, marker and dashes of a curve; the marker says what the colour says.

    Where colours have to be used again, dashes differ too.
    """
    dashes += 2 * (number // len(COLOURS))
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markevery": (0.02 + 0.013 * (number % 8), 0.12),  # along the drawn length
        "markersize": 5,
        "linestyle": _DASHES[dashes % len(_DASHES)],
        "linewidth": 1.5,
    }


def new_figure(columns: int = 1, rows: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, laid out so that nothing overlaps; no window is opened."""
    from .settings import needs

    matplotlib = needs("matplotlib", "'riemcd[experiments]'", "drawing figures")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (6.4 * columns, 4.6 * rows)
    figure, axes = plt.subplots(rows, columns, **{"figsize": size, "layout": "constrained", **options})
    for one in np.ravel(axes):
        one.grid(True, which="major", color="0.9", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def close(figure: Any) -> None:
    """Forget a figure."""
    import matplotlib.pyplot as plt

    plt.close(figure)


def least(values: Sequence[float]) -> float:
    """Return the least of the finite values; a run that diverged is nobody's best."""
    return min((value for value in values if np.isfinite(value)), default=float("nan"))


def running_mean(values: Sequence[float], width: int) -> Any:
    """Return the mean of the last ``width`` values at every place, of fewer at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    at = np.arange(1, len(total))
    since = np.maximum(at - max(1, width), 0)
    return (total[at] - total[since]) / (at - since)
