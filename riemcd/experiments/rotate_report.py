"""What ``riemcd rotate`` tells: the table and the figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from .figures import close, least, new_figure, style
from .folder import Folder
from .settings import machine

__all__ = ["draw", "summarise"]


def summarise(results: list[dict[str, Any]], *, d: int, group: int) -> dict[str, Any]:
    """Return one row of numbers per kind of rows, rotation and step size.

    Runs that were interrupted count only where there is nothing else.
    """
    ended = {_key(one) for one in results if one.get("complete", True)}
    results = [one for one in results if one.get("complete", True) or _key(one) not in ended]
    table: list[dict[str, Any]] = []
    for kind in dict.fromkeys(one["rows"] for one in results):
        table += _of_kind([one for one in results if one["rows"] == kind])
    note = (
        f"int4, one scale for every {group} entries, d = {d}. error: ||Q(xR)Rᵀ − x||² / ||x||² on held-out "
        "rows, mean of the runs; s/iteration: median of the iterations, the least of the runs; to cayley's: "
        "seconds of learning until the mean error, looked at on 1024 held-out rows every fifth iteration, "
        "was as low as that of cayley in the end; of its time: these seconds, over those of cayley. Learned "
        "rotations start from the Hadamard one."
    )
    return {"experiment": "rotate", "d": d, "group": group, "table": table, "note": note, "results": results,
            "machine": machine()}  # fmt: skip


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells one row of the table from another."""
    return one["rows"], one["rotation"], one.get("lr")


def _of_kind(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [_row([one for one in results if _key(one) == key]) for key in dict.fromkeys(map(_key, results))]
    for row in rows:
        rivals = [other["error"] for other in rows if other["rotation"] == row["rotation"]]
        row["best"] = row["error"] == least(rivals)
    cayley = next((row for row in rows if row["rotation"] == "cayley" and row["best"]), None)
    errors = [] if cayley is None else _mean_curve([one for one in results if _key(one) == _key(cayley)])[1]
    if cayley is None or len(errors) == 0:  # Ctrl-C may come before the first look
        return rows
    goal = float(errors[-1])
    for row in rows:
        row["to cayley's"] = _seconds_to(goal, row, [one for one in results if _key(one) == _key(row)])
    for row in rows:
        if row["to cayley's"] is not None and cayley["to cayley's"]:
            row["of its time"] = row["to cayley's"] / cayley["to cayley's"]
    return rows


def _row(mine: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        found = [one[key] for one in mine if key in one]
        return float(np.mean(found)) if found else None

    first = mine[0]
    errors = [one["error"] for one in mine]
    # What else a machine does only adds to the seconds.
    pace = min((one["seconds_per_iteration"] for one in mine if "curve" in one), default=None)
    iterations = first.get("iterations")
    seconds = min(one["seconds"] for one in mine) if pace is None else pace * iterations
    return {"rows": first["rows"], "rotation": first["rotation"], "lr": first.get("lr"), "runs": len(mine),
            "error": mean("error"), "spread": float(np.std(errors)),
            "calibration error": mean("calibration error"), "iterations": iterations, "s/iteration": pace,
            "seconds": seconds, "to cayley's": None, "of its time": None, "best": True,
            "|RᵀR − I|": mean("orthogonality")}  # fmt: skip


def _mean_curve(runs: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Return iterations and the mean error at each, of runs that differ by their seeds alone."""
    length = min(len(one["curve"]) for one in runs)
    at = np.array([iteration for iteration, _ in runs[0]["curve"][:length]])
    return at, np.mean([[error for _, error in one["curve"][:length]] for one in runs], axis=0)


def _seconds_to(goal: float, row: dict[str, Any], runs: list[dict[str, Any]]) -> float | None:
    """Return after how many seconds the mean error was no more than ``goal``; None where it never was."""
    if row["s/iteration"] is None:
        return None
    at, errors = _mean_curve(runs)
    reached = np.flatnonzero(errors <= goal)
    return float(at[reached[0]] * row["s/iteration"]) if len(reached) else None


def draw(folder: Folder, summary: dict[str, Any]) -> None:
    """Draw the error by seconds of learning; rotations that are not learned are lines across."""
    kinds = list(dict.fromkeys(row["rows"] for row in summary["table"]))
    figure, axes = new_figure(1, len(kinds), squeeze=False, figsize=(9, 4.4 * len(kinds)))
    titles = {"activations": "hidden states of a network", "heavy": "rows with heavy tails"}
    for one, kind in zip(axes[:, 0], kinds, strict=True):
        rows = [row for row in summary["table"] if row["rows"] == kind and row["best"]]
        for number, row in enumerate(rows):
            look = style(number, number if row["iterations"] is None else 0)
            if row["iterations"] is None:
                look = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                one.axhline(100 * row["error"], label=row["rotation"], **look)
                continue
            runs = [one for one in summary["results"] if _key(one) == _key(row)]
            at, errors = _mean_curve(runs)
            label = f"{row['rotation']} (learned)"
            one.plot(at * row["s/iteration"], 100 * errors, label=label, **{**look, "markevery": 1})
        one.set(xscale="log", yscale="log", xlabel="seconds of learning", ylabel="reconstruction error in %",
                title=f"int4, d = {summary['d']}: {titles[kind]}")  # fmt: skip
        one.yaxis.set_minor_formatter("{x:g}")
        one.yaxis.set_major_formatter("{x:g}")
        one.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    folder.figure("rotate.png", figure)
    close(figure)
