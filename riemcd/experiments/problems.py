"""``riemcd problems``: losses on orthonormal matrices whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from .figures import close, new_figure, style
from .folder import Folder, Log, conclude, open_folder
from .interrupt import Interrupts
from .problems_rates import KINDS, best_of, rates_of, widened
from .problems_task import CONTESTANTS, PROBLEMS, kind_of, off_manifold, solve
from .runs import check_same
from .settings import TUNING_SEED, Settings, machine, prepare, progress, where

__all__ = ["Problems", "presets", "run"]

Name = Literal["procrustes", "pca", "brockett", "joint", "ica"]
_Attempt = Callable[[str, str, float], dict[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Problems(Settings):
    """Solve problems whose answers numpy and scipy know, and see who gets there.

    procrustes (the nearest rotation), pca (ten principal components), brockett (five eigenvectors in order),
    joint (ten matrices, diagonal in one basis) and ica (ten Laplace sources, 10,000 samples). Contestants:
    geoopt's RiemannianSGD, RiemannianAdam and RiemannianLineSearch; SRCD with one random rotation, the
    steepest one, the steepest 0.5 %, a random matching and a greedy one; and riemcd.minimize, which turns
    pairs by exact angles and needs no step size (not for ica, whose loss is no trigonometric polynomial).
    Each stops at the goal or when its time is up. Step sizes are the best of a grid for every problem and
    kind of contestant, with 100 rows and with 300; other sizes have those of the nearest. --preset tuning
    looks for them, with another seed.
    """

    preset: Literal["demo", "paper", "tuning"] = "demo"
    """Where the other values come from: "paper" has larger matrices and more time, "tuning" goes through
    the grids of step sizes."""

    problems: tuple[Name, ...] = ("procrustes", "pca", "brockett", "joint", "ica")
    """Which ones."""

    size: int = 200
    """Rows of the matrices (the ten sources of ica are always ten)."""

    seconds: float = 20.0
    """For every contestant on every problem."""

    goal: float = 1e-8
    """The gap to the best value, relative to it, at which a contestant may stop."""

    seed: int = 0
    """Of the problem, of the start and of the rotations that are drawn."""

    tuning: bool = False
    """Try step sizes, twice as large or half as large as before until the best is inside the grid; SRCD's
    rules share the one that is best for its matching."""


def presets() -> dict[str, Problems]:
    """Return the configurations by name."""
    return {
        "demo": Problems(preset="demo", size=100, seconds=3.0),
        "paper": Problems(preset="paper", size=300, seconds=10.0),
        "tuning": Problems(preset="tuning", size=300, seconds=10.0, seed=TUNING_SEED, tuning=True),
    }


def run(settings: Problems) -> int:
    """Let everyone try, draw, print; return 130 where Ctrl-C came. Resuming skips what was tried."""
    prepare(settings)
    if settings.device != "cpu":
        raise ValueError("riemcd problems runs on the CPU in double precision: leave --device as it is.")
    folder = open_folder("problems", settings)
    what = {name: getattr(settings, name) for name in ("size", "seconds", "goal", "seed", "tuning")}
    what |= where(settings)
    check_same(folder, "outcomes", what)
    folder.keep_settings("problems", settings)
    folder.write("outcomes.json", {"what": what})
    path = folder.path / "outcomes.jsonl"
    kept = path.read_bytes().count(b"\n") if path.exists() else 0
    with Interrupts() as stop, Log(path, keep=kept) as log:
        with progress(total=_count(settings), unit="run", disable=settings.quiet) as bar:

            def attempt(problem: str, contestant: str, rate: float) -> dict[str, Any] | None:
                """Return what came out, now or before the interruption; None after Ctrl-C."""
                asked = {"problem": problem, "contestant": contestant, "rate": rate}
                row = next((r for r in log.rows if asked.items() <= r.items()), None)
                if row is None and not stop.asked:
                    told = partial(_tell, bar, f"{problem}, {contestant}")
                    row = {**asked, **_try(settings, problem, contestant, rate, stop, told)}
                    if stop.asked:
                        return None
                    log.add(row)
                bar.update()
                return row

            for problem in settings.problems:
                go = _tune if settings.tuning else _compare
                go(problem, rates_of(settings.size, problem), attempt)
        return conclude(folder, _summarise(settings, log.rows), _draw, stop.asked)


def _entrants(problem: str) -> list[str]:
    return [name for name in CONTESTANTS if (problem, name) != ("ica", "minimize")]


def _count(settings: Problems) -> int | None:
    """Return how many attempts there will be, where that is known."""
    return None if settings.tuning else sum(len(_entrants(problem)) for problem in settings.problems)


def _compare(problem: str, rates: dict[str, float], attempt: _Attempt) -> None:
    """Let everyone try once, with the best step size."""
    for name in _entrants(problem):
        attempt(problem, name, rates.get(kind_of(name) or "", 0.0))


def _tune(problem: str, rates: dict[str, float], attempt: _Attempt) -> None:
    """Look for the best step size of every kind."""
    for kind, name in KINDS.items():
        widened(rates[kind], partial(attempt, problem, name))


def _tell(bar: Any, who: str, gap: float) -> None:
    """Show in the bar how far a contestant has got."""
    bar.set_postfix_str(f"{who}: gap {gap:.1e}", refresh=False)
    bar.update(0)  # drawn where the last time was a while ago


def _try(
    settings: Problems,
    problem: str,
    contestant: str,
    rate: float,
    stop: Interrupts,
    told: Callable[[float], None],
) -> dict[str, Any]:
    case = PROBLEMS[problem](settings.size, settings.seed)

    def stopped(gap: float) -> bool:
        told(gap)
        return stop.asked

    # A first round without a clock, in which kernels are compiled.
    solve(case, contestant, rate, 1e-9, settings.goal, stopped)
    outcome = solve(case, contestant, rate, settings.seconds, settings.goal, stopped, settings.seed)
    at = np.unique(np.linspace(0, len(outcome.curve) - 1, 200).round().astype(int))
    return {
        "gap": outcome.curve[-1][1],
        "seconds": outcome.curve[-1][0],
        "steps": outcome.steps,
        "reached": outcome.curve[-1][1] <= settings.goal,
        "orthogonality": off_manifold(outcome.point),
        "quality": None if case.quality is None else case.quality(outcome.point),
        "closed_form": case.closed_form,
        "closed_seconds": case.closed_seconds,
        "curve": [outcome.curve[i] for i in at],
    }


def _summarise(settings: Problems, rows: list[dict[str, Any]]) -> dict[str, Any]:
    best = [
        best_of([r for r in rows if (r["problem"], r["contestant"]) == pair])
        for pair in dict.fromkeys((r["problem"], r["contestant"]) for r in rows)
    ]
    table = [
        {"problem": row["problem"], "contestant": row["contestant"], "lr": row["rate"] or None,
         "gap": row["gap"], "seconds": row["seconds"], "steps": row["steps"],
         "at the goal": "yes" if row["reached"] else "no", "|XᵀX − I|": row["orthogonality"],
         "Amari": row["quality"], "closed form": row["closed_form"], "its seconds": row["closed_seconds"],
         **({"best": row in best} if settings.tuning else {})}
        for row in rows
    ]  # fmt: skip
    note = (
        f"{settings.size} rows, double precision. lr: of procrustes, but Adam's, over the largest singular "
        "value; gap: to the best value, relative; steps: gradients, or sweeps of minimize; the goal is a gap "
        f"of {settings.goal:g} within {settings.seconds:g} seconds, looked at after every tenth step."
    )
    return {"experiment": "problems", "size": settings.size, "seed": settings.seed,
            "seconds": settings.seconds, "goal": settings.goal, "table": table, "note": note,
            "outcomes": best if settings.tuning else rows, "machine": machine()}  # fmt: skip


_TITLES = {
    "procrustes": "Procrustes",
    "pca": "Principal components",
    "brockett": "Brockett's function",
    "joint": "Joint diagonalisation",
    "ica": "Independent components",
}


#: In the order of their colours, which come again after eight.
_LOOKS = ("minimize", "RiemannianSGD", "RiemannianAdam", "RiemannianLineSearch", "SRCD uniform",
          "SRCD steepest", "SRCD matching", "SRCD greedy matching", "SRCD steepest 0.5 %")  # fmt: skip


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    names = list(dict.fromkeys(row["problem"] for row in summary["outcomes"]))
    columns = min(2, len(names))
    figure, axes = new_figure(columns, -(-len(names) // columns), squeeze=False,
                              figsize=(5.2 * columns, 3.9 * -(-len(names) // columns)))  # fmt: skip
    labelled: set[str] = set()
    for one, name in zip(axes.ravel(), names, strict=False):
        for row in summary["outcomes"]:
            if row["problem"] != name:
                continue
            number = _LOOKS.index(row["contestant"])
            look = style(number, int(row["contestant"].startswith("Riemannian")))
            label = None if row["contestant"] in labelled else row["contestant"]
            labelled.add(row["contestant"])
            least = np.array([[1e-5], [summary["goal"] / 30]])  # how far beyond the goal does not matter
            one.plot(*np.maximum(np.array(row["curve"])[1:].T, least), label=label, **look)
        one.axhline(summary["goal"], color="0.6", linewidth=0.8)
        one.annotate("goal", (0.01, summary["goal"]), xycoords=("axes fraction", "data"), xytext=(0, 2),
                     textcoords="offset points", fontsize=8, color="0.4")  # fmt: skip
        one.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative gap to the best value",
                title=_TITLES[name])  # fmt: skip
    for one in axes.ravel()[len(names) :]:
        one.set_axis_off()
    unmixing = "; unmixing has ten columns" if "ica" in names else ""
    figure.suptitle(f"Matrices with {summary['size']} rows{unmixing}")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    folder.figure("problems.png", figure)
    close(figure)
