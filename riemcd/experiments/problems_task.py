"""Problems with known answers, and contestants that look for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import geoopt
import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from .. import problems, selections, stepsizes
from ..diagnostics import constraint_violation
from ..minimize import Sweep, minimize
from ..nn.init import haar_
from ..optim import SRCD

__all__ = ["CONTESTANTS", "PROBLEMS", "Case", "Outcome", "amari_distance", "kind_of", "off_manifold", "solve"]


@dataclass(frozen=True, eq=False)
class Case:
    """A problem: its loss, where to start, and what is known of the answer.

    Parameters
    ----------
    loss : callable
        From ``(n, p)``, differentiable.
    start : Tensor
        ``(n, p)``
    best : float
        The least value, from a closed form, or the best that any contestant is known to reach.
    closed_form : str
        Who knows the answer.
    closed_seconds : float
        How long that took.
    scale : float
        What gaps are relative to.
    problem : Problem, optional
        The same loss for exact angles.
    quality : callable, optional
        What else there is to say of a point, such as Amari's distance.
    unit : float
        What step sizes of gradient and coordinate descent are counted in.
    """

    loss: Callable[[Tensor], Tensor]
    start: Tensor
    best: float
    closed_form: str
    closed_seconds: float
    scale: float
    problem: problems.Problem | None = None
    quality: Callable[[Tensor], float] | None = None
    unit: float = 1.0

    def gap(self, value: float) -> float:
        """Return how far a value is above the best one, relative to the problem's scale."""
        return max((value - self.best) / self.scale, 1e-16)


def _start(n: int, p: int, seed: int, like: Tensor | None = None) -> Tensor:
    """A uniformly random start; of a square one, on the side where the answer is."""
    x = haar_(torch.empty(n, p, dtype=torch.float64), torch.Generator().manual_seed(seed + 1000))
    if like is not None and n == p and float(torch.linalg.det(x) * torch.linalg.det(like)) < 0:
        x[:, 0] *= -1
    return x


def _timed(find: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    found = find()
    return found, time.perf_counter() - begun


def procrustes(size: int, seed: int) -> Case:
    """Find the rotation nearest to a matrix; the answer is in its singular vectors."""
    M = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    (nearest, _), seconds = _timed(lambda: scipy.linalg.orthogonal_procrustes(np.eye(size), M.numpy()))
    best = -float((torch.from_numpy(nearest) * M).sum())
    return Case(lambda x: -(x * M).sum(), _start(size, size, seed, M), best, "scipy, SVD", seconds, -best,
                problems.LinearTrace(M), unit=1 / float(torch.linalg.matrix_norm(M, 2)))  # fmt: skip


def _spectrum(size: int, seed: int) -> Tensor:
    """A symmetric matrix with eigenvalues that fall from 1 to 1/100."""
    Q = haar_(torch.empty(size, size, dtype=torch.float64), torch.Generator().manual_seed(seed))
    return (Q * torch.logspace(0, -2, size, dtype=torch.float64)) @ Q.mT


def pca(size: int, seed: int) -> Case:
    """Find the span of the ten largest principal components."""
    A = _spectrum(size, seed)
    A, p = (A + A.mT) / 2, min(10, size // 2)
    (values, _), seconds = _timed(lambda: np.linalg.eigh(A.numpy()))
    best = -float(values[-p:].sum())
    return Case(lambda x: -(x * (A @ x)).sum(), _start(size, p, seed), best, "numpy, eigh", seconds, -best,
                problems.QuadraticTrace(A))  # fmt: skip


def brockett(size: int, seed: int) -> Case:
    """Find the five largest eigenvectors themselves, in order."""
    A = _spectrum(size, seed)
    A, p = (A + A.mT) / 2, min(5, size // 2)
    weights = torch.arange(p, 0, -1, dtype=torch.float64)
    (values, _), seconds = _timed(lambda: np.linalg.eigh(A.numpy()))
    best = -float((values[::-1][:p] * weights.numpy()).sum())
    return Case(lambda x: -(x * weights * (A @ x)).sum(), _start(size, p, seed), best, "numpy, eigh",
                seconds, -best, problems.QuadraticTrace(A, weights))  # fmt: skip


def joint(size: int, seed: int) -> Case:
    """Find the basis in which ten commuting matrices are all diagonal."""
    generator = torch.Generator().manual_seed(seed)
    Q = haar_(torch.empty(size, size, dtype=torch.float64), generator)
    diagonals = torch.randn(10, 1, size, dtype=torch.float64, generator=generator)
    A = (Q * diagonals) @ Q.mT
    A = (A + A.mT) / 2
    # Commuting matrices share the eigenvectors of a random combination of them.
    mixed = (A * torch.randn(10, 1, 1, dtype=torch.float64, generator=generator)).sum(0)
    _, seconds = _timed(lambda: np.linalg.eigh(mixed.numpy()))
    problem = problems.JointDiagonalization(A)
    start = _start(size, size, seed)
    return Case(problem.value, start, 0.0, "numpy, eigh of a mixture", seconds, float(problem.value(start)),
                problem)  # fmt: skip


def ica(size: int, seed: int) -> Case:
    """Unmix ten Laplace sources of 10,000 samples: whitened, log-cosh, judged by Amari's distance."""
    generator, sources, count = torch.Generator().manual_seed(seed), 10, 10_000
    uniform = torch.rand(count, sources, dtype=torch.float64, generator=generator) - 0.5
    S = -uniform.sign() * torch.log1p(-2 * uniform.abs()) / 2**0.5
    mixing = torch.randn(sources, sources, dtype=torch.float64, generator=generator)
    X = S @ mixing.mT
    X = X - X.mean(0)
    values, vectors = torch.linalg.eigh(X.mT @ X / count)
    whitening = vectors / values.sqrt()
    Z = X @ whitening

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.softplus(2 * (y := Z @ x)).sub(y).sum() / count

    def quality(x: Tensor) -> float:
        return amari_distance(x.mT @ whitening.mT @ mixing)

    # There is no closed form: the best is what descent finds from the true unmixing.
    near = torch.linalg.qr(torch.linalg.pinv(whitening.mT @ mixing).mT).Q
    polished, seconds = _timed(lambda: _descend(loss, near, 200))
    best = float(loss(polished))
    return Case(loss, _start(sources, sources, seed), best, "descent from the true answer", seconds,
                float(loss(_start(sources, sources, seed))) - best, quality=quality)  # fmt: skip


def _descend(loss: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    x = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefelExact())
    opt = SRCD([x], lr=1.0, selection=selections.All())
    for _ in range(steps):
        opt.zero_grad()
        loss(x).backward()  # type: ignore[no-untyped-call]
        opt.step()
    found: Tensor = x.detach().as_subclass(Tensor)
    return found


def amari_distance(P: Tensor) -> float:
    """Return how far a square matrix is from a scaled permutation: 0 for one, at most 1.

    Parameters
    ----------
    P : Tensor
        ``(n, n)``, the unmixing times the mixing.

    Examples
    --------
    >>> amari_distance(torch.tensor([[0.0, -3.0], [0.5, 0.0]]))
    0.0
    """
    size, n = P.abs(), P.shape[0]
    rows = (size / size.amax(1, keepdim=True)).sum(1) - 1
    columns = (size / size.amax(0, keepdim=True)).sum(0) - 1
    return float((rows.sum() + columns.sum()) / (2 * n * (n - 1)))


#: All problems, from the number of rows and a seed.
PROBLEMS: dict[str, Callable[[int, int], Case]] = {
    "procrustes": procrustes,
    "pca": pca,
    "brockett": brockett,
    "joint": joint,
    "ica": ica,
}


@dataclass
class Outcome:
    """What became of a contestant: its gaps by seconds, its steps, and its point."""

    curve: list[tuple[float, float]]
    steps: int
    point: Tensor


_Make = Callable[[Any, float, int], torch.optim.Optimizer]


def _srcd(rule: selections.Selection) -> tuple[str, _Make]:
    return "coordinate", lambda x, lr, seed: SRCD([x], lr=lr, selection=rule, seed=seed)


#: The kind of step size of each, where it has one, and how it is made.
_OPTIMIZERS: dict[str, tuple[str | None, _Make]] = {
    "RiemannianSGD": ("sgd", lambda x, lr, seed: geoopt.optim.RiemannianSGD([x], lr=lr)),
    "RiemannianAdam": ("adam", lambda x, lr, seed: geoopt.optim.RiemannianAdam([x], lr=lr)),
    "RiemannianLineSearch": (None, lambda x, lr, seed: geoopt.optim.RiemannianLineSearch([x])),
    "SRCD uniform": _srcd(selections.Uniform(1)),
    "SRCD steepest": _srcd(selections.GaussSouthwell(1)),
    "SRCD steepest 0.5 %": _srcd(selections.GaussSouthwell(fraction=0.005)),
    "SRCD matching": _srcd(selections.RandomMatching()),
    "SRCD greedy matching": _srcd(selections.GreedyMatching()),
}
#: ``minimize`` turns pairs by exact angles, where the problem knows them.
CONTESTANTS = (*_OPTIMIZERS, "minimize")


def kind_of(name: str) -> str | None:
    """Return the kind of a contestant's step size, or None where it has none."""
    return None if name == "minimize" else _OPTIMIZERS[name][0]


def solve(
    case: Case,
    name: str,
    rate: float,
    seconds: float,
    goal: float,
    stopped: Callable[[float], bool],
    seed: int = 0,
) -> Outcome:
    """Let a contestant work until its gap is at most ``goal``, or its time is up.

    ``stopped`` is told the gap now and then, and says whether to stop. Random rotations are
    drawn by ``seed``.
    """
    if name == "minimize":
        return _solve_exactly(case, seconds, goal, stopped)
    x = geoopt.ManifoldParameter(case.start.clone(), manifold=geoopt.EuclideanStiefel())
    kind, make = _OPTIMIZERS[name]
    opt = make(x, rate if kind == "adam" else rate * case.unit, seed)
    curve, used, steps, stuck = [(0.0, case.gap(float(case.loss(case.start))))], 0.0, 0, False

    def closure() -> Any:
        opt.zero_grad()
        loss = case.loss(x)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())  # scipy, which geoopt searches lines with, wants a number

    while used < seconds and np.isfinite(curve[-1][1]) and curve[-1][1] > goal and not stuck:
        if stopped(curve[-1][1]):
            break
        begun = time.perf_counter()
        try:
            for _ in range(10):
                opt.step(closure)
        except ZeroDivisionError:  # a line search, where no step changes the loss any more
            stuck = True
        used, steps = used + time.perf_counter() - begun, steps + 10
        with torch.no_grad():
            curve.append((used, case.gap(float(case.loss(x)))))
    return Outcome(curve, steps, x.detach().as_subclass(Tensor))


def _solve_exactly(case: Case, seconds: float, goal: float, stopped: Callable[[float], bool]) -> Outcome:
    assert case.problem is not None
    curve = [(0.0, case.gap(float(case.loss(case.start))))]
    begun, aside = time.perf_counter(), 0.0

    def watch(sweep: Sweep, point: Tensor) -> bool:
        nonlocal aside
        now = time.perf_counter()
        used = now - begun - aside
        curve.append((used, case.gap(sweep.value)))
        enough = used > seconds or curve[-1][1] <= goal or stopped(curve[-1][1])
        aside += time.perf_counter() - now
        return enough

    found = minimize(case.problem, case.start, callback=watch, tol=0.0, max_sweeps=100_000,
                     stepsize=stepsizes.Exact())  # fmt: skip
    return Outcome(curve, found.sweeps, found.point)


def off_manifold(point: Tensor) -> float:
    """Return the Frobenius norm of XᵀX − I."""
    return constraint_violation(point, geoopt.EuclideanStiefel())
