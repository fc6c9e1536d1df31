"""Positive definite matrices, n = 200: one coordinate step of SRCD against a step of RiemannianSGD."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import geoopt
import torch

from riemcd import SRCD
from riemcd.selections import Uniform

N = 200


def _stepper(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> Callable[[], Any]:
    """Return a function that takes one step on a matrix of its own, its gradient already there."""
    generator = torch.Generator().manual_seed(0)
    a, grad = torch.randn(2, N, N, generator=generator, dtype=torch.float64)
    matrix = a @ a.mT / N + torch.eye(N, dtype=torch.float64)
    point = geoopt.ManifoldParameter(matrix, manifold=geoopt.SymmetricPositiveDefinite())
    point.grad = grad
    return make([point]).step


def _milliseconds(step: Callable[[], Any], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e3 * (time.perf_counter() - start) / steps


def rows(repeats: int = 15) -> list[dict[str, Any]]:
    """Time the two in turn, so that whatever else the machine does meets both alike.

    ``ratio`` is SRCD's time by RiemannianSGD's. One of ``N`` steps of SRCD writes the matrix anew from its
    factor, and has to be counted: a repeat is all of them, in ten parts, and the best time of each part
    enters the mean.
    """
    parts = 10
    ours = _stepper(lambda p: SRCD(p, lr=1e-5, selection=Uniform(1)))
    theirs = _stepper(lambda p: geoopt.optim.RiemannianSGD(p, lr=1e-7))
    for step in (ours, theirs):
        _milliseconds(step, 5)
    times = torch.tensor(
        [
            [(_milliseconds(ours, N // parts), _milliseconds(theirs, 1)) for _ in range(parts)]
            for _ in range(repeats)
        ]
    )
    best, best_of_theirs = times.min(0).values.mean(0).tolist()
    return [
        {
            "name": f"SPD {N} × {N}, one coordinate step",
            "against": "geoopt RiemannianSGD step",
            "ratio": best / best_of_theirs,
            "must": "<= 0.1",
            "ms": best,
            "against_ms": best_of_theirs,
        }
    ]
