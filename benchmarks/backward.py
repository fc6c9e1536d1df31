"""Training an orthogonal recurrence without its weight gradient, against the ways others do it.

Every time is one iteration, forward, backward and step, in single precision with a batch of 128: sequences
with ten features are put into one of ten classes from the last state.
Contestants of one line run in turn in the same process, and the ratio is that of their medians. Memory
is what an iteration adds to the peak of a fresh process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geoopt
import geotorch
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from riemcd import SRCD, selections
from riemcd.nn import OrthogonalRNN
from riemcd.nn.functional import modrelu

BATCH, FEATURES, CLASSES, LR = 128, 10, 10, 1e-4

Iteration = Callable[[], Any]


class Loop(nn.Module):
    """The recurrence of `OrthogonalRNN` as a loop that autograd records, one cell after the other.

    This is how published code for orthogonal recurrences writes it.
    """

    def __init__(self, d: int, with_geotorch: bool = False) -> None:
        super().__init__()
        self.core = OrthogonalRNN(FEATURES, d)
        self.recurrent: nn.Linear | None = None
        if with_geotorch:
            start = self.core.weight_hh.detach().clone()
            del self.core.weight_hh
            self.recurrent = nn.Linear(d, d, bias=False)
            geotorch.orthogonal(self.recurrent, "weight")
            self.recurrent.weight = start

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with parametrize.cached():
            weight = self.core.weight_hh if self.recurrent is None else self.recurrent.weight
            inward, bias = self.core.weight_ih, self.core.bias
            h = x.new_zeros(x.shape[1], weight.shape[0])
            states = []
            for x_t in x.unbind(0):
                h = modrelu(nn.functional.linear(x_t, inward) + nn.functional.linear(h, weight), bias)
                states.append(h)
            return torch.stack(states), h


def iteration(net: nn.Module, opt: torch.optim.Optimizer, steps: int, d: int) -> Iteration:
    """Return a function that trains for one iteration."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps, BATCH, FEATURES, generator=generator)
    classes = torch.randint(CLASSES, (BATCH,), generator=generator)
    head = nn.Linear(d, CLASSES)
    opt.add_param_group({"params": head.parameters()})

    def run() -> None:
        opt.zero_grad()
        nn.functional.cross_entropy(head(net(x)[1]).view(BATCH, CLASSES), classes).backward()
        opt.step()

    return run


def srcd(rule: selections.Selection) -> Callable[[int, int], Iteration]:
    """Return what makes iterations of ours."""

    def make(d: int, steps: int) -> Iteration:
        net = OrthogonalRNN(FEATURES, d)
        opt = SRCD(net.parameters(), lr=LR, selection=rule, skip_weight_grad=True)
        return iteration(net, opt, steps, d)

    return make


def loop_riemannian(d: int, steps: int) -> Iteration:
    """An autograd loop with geoopt's RiemannianSGD."""
    net = Loop(d)
    return iteration(net, geoopt.optim.RiemannianSGD(net.parameters(), lr=LR), steps, d)


def loop_geotorch(d: int, steps: int) -> Iteration:
    """An autograd loop with geotorch's orthogonal weights and RMSprop."""
    net = Loop(d, with_geotorch=True)
    return iteration(net, torch.optim.RMSprop(net.parameters(), lr=LR), steps, d)


def fused_sgd(d: int, steps: int) -> Iteration:
    """The fused recurrence with its weight gradient and torch's SGD: no constraint at all."""
    net = OrthogonalRNN(FEATURES, d)
    return iteration(net, torch.optim.SGD(net.parameters(), lr=LR), steps, d)


UNIFORM, MATCHING = srcd(selections.Uniform(1)), srcd(selections.RandomMatching())

CASES: list[tuple[str, str, Callable[..., Iteration], Callable[..., Iteration], int, int, float, int]] = [
    ("Uniform(1)", "autograd loop, RiemannianSGD", UNIFORM, loop_riemannian, 190, 220, 0.30, 9),
    ("Uniform(1)", "autograd loop, RiemannianSGD", UNIFORM, loop_riemannian, 1024, 50, 0.50, 7),
    ("Uniform(1)", "autograd loop, geotorch, RMSprop", UNIFORM, loop_geotorch, 1024, 50, 0.25, 5),
    ("Uniform(1)", "fused, weight gradient, SGD", UNIFORM, fused_sgd, 1024, 50, 0.85, 15),
    ("Uniform(1)", "fused, weight gradient, SGD", UNIFORM, fused_sgd, 2048, 50, 0.82, 7),
    ("RandomMatching()", "fused, weight gradient, SGD", MATCHING, fused_sgd, 1024, 50, 1.0, 15),
    ("RandomMatching()", "fused, weight gradient, SGD", MATCHING, fused_sgd, 2048, 50, 1.0, 7),
]


def _seconds(run: Iteration) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def timed(ours: Iteration, theirs: Iteration, repeats: int) -> tuple[float, float]:
    """Return the medians of both, in seconds, run in turn."""
    for run in (ours, theirs):
        run()
    times = [(_seconds(ours), _seconds(theirs)) for _ in range(repeats)]
    mine, others = (statistics.median(found) for found in zip(*times, strict=True))
    return mine, others


def peak(which: str, d: int, steps: int) -> float:
    """Return by how many megabytes one iteration raises the peak of a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.backward", which, str(d), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _peak_here(which: str, d: int, steps: int) -> float:
    make = {"ours": UNIFORM, "loop": loop_riemannian}[which]
    make(d, 3)()  # what the libraries themselves allocate
    run = make(d, steps)
    before = _highest()
    run()
    return (_highest() - before) / 1024


def _highest() -> int:
    """Return the highest kilobytes that this process has held so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):  # getrusage would begin with what the parent held
            return int(line.split()[1])
    raise RuntimeError("peaks of memory are read from /proc/self/status, which has none here.")


def rows() -> list[dict[str, Any]]:
    """Time every line of the table, with two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    results = []
    try:
        for rule, against, make, make_theirs, d, steps, must, repeats in CASES:
            print(f"SRCD({rule}) against {against}, d = {d}", flush=True)
            mine, others = timed(make(d, steps), make_theirs(d, steps), repeats)
            results.append(
                {
                    "name": f"OrthogonalRNN, SRCD({rule}, skip_weight_grad), d={d}, T={steps}",
                    "against": against,
                    "ratio": mine / others,
                    "must": f"<= {must:g}",
                    "ms": 1e3 * mine,
                    "against_ms": 1e3 * others,
                }
            )
        mine, others = peak("ours", 190, 1020), peak("loop", 190, 1020)
        results.append(
            {
                "name": "peak memory of an iteration, d=190, T=1020",
                "against": "autograd loop, RiemannianSGD",
                "ratio": mine / others,
                "must": "<= 0.5",
                "MB": mine,
                "against_MB": others,
            }
        )
    finally:
        torch.set_num_threads(threads)
    return results


if __name__ == "__main__":  # a fresh process in which memory is measured
    print(json.dumps(_peak_here(sys.argv[1], *map(int, sys.argv[2:]))))
