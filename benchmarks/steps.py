"""What one step costs, for every contestant and size, and what it must not exceed."""

from __future__ import annotations

import math
from typing import Any

import torch

from .contestants import OURS, SGD, THEIRS, contestants
from .timing import Times, take_turns

__all__ = ["growth", "measure", "promises"]

SIZES = (190, 512, 1024, 2048, 4096)
PRODUCT, GEOOPT = "W.T @ G", "geoopt RiemannianSGD, EuclideanStiefel"
UNIFORM, PARTITION = "SRCD Uniform(1)", "SRCD Partition(16), LeftGivens"
LEFT, SKIP = "SRCD RandomMatching, LeftGivens", "SRCD RandomMatching, LeftGivens, skip"
RIGHT, GREEDY = "SRCD RandomMatching, RightGivens", "SRCD GaussSouthwell(1)"

#: Those that multiply matrices.
DEAR = {*THEIRS, GREEDY, "SRCD GreedyMatching", "SRCD All"}

#: (ours, against, sizes, how many times as long it may take)
PROMISES: list[tuple[str, str, tuple[int, ...], float]] = [
    (UNIFORM, SGD, (1024,), 1.0),
    (UNIFORM, SGD, (4096,), 0.3),
    (LEFT, SGD, (512, 1024, 2048, 4096), 4.0),
    (SKIP, SGD, (512, 1024, 2048, 4096), 2.5),
    (RIGHT, SGD, (512, 1024, 2048, 4096), 8.0),
    (LEFT, GEOOPT, (512,), 1 / 50),
    (LEFT, GEOOPT, (2048,), 1 / 200),
    (PARTITION, GEOOPT, (2048,), 1 / 40),
    (GREEDY, PRODUCT, (1024, 2048), 1.2),
]


def measure(
    sizes: tuple[int, ...] = SIZES, rounds: int = 9, limit: float = 15.0
) -> dict[int, dict[str, Times]]:
    """Time everyone at every size; who would take more than ``limit`` seconds a step stays out."""
    table: dict[int, dict[str, Times]] = {}
    smaller: dict[str, tuple[int, float]] = {}
    for d in sizes:
        names = [
            name
            for name in (SGD, *OURS, *THEIRS)
            if name not in smaller or smaller[name][1] * (d / smaller[name][0]) ** 3 <= limit
        ]
        print(f"d = {d}: {len(names)} contestants", flush=True)
        # Two heats, since a long product leaves the caches cold for whoever comes next.
        table[d] = {}
        for heat, some in enumerate(([n for n in names if n in DEAR], [n for n in names if n not in DEAR])):
            there = contestants(d, [SGD, *(name for name in some if name != SGD)])
            # Cheap steps are timed over a longer while: a host that is busy for seconds must not decide.
            table[d] |= take_turns(there, rounds if heat == 0 else 3 * rounds, heat=heat)
        smaller |= {name: (d, times.least) for name, times in table[d].items()}
    return table


def promises(table: dict[int, dict[str, Times]]) -> list[dict[str, Any]]:
    """Return what was promised beside what was measured."""
    rows = []
    for ours, theirs, sizes, most in PROMISES:
        for d in sizes:
            if d in table and ours in table[d] and theirs in table[d]:
                ratio = table[d][ours].against(table[d][theirs])
                rows.append(
                    {
                        "step": ours,
                        "against": theirs,
                        "d": d,
                        "at most": most,
                        "ratio": ratio,
                        "of the least": table[d][ours].least / table[d][theirs].least,
                        "kept": ratio <= most,
                    }
                )
    return rows


def growth(sizes: tuple[int, ...] = (1024, 2048, 4096, 8192), rounds: int = 9) -> dict[str, Any]:
    """Return the power of d with which the cost of a single coordinate grows, fitted to its medians."""
    times = {}
    for d in sizes:
        times[d] = take_turns(contestants(d, [UNIFORM]), rounds)[UNIFORM].median
    x = torch.tensor([math.log(d) for d in sizes], dtype=torch.float64)
    y = torch.tensor([math.log(times[d]) for d in sizes], dtype=torch.float64)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return {"step": UNIFORM, "seconds": times, "power": slope, "at most": 1.2, "kept": slope <= 1.2}
