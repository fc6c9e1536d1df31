"""The solver: how many sweeps, how long, and what it says when it stops."""

import itertools
import math
import statistics
import time

import geoopt
import pytest
import torch
from procrustes import GAP, gap, geoopt_seconds, make

import riemcd
from riemcd.problems import LinearTrace, QuadraticTrace
from riemcd.selections import Cyclic, GaussSouthwell, Partition, RandomMatching, RoundRobin
from riemcd.stepsizes import Adam, Clipped, Constant, Exact, RMSProp


def sweeps_to_gap(n, p, seed, **options):
    M, x0, best = make(n, p, seed)
    found = riemcd.minimize(
        LinearTrace(M), x0, tol=0, max_sweeps=300, callback=lambda s, x: gap(s.value, best) < GAP, **options
    )
    assert gap(found.value, best) < GAP
    assert float(torch.linalg.norm(found.point.mT @ found.point - torch.eye(p, dtype=M.dtype))) < 1e-11
    return found.sweeps


@pytest.mark.parametrize("selection", [None, RoundRobin()])
@pytest.mark.parametrize(("n", "p", "median"), [(50, 50, 45), (50, 38, 65), (50, 13, 65)])
def test_procrustes_in_few_sweeps(n, p, median, selection):
    sweeps = [sweeps_to_gap(n, p, seed, selection=selection) for seed in range(10)]
    assert statistics.median(sweeps) <= median
    assert max(sweeps) <= 150


@pytest.mark.long
@pytest.mark.parametrize("selection", [None, RoundRobin()])
@pytest.mark.parametrize(("n", "p", "median"), [(200, 200, 80), (200, 150, 65), (200, 50, 65)])
def test_large_procrustes_in_few_sweeps(n, p, median, selection):
    sweeps = [sweeps_to_gap(n, p, seed, selection=selection) for seed in range(10)]
    print(f"({n}, {p}), {selection}: median {statistics.median(sweeps)}, all {sweeps}")
    assert statistics.median(sweeps) <= median
    assert max(sweeps) <= 150


def seconds(n, seed):
    M, x0, best = make(n, n, seed)
    start = time.perf_counter()
    found = riemcd.minimize(
        LinearTrace(M), x0, tol=0, max_sweeps=300, callback=lambda s, x: gap(s.value, best) < GAP
    )
    spent = time.perf_counter() - start
    assert gap(found.value, best) < GAP
    return spent


@pytest.mark.long
@pytest.mark.parametrize(("n", "factor"), [(200, 10), (500, 20)])
def test_faster_than_gradient_descent(n, factor):
    """Against geoopt's RiemannianSGD with its best step of a grid, which is found outside the clock."""
    M, x0, best = make(n, n, 0)
    seconds(20, 0)  # compiles
    ours = min(seconds(n, 0) for _ in range(3))
    limit = 4 * factor * ours
    steepest = float(torch.linalg.matrix_norm(M, 2))  # steps beyond 2 over this diverge
    grid = [c / steepest for c in (2.0, 1.8, 2.2, 1.5, 1.0)]
    theirs = {lr: geoopt_seconds(M, x0, best, lr, limit) for lr in grid}
    print(f"n = {n}: {ours:.3f} s; geoopt by step {theirs}, stopped at {limit:.0f} s")
    assert min(theirs.values()) >= factor * ours


def test_the_point_is_the_polar_factor():
    M, x0, best = make(30, 12, 0)
    found = riemcd.minimize(LinearTrace(M), x0, tol=1e-12)
    u, _, vh = torch.linalg.svd(M, full_matrices=False)
    assert found.converged and "tolerance" in found.reason
    torch.testing.assert_close(found.point, u @ vh, atol=1e-9, rtol=0)
    assert found.value == pytest.approx(best, rel=1e-14)
    gradient = -M + found.point @ (found.point.mT @ M + M.mT @ found.point) / 2
    assert found.gradient_norm == pytest.approx(float(torch.linalg.norm(gradient)), abs=1e-13)


def wrong_side(seed=0):
    for trial in range(seed, seed + 100):
        M, x0, best = make(12, 12, trial)
        if best > -float(torch.linalg.svdvals(M).sum()):
            return M, x0, best
    raise AssertionError


def test_rotations_keep_the_determinant_and_reflections_change_it():
    M, x0, best = wrong_side()
    within = riemcd.minimize(LinearTrace(M), x0, tol=1e-11)
    assert within.value == pytest.approx(best, rel=1e-12)
    assert torch.linalg.det(within.point).sign() == torch.linalg.det(x0).sign()
    beyond = riemcd.minimize(LinearTrace(M), x0, tol=1e-11, stepsize=Exact(reflections=True))
    assert beyond.value == pytest.approx(-float(torch.linalg.svdvals(M).sum()), rel=1e-12)
    # On the right side already, and on tall matrices, nothing is reflected.
    same = riemcd.minimize(LinearTrace(M), beyond.point, tol=1e-11, stepsize=Exact(reflections=True))
    assert same.value == pytest.approx(beyond.value, rel=1e-12)
    assert same.history[0].value == pytest.approx(beyond.value, rel=1e-12)


@pytest.mark.parametrize("relax", [0.7, 1.0, 1.5, 1.8])
@pytest.mark.parametrize("remember", [0, 3])
def test_any_relaxation_arrives(relax, remember):
    M, x0, best = make(20, 8, 1)
    found = riemcd.minimize(LinearTrace(M), x0, stepsize=Exact(relax), remember=remember, max_sweeps=2000)
    assert found.converged
    assert found.value == pytest.approx(best, rel=1e-10)


@pytest.mark.parametrize(
    "selection", [RoundRobin(), RandomMatching(), Cyclic(1), GaussSouthwell(1), Partition(4)]
)
def test_any_selection_arrives(selection):
    M, x0, best = make(12, 5, 2)
    found = riemcd.minimize(LinearTrace(M), x0, selection=selection, max_sweeps=2000)
    assert found.value == pytest.approx(best, rel=1e-10)
    assert found.converged


@pytest.mark.parametrize("stepsize", [Constant(), RMSProp(), Adam(), Clipped(Constant(), 0.1)], ids=repr)
@pytest.mark.parametrize(
    "problem", [LinearTrace(make(8, 3, 3)[0]), QuadraticTrace(torch.diag(torch.arange(8.0).double()))]
)
def test_other_step_sizes_descend(problem, stepsize):
    _, x0, _ = make(8, 3, 3)
    found = riemcd.minimize(problem, x0, stepsize=stepsize, lr=0.01, max_sweeps=30)
    assert found.value < found.history[0].value - 0.1


@pytest.mark.parametrize("selection", [None, RoundRobin()])
def test_every_exact_sweep_lowers_the_loss(selection):
    M, x0, _ = make(25, 25, 4)
    found = riemcd.minimize(LinearTrace(M), x0, selection=selection, tol=1e-10)
    values = [sweep.value for sweep in found.history]
    assert all(b <= a + 1e-12 * abs(a) for a, b in itertools.pairwise(values))
    assert [sweep.number for sweep in found.history] == list(range(found.sweeps + 1))
    assert any(sweep.extrapolated for sweep in found.history) == (selection is not None)
    assert found.history[0].largest_angle == math.inf and found.history[1].largest_angle <= math.pi


def test_the_start_is_not_changed_and_parameters_are_welcome():
    M, x0, _ = make(10, 10, 5)
    start = geoopt.ManifoldParameter(x0.clone(), manifold=geoopt.EuclideanStiefel())
    found = riemcd.minimize(LinearTrace(M), start)
    assert torch.equal(start.detach().as_subclass(torch.Tensor), x0)
    assert type(found.point) is torch.Tensor and not found.point.requires_grad


def test_it_says_why_it_stopped():
    M, x0, _ = make(10, 6, 6)
    assert "limit of 2 sweeps" in riemcd.minimize(LinearTrace(M), x0, max_sweeps=2).reason
    asked = riemcd.minimize(LinearTrace(M), x0, callback=lambda sweep, x: sweep.number == 3)
    assert asked.sweeps == 3 and "callback" in asked.reason and not asked.converged
    rounding = riemcd.minimize(LinearTrace(M), x0, tol=0, max_sweeps=5000)
    assert "rounding" in rounding.reason or rounding.gradient_norm < 1e-13
    nothing = riemcd.minimize(LinearTrace(M), x0, max_sweeps=0)
    assert nothing.sweeps == 0 and torch.equal(nothing.point, x0)
    bad = LinearTrace(torch.full((10, 6), math.nan, dtype=torch.float64))
    assert "finite" in riemcd.minimize(bad, x0, max_sweeps=5).reason


def test_one_by_one():
    one = torch.ones(1, 1, dtype=torch.float64)
    assert riemcd.minimize(LinearTrace(one), one).value == -1


def test_progress_is_shown_only_when_asked(capsys):
    M, x0, _ = make(6, 6, 0)
    riemcd.minimize(LinearTrace(M), x0, max_sweeps=2)
    assert capsys.readouterr().err == ""
    riemcd.minimize(LinearTrace(M), x0, max_sweeps=2, progress=True)
    assert "sweep" in capsys.readouterr().err


def test_refusals():
    M, x0, _ = make(6, 6, 0)
    with pytest.raises(TypeError, match="Problem"):
        riemcd.minimize(lambda x: x.sum(), x0)
    with pytest.raises(TypeError, match="Selection"):
        riemcd.minimize(LinearTrace(M), x0, selection="roundrobin")
    with pytest.raises(TypeError, match="StepSize"):
        riemcd.minimize(LinearTrace(M), x0, stepsize=1.8)
    with pytest.raises(ValueError, match="orthonormal"):
        riemcd.minimize(LinearTrace(M), 2 * x0)
    with pytest.raises(ValueError, match="one float32 or float64 matrix"):
        riemcd.minimize(LinearTrace(M), x0[None])
    with pytest.raises(ValueError, match="at least as many rows"):
        riemcd.minimize(LinearTrace(M), x0[:3])
    with pytest.raises(ValueError, match="negative"):
        riemcd.minimize(LinearTrace(M), x0, tol=-1.0)


def test_a_start_at_the_worst_point_of_two_rows():
    """Points that do not move leave nothing to extrapolate from."""
    M = torch.tensor([[-0.6139968046288573], [-0.7893085099665104]], dtype=torch.float64)
    found = riemcd.minimize(LinearTrace(M), -M, tol=0, max_sweeps=20)
    assert math.isfinite(found.value)


def test_what_cannot_be_taken_is_refused():
    M, x0, _ = make(5, 5, 0)
    with pytest.raises(ValueError, match="exact angles are taken whole"):
        riemcd.minimize(LinearTrace(M), x0, stepsize=riemcd.stepsizes.Clipped(Exact(), 0.1))
    with pytest.raises(ValueError, match="type and the device of M"):
        riemcd.minimize(LinearTrace(M), x0.float())
    for remember in (-1, 2.5):
        with pytest.raises(ValueError, match="whole number"):
            riemcd.minimize(LinearTrace(M), x0, remember=remember)


def test_a_callback_may_keep_points():
    M, x0, _ = make(8, 8, 1)
    for selection in (None, RoundRobin()):
        kept = []
        riemcd.minimize(
            LinearTrace(M),
            x0,
            selection=selection,
            max_sweeps=3,
            callback=lambda _, point, k=kept: k.append(point),
        )
        assert not torch.equal(kept[0], kept[1])
