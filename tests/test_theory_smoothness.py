"""Assumption 1: claimed constants hold, the exact ones are attained, and samples stay below them."""

import math

import geoopt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from riemcd.bases import LeftGivens, RightGivens
from riemcd.problems import JointDiagonalization, LinearTrace, QuadraticTrace
from riemcd.selections import RandomMatching, Uniform
from riemcd.theory import (
    JointQuadratic,
    Smoothness,
    joint_diagonalization_bound,
    linear_trace_bound,
    lipschitz_bound,
    quadratic_trace_bound,
    remainder_ratio,
    smoothness,
)
from riemcd.theory.smoothness import constant
from riemcd.theory.variables import variables

some = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 2**31)
LENGTHS = st.floats(0.01, 3.0)
#: Bases with their scale: the angle of an amount of one.
FRAMES = [(RightGivens(), math.sqrt(0.5)), (LeftGivens(), math.sqrt(0.5)), (RightGivens(True), 1.0)]


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(seed, n):
    A = normal(seed, n, n)
    return A + A.T


def orthonormal(seed, n, p=None):
    return torch.linalg.qr(normal(seed, n, p or n))[0]


def ratio(f, points, bases, seed, length):
    """The ratio of one random move of this length."""
    start = variables(points, bases)
    amounts = [normal(seed + 7 * i, v.count) for i, v in enumerate(start)]
    norm = math.sqrt(sum(float(a.square().sum()) for a in amounts))
    return remainder_ratio(f, start, [a * (length / norm) for a in amounts])


# ---------------------------------------------------------------- the claimed constants hold


@pytest.mark.parametrize(("basis", "scale"), FRAMES)
@some
@given(SEEDS, LENGTHS, st.integers(2, 6))
def test_procrustes(basis, scale, seed, length, d):
    M = normal(seed, d, d)
    L = linear_trace_bound(M, scale)
    assert ratio(lambda W: -(M * W).sum(), orthonormal(seed + 1, d), basis, seed + 2, length) <= L * (
        1 + 1e-9
    )


@some
@given(SEEDS, LENGTHS)
def test_procrustes_tall(seed, length):
    M, basis = normal(seed, 6, 3), LeftGivens(tall=True)
    L = linear_trace_bound(M, 1.0)
    assert ratio(lambda W: -(M * W).sum(), orthonormal(seed + 1, 6, 3), basis, seed + 2, length) <= L * (
        1 + 1e-9
    )


@some
@given(SEEDS, LENGTHS, st.integers(2, 4))
def test_pca(seed, length, p):
    """f = -tr(XᵀAX): all of the spectrum, however it lies, and the span of X only."""
    A = symmetric(seed, 6)
    L = quadratic_trace_bound(A, torch.ones(p), 1.0, tall=True)

    def f(X):
        return -(X * (A @ X)).sum()

    assert ratio(f, orthonormal(seed + 1, 6, p), LeftGivens(), seed + 2, length) <= L * (1 + 1e-9)


@pytest.mark.parametrize(("basis", "scale"), FRAMES)
@some
@given(SEEDS, LENGTHS, st.integers(2, 6))
def test_brockett(basis, scale, seed, length, n):
    A, N = symmetric(seed, n), normal(seed + 1, n)
    L = quadratic_trace_bound(A, N, scale)

    def f(X):
        return (X * (A @ X) * N).sum()

    assert ratio(f, orthonormal(seed + 2, n), basis, seed + 3, length) <= L * (1 + 1e-9)


@some
@given(SEEDS, LENGTHS)
def test_joint_diagonalization(seed, length):
    As = torch.stack([symmetric(seed + k, 5) for k in range(3)])
    L = joint_diagonalization_bound(As)

    def f(X):
        B = X.T @ As @ X
        return B.square().sum() - B.diagonal(dim1=-2, dim2=-1).square().sum()

    assert ratio(f, orthonormal(seed + 9, 5), RightGivens(), seed + 8, length) <= L * (1 + 1e-9)


def quadratic(seed, a, d, radius):
    Q = symmetric(seed, a + d * d)
    return JointQuadratic(Q, normal(seed + 1, a + d * d), radius)


@some
@given(SEEDS, LENGTHS, st.floats(0.1, 10.0))
def test_quadratic_on_a_ball(seed, length, radius):
    """Both ends of every move lie in the ball, so the whole segment does."""
    f, d = quadratic(seed, 4, 3, radius), 3
    X = normal(seed + 2, 4)
    X = X * (radius * 0.5 / X.norm())
    L = f.bound(d, d)
    length = min(length, radius / 2)
    assert ratio(f, [X, orthonormal(seed + 3, d)], [None, RightGivens()], seed + 4, length) <= L * (1 + 1e-9)


@some
@given(SEEDS, LENGTHS)
def test_lipschitz_gradient_with_its_own_price(seed, length):
    """What the remark after Assumption 1 should say: the size of the gradient in W enters."""
    B = normal(seed, 3, 3)

    def f(X, W):
        return (X * W).sum() + (B @ W).sin().sum()

    X, W = normal(seed + 1, 3, 3), orthonormal(seed + 2, 3)
    # The gradient of sin(BW) is Bᵀcos(BW): its Lipschitz constant is at most |B|², its size |B| sqrt(9).
    norm = float(torch.linalg.matrix_norm(B, 2))
    gradient = float(X.norm()) + length + 3 * norm
    L = lipschitz_bound(1 + norm**2, gradient)
    assert ratio(f, [X, W], [None, RightGivens()], seed + 3, length) <= L


# ---------------------------------------------------------------- they are attained, or nearly


@pytest.mark.parametrize(("basis", "scale"), FRAMES)
def test_the_linear_bound_is_attained(basis, scale):
    """At the polar factor of M, turning its two leading singular directions."""
    U, V, sigma = orthonormal(1, 4), orthonormal(2, 4), torch.tensor([5.0, 3.0, 2.0, 1.0]).double()
    M, W = (U * sigma) @ V.T, U @ V.T
    # W exp(tVHVᵀ) turns v1, v2; in the left frame that is U H Uᵀ.
    side = U if isinstance(basis, LeftGivens) else V
    H = side[:, :1] @ side[:, 1:2].T
    omega = H - H.T
    lo, hi = torch.triu_indices(4, 4, 1)
    amounts = omega[lo, hi]
    amounts = 1e-2 * amounts / amounts.norm()
    found = remainder_ratio(lambda W: -(M * W).sum(), variables(W, basis), [amounts])
    assert found == pytest.approx(linear_trace_bound(M, scale), rel=1e-3)
    assert linear_trace_bound(M, scale) == pytest.approx(scale**2 * 8)


@pytest.mark.parametrize(("basis", "scale"), FRAMES)
def test_the_quadratic_bound_is_attained(basis, scale):
    A, N = torch.diag(torch.tensor([4.0, 2.0, 1.0])).double(), torch.tensor([3.0, 2.0, 1.0]).double()
    W = torch.eye(3, dtype=torch.float64)
    amounts = torch.tensor([0, 1e-2, 0], dtype=torch.float64)  # the pair (1, 3), extreme in both
    found = remainder_ratio(lambda W: (W * (A @ W) * N).sum(), variables(W, basis), [amounts])
    assert found == pytest.approx(quadratic_trace_bound(A, N, scale), rel=1e-3)
    assert found == pytest.approx(2 * scale**2 * 3 * 2, rel=1e-3)


def test_the_tall_quadratic_bound_is_attained():
    """Outside of the span the eigenvalue of XNXᵀ is 0, which widens the spread of N."""
    A = torch.diag(torch.tensor([4.0, 2.0, 1.0])).double()
    X = torch.eye(3, dtype=torch.float64)[:, :1]
    amounts = torch.tensor([0, 1e-2, 0], dtype=torch.float64)
    found = remainder_ratio(lambda X: -(X * (A @ X)).sum(), variables(X, LeftGivens()), [amounts])
    assert found == pytest.approx(quadratic_trace_bound(A, torch.ones(1), 1.0, tall=True), rel=1e-3)


# ---------------------------------------------------------------- sampling


@settings(max_examples=3, deadline=None)
@given(SEEDS)
def test_samples_stay_below_the_closed_form_and_come_near(seed):
    M = normal(seed, 4, 4)
    found = smoothness(lambda W: -(M * W).sum(), orthonormal(seed, 4), basis=RightGivens(), seed=seed)
    L = linear_trace_bound(M)
    assert 0.5 * L < found.lower <= L
    where = found.where
    again = remainder_ratio(lambda W: -(M * W).sum(), variables(where.point, RightGivens()), where.amounts)
    assert again == pytest.approx(found.lower)


def test_a_sample_is_no_upper_bound():
    W = torch.eye(3, dtype=torch.float64)
    found = smoothness(lambda W: W.sum().sin(), W, basis=RightGivens(), samples=20, refine=5)
    with pytest.raises(ValueError, match="no sample can show more"):
        found.upper
    with pytest.raises(ValueError, match="no sample can show more"):
        constant(found)
    assert constant(found.lower) == found.lower


def test_a_closed_form_is_an_upper_bound():
    f = quadratic(3, 2, 3, 2.0)
    W = geoopt.ManifoldTensor(orthonormal(5, 3), manifold=geoopt.EuclideanStiefel())
    found = smoothness(f, [torch.zeros(2, dtype=torch.float64), W], samples=50, refine=30)
    assert found.lower <= found.upper == f.bound(3, 3)
    assert found.proof
    assert f.inside(*found.where.point)


def test_samples_stay_in_the_region():
    def f(x):
        return x.pow(4).sum()

    x = torch.zeros(2, dtype=torch.float64)
    found = smoothness(f, x, spread=0.5, inside=lambda x: bool(x.norm() <= 1), samples=300, refine=200)
    # On the unit ball the second derivative 12 x² is at most 12; outside it is not.
    assert 6 < found.lower <= 12
    assert smoothness(f, x, spread=4.0, samples=300).lower > 24


@pytest.mark.parametrize("rule", [Uniform(), RandomMatching()], ids=repr)
def test_samples_along_a_rule(rule):
    """A rule that takes single coordinates needs no more than the constant along coordinates."""
    M = torch.diag(torch.tensor([1.0, 1.0, 1.0, 1.0])).double()
    f = lambda W: -(M * W).sum()  # noqa: E731
    found = smoothness(f, torch.eye(4, dtype=torch.float64), basis=RightGivens(), selection=rule)
    taken = int((found.where.amounts[0] != 0).sum())
    assert taken <= (1 if rule == Uniform() else 2)
    assert found.lower <= linear_trace_bound(M)


def test_other_manifolds_are_sampled_too():
    """On the unit sphere <a, x> bends by at most |a| along great circles."""
    a = torch.tensor([1.0, 2.0, 2.0]).double()
    x = geoopt.ManifoldTensor(torch.tensor([1.0, 0, 0]).double(), manifold=geoopt.SphereExact())
    found = smoothness(lambda x: (a * x).sum(), x, refine=300)
    assert isinstance(found, Smoothness)
    assert 2.5 < found.lower <= 3.0


# ---------------------------------------------------------------- the remark in the paper


@pytest.mark.parametrize("radius", [1.0, 10.0, 1000.0])
def test_the_remark_about_L_fails(radius):
    """f = <X, W> has a Euclidean gradient with Lipschitz constant 1, and needs L as large as X."""
    W = orthonormal(0, 4)
    X = radius * W

    def f(X, W):
        return (X * W).sum()

    # The gradient in (X, W) is (W, X): it moves exactly as far as its argument.
    Q = torch.zeros(32, 32, dtype=torch.float64)
    Q[:16, 16:] = Q[16:, :16] = torch.eye(16)
    assert float(torch.linalg.matrix_norm(Q, 2)) == pytest.approx(1.0)
    start = variables([X, W], [None, RightGivens()])
    still, turn = torch.zeros(16, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    turn[0] = 1e-2
    assert remainder_ratio(f, start, [still, turn]) == pytest.approx(radius, rel=1e-3)
    # On a ball around zero the corrected bound holds, and grows with the ball.
    on_ball = JointQuadratic(Q, torch.zeros(32, dtype=torch.float64), 2 * radius)
    assert radius <= on_ball.bound(4, 4) == pytest.approx(1 + 2 * radius / math.sqrt(2))


# ---------------------------------------------------------------- the shipped problems


def spd(seed, n):
    A = normal(seed, n, n)
    return A @ A.T


PROBLEMS = {
    "Procrustes": (LinearTrace(normal(0, 4, 4)), orthonormal(1, 4)),
    "Procrustes, tall": (LinearTrace(normal(2, 5, 2)), orthonormal(3, 5, 2)),
    "PCA": (QuadraticTrace(spd(4, 5)), orthonormal(5, 5, 2)),
    "Brockett": (QuadraticTrace(symmetric(6, 4), normal(7, 4)), orthonormal(8, 4)),
    "joint diagonalisation": (
        JointDiagonalization(torch.stack([symmetric(k, 4) for k in (9, 10)])),
        orthonormal(11, 4),
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("basis", [RightGivens(), LeftGivens(), LeftGivens(True)], ids=repr)
def test_shipped_problems_have_a_closed_form(name, basis):
    problem, X = PROBLEMS[name]
    found = smoothness(problem, X, basis=basis, samples=100, refine=50)
    # Turning the columns of an X that spans principal components changes nothing: both are 0 then.
    assert 0.1 * found.upper <= found.lower <= found.upper
    assert found.proof


def test_no_closed_form_on_other_manifolds():
    x = geoopt.ManifoldTensor(torch.eye(3).double()[:, :1], manifold=geoopt.Euclidean(2))
    found = smoothness(LinearTrace(torch.ones(3, 1).double()), x, samples=4, refine=0)
    assert found.certified is None
