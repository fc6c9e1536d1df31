"""The figures of the README and the pages, drawn from the numbers kept: ``python -m benchmarks.figures``.

Each figure carries a digest of the numbers it shows, so that a test can tell when it was not drawn again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["FIGURES", "digest", "draw"]

ROOT = Path(__file__).parents[1]
BENCHMARKS, RUNS = ROOT / "benchmarks" / "results", ROOT / "docs" / "results"
OUT = ROOT / "docs" / "_static"

#: The sources of each figure.
FIGURES = {
    "gains": (BENCHMARKS / "steps.json", RUNS / "copying-demo.json"),
    "choosing": (BENCHMARKS / "selections.json", BENCHMARKS / "stepsizes.json"),
}
STEPS = {
    "geoopt RiemannianSGD, EuclideanStiefel": ("geoopt RiemannianSGD", "C1", "s:"),
    "POGO": ("pogo-torch", "C5", "^:"),
    "geotorch.orthogonal": ("geotorch", "C4", "v:"),
    "torch.optim.SGD": ("SGD, no constraint", "0.3", "--"),
    "SRCD RandomMatching, LeftGivens": ("SRCD, all rows, in pairs", "C0", "o-"),
    "SRCD Uniform(1)": ("SRCD, one pair", "C2", "o-"),
}
RUNS_SHOWN = {
    "frozen:rmsprop": ("W frozen", "0.3", "--"),
    "matching:rmsprop": ("SRCD, all columns, in pairs", "C0", "-"),
    "partition:rmsprop": ("SRCD, groups of columns", "C2", "-"),
}


def digest(name: str) -> str:
    """Return what identifies the numbers behind a figure."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in FIGURES[name])).hexdigest()[:16]


def _load(name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in FIGURES[name]]


def _steps(ax: Axes, kept: dict[str, Any]) -> None:
    for name, (label, colour, style) in STEPS.items():
        points = [(int(d), row[name]["median"] * 1e3) for d, row in kept["times"].items() if name in row]
        ax.loglog(*zip(*points, strict=True), style, color=colour, label=label, ms=4)
    sizes = [int(d) for d in kept["times"]]
    ax.set_xticks(sizes, [str(d) for d in sizes])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="size d of an orthogonal matrix", ylabel="milliseconds", title="One step of the optimizer")


def _copying(ax: Axes, kept: dict[str, Any]) -> None:
    curves = {curve["optimizer"]: curve for curve in kept["curves"]}
    for name, (label, colour, style) in RUNS_SHOWN.items():
        ax.semilogy(curves[name]["iteration"], curves[name]["loss"], style, color=colour, label=label)
    ax.axhline(kept["memoryless"], color="0.6", lw=0.8)
    ax.annotate("no memory", (1, kept["memoryless"]), (1, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", va="bottom", fontsize=8, color="0.4")  # fmt: skip
    title = f"Copying memory, delay {kept['delay']}, {kept['hidden']} units"
    ax.set(xlabel="iteration", ylabel="cross entropy", title=title)


def _selections(ax: Axes, kept: dict[str, Any]) -> None:
    for number, (name, found) in enumerate(kept["curves"].items()):
        _, seconds, losses = zip(*found["curve"], strict=True)
        style = "k:" if name.startswith("geoopt") else f"C{number}-"
        ax.semilogy(seconds, losses, style, label=name, lw=1.4)
    ax.set(xlabel="seconds in steps", ylabel="relative loss", title=f"Selections, d = {kept['d']}")


def _stepsizes(ax: Axes, kept: dict[str, Any]) -> None:
    for number, (name, found) in enumerate(kept["curves"].items()):
        steps, _, losses = zip(*found["curve"], strict=True)
        label = name.replace(" if buffers decayed by missed steps", ", if buffers decayed")
        ax.semilogy(steps, losses, color=f"C{number}", label=label, lw=1.4)
    ax.set(xlabel="random matchings", ylabel="relative loss", title=f"Step sizes, d = {kept['d']}")


PANELS = {"gains": (_steps, _copying), "choosing": (_selections, _stepsizes)}


def draw(name: str) -> Path:
    """Write a figure and return where it is."""
    matplotlib.rcParams.update({"svg.hashsalt": "riemcd", "svg.fonttype": "path", "font.size": 9})
    figure = Figure(figsize=(9.2, 4.4), layout="constrained", facecolor="white")
    for ax, kept, panel in zip(figure.subplots(1, 2), _load(name), PANELS[name], strict=True):
        panel(ax, kept)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=8, frameon=False)
    path = OUT / f"{name}.svg"
    # The digest goes where a reader of the file finds it; a date would make every drawing another file.
    figure.savefig(path, metadata={"Description": f"numbers {digest(name)}", "Date": None})
    return path


def main() -> None:
    """Draw every figure whose numbers are kept."""
    for name, sources in FIGURES.items():
        missing = [path.name for path in sources if not path.exists()]
        print(f"{name}: {', '.join(missing)} not kept yet" if missing else draw(name))


if __name__ == "__main__":
    main()
