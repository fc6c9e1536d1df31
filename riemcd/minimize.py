"""The solver face: deterministic problems, solved by sweeps of rotations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .descent import coordinate_step_
from .draw import Draw
from .index import Index, PairSet
from .kernels.exact import Rounds
from .partials import Partials
from .problems import Extrapolation, Problem, Sweeps, Work
from .problems.asked import check_call
from .problems.base import tangent
from .selections import RoundRobin, Selection
from .stepsizes import Exact, StepSize

__all__ = ["Minimum", "Sweep", "minimize"]


@dataclass(frozen=True)
class Sweep:
    """Where a sweep ended: the loss, the norm of its Riemannian gradient and the largest rotation."""

    number: int
    value: float
    gradient_norm: float
    largest_angle: float
    extrapolated: bool = False


@dataclass(frozen=True, eq=False)
class Minimum:
    """What `minimize` found.

    Attributes
    ----------
    point : Tensor
        ``(n, p)``
    value, gradient_norm : float
        The loss there, and the norm of its Riemannian gradient (Frobenius metric).
    sweeps : int
        How many sweeps were made.
    history : list of Sweep
        One entry for the start and one for every sweep.
    reason : str
        Why it stopped, in a sentence.
    converged : bool
        Whether the tolerance was met.
    """

    point: Tensor
    value: float
    gradient_norm: float
    sweeps: int
    history: list[Sweep] = field(repr=False)
    reason: str
    converged: bool


@torch.no_grad()
def minimize(
    problem: Problem,
    x0: Tensor,
    *,
    selection: Selection | None = None,
    stepsize: StepSize | None = None,
    tol: float = 1e-8,
    max_sweeps: int = 500,
    callback: Callable[[Sweep, Tensor], Any] | None = None,
    remember: int | None = None,
    lr: float = 1e-3,
    seed: int = 0,
    progress: bool = False,
) -> Minimum:
    r"""Minimise a loss over matrices with orthonormal columns, sweep by sweep.

    Parameters
    ----------
    problem : Problem
        One of `riemcd.problems`, or your own.
    x0 : Tensor
        ``(n, p)``, where to start; not changed.
    selection : Selection, optional
        Which pairs to turn at a time. By default every pair once a sweep: for ``Exact()`` in the order and
        the frame that the problem finds fastest (`Problem.sweeps`), else as ``RoundRobin()``.
    stepsize : StepSize, optional
        ``Exact()`` by default. Rules that need a learning rate take it from ``lr``.
    tol : float
        Stop when the norm of the Riemannian gradient is at most ``tol`` times that of the Euclidean one.
    max_sweeps : int
        Stop after so many sweeps; a sweep turns as many coordinates as there are.
    callback : callable, optional
        Called as ``callback(sweep, point)`` after every sweep; a true result stops.
    remember : int, optional
        From how many past sweeps to extrapolate, with exact steps: over-relaxation of whole sweeps,
        as far as the loss itself tells. By default what the problem asks for, and none in an order of
        its own; 0 makes nothing but rotations.
    lr : float
        For step sizes that need one.
    seed : int
        For selections that draw.
    progress : bool
        Show a bar, where tqdm is installed.

    Returns
    -------
    Minimum

    Examples
    --------
    >>> import torch, riemcd
    >>> M = torch.tensor([[0.0, 2.0], [-1.0, 0.0]], dtype=torch.float64)
    >>> found = riemcd.minimize(riemcd.problems.LinearTrace(M), torch.eye(2, dtype=torch.float64))
    >>> round(found.value, 10), found.converged
    (-3.0, True)
    """
    rule = Exact() if stepsize is None else stepsize
    check_call(problem, x0, selection, rule, tol, max_sweeps, remember)
    work = problem.start(x0.detach().as_subclass(Tensor))
    exact = rule if isinstance(rule, Exact) else None
    if exact and exact.reflections and problem.reflect_(work):
        work = problem.start(work.matrix)
    free = exact and exact.relax == 1 and selection is None and not remember
    run = _Run(problem, work, selection or RoundRobin(), rule, lr, seed)
    run.own = problem.sweeps(work.matrix) if free else None
    remember = problem.remember if remember is None else remember
    past = Extrapolation(problem, remember) if exact and remember and run.own is None else None
    history = [_Look(problem, run.matrix).sweep(0, math.inf)]
    reason, converged = f"The limit of {max_sweeps} sweeps was reached.", False
    for number in _bar(max_sweeps, progress):
        angle = run.sweep_()
        look = _Look(problem, run.matrix)
        better = past.improve(look.x, look.r, look.value) if past and look.relative > tol else None
        if past and better is not None:
            run.work = problem.start(better)
            look = _Look(problem, run.matrix)
            past.remember_(look.x, look.r)
        sweep, relative = look.sweep(number, angle, better is not None), look.relative
        history.append(sweep)
        stop = callback is not None and callback(sweep, run.matrix.clone())
        if not math.isfinite(sweep.value):
            reason = "The loss is no longer finite."
            break
        still = angle <= 4 * torch.finfo(x0.dtype).eps
        # The gradient is zero at saddle points, too; sweeps in an order of the problem's own leave them.
        least = run.own is None or not (relative <= tol or still) or run.own.is_minimum()
        if relative <= tol and least:
            reason, converged = f"The gradient is within the tolerance {tol:g} of the loss's own.", True
            break
        if stop:
            reason = "The callback asked to stop."
            break
        if still and least:
            reason = "The rotations are down to rounding: there is nothing left to gain."
            break
    last = history[-1]
    point = run.matrix.clone()
    return Minimum(point, last.value, last.gradient_norm, last.number, history, reason, converged)


class _Run:
    """What goes through the sweeps of one call."""

    own: Sweeps | None = None  # what sweeps in an order of the problem's own

    def __init__(
        self, problem: Problem, work: Work, selection: Selection, rule: StepSize, lr: float, seed: int
    ) -> None:
        self.problem, self.work, self.selection, self.rule = problem, work, selection, rule
        self.lr, self.seed = lr, seed
        self.basis = problem.basis(work)
        self.index: Index = self.basis.index(work.point.shape)
        self.steps = 0
        self.memory: dict[str, Any] = {}
        self._kept: Rounds | None = None

    @property
    def matrix(self) -> Tensor:
        """The matrix ``(n, p)`` so far."""
        return self.work.matrix if self.own is None else self.own.matrix

    def sweep_(self) -> float:
        """Turn as many coordinates as there are, and return the largest angle."""
        if self.own is not None:
            return float(self.own.sweep_())
        largest = self.work.point.new_zeros((), dtype=torch.float64)
        if not isinstance(self.rule, Exact):
            taken = 0
            while taken < self.index.count:
                taken, angle = self._inexact_step_(taken)
                largest = torch.maximum(largest, angle)
            return float(largest)
        for rounds in self._rounds():
            largest = torch.maximum(largest, self.problem.sweep_(self.work, rounds, self.rule.relax))
        return float(largest)

    def _inexact_step_(self, taken: int) -> tuple[int, Tensor]:
        work = self.work
        covector = self.basis.covector(work.point, self.problem.covector_gradient(work))
        moved = coordinate_step_(
            work.point,
            covector,
            basis=self.basis,
            selection=self.selection,
            stepsize=self.rule,
            lr=self.lr,
            draw=self._draw(),
            state=self.memory,
        )
        self.work = self.problem.start(work.matrix) if work.cache is not None else work
        largest = moved.amounts.abs().max().double() / self.basis.arclength(1.0)
        return taken + max(1, moved.amounts.shape[-1]), largest

    def _draw(self) -> Draw:
        self.steps += 1
        return Draw(self.seed, self.steps - 1, 0, self.work.point.device)

    def _rounds(self) -> Iterator[Rounds]:
        """Go through the pairs of one sweep; a rule that always takes the same is asked only once."""
        if self._kept is not None:
            yield self._kept
            return
        kept: list[PairSet] = []
        taken, drew = 0, False
        while taken < self.index.count:
            draw = self._draw()
            partials = Partials(self._slopes, self.index.count)
            coords, _ = self.selection.select(self.index, partials, draw, self.memory)
            pairs = PairSet.of(coords, self.index.nodes)
            taken += max(1, pairs.lo.shape[0])
            drew = drew or draw.used
            parts = tuple(self._parts(pairs))
            kept.extend(parts)
            if parts:
                yield Rounds(parts)
        if self.selection.sweeps and not self.selection.looks_at_slopes and not drew and kept:
            self._kept = Rounds(tuple(kept))

    def _slopes(self, coords: Any) -> Tensor:
        covector = self.basis.covector(self.work.point, self.problem.covector_gradient(self.work))
        return self.basis.partials(covector, coords)

    def _parts(self, pairs: PairSet) -> Iterator[PairSet]:
        """Take pairs one by one where they see each other."""
        if self.problem.separable and pairs.disjoint:
            yield pairs
            return
        for k in range(pairs.lo.shape[0]):
            yield PairSet(pairs.lo[k : k + 1], pairs.hi[k : k + 1], pairs.nodes, disjoint=True)


class _Look:
    """What there is to say of a point: its loss and its gradient, also relative to the Euclidean one."""

    def __init__(self, problem: Problem, x: Tensor) -> None:
        gradient = problem.gradient(x)
        self.x, self.r, self.value = x, tangent(x, gradient), float(problem.value(x))
        self.norm, scale = float(torch.linalg.norm(self.r)), float(torch.linalg.norm(gradient))
        self.relative = self.norm / scale if scale > 0 else self.norm

    def sweep(self, number: int, angle: float, extrapolated: bool = False) -> Sweep:
        return Sweep(number, self.value, self.norm, angle, extrapolated)


def _bar(max_sweeps: int, progress: bool) -> Any:
    sweeps = range(1, max_sweeps + 1)
    if not progress:
        return sweeps
    try:
        from tqdm import tqdm
    except ImportError:
        return sweeps
    return tqdm(sweeps, unit="sweep")
