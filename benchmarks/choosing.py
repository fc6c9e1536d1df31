r"""Which selection and which step size gets how far: the curves of the page on choosing.

Everyone minimises :math:`\|(W - T) C\|^2` over rotations, with a random rotation T and a diagonal C. Its
gradient costs as much as reading the matrix, so that what is compared is the optimizers. Every learning rate
is the best of a grid, by the loss at the end; the grid is widened until its best is not at its edge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import geoopt
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections, stepsizes
from riemcd.coordstate import CoordinateState
from riemcd.index import Coordinates
from riemcd.stepsizes import StepSize

__all__ = ["by_step", "by_time"]

Make = Callable[[Tensor, float], torch.optim.Optimizer]
POINTS = 60  # of a curve
_WIDER = 1.5  # by how much a grid of learning rates is widened


@dataclass(frozen=True)
class Problem:
    """The rotation to be found, and the scales of its columns."""

    target: Tensor  # (d, d)
    scales: Tensor  # (d,), squared

    @classmethod
    def random(cls, d: int, condition: float, dtype: torch.dtype) -> Problem:
        """Return one whose squared scales go from 1 to 1 / ``condition``."""
        A = torch.randn(d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        target = torch.matrix_exp((A - A.T) / d**0.5).to(dtype)
        return cls(target, torch.logspace(0, -float(torch.tensor(condition).log10()), d, dtype=dtype))

    def start(self) -> Tensor:
        """Return the identity, as a parameter whose gradient is the problem's."""
        start = torch.eye(len(self.target), dtype=self.target.dtype)
        return geoopt.ManifoldParameter(start, manifold=geoopt.EuclideanStiefel())

    def loss(self, W: Tensor) -> float:
        """Return the loss, relative to that of the identity."""
        first = torch.eye(len(W), dtype=W.dtype) - self.target
        values = [(R.square() * self.scales).sum().double() for R in (W.detach() - self.target, first)]
        return float(values[0] / values[1])

    def gradient(self, W: Tensor) -> Tensor:
        """Return the Euclidean gradient."""
        return 2 * (W.detach() - self.target) * self.scales


def _run(
    problem: Problem, make: Make, lr: float, seconds: float, steps: int
) -> list[tuple[int, float, float]]:
    """Return (steps, seconds of steps alone, loss), until the time or the steps are over."""
    W = problem.start()
    opt = make(W, lr)
    curve, spent, done, due = [(0, 0.0, 1.0)], 0.0, 0, 0.0
    while spent < seconds and done < steps:
        W.grad = problem.gradient(W)
        begin = time.perf_counter()
        opt.step()
        spent += time.perf_counter() - begin
        done += 1
        part = max(spent / seconds, done / steps)
        if part >= due or done < 4:
            curve.append((done, spent, problem.loss(W)))
            due += 1 / POINTS
            if not curve[-1][-1] < 1e3:
                break
    return [*curve, (done, spent, problem.loss(W))]


def _best(problem: Problem, make: Make, grid: list[float], trial: float, seconds: float, steps: int) -> Any:
    def last(lr: float) -> float:
        found = _run(problem, make, lr, trial, steps)[-1][-1]
        return found if found == found else float("inf")

    ends = {lr: last(lr) for lr in grid}
    while (lr := min(ends, key=ends.__getitem__)) in (min(ends), max(ends)):
        beyond = float(f"{lr * _WIDER if lr == max(ends) else lr / _WIDER:.3g}")
        ends[beyond] = last(beyond)
    return {"lr": lr, "tried": sorted(ends), "curve": _run(problem, make, lr, seconds, steps)}


def _srcd(**options: Any) -> Make:
    return lambda W, lr: SRCD([W], lr=lr, **options)


def by_time(d: int = 256, trial: float = 0.6, seconds: float = 1.5) -> dict[str, Any]:
    """Return the loss over the seconds spent in steps, for each selection; one thread each."""
    left: dict[str, Any] = {"basis": bases.LeftGivens()}
    entries: dict[str, Make] = {
        "Uniform(1)": _srcd(selection=selections.Uniform(1), **left),
        "RandomMatching()": _srcd(selection=selections.RandomMatching(), **left),
        "Partition(16)": _srcd(selection=selections.Partition(16), **left),
        "GaussSouthwell(1)": _srcd(selection=selections.GaussSouthwell(1), **left),
        "GaussSouthwell(fraction=0.005)": _srcd(selection=selections.GaussSouthwell(fraction=0.005), **left),
        "GreedyMatching()": _srcd(selection=selections.GreedyMatching(), **left),
        "All()": _srcd(selection=selections.All(), **left),
        "geoopt RiemannianSGD": lambda W, lr: geoopt.optim.RiemannianSGD([W], lr=lr),
    }
    problem = Problem.random(d, 100.0, torch.float32)
    for make in entries.values():  # what has to be compiled or warmed up
        _run(problem, make, 0.1, 0.05, 3)
    grid, one = [0.2, 0.4, 0.8], [0.4, 0.8, 1.2]
    curves = {
        name: _best(problem, make, grid if "All" in name or "geoopt" in name else one, trial, seconds, 10**9)
        for name, make in entries.items()
    }
    rows = [
        {
            "selection": name,
            "lr": found["lr"],
            "steps": found["curve"][-1][0],
            "loss after them": found["curve"][-1][-1],
        }
        for name, found in curves.items()
    ]
    note = f"d = {d}, float32, {seconds} seconds of steps each; the loss is relative to that of the start."
    return {"table": rows, "note": note, "curves": curves, "d": d}


@dataclass(frozen=True)
class Decaying(StepSize):
    """Heavy ball whose buffers decay by the steps that were missed, too: what riemcd does not do."""

    momentum: float = 0.9

    stateful = True

    def amounts(
        self, slopes: Tensor, coords: Coordinates, *, lr: float | Tensor, basis: Any, state: CoordinateState
    ) -> Tensor:
        """Add to what is left of the buffers."""
        now = float(state.entries["now"]) + 1 if "now" in state.entries else 1.0
        state.entries["now"] = torch.tensor(now)
        buffer = state.read("buffer") * self.momentum ** (now - state.read("seen")) + slopes
        state.write("buffer", buffer)
        state.write("seen", torch.full_like(buffer, now))
        return -lr * buffer


def by_step(d: int = 40, steps: int = 4000) -> dict[str, Any]:
    """Return the loss over steps of random matchings, for each step size."""
    rates = [0.003, 0.01, 0.03, 0.1, 0.3]
    entries: dict[str, tuple[Make, list[float]]] = {
        "Constant()": (_srcd(), rates),
        "momentum=0.9": (_srcd(momentum=0.9), rates),
        "momentum=0.9 if buffers decayed by missed steps": (_srcd(stepsize=Decaying()), rates),
        "RMSProp()": (_srcd(stepsize=stepsizes.RMSProp()), [rate / 10 for rate in rates]),
        "Adam()": (_srcd(stepsize=stepsizes.Adam()), [rate / 10 for rate in rates]),
    }
    problem = Problem.random(d, 1000.0, torch.float64)
    curves = {
        name: _best(problem, make, grid, float("inf"), float("inf"), steps)
        for name, (make, grid) in entries.items()
    }
    rows = [
        {"step size": name, "best lr": found["lr"], "loss at the end": found["curve"][-1][-1]}
        for name, found in curves.items()
    ]
    note = (
        f"d = {d}, condition number 1000, float64, {steps} random matchings, "
        f"{steps // (d - 1)} visits of every pair on average; the loss is relative to that of the start."
    )
    return {"table": rows, "note": note, "curves": curves, "d": d}
