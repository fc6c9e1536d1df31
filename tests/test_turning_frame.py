"""Sweeps in a frame that turns along, against the same rotations made one by one with dense matrices."""

import itertools
import math

import numpy as np
import pytest
import torch
from procrustes import gap, make

import riemcd
from riemcd.kernels import only_torch
from riemcd.kernels.frames import Schedule, turn_blocks_
from riemcd.problems import LinearTrace
from riemcd.problems.turning import TurningFrame
from riemcd.selections import RoundRobin
from riemcd.stepsizes import Exact

CPU = torch.device("cpu")


def small(groups, r, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(groups, 2 * r, 2 * r, dtype=torch.float64, generator=generator)
    real = torch.ones(groups, 2 * r, dtype=torch.bool)
    if r > 1:
        real[0, -1] = real[-1, r - 1] = False
    filled = (real[:, :, None] & real[:, None]).double()
    return a * filled, real


def dense_oracle(a, real, schedule):
    """Every rotation as a dense matrix; its angles by brute force, and eigenvectors by numpy."""
    a, w = a.copy(), len(a)
    of_x, of_m = np.eye(w), np.eye(w)
    for i, j in zip(*(ends.tolist() for ends in schedule.flat), strict=True):
        if not (real[i] and real[j]):
            continue
        block = a[np.ix_([i, j], [i, j])]
        # The polar factor maximises the trace; the best rotation is its like with determinant one.
        u, _, vh = np.linalg.svd(block.T)
        best = u @ np.diag([1, np.linalg.det(u @ vh)]) @ vh
        symmetric = best @ block
        _values, vectors = np.linalg.eigh((symmetric + symmetric.T) / 2)
        # Of the bases of eigenvectors, the rotation that is nearest to none.
        turns = [vectors[:, p] * signs for p in ([0, 1], [1, 0]) for signs in ([1, 1], [1, -1], [-1, 1])]
        turn = max((v for v in turns if np.linalg.det(v) > 0), key=lambda v: abs(np.trace(v)))
        turn = turn * np.sign(np.trace(turn))
        left, right = np.eye(w), np.eye(w)
        left[np.ix_([i, j], [i, j])] = turn.T @ best
        right[np.ix_([i, j], [i, j])] = turn.T
        a, of_x, of_m = left @ a @ right.T, left @ of_x, right @ of_m
    return of_x, of_m


@pytest.mark.parametrize("kind", [Schedule.across, Schedule.everybody])
@pytest.mark.parametrize(("groups", "r"), [(1, 1), (3, 2), (2, 5)])
def test_a_group_is_its_rotations_one_by_one(groups, r, kind):
    a, real = small(groups, r)
    schedule = kind(r, CPU)
    of_x, of_m, largest = turn_blocks_(a.clone(), real, schedule, 0.0)
    for k in range(groups):
        x, m = dense_oracle(a[k].numpy(), real[k].numpy(), schedule)
        np.testing.assert_allclose(of_x[k].numpy(), x, atol=1e-11)
        np.testing.assert_allclose(of_m[k].numpy(), m, atol=1e-11)
    with only_torch():
        plain = turn_blocks_(a.clone(), real, schedule, 0.0)
    for one, other in zip((of_x, of_m, largest), plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


@pytest.mark.parametrize("r", [1, 2, 5])
def test_schedules_meet_every_pair_once(r):
    cross = set(zip(*(ends.tolist() for ends in Schedule.across(r, CPU).flat), strict=True))
    assert cross == {(i, r + j) for i in range(r) for j in range(r)}
    everybody = list(zip(*(ends.tolist() for ends in Schedule.everybody(r, CPU).flat), strict=True))
    assert len(everybody) == r * (2 * r - 1) == len(set(everybody))
    for schedule in (Schedule.across(r, CPU), Schedule.everybody(r, CPU)):
        for first, second in zip(schedule.first, schedule.second, strict=True):
            assert len({*first.tolist(), *second.tolist()}) == 2 * r


@pytest.mark.parametrize("n", [1, 2, 3, 31, 33, 64, 65, 100, 131, 200, 333])
def test_blocks_meet_every_other_block_once_a_sweep(n):
    M, x0, _ = make(n, n, 0)
    frame = TurningFrame(x0, M)
    blocks, height = frame._blocks, frame._height
    assert blocks % 2 == 0 and n <= blocks * height < n + blocks
    assert int(frame._real.sum()) == n
    seats, met = frame._next[::height] // height, set()
    order = torch.arange(blocks)
    for _ in range(blocks - 1):
        met |= {frozenset(pair) for pair in order.view(-1, 2).tolist()}
        order = order[seats]
    assert len(met) == blocks * (blocks - 1) // 2


SHAPES = [(1, 1), (2, 2), (3, 2), (5, 1), (9, 9), (50, 50), (47, 40), (70, 13), (300, 4), (131, 131)]


@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_the_end_is_the_best_matrix(n, p):
    for seed in range(3):
        M, x0, best = make(n, p, seed)
        found = riemcd.minimize(LinearTrace(M), x0, tol=1e-12)
        assert found.converged and found.sweeps <= 12
        assert abs(gap(found.value, best)) < 1e-12
        assert torch.linalg.norm(found.point.mT @ found.point - torch.eye(p, dtype=M.dtype)) < 1e-12
        values = [sweep.value for sweep in found.history]
        assert all(after <= before + 1e-12 for before, after in itertools.pairwise(values))


def spectrum(n, values, seed):
    generator = torch.Generator().manual_seed(seed)
    u, v, x = (
        torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q for _ in range(3)
    )
    return (u * values) @ v.mT, u, v, x


@pytest.mark.parametrize(
    "values",
    {
        "ill-conditioned": torch.logspace(-9, 3, 40),
        "equal": torch.ones(40),
        "two clusters": torch.cat([torch.ones(20), torch.full((20,), 3.0)]),
        "low rank": torch.cat([torch.zeros(25), torch.linspace(1, 2, 15)]),
    }.values(),
    ids=["ill-conditioned", "equal", "two clusters", "low rank"],
)
def test_difficult_spectra(values):
    values = values.double()
    for seed in range(3):
        M, u, v, x0 = spectrum(40, values, seed)
        same = torch.linalg.det(x0) * torch.linalg.det(u @ v.mT) > 0
        best = -float(values.sum()) + (0 if same else 2 * float(values.min()))
        found = riemcd.minimize(LinearTrace(M), x0, tol=1e-11)
        assert found.converged and found.sweeps <= 25
        assert abs(gap(found.value, best)) < 1e-12


def test_saddle_points_are_left():
    """Pairs of singular values that are flipped together: the gradient is zero there."""
    values = torch.logspace(-4, 0, 40, dtype=torch.float64)
    M, u, v, _ = spectrum(40, values, 0)
    signs = torch.ones(40, dtype=torch.float64)
    signs[:6] = -1
    found = riemcd.minimize(LinearTrace(M), (u * signs) @ v.mT, tol=0, max_sweeps=30)
    assert found.history[0].gradient_norm < 1e-13
    assert abs(gap(found.value, -float(values.sum()))) < 1e-12


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize(("n", "p"), [(4, 4), (6, 6), (20, 20), (40, 40), (9, 4), (40, 20)])
def test_saddle_points_are_left_in_general_position(n, p, seed):
    """Where the first sweep turns nothing but the frame, it is not the last."""
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(m, p, dtype=torch.float64, generator=generator)).Q for m in (n, p))
    values, signs = torch.linspace(1, 10, p, dtype=torch.float64), torch.ones(p, dtype=torch.float64)
    signs[:2] = -1
    found = riemcd.minimize(LinearTrace((u * values) @ v.mT), (u * signs) @ v.mT)
    assert found.converged and abs(gap(found.value, -float(values.sum()))) < 1e-12


@pytest.mark.parametrize("signs", list(itertools.product([-1.0, 1.0], repeat=3)))
@pytest.mark.parametrize(("n", "values"), [(3, (5, 3, 1)), (3, (2, 2, 2)), (4, (5, 3, 1)), (3, (1, 0, 0))])
def test_diagonal_saddle_points_are_left(n, values, signs):
    """From one saddle point a sweep can jump to another."""
    eye = torch.eye(n, 3, dtype=torch.float64)
    values, signs = (torch.tensor(x, dtype=torch.float64) for x in (values, signs))
    found = riemcd.minimize(LinearTrace(eye * values), eye * signs)
    best = -float(values.sum())
    if n == 3 and signs.prod() < 0:
        best += 2 * float(values.min())  # rotations keep the determinant
    assert found.converged and found.value == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("size", [1e-100, 1e-8, 1e8, 1e100])
def test_scale_does_not_matter(size):
    M, x0, _ = make(12, 12, 5)
    expected = riemcd.minimize(LinearTrace(M), x0, tol=1e-10)
    found = riemcd.minimize(LinearTrace(size * M), x0, tol=1e-10)
    assert found.converged and found.value == pytest.approx(size * expected.value, rel=1e-12)


def test_many_sweeps_stay_orthonormal_and_end_at_rounding():
    M, x0, _ = make(60, 60, 1)
    frame = TurningFrame(x0, M)
    angles = [float(frame.sweep_()) for _ in range(100)]
    assert torch.linalg.norm(frame.matrix.mT @ frame.matrix - torch.eye(60, dtype=M.dtype)) < 1e-12
    assert angles[-1] < 1e-10 < angles[3]
    seen = frame._m[:, 60:] @ M / M.abs().max()  # M as the frame sees it
    torch.testing.assert_close(frame._m[:, :60], seen, atol=1e-12, rtol=0)


def test_single_precision():
    M, x0, best = make(70, 70, 2)
    found = riemcd.minimize(LinearTrace(M.float()), x0.float(), tol=1e-5)
    assert found.converged and found.point.dtype is torch.float32
    assert abs(gap(found.value, best)) < 1e-5
    assert torch.linalg.norm(found.point.mT @ found.point - torch.eye(70)) < 1e-4


def test_a_selection_that_is_given_is_used():
    """What was asked for is done: its order, its relaxation, its memory."""
    M, x0, best = make(40, 40, 3)
    own = riemcd.minimize(LinearTrace(M), x0, tol=0, max_sweeps=6)
    assert gap(own.value, best) < 1e-5 and not any(sweep.extrapolated for sweep in own.history)
    for options in ({"selection": RoundRobin()}, {"stepsize": Exact(relax=1.3)}, {"remember": 5}):
        given = riemcd.minimize(LinearTrace(M), x0, tol=0, max_sweeps=20, **options)
        assert any(sweep.extrapolated for sweep in given.history)
    assert own.history[1].largest_angle <= math.pi
