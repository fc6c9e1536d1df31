"""How many sweeps of exact angles reach the minimum: the tables of the page on step sizes."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from torch import Tensor

from riemcd import minimize
from riemcd.problems import JointDiagonalization, LinearTrace, QuadraticTrace
from riemcd.selections import RoundRobin
from riemcd.stepsizes import Exact

__all__ = ["jacobi", "procrustes"]

GAP, MOST = 1e-5, 300


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _needed(n: int, p: int, seed: int, **options: Any) -> float:
    """Return the sweeps to the gap on a random Procrustes problem, infinity if there are too many."""
    M = _normal(n, p, seed=seed) @ _normal(p, p, seed=1000 + seed).T / p
    x0 = torch.linalg.qr(_normal(n, p, seed=2000 + seed)).Q
    sigma = torch.linalg.svdvals(M)
    best = -float(sigma.sum())
    if n == p and torch.linalg.slogdet(M).sign != torch.linalg.slogdet(x0).sign:
        best += 2 * float(sigma[-1])  # rotations keep the determinant

    def reached(sweep: Any, _point: Tensor) -> bool:
        return (sweep.value - best) / abs(best) < GAP

    found = minimize(LinearTrace(M), x0, tol=0.0, max_sweeps=MOST, callback=reached, **options)
    last = found.history[-1]
    return last.number if (last.value - best) / abs(best) < GAP else float("inf")


def _shown(sweeps: float) -> str:
    return f"{sweeps:g}" if sweeps <= MOST else f"> {MOST}"


def procrustes(seeds: int = 10) -> dict[str, Any]:
    """Return medians and the largest, over the seeds, for each shape and rule."""
    fixed = RoundRobin()
    rules: dict[str, dict[str, Any]] = {
        "RoundRobin(), remember=0": {"selection": fixed, "remember": 0},
        "the same, Exact(relax=1.8)": {"selection": fixed, "stepsize": Exact(1.8), "remember": 0},
        "RoundRobin()": {"selection": fixed},
        "the default": {},
    }
    rows = []
    for n, p in ((50, 50), (200, 200), (200, 150), (200, 50)):
        row: dict[str, str] = {"(n, p)": f"({n}, {p})"}
        for name, options in rules.items():
            needed = [_needed(n, p, seed, **options) for seed in range(seeds)]
            row[name] = f"{_shown(median(needed))}, {_shown(max(needed))}"
        rows.append(row)
        print(f"  {row}", flush=True)
    note = (
        f"Sweeps to a relative gap of {GAP:g}, the median and the largest of {seeds} seeds; "
        f"stopped at {MOST}. Standard normal A (p × p), B (n × p) and random starts, float64."
    )
    return {"table": rows, "note": note}


def jacobi() -> dict[str, Any]:
    """Return how the gradient falls over the last sweeps, from a random start."""
    Q = torch.linalg.qr(_normal(50, 50, seed=0)).Q
    joint = Q @ torch.diag_embed(_normal(10, 50, seed=1)) @ Q.mT
    basis = torch.linalg.qr(_normal(200, 200, seed=2)).Q
    covariance = basis * torch.logspace(0, 3, 200, dtype=torch.float64) @ basis.mT
    B = _normal(100, 100, seed=3)
    weights = torch.arange(100.0, dtype=torch.float64)
    cases = {
        "principal components (200, 50), spectrum 1 to 1000": (QuadraticTrace(covariance), (200, 50)),
        "principal components (200, 100), the same": (QuadraticTrace(covariance), (200, 100)),
        "Brockett, n = 100": (QuadraticTrace(B + B.T, weights=weights), (100, 100)),
        "10 commuting 50 × 50 matrices": (JointDiagonalization(joint), (50, 50)),
    }
    rows = []
    for name, (problem, shape) in cases.items():
        found = minimize(problem, torch.linalg.qr(_normal(*shape, seed=4)).Q, tol=1e-12, max_sweeps=40)
        first = max(sweep.gradient_norm for sweep in found.history)
        ends = [f"{sweep.gradient_norm / first:.1e}" for sweep in found.history[-4:]]
        rows.append({"problem": name, "sweeps": found.sweeps, "the last gradients": ", ".join(ends)})
    note = "Norms of the gradient after the last sweeps, relative to the largest; float64, random starts."
    return {"table": rows, "note": note}
