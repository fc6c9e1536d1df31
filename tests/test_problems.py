"""Exact angles against brute force, and the solver against eigenvectors and singular values."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch

import riemcd
from riemcd.index import PairSet
from riemcd.kernels import only_torch
from riemcd.kernels.exact import Rounds
from riemcd.problems import Interpolated, JointDiagonalization, LinearTrace, QuadraticTrace
from riemcd.stepsizes import PairModel


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def orthonormal(n, p, seed=0):
    return torch.linalg.qr(normal(n, p, seed=seed + 1000)).Q


def symmetric(*shape, seed=0):
    A = normal(*shape, seed=seed)
    return A + A.mT


PROBLEMS = {
    "linear, square": (LinearTrace(normal(6, 6)), (6, 6)),
    "linear, tall": (LinearTrace(normal(7, 4)), (7, 4)),
    "principal components": (QuadraticTrace(symmetric(7, 7)), (7, 3)),
    "Brockett": (QuadraticTrace(symmetric(7, 7), torch.arange(4.0, 0, -1).double()), (7, 4)),
    "joint": (JointDiagonalization(symmetric(3, 6, 6)), (6, 6)),
    "interpolated": (Interpolated(lambda x: (x**3).sum() - (x @ x.mT @ normal(6, 6)).sum(), 3), (6, 6)),
    "interpolated, tall": (Interpolated(lambda x: (x**4).sum() + x[0, 0], 4), (5, 3)),
}
ALL = pytest.mark.parametrize(("problem", "shape"), PROBLEMS.values(), ids=PROBLEMS.keys())


def one_pair(j, l, nodes):
    return PairSet(torch.tensor([j]), torch.tensor([l]), nodes, disjoint=True)


@ALL
def test_the_model_is_the_loss_along_the_rotation(problem, shape):
    work = problem.start(orthonormal(*shape))
    nodes = problem.basis(work).index(work.point.shape).nodes
    before = problem.value(work.matrix)
    for j, l, angle in ((0, 1, 0.3), (1, nodes - 1, -1.1), (2, 3, 2.5)):
        fresh, pair, turn = problem.start(work.matrix), one_pair(j, l, nodes), torch.tensor([angle]).double()
        model = problem.model(fresh, pair)
        problem.turn_(fresh, pair, turn)
        change = model.at(turn) - model.at(torch.zeros_like(turn))
        torch.testing.assert_close(problem.value(fresh.matrix), before + change[0], atol=1e-11, rtol=1e-11)
        # What is cached is what a new start would compute.
        if fresh.cache is not None:
            torch.testing.assert_close(fresh.cache, turned_cache(problem, fresh), atol=1e-11, rtol=1e-11)


def turned_cache(problem, work):
    A = problem.A if isinstance(problem, QuadraticTrace) else problem.matrices
    return work.point.mT @ A @ work.point


@ALL
def test_exact_angles_beat_every_angle_of_a_fine_grid(problem, shape):
    work = problem.start(orthonormal(*shape, seed=3))
    nodes = problem.basis(work).index(work.point.shape).nodes
    model = problem.model(work, one_pair(0, nodes - 1, nodes))
    grid = torch.linspace(-math.pi, math.pi, 20001, dtype=torch.float64)[:, None]
    best = model.at(model.minimizer())
    assert bool((best <= model.at(grid).min() + 1e-12).all())


@ALL
def test_gradients_are_derivatives(problem, shape):
    x, v = orthonormal(*shape, seed=5), riemcd_tangent(orthonormal(*shape, seed=5), normal(*shape, seed=6))
    h = 1e-5
    ends = [problem.value(torch.linalg.qr(x + s * v).Q @ signs(x + s * v)) for s in (h, -h)]
    slope = (problem.gradient(x) * v).sum()
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * h), slope, atol=1e-6, rtol=1e-6)


def riemcd_tangent(x, v):
    a = x.mT @ v
    return v - x @ (a + a.mT) / 2


def signs(y):
    return torch.diag(torch.linalg.qr(y).R.diagonal().sign())


def test_a_matching_at_once_is_its_pairs_one_by_one():
    for problem, shape in list(PROBLEMS.values())[:5]:
        assert problem.separable
        together, apart = problem.start(orthonormal(*shape)), problem.start(orthonormal(*shape))
        nodes = problem.basis(together).index(together.point.shape).nodes
        pairs = [one_pair(0, 3, nodes), one_pair(1, 2, nodes)]
        problem.sweep_(apart, Rounds(tuple(pairs)), 1.3)
        both = PairSet(torch.tensor([0, 1]), torch.tensor([3, 2]), nodes, disjoint=True)
        problem.sweep_(together, Rounds((both,)), 1.3)
        torch.testing.assert_close(together.point, apart.point, atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(9, 9), (12, 5), (5, 1)])
def test_compiled_sweeps_and_torch_sweeps_agree(shape, dtype):
    problem = LinearTrace(normal(*shape).to(dtype))
    x = orthonormal(*shape).to(dtype)
    compiled = riemcd.minimize(problem, x, max_sweeps=3, tol=0, remember=0)
    with only_torch():
        plain = riemcd.minimize(problem, x, max_sweeps=3, tol=0, remember=0)
    tolerance = 200 * torch.finfo(dtype).eps
    torch.testing.assert_close(compiled.point, plain.point, atol=tolerance, rtol=0)
    assert compiled.history[1].largest_angle == pytest.approx(plain.history[1].largest_angle, rel=1e-3)


def test_many_harmonics_are_minimised_globally():
    generator = torch.Generator().manual_seed(0)
    cos, sin = (torch.randn(5, 200, dtype=torch.float64, generator=generator) for _ in range(2))
    model = PairModel((1, 2, 3, 4, 5), cos, sin)
    grid = torch.linspace(-math.pi, math.pi, 5001, dtype=torch.float64)[:, None]
    assert bool((model.at(model.minimizer()) <= model.at(grid).min(0).values + 1e-12).all())


def test_nothing_to_gain_is_no_move():
    flat = torch.zeros(1, 3)
    assert not PairModel((2,), flat, flat).minimizer().any()
    assert not PairModel((1, 2), flat.expand(2, 3), flat.expand(2, 3)).minimizer().any()


def grassmann_distance(X, Y):
    angles = torch.linalg.svdvals(X - Y @ (Y.mT @ X)).clamp(max=1).asin()
    return float(torch.linalg.norm(angles))


def covariance(n, seed):
    Q = orthonormal(n, n, seed)
    spectrum = torch.from_numpy(1000 * np.logspace(-3, 0, n))
    return Q @ torch.diag(spectrum) @ Q.mT


@pytest.mark.parametrize("p", [50, 100])
def test_principal_components(p):
    A = covariance(200, 0)
    oracle = torch.from_numpy(scipy.linalg.eigh(A.numpy())[1])[:, -p:]
    found = riemcd.minimize(QuadraticTrace(A), orthonormal(200, p, 7), tol=1e-9)
    assert found.converged and found.sweeps <= 20
    assert grassmann_distance(found.point, oracle) < 1e-5


def test_brockett_finds_eigenvectors_in_order():
    n = 100
    A = symmetric(n, n, seed=2)
    weights = torch.arange(n, 0, -1).double()
    found = riemcd.minimize(QuadraticTrace(A, weights), orthonormal(n, n, 8), tol=1e-12)
    values, vectors = scipy.linalg.eigh(A.numpy())
    ordered = torch.from_numpy(vectors[:, ::-1].copy())
    assert found.value == pytest.approx(
        -float((weights * torch.from_numpy(values[::-1].copy())).sum()), rel=1e-13
    )
    assert float((ordered.mT @ found.point).abs().diagonal().min()) > 1 - 1e-10


def commuting(count, n, seed, noise=0.0):
    Q = orthonormal(n, n, seed)
    diagonals = normal(count, n, seed=seed + 1)
    matrices = Q @ torch.diag_embed(diagonals) @ Q.mT
    return Q, matrices + noise * symmetric(count, n, n, seed=seed + 2) / math.sqrt(2)


def signed_permutation_distance(X, Q):
    overlap = X.mT @ Q
    largest = overlap.abs().max(1)
    assert len(set(largest.indices.tolist())) == len(Q)
    rest = overlap.clone()
    rest[torch.arange(len(Q)), largest.indices] = 0
    return float(rest.abs().max())


def test_joint_diagonalization_recovers_the_basis_and_ends_quadratically():
    Q, matrices = commuting(10, 50, 0)
    start = torch.eye(50, dtype=torch.float64)
    found = riemcd.minimize(JointDiagonalization(matrices), start, tol=1e-14, max_sweeps=40)
    assert signed_permutation_distance(found.point, Q) < 1e-10
    # What is beside the diagonal is squared by a sweep: digits double.
    off = [math.sqrt(sweep.value / float(matrices.square().sum())) for sweep in found.history]
    end = next(k for k, o in enumerate(off) if o < 1e-3)
    assert off[end + 1] < 50 * off[end] ** 1.7
    assert off[end + 2] < 1e-11


def cardoso_souloumiac(matrices, sweeps=60):
    """Jacobi angles for simultaneous diagonalisation (SIAM J. Matrix Anal. Appl. 17, 1996), serially."""
    C, n = matrices.numpy().copy(), matrices.shape[-1]
    X = np.eye(n)
    for _ in range(sweeps):
        largest = 0.0
        for p in range(n - 1):
            for q in range(p + 1, n):
                g = np.stack([C[:, p, p] - C[:, q, q], C[:, p, q] + C[:, q, p]])
                gg = g @ g.T
                on, off = gg[0, 0] - gg[1, 1], gg[0, 1] + gg[1, 0]
                theta = 0.5 * math.atan2(off, on + math.hypot(on, off))
                c, s = math.cos(theta), math.sin(theta)
                R = np.array([[c, -s], [s, c]])
                X[:, [p, q]] = X[:, [p, q]] @ R
                C[:, :, [p, q]] = C[:, :, [p, q]] @ R
                C[:, [p, q], :] = R.T @ C[:, [p, q], :]
                largest = max(largest, abs(s))
        if largest < 1e-12:
            break
    return torch.from_numpy(X)


@pytest.mark.parametrize("n", [20, pytest.param(50, marks=pytest.mark.long)])
def test_noisy_joint_diagonalization_is_no_worse_than_the_serial_method(n):
    _, matrices = commuting(10, n, 3, noise=1e-3)
    problem = JointDiagonalization(matrices)
    found = riemcd.minimize(problem, torch.eye(n, dtype=torch.float64), tol=1e-12, max_sweeps=60)
    reference = float(problem.value(cardoso_souloumiac(matrices)))
    assert found.value <= reference * (1 + 1e-9)


def test_problems_say_what_they_need():
    with pytest.raises(ValueError, match="shape of M"):
        riemcd.minimize(LinearTrace(normal(4, 4)), orthonormal(5, 5))
    with pytest.raises(TypeError, match="must be a Tensor"):
        LinearTrace([[1.0]])
    with pytest.raises(ValueError, match="2 dimensions"):
        LinearTrace(normal(2, 3, 4))
    with pytest.raises(ValueError, match="symmetric"):
        QuadraticTrace(normal(4, 4))
    with pytest.raises(ValueError, match="symmetric"):
        JointDiagonalization(normal(2, 4, 4))
    with pytest.raises(ValueError, match="must have shape"):
        riemcd.minimize(QuadraticTrace(symmetric(4, 4), torch.ones(2)), orthonormal(4, 3))
    with pytest.raises(ValueError, match="must have shape"):
        riemcd.minimize(JointDiagonalization(symmetric(2, 4, 4)), orthonormal(4, 3))
    with pytest.raises(ValueError, match="at least 1"):
        Interpolated(torch.sum, 0)
    with pytest.raises(TypeError, match="integer"):
        Interpolated(torch.sum, 1.5)
