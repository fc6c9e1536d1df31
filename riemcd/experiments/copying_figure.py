"""The summary, the figure and the table of ``riemcd copying``."""

from __future__ import annotations

from typing import Any

import numpy as np

from .copying_task import memoryless_loss
from .figures import close, least, new_figure, running_mean, style
from .folder import Folder
from .methods import Method
from .runs import Finished
from .settings import machine

__all__ = ["draw", "summarise"]

_POINTS = 400  # of a curve in the summary
#: In the order of their colours, which come again, with other markers and dashes, after eight.
_LOOKS = ("partition", "radam", "geotorch", "srgd", "srcd-u", "srcd-gs", "srcd-gs-block", "matching",
          "sgd", "rsgd", "greedy-matching")  # fmt: skip


def summarise(settings: Any, done: list[tuple[Method, Finished]]) -> dict[str, Any]:
    """Return what a figure and a page need: thinned mean curves, and one row of numbers per optimizer."""
    longest = max((len(run.rows) for _, run in done), default=0)
    width = max(1, longest // 50)
    baseline = memoryless_loss(settings.delay, settings.recall)
    controls = {
        (method.step, run.what["seed"]): _losses(run) for method, run in done if method.name == "frozen"
    }
    curves, table = [], []
    for label, *rates in dict.fromkeys(_apart(one) for one in done):
        mine = [one for one in done if _apart(one) == (label, *rates)]
        mine = [one for one in mine if one[1].complete] or mine
        length = min(len(run.rows) for _, run in mine)
        smooth = np.stack([running_mean(_losses(run)[:length], width) for _, run in mine])
        curves.append(_curve(label, mine, smooth, _gain(mine, controls, length, width)))
        table.append(_row(label, [run for _, run in mine], smooth.mean(0), baseline))
    if settings.tuning:
        for row in table:
            rivals = [other["loss"] for other in table if other["optimizer"] == row["optimizer"]]
            row["best"] = row["loss"] == least(rivals)
    note = (
        f"Delay {settings.delay}: the memoryless loss is {baseline:.5f}. loss: mean over the runs of the "
        f"mean over the last {width} iterations; s/iteration: mean, without the first; |WᵀW − I|: Frobenius "
        "norm, the largest of the runs."
    )
    if settings.falling is not None:
        note += f" Step sizes fall, after {settings.falling:g} iterations to 0.59 of what they were."
    return {
        "experiment": "copying",
        "delay": settings.delay,
        "recall": settings.recall,
        "hidden": settings.hidden,
        "batch": settings.batch,
        "memoryless": baseline,
        "smoothed_over": width,
        "curves": curves,
        "table": table,
        "note": note,
        "runs": [{"name": run.name, **run.what, **run.end} for _, run in done],
        "machine": machine(),
    }


def _apart(one: tuple[Method, Finished]) -> tuple[str, float, float]:
    """Return what tells one row of the table from another: the optimizer and its step sizes."""
    return one[0].label, one[1].what["lr_orthogonal"], one[1].what["lr"]


def _curve(label: str, mine: list[tuple[Method, Finished]], smooth: Any, gain: Any) -> dict[str, Any]:
    """Thin the curves of an optimizer; ``smooth`` is (runs, iterations)."""
    length = smooth.shape[1]
    at = np.unique(np.linspace(0, length - 1, min(length, _POINTS)).round().astype(int))
    return {
        "optimizer": label,
        "rates": [mine[0][1].what["lr_orthogonal"], mine[0][1].what["lr"]],
        "runs": len(mine),
        "iteration": (at + 1).tolist(),
        "loss": _short(smooth.mean(0)[at]),
        "least": _short(smooth.min(0)[at]),
        "most": _short(smooth.max(0)[at]),
        "gain": None if gain is None else _short(gain[at]),
        "seconds_per_iteration": _pace([run for _, run in mine]),
    }


def _row(label: str, runs: list[Finished], loss: Any, baseline: float) -> dict[str, Any]:
    """Return the line of the table; ``loss`` is the smoothed mean of the runs."""
    below, half = np.flatnonzero(loss < baseline), np.flatnonzero(loss < baseline / 2)
    return {
        "optimizer": label,
        "lr of W": None if label.startswith("frozen") else runs[0].what["lr_orthogonal"],
        "lr": runs[0].what["lr"],
        "runs": len(runs),
        "iterations": len(loss),
        "loss": float(loss[-1]),
        "/ memoryless": float(loss[-1] / baseline),
        "below it at": int(below[0]) + 1 if len(below) else None,
        "half of it at": int(half[0]) + 1 if len(half) else None,
        "s/iteration": _pace(runs),
        "recurrence": runs[0].what["recurrence"],
        "|WᵀW − I|": max(run.end["orthogonality"] for run in runs),
    }


def _pace(runs: list[Finished]) -> float:
    """Return the mean seconds of an iteration, leaving out the first of a run, in which kernels are compiled.

    No median: a machine that is now fast and now slow has one for a while and then the other.
    """
    clocks = [[0.0] * (len(run.rows) == 1) + [row["seconds"] for row in run.rows] for run in runs]
    return float(np.mean([(clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks]))


def draw(folder: Folder, summary: dict[str, Any]) -> None:
    """Draw the loss by iteration and by seconds, and how far below the frozen control it is."""
    constant = any(curve["gain"] and not _is_adaptive(curve["optimizer"]) for curve in summary["curves"])
    rows = 2 if constant else 1
    figure, grid = new_figure(2, rows, figsize=(10.5, 4.2 * rows + (0 if constant else 1)))
    axes = grid.ravel()
    names = [curve["optimizer"] for curve in summary["curves"]]
    several = len({_step(name) for name in names if name != "radam"}) > 1
    width = summary["smoothed_over"]
    smoothing = f"\n(mean of {width} iterations)" if width > 1 else ""
    for number, curve in enumerate(summary["curves"]):
        before = names[:number].count(curve["optimizer"])
        look = _look(curve["optimizer"], before, several)
        label = curve["optimizer"] + (f" (mean of {curve['runs']})" if curve["runs"] > 1 else "")
        if names.count(curve["optimizer"]) > 1:
            label += " ({:g}, {:g})".format(*curve["rates"])
        at, loss = np.array(curve["iteration"]), np.array(curve["loss"])
        axes[0].plot(at, loss, label=label, **look)
        if curve["runs"] > 1:
            axes[0].fill_between(at, curve["least"], curve["most"], color=look["color"], alpha=0.15, lw=0)
        axes[1].plot(at * curve["seconds_per_iteration"], loss, **look)
        if constant and curve["gain"] and not _is_adaptive(curve["optimizer"]):
            axes[2].plot(at, curve["gain"], **look)
    for one in axes[:2]:
        one.axhline(summary["memoryless"], color="k", linewidth=0.9)
        one.set(yscale="log", ylabel=f"cross entropy per symbol, nats{smoothing}")
    text = f"memoryless, {summary['memoryless']:.4f}"
    axes[0].annotate(text, (0.99, summary["memoryless"]), xycoords=("axes fraction", "data"),
                     xytext=(0, 4), textcoords="offset points", ha="right", fontsize=8,
                     bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})  # fmt: skip
    axes[0].set(
        xlabel="iteration", title=f"Copying memory, delay {summary['delay']}, d = {summary['hidden']}"
    )
    axes[1].set(xlabel="seconds", title="The same by time")
    if constant:
        axes[2].set(xlabel="iteration", ylabel="loss of frozen − loss, same batches",
                    title="What moving W brings (constant steps)")  # fmt: skip
        axes[2].set_yscale("symlog", linthresh=1e-6)
        axes[3].set_axis_off()
        axes[3].legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False, handlelength=4)
    else:
        figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False, handlelength=4)
    folder.figure("copying.png", figure)
    close(figure)


def _is_adaptive(label: str) -> bool:
    return ":" in label or label == "radam"


def _step(label: str) -> str:
    return label.partition(":")[2]


def _look(label: str, before: int, several: bool) -> dict[str, Any]:
    """Return how a curve is drawn: colour and marker by optimizer, dashes by the kind and size of step.

    Dashes tell kinds of steps apart where there are ``several``; the control stays behind the others.
    """
    dashes = {"": 0, "rmsprop": 1, "adam": 2}[_step(label)] * several + before
    name = label.partition(":")[0]
    if name == "frozen":
        return {**style(0, dashes), "color": "0.6", "marker": None, "linewidth": 2.5, "zorder": 1.5}
    return style(_LOOKS.index(name), dashes)


def _losses(run: Finished) -> list[float]:
    return [float(row["loss"]) for row in run.rows]


def _gain(
    mine: list[tuple[Method, Finished]], controls: dict[Any, list[float]], length: int, width: int
) -> Any:
    """Return by how much runs are below the frozen run of their seed, or None where there is none."""
    found = []
    for method, run in mine:
        control = controls.get((method.step, run.what["seed"]), [])
        if method.name == "frozen" or len(control) < length:
            continue
        found.append(running_mean(np.array(control[:length]) - np.array(_losses(run)[:length]), width))
    return np.mean(found, axis=0) if found else None


def _short(values: Any) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
