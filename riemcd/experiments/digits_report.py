"""What ``riemcd digits`` tells: the table and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .digits_task import PEERS, SHOWN
from .figures import close, new_figure, style
from .folder import Folder
from .methods import METHODS
from .runs import Finished, whole
from .settings import machine

__all__ = ["draw", "summarise"]

_TICKS = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
#: What tells one row of the table from another.
_APART = ("optimizer", "step", "lr_orthogonal", "lr")


def summarise(
    done: list[Finished], *, orders: Sequence[str], hidden: int, noise: float, tuning: bool
) -> dict[str, Any]:
    """Return mean curves and one row of numbers per order, optimizer and step size."""
    table: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for order in orders:
        rows, drawn = _of_order(order, [run for run in done if run.what["order"] == order])
        table += rows
        curves += drawn
    images = "a fifth of the images to learn from, held out in turn," if tuning else "360 test images"
    note = (
        f"Hidden size {hidden}, noise of {noise:g} on what is learnt from. accuracy: on {images} after the "
        "last pass, mean of the runs; spread: standard deviation over the runs; s/epoch: median of the "
        "passes, the least of the runs; to the best peer's: seconds of training until the mean accuracy "
        "was as high as that of the best of geoopt and geotorch in the end; of its time: seconds, over "
        "those of that best one; above it: accuracy, less that of the best one with the same seeds; ±: "
        "the standard error of this; best: the highest accuracy of this optimizer."
    )
    return {
        "experiment": "digits",
        "hidden": hidden,
        "noise": noise,
        "table": table,
        "note": note,
        "curves": curves,
        "runs": [
            {"name": run.name, **run.what, **run.end, "accuracy": run.rows[-1]["accuracy"]} for run in done
        ],
        "machine": machine(),
    }


def _of_order(order: str, done: list[Finished]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    ends: list[dict[int, float]] = []
    for chosen in dict.fromkeys(tuple(run.what[key] for key in _APART) for run in done):
        runs = whole([run for run in done if tuple(run.what[key] for key in _APART) == chosen])
        row, curve = _of_runs(order, runs)
        rows.append(row)
        curves.append(curve)
        ends.append({run.what["seed"]: run.rows[row["epochs"] - 1]["accuracy"] for run in runs})
    peers = [at for at, row in enumerate(rows) if row["optimizer"] in PEERS]
    first = max(peers, key=lambda at: rows[at]["accuracy"], default=None)
    for row, curve, end in zip(rows, curves, ends, strict=True):
        rivals = [
            r["accuracy"] for r in rows if r["optimizer"] == row["optimizer"] and r["step"] == row["step"]
        ]
        row["best"] = row["accuracy"] == max(rivals)
        if first is None:
            continue
        best = rows[first]
        row["of its time"] = row["seconds"] / best["seconds"]
        both = [seed for seed in end if seed in ends[first]]
        row["above it"], row["±"] = _mean_and_error([end[seed] - ends[first][seed] for seed in both])
        reached = np.flatnonzero(np.array(curve["accuracy"]) >= best["accuracy"])
        if len(reached):
            row["to the best peer's"] = (int(reached[0]) + 1) * row["s/epoch"]
    return rows, curves


def _of_runs(order: str, runs: list[Finished]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row and the curve of runs that differ by their seeds alone."""
    what = runs[0].what
    length = min(len(run.rows) for run in runs)
    every = np.array([[row["accuracy"] for row in run.rows[:length]] for run in runs])
    pace = min(run.seconds_per_iteration for run in runs)  # what else a machine does only adds to it
    off = [run.end["orthogonality"] for run in runs if run.end["orthogonality"] is not None]
    row = {"order": order, "optimizer": what["optimizer"], "step": what["step"],
           "recurrence": what["recurrence"], "lr of W": what["lr_orthogonal"], "lr": what["lr"],
           "runs": len(runs), "epochs": length, "accuracy": float(every[:, -1].mean()),
           "spread": float(every[:, -1].std()), "s/epoch": pace, "seconds": pace * length,
           "to the best peer's": None, "of its time": None, "above it": None, "±": None, "best": False,
           "|WᵀW − I|": max(off, default=None)}  # fmt: skip
    curve = {"order": order, "optimizer": what["optimizer"], "step": what["step"],
             "seconds_per_epoch": pace, "accuracy": every.mean(0).tolist()}  # fmt: skip
    return row, curve


def _mean_and_error(differences: list[float]) -> tuple[float | None, float | None]:
    """Return the mean and its standard error, for which two are needed."""
    many = len(differences)
    mean = float(np.mean(differences)) if many else None
    return mean, float(np.std(differences, ddof=1) / np.sqrt(many)) if many > 1 else None


def draw(folder: Folder, summary: dict[str, Any]) -> None:
    """Draw the accuracy by seconds of training, for each optimizer with its best step size."""
    kept = [c for c, row in zip(summary["curves"], summary["table"], strict=True) if row["best"]]
    orders = list(dict.fromkeys(curve["order"] for curve in kept))
    # An optimizer looks the same in every figure, whoever else is in it.
    names = [*SHOWN, *(name for name in METHODS if name not in SHOWN)]
    figure, axes = new_figure(len(orders), squeeze=False, figsize=(5.4 * len(orders), 5.2), sharey=True)
    titles = {"rows": "Pixels row after row", "permuted": "Pixels in a fixed random order"}
    for one, order in zip(axes[0], orders, strict=True):
        labels: list[str] = []
        for curve in (curve for curve in kept if curve["order"] == order):
            name = (curve["optimizer"], curve["step"])
            again = sum(label.startswith(f"{name[0]}:") for label in labels)  # with another step
            look = style(names.index(name[0]), int(name[0] in PEERS) + 2 * again)
            if name[0] == "frozen":
                look.update(color="0.45", marker=None, linewidth=3.0)
            at = (np.arange(len(curve["accuracy"])) + 1) * curve["seconds_per_epoch"]
            label = ":".join(name)
            shown = label if order == orders[0] and label not in labels else None
            labels.append(label)
            # Errors on a logarithmic axis: what matters happens above 90 %.
            one.plot(at, 100 * np.maximum(1 - np.array(curve["accuracy"]), 1e-3), label=shown, **look)
        one.set(xscale="log", yscale="log", xlabel="seconds of training",
                title=f"{titles[order]}, {summary['hidden']} hidden units")  # fmt: skip
        one.set_xticks([t for t in _TICKS if one.get_xlim()[0] <= t <= one.get_xlim()[1]])
        one.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
        one.minorticks_off()
    bottom, top = axes[0][0].get_ylim()  # which all share
    ticks = [t for t in (0.5, 1, 2, 3, 4, 5, 7, 10, 20, 50, 90) if bottom <= t <= top]
    axes[0][0].set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes[0][0].set_ylabel("test error in %")
    figure.legend(loc="outside lower center", ncols=2 * len(orders) + 1, fontsize=9, frameon=False)
    folder.figure("digits.png", figure)
    close(figure)
