"""Embedding tables of 100,000 points: a step of SRCD against one of geoopt's RiemannianSGD.

Both move every row; SRCD along one coordinate of it, RiemannianSGD along the whole gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import geoopt
import torch

from riemcd import SRCD

ROWS, ENTRIES = 100_000, 16

MANIFOLDS: dict[str, Callable[[], geoopt.Manifold]] = {
    "Lorentz": geoopt.Lorentz,
    "PoincareBall": geoopt.PoincareBall,
    "PoincareBallExact": geoopt.PoincareBallExact,
    "SphereProjection": geoopt.SphereProjection,
    "Sphere": geoopt.Sphere,
}


#: Where it must not be slower; on spheres a whole step is as cheap as anything can be.
PROMISED = ("Lorentz", "PoincareBall", "PoincareBallExact")


def _stepper(make: Callable[..., torch.optim.Optimizer], manifold: geoopt.Manifold) -> Callable[[], Any]:
    """Return a function that takes one step on a table of its own, gradients already there."""
    generator = torch.Generator().manual_seed(0)
    points = 0.1 * torch.randn(ROWS, ENTRIES, generator=generator)
    table = geoopt.ManifoldParameter(manifold.projx(points), manifold=manifold)
    table.grad = torch.randn(ROWS, ENTRIES, generator=generator)
    return make([table], lr=1e-4).step


def _milliseconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def rows(repeats: int = 15) -> list[dict[str, Any]]:
    """Time the two in turn, so that whatever else the machine does meets both alike.

    ``ratio`` is SRCD's best time by RiemannianSGD's best time.
    """
    results = []
    for name, make in MANIFOLDS.items():
        ours, theirs = _stepper(SRCD, make()), _stepper(geoopt.optim.RiemannianSGD, make())
        for step in (ours, theirs, ours, theirs):
            step()
        times = [(_milliseconds(ours), _milliseconds(theirs)) for _ in range(repeats)]
        best, best_of_theirs = (min(found) for found in zip(*times, strict=True))
        results.append(
            {
                "name": f"{name} table {ROWS:,} × {ENTRIES}, one coordinate step",
                "against": "geoopt RiemannianSGD step",
                "ratio": best / best_of_theirs,
                "must": "<= 1" if name in PROMISED else None,
                "ms": best,
                "against_ms": best_of_theirs,
            }
        )
    return results
