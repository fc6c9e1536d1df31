"""Peak extra memory of a step: what torch allocates while it runs, beyond what was there before."""

from __future__ import annotations

from typing import Any

import geoopt
import torch
from torch.profiler import ProfilerActivity, profile

from riemcd import SRCD, bases, selections

__all__ = ["peaks"]

RULES = {"Uniform(1)": selections.Uniform(1), "RandomMatching": selections.RandomMatching()}
BASES = {"LeftGivens": bases.LeftGivens(), "RightGivens": bases.RightGivens()}


def peak(opt: torch.optim.Optimizer) -> int:
    """Return the bytes a second step adds at most."""
    opt.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        opt.step()
    events = profiler.profiler.kineto_results.events()
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            most = max(most, live)
    return most


def peaks(sizes: tuple[int, ...] = (512, 1024, 2048)) -> list[dict[str, Any]]:
    """Return the bytes per column, which stay the same where memory grows like d."""
    rows = []
    for rule, selection in RULES.items():
        for side, basis in BASES.items():
            for d in sizes:
                param = geoopt.ManifoldParameter(torch.eye(d), manifold=geoopt.EuclideanStiefel())
                param.grad = torch.randn(d, d)
                extra = peak(SRCD([param], lr=1e-3, basis=basis, selection=selection))
                rows.append(
                    {"step": f"{rule}, {side}", "d": d, "bytes": extra, "bytes per column": extra / d}
                )
    return rows
