"""``riemcd problems``: losses on orthonormal matrices whose answers are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .figures import close, new_figure, style
from .folder import Folder, Log, open_folder
from .interrupt import Interrupts
from .problems_task import CONTESTANTS, PROBLEMS, off_manifold, solve
from .settings import Settings, machine, prepare

__all__ = ["Problems", "presets", "run"]

Name = Literal["procrustes", "pca", "brockett", "joint", "ica"]


@dataclass(frozen=True, kw_only=True)
class Problems(Settings):
    """Solve problems whose answers numpy and scipy know, and see who gets there.

    procrustes (the nearest rotation), pca (ten principal components), brockett (five eigenvectors in order),
    joint (ten matrices, diagonal in one basis) and ica (ten Laplace sources, 10,000 samples). Contestants:
    geoopt's RiemannianSGD, RiemannianAdam and RiemannianLineSearch; SRCD with one random rotation, a random
    matching and a greedy one; and riemcd.minimize, which turns pairs by exact angles and needs no step size
    (not for ica, whose loss is no trigonometric polynomial). Each stops at the goal or when its time is up.
    """

    preset: Literal["demo", "paper"] = "demo"
    """Where the other values come from: "paper" has larger matrices and more time."""

    problems: tuple[Name, ...] = ("procrustes", "pca", "brockett", "joint", "ica")
    """Which ones."""

    size: int = 200
    """Rows of the matrices (the ten sources of ica are always ten)."""

    seconds: float = 20.0
    """For every contestant on every problem."""

    goal: float = 1e-8
    """The gap to the best value, relative to it, at which a contestant may stop."""

    seed: int = 0
    """Of the problem and of the start."""


def presets() -> dict[str, Problems]:
    """Return the configurations by name."""
    return {
        "demo": Problems(preset="demo", size=100, seconds=3.0),
        "paper": Problems(preset="paper", size=300, seconds=10.0),
    }


def run(settings: Problems) -> int:
    """Let everyone try, draw, print; return 130 where Ctrl-C came. Resuming skips what was tried."""
    from tqdm import tqdm

    prepare(settings)
    if settings.device != "cpu":
        raise ValueError("riemcd problems runs on the CPU in double precision: leave --device as it is.")
    folder = open_folder("problems", settings)
    path = folder.path / "outcomes.jsonl"
    kept = path.read_bytes().count(b"\n") if path.exists() else 0
    with Interrupts() as stop, Log(path, keep=kept) as log:
        wanted = [(p, c) for p in settings.problems for c in CONTESTANTS if (p, c) != ("ica", "minimize")]
        with tqdm(wanted, unit="run", disable=settings.quiet) as bar:
            for problem, contestant in bar:
                before = [r for r in log.rows if (r["problem"], r["contestant"]) == (problem, contestant)]
                if before or stop.asked:
                    continue
                row = _try(settings, problem, contestant, stop)
                if not stop.asked:
                    log.add(row)
                bar.set_postfix_str(f"{problem}, {contestant}: gap {row['gap']:.1e}")
        rows = list(log.rows)
    summary = _summarise(settings, rows)
    folder.write("summary.json", summary)
    if rows:
        _draw(folder, summary)
    folder.table(summary["table"], summary["note"])
    print(f"\nEverything is in {folder.path}." + (" Go on with --resume." if stop.asked else ""))
    return 130 if stop.asked else 0


def _try(settings: Problems, problem: str, contestant: str, stop: Interrupts) -> dict[str, Any]:
    case = PROBLEMS[problem](settings.size, settings.seed)
    # A first round without a clock, in which kernels are compiled.
    solve(case, contestant, 1e-9, settings.goal, lambda: stop.asked)
    outcome = solve(case, contestant, settings.seconds, settings.goal, lambda: stop.asked)
    at = np.unique(np.linspace(0, len(outcome.curve) - 1, 200).round().astype(int))
    return {
        "problem": problem,
        "contestant": contestant,
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
    table = [
        {"problem": row["problem"], "contestant": row["contestant"], "gap": row["gap"],
         "seconds": row["seconds"], "steps": row["steps"], "at the goal": "yes" if row["reached"] else "no",
         "|XᵀX − I|": row["orthogonality"], "Amari": row["quality"], "closed form": row["closed_form"],
         "its seconds": row["closed_seconds"]}
        for row in rows
    ]  # fmt: skip
    note = (
        f"{settings.size} rows, double precision. gap: to the best value, relative; steps: gradients, or "
        f"sweeps of minimize; the goal is a gap of {settings.goal:g} within {settings.seconds:g} seconds."
    )
    return {"experiment": "problems", "size": settings.size, "goal": settings.goal, "table": table,
            "note": note, "outcomes": rows, "machine": machine()}  # fmt: skip


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    names = list(dict.fromkeys(row["problem"] for row in summary["outcomes"]))
    columns = min(3, len(names))
    figure, axes = new_figure(columns, -(-len(names) // columns), squeeze=False,
                              figsize=(5.2 * columns, 4.2 * -(-len(names) // columns)))  # fmt: skip
    for one, name in zip(axes.ravel(), names, strict=False):
        for row in summary["outcomes"]:
            if row["problem"] != name:
                continue
            number = CONTESTANTS.index(row["contestant"])
            look = style(number, int(row["contestant"].startswith("Riemannian")))
            label = row["contestant"] if name == names[0] else None
            one.plot(
                *np.maximum(np.array(row["curve"])[1:].T, 1e-5 * np.array([[1], [1e-11]])),
                label=label,
                **look,
            )
        one.axhline(summary["goal"], color="0.6", linewidth=0.8)
        one.set(
            xscale="log", yscale="log", xlabel="seconds", ylabel="relative gap to the best value", title=name
        )
    for one in axes.ravel()[len(names) :]:
        one.set_axis_off()
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    folder.figure("problems.png", figure)
    close(figure)
