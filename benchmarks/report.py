"""Tables, a picture and the numbers themselves."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from .contestants import SGD
from .timing import Times

__all__ = ["RESULTS", "cpu", "lines", "picture", "races", "save", "table", "verdicts"]

RESULTS = Path(__file__).parent / "results"


#: Colours that are told apart without red and green, and markers for when they begin again.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_MARKERS = "os^Dv"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.0f} us"


def table(times: dict[int, dict[str, Times]]) -> str:
    """Return medians and, in brackets, how many times as long as SGD in the same rounds."""
    names = list(dict.fromkeys(name for row in times.values() for name in row))
    width = max(len(name) for name in names)
    lines = [" " * width + "".join(f"{f'd = {d}':>20}" for d in times)]
    for name in names:
        cells = []
        for row in times.values():
            if name in row:
                cells.append(f"{_time(row[name].median)} ({row[name].to_first:.2g}x)")
            else:
                cells.append("-")
        lines.append(name.ljust(width) + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def verdicts(rows: list[dict[str, Any]]) -> str:
    """Return one line for each promise."""
    return "\n".join(
        f"{'kept' if row['kept'] else 'MISSED':7}{row['step']} / {row['against']} at d = {row['d']}: "
        f"{row['ratio']:.3g} (of the least times {row['of the least']:.3g}), at most {row['at most']:.3g}"
        for row in rows
    )


def lines(rows: list[dict[str, Any]]) -> str:
    """Return one line for each ratio, with what it must be and what was measured."""
    found = []
    for row in rows:
        unit, must = "ms" if "ms" in row else "MB", row["must"]
        verdict = (
            "" if must is None else "kept" if row["ratio"] <= float(must.removeprefix("<= ")) else "MISSED"
        )
        found.append(
            f"{verdict:7}{row['name']:72} / {row['against']:34} {row['ratio']:6.3f}"
            f"{'' if must is None else f', must be {must}'} "
            f"({row[unit]:.4g} against {row['against_' + unit]:.4g} {unit})"
        )
    return "\n".join(found)


def races(raced: list[dict[str, Any]]) -> str:
    """Return one line for each promise about seconds to a solution."""
    return "\n".join(
        f"{'kept' if one['kept'] else 'MISSED':7}Procrustes {race['n']} x {race['n']} in "
        f"{_time(race['riemcd.minimize'])}, {one['times faster']:.1f} times as fast as {one['against']}, "
        f"at least {one['at least']:.0f}"
        for race in raced
        for one in race["verdicts"]
    )


def cpu() -> str:
    """Return what the processor calls itself, and how many cores of it there are."""
    names = Path("/proc/cpuinfo")
    model = platform.processor() or platform.machine()
    if names.exists():
        models = [
            line.partition(":")[2].strip() for line in names.read_text().splitlines() if "model name" in line
        ]
        model = models[0] if models else model
    return f"{model}, {os.cpu_count()} cores"


def save(name: str, content: Any) -> None:
    """Keep numbers under ``benchmarks/results``."""
    RESULTS.mkdir(exist_ok=True)

    def plain(value: Any) -> Any:
        numbers = {"median": value.median, "least": value.least, "to SGD": value.to_first}
        return {**numbers, "rounds": value.rounds}

    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, default=plain) + "\n")


def picture(times: dict[int, dict[str, Times]]) -> None:
    """Draw seconds against size, both on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for row in times.values() for name in row))
    figure, axes = plt.subplots(figsize=(11, 7))
    for number, name in enumerate(names):
        points = [(d, row[name].median) for d, row in times.items() if name in row]
        ours = name.startswith("SRCD")
        style = ("-" if ours else ":") + _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
        style, colour = ("--", "black") if name == SGD else (style, _COLOURS[number % len(_COLOURS)])
        axes.loglog(*zip(*points, strict=True), style, label=name, color=colour, linewidth=1.5 if ours else 1)
    axes.set(xlabel="size d of an orthogonal matrix", ylabel="seconds per step", title="One step, float32")
    axes.set_xticks(list(times), [str(d) for d in times])
    axes.set_xticks([], minor=True)
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()
    figure.savefig(RESULTS / "steps.png", dpi=130)
