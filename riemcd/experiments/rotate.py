"""``riemcd rotate``: learn a rotation in which vectors are easy to quantise."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .digits_task import DigitsTrainee, load_digits
from .figures import close, new_figure, style
from .folder import Folder, open_folder
from .interrupt import Interrupts
from .methods import Method, Rates
from .rotate_task import CLOSED_FORMS, RotateTrainee, reconstruction_error
from .runs import carry_out, check_same
from .settings import Settings, known, machine, prepare

__all__ = ["Rotate", "presets", "run"]

Learned = Literal["srcd", "cayley", "qr"]
LEARNED: tuple[Learned, ...] = ("srcd", "cayley", "qr")
#: Step sizes at the start: the best of a grid, on a seed that is not among those that are reported.
RATES = {"srcd": 0.05, "cayley": 300.0, "qr": 100.0}


@dataclass(frozen=True, kw_only=True)
class Rotate(Settings):
    """Quantise vectors to int4 in a rotated basis, and learn the rotation.

    Rows x are rotated to y = xR, rounded to the nearest of 15 levels with one scale per group of
    neighbours, and rotated back. Rotations without training: none, hadamard (random signs), the
    eigenbasis of the covariance, and that mixed by a Hadamard matrix within groups. Learned from the
    Hadamard one, on the same loss and batches: srcd (coordinate descent, which never forms the d x d
    gradient), cayley (Cayley SGD with momentum, which quantisation toolkits port for this) and qr (geoopt's
    RiemannianSGD with its QR retraction). Reported: the relative error ||Q(xR)Rᵀ − x||² / ||x||² on held-out
    rows, and seconds.
    """

    preset: Literal["demo", "paper"] = "demo"
    """Where the other values come from: "paper" has d = 1024, both kinds of rows and three seeds."""

    learned: tuple[Learned, ...] = LEARNED
    """Which rotations to learn."""

    rows: tuple[Literal["activations", "heavy"], ...] = ("activations", "heavy")
    """What to quantise: hidden states of a recurrent network that reads digits, or rows with heavy tails
    (Student's t with 4 degrees of freedom, a decaying spectrum, and a few channels twenty times as large)."""

    d: int = 1024
    """The size of the vectors, a power of two."""

    group: int = 64
    """How many neighbours share a scale."""

    calibration: int = 16384
    """Rows to learn from; a quarter as many to test."""

    batch: int = 256
    """Rows per iteration."""

    iterations: int = 150
    """Of cayley and qr."""

    coordinate_iterations: int = 250
    """Of srcd, whose iterations are cheaper: what counts is the time."""

    block: int = 64
    """How many coordinates srcd puts in a group at a time: all rotations within groups are taken at once."""

    lr: float | None = None
    """The step size at the start; by default the best of a grid for each."""

    seeds: int = 1
    """How many runs of each, with seeds 0, 1, ..."""


def presets() -> dict[str, Rotate]:
    """Return the configurations by name."""
    return {
        "demo": Rotate(preset="demo", rows=("activations",)),
        "paper": Rotate(preset="paper", seeds=3),
    }


def rows_of(kind: str, d: int, count: int, seed: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return rows to learn from, ``(count, d)``, and rows to test, ``(count // 4, d)``."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "heavy":
        spectrum = torch.logspace(0, -1.5, d)
        mixing = torch.linalg.qr(torch.randn(d, d, generator=generator)).Q
        total = count + count // 4
        tails = (torch.randn(total, 4, generator=generator).square().sum(1, keepdim=True) / 4).rsqrt()
        found = (torch.randn(total, d, generator=generator) * spectrum * tails) @ mixing
        found[:, torch.randperm(d, generator=generator)[: max(2, d // 100)]] *= 20
        found = found.to(device)
        return found[:count], found[count:]
    data = load_digits(False, device)
    trainee = DigitsTrainee(Method("partition", "rmsprop"), seed, data, hidden=d, batch=128,
                            rates=Rates(1e-3, 1e-3), block=16)  # fmt: skip
    trainee.step()
    with torch.no_grad():
        core: Any = trainee.model.core
        # The first states have not seen enough pixels to differ.
        pools = [core(x[..., None])[0][8:].reshape(-1, d) for x in (data.x, data.x_test)]
    sizes = (count, count // 4)
    return tuple(
        pool[torch.randperm(len(pool), generator=generator)[:size].to(pool.device)].contiguous()
        for pool, size in zip(pools, sizes, strict=True)
    )


def run(settings: Rotate) -> int:
    """Try and learn all rotations, draw, print; return 130 where Ctrl-C came."""
    device = prepare(settings)
    known("--learned", settings.learned, LEARNED)
    if settings.d % settings.group:
        raise ValueError(f"--d must be a multiple of --group, got {settings.d} and {settings.group}.")
    folder = open_folder("rotate", settings)
    results: list[dict[str, Any]] = []
    with Interrupts() as stop:
        for kind in settings.rows:
            for seed in range(settings.seeds):
                if not stop.asked:
                    results += _of_rows(settings, folder, kind, seed, device, stop)
    summary = _summarise(settings, results)
    folder.write("summary.json", summary)
    if results:
        _draw(folder, summary)
    folder.table(summary["table"], summary["note"])
    print(f"\nEverything is in {folder.path}." + (" Go on with --resume." if stop.asked else ""))
    return 130 if stop.asked else 0


def _of_rows(
    settings: Rotate, folder: Folder, kind: str, seed: int, device: Any, stop: Interrupts
) -> list[dict[str, Any]]:
    """Return what became of every rotation, for rows of one kind and one seed."""
    x, test = rows_of(kind, settings.d, settings.calibration, seed, device)
    results = []

    def judge(name: str, rotation: Tensor, seconds: float, **more: Any) -> None:
        errors = {"error": reconstruction_error(test, rotation, settings.group),
                  "calibration error": reconstruction_error(x, rotation, settings.group)}  # fmt: skip
        results.append({"rows": kind, "rotation": name, "seed": seed, **errors, "seconds": seconds, **more})

    for name, make in CLOSED_FORMS.items():
        begun = time.perf_counter()
        rotation = make(x, settings.group, torch.Generator().manual_seed(seed))
        judge(name, rotation, time.perf_counter() - begun)
    start = CLOSED_FORMS["hadamard"](x, settings.group, torch.Generator().manual_seed(seed))
    for name in settings.learned:
        run_name = f"{kind}-{name}-seed{seed}"
        what = _what(settings, kind, name, seed)
        check_same(folder, run_name, what)
        if stop.asked and not (folder.path / f"{run_name}.pt").exists():
            continue
        made: list[RotateTrainee] = []
        make_one = partial(
            RotateTrainee, name, seed, x, test, start, lr=what["lr"], iterations=what["iterations"],
            batch=settings.batch, group=settings.group, block=settings.block,
        )  # fmt: skip
        make_one().step()  # kernels are loaded and caches filled before the clock runs

        def make_and_keep(make_one: Any = make_one, made: list[RotateTrainee] = made) -> RotateTrainee:
            made.append(make_one())
            return made[-1]

        finished = carry_out(folder, run_name, what, make_and_keep, what["iterations"], stop=stop,
                             every=settings.checkpoint_every, quiet=settings.quiet)  # fmt: skip
        pace = finished.seconds_per_iteration
        judge(name, made[-1].rotation, pace * len(finished.rows), iterations=len(finished.rows),
              seconds_per_iteration=pace,
              curve=[[row["iteration"], row["error"]] for row in finished.rows if "error" in row],
              orthogonality=finished.end["orthogonality"])  # fmt: skip
    return results


def _what(settings: Rotate, kind: str, name: str, seed: int) -> dict[str, Any]:
    names = ("d", "group", "calibration", "batch", "iterations")
    found = {"rows": kind, "rotation": name, "seed": seed, **{n: getattr(settings, n) for n in names}}
    found["lr"] = RATES[name] if settings.lr is None else settings.lr
    if name == "srcd":
        found["iterations"] = settings.coordinate_iterations
    return {**found, "block": settings.block} if name == "srcd" else found


def _summarise(settings: Rotate, results: list[dict[str, Any]]) -> dict[str, Any]:
    table: list[dict[str, Any]] = []
    for kind in settings.rows:
        mine = [one for one in results if one["rows"] == kind]
        rows = [_row(kind, name, mine) for name in dict.fromkeys(one["rotation"] for one in mine)]
        goal = next((row["error"] for row in rows if row["rotation"] == "cayley"), -1.0)
        for row in rows:
            runs = [one for one in mine if one["rotation"] == row["rotation"] and "curve" in one]
            row["to cayley's"] = _seconds_to(goal, runs)
        table += rows
    note = (
        f"int4, one scale for every {settings.group} entries, d = {settings.d}. error: ||Q(xR)Rᵀ − x||² / "
        "||x||² on held-out rows, mean of the runs; to cayley's: seconds of learning until the mean error "
        "was as low as that of cayley in the end. Learned rotations start from the Hadamard one."
    )
    return {"experiment": "rotate", "d": settings.d, "group": settings.group, "table": table, "note": note,
            "results": results, "machine": machine()}  # fmt: skip


def _row(kind: str, name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    mine = [one for one in results if one["rotation"] == name]

    def mean(key: str) -> float | None:
        found = [one[key] for one in mine if key in one]
        return float(np.mean(found)) if found else None

    return {"rows": kind, "rotation": name, "runs": len(mine), "error": mean("error"),
            "calibration error": mean("calibration error"), "iterations": mine[0].get("iterations"),
            "s/iteration": mean("seconds_per_iteration"), "seconds": mean("seconds"),
            "|RᵀR − I|": mean("orthogonality")}  # fmt: skip


def _seconds_to(goal: float, runs: list[dict[str, Any]]) -> float | None:
    """Return after how many seconds the mean error was no more than ``goal``; None where it never was."""
    if not runs:
        return None
    length = min(len(one["curve"]) for one in runs)
    errors = np.mean([[error for _, error in one["curve"][:length]] for one in runs], axis=0)
    reached = np.flatnonzero(errors <= goal)
    if not len(reached):
        return None
    pace = float(np.mean([one["seconds_per_iteration"] for one in runs]))
    return float(runs[0]["curve"][int(reached[0])][0]) * pace


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    """Draw the error by seconds of learning; rotations that are not learned are lines across."""
    kinds = list(dict.fromkeys(row["rows"] for row in summary["table"]))
    figure, axes = new_figure(len(kinds), squeeze=False, figsize=(8.5 * len(kinds), 5))
    titles = {"activations": "hidden states of a network", "heavy": "rows with heavy tails"}
    for one, kind in zip(axes[0], kinds, strict=True):
        rows = [row for row in summary["table"] if row["rows"] == kind]
        for number, row in enumerate(rows):
            look = style(number, number if row["iterations"] is None else 0)
            if row["iterations"] is None:
                look = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                one.axhline(100 * row["error"], label=row["rotation"], **look)
                continue
            runs = [r for r in summary["results"] if (r["rows"], r["rotation"]) == (kind, row["rotation"])]
            length = min(len(r["curve"]) for r in runs)
            at = np.array([iteration for iteration, _ in runs[0]["curve"][:length]])
            errors = np.mean([[error for _, error in r["curve"][:length]] for r in runs], axis=0)
            label = f"{row['rotation']} (learned)"
            one.plot(at * row["s/iteration"], 100 * errors, label=label, **{**look, "markevery": 1})
        one.set(xscale="log", yscale="log", xlabel="seconds of learning", ylabel="reconstruction error in %",
                title=f"int4, d = {summary['d']}: {titles[kind]}")  # fmt: skip
        one.yaxis.set_minor_formatter("{x:g}")
        one.yaxis.set_major_formatter("{x:g}")
        one.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    folder.figure("rotate.png", figure)
    close(figure)
