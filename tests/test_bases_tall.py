"""Tall orthonormal matrices by columns and normals, beside row rotations."""

import geoopt
import pytest
import scipy.linalg
import torch

from riemcd import SRCD, bases, selections

DOUBLE = torch.float64


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def orthonormal(*shape, seed=0):
    return torch.linalg.qr(random(*shape, seed=seed)).Q.contiguous()


def polar(m):
    """The nearest matrix with orthonormal columns: the solution of the Procrustes problem."""
    u, _, vt = torch.linalg.svd(m, full_matrices=False)
    return u @ vt


def procrustes(m, make, steps):
    """Minimise -tr(X'M) from a random start."""
    x = geoopt.ManifoldParameter(orthonormal(*m.shape, seed=7), manifold=geoopt.EuclideanStiefel())
    optimizer = make([x])
    for _ in range(steps):
        optimizer.zero_grad()
        (x * m).sum().neg().backward()
        optimizer.step()
    return x.detach().as_subclass(torch.Tensor)


BASES = [bases.TallStiefelBasis(), bases.TallStiefelBasis(canonical=True), bases.LeftGivens()]
RULES = {selections.All(): 150, selections.GaussSouthwell(fraction=0.2): 400, selections.Uniform(5): 800}


@pytest.mark.parametrize("basis", BASES, ids=repr)
@pytest.mark.parametrize("selection", RULES, ids=repr)
def test_procrustes_is_solved_to_the_known_optimum(basis, selection):
    m = (
        orthonormal(9, 3)
        @ torch.diag(torch.tensor([3.0, 2.0, 1.5], dtype=DOUBLE))
        @ orthonormal(3, 3, seed=1)
    )
    found = procrustes(m, lambda p: SRCD(p, lr=0.2, basis=basis, selection=selection), RULES[selection])
    expected = procrustes(m, lambda p: geoopt.optim.RiemannianSGD(p, lr=0.2), 300)
    assert (expected - polar(m)).norm() < 1e-8
    assert (found - polar(m)).norm() < 1e-5
    assert (found - expected).norm() < 1e-5


def test_all_coordinates_are_riemannian_gradient_descent():
    """In the Frobenius metric: geoopt's exact exponential along its own gradient."""
    manifold, m = geoopt.EuclideanStiefelExact(), random(7, 3)
    x = geoopt.ManifoldParameter(orthonormal(7, 3, seed=3), manifold=manifold)
    twin = geoopt.ManifoldParameter(x.detach().clone(), manifold=manifold)
    ours = SRCD([x], lr=0.3, basis=bases.TallStiefelBasis(), selection=selections.All())
    theirs = geoopt.optim.RiemannianSGD([twin], lr=0.3)
    for _ in range(5):
        for point, optimizer in ((x, ours), (twin, theirs)):
            optimizer.zero_grad()
            ((point - m) ** 4).sum().mul(0.1).backward()
            optimizer.step()
    assert (x - twin).norm() < 1e-9  # geoopt's own exponential is good to 1e-10 or so


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1e-2, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("canonical", [False, True])
def test_moves_of_every_size_agree_with_scipy(size, canonical):
    """From the definition: Exp(X Omega + N), its blocks by scipy, where torch's matrix_exp has gaps."""
    n, p = 6, 3
    basis, x = bases.TallStiefelBasis(canonical), orthonormal(n, p)
    amounts = size * random(basis.count((n, p)), seed=1)
    normal = amounts[: n * p].view(p, n).T
    normal = normal - x @ (x.T @ normal)
    omega = torch.zeros(p, p, dtype=DOUBLE)
    omega[tuple(torch.triu_indices(p, p, 1))] = amounts[n * p :] * (1 if canonical else 0.5**0.5)
    omega = omega - omega.T
    q, r = torch.linalg.qr(normal)
    block = torch.zeros(2 * p, 2 * p, dtype=DOUBLE)
    block[:p, :p], block[:p, p:], block[p:, :p] = (1 if canonical else 2) * omega, -r.T, r
    expected = torch.cat([x, q], 1) @ torch.from_numpy(scipy.linalg.expm(block.numpy()))[:, :p]
    if not canonical:
        expected = expected @ torch.from_numpy(scipy.linalg.expm(-omega.numpy()))
    basis.move_(x, torch.arange(len(amounts)), amounts)
    assert (x - expected).abs().max() < 2e-14 * max(1.0, size) * 10


def test_the_normals_of_a_column_are_its_tangent_subspace():
    """All n normals of a column at once: x_k turns towards the projected gradient, on a great circle."""
    n, p, k, lr = 8, 3, 1, 0.4
    x, g = orthonormal(n, p), random(n, p, seed=2)
    basis = bases.TallStiefelBasis()
    coords = torch.arange(k * n, (k + 1) * n)
    slopes = basis.partials(basis.covector(x, g), coords)
    q = g[:, k] - x @ (x.T @ g[:, k])
    assert torch.allclose(slopes, q, atol=1e-14)
    expected = x.clone()
    angle = lr * q.norm()
    expected[:, k] = angle.cos() * x[:, k] - angle.sin() * q / q.norm()
    basis.move_(x, coords, -lr * slopes)
    assert torch.allclose(x, expected, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_stay_orthonormal(dtype):
    """Four thousand random single moves."""
    n, p, steps = 30, 8, 4_000
    basis, x = bases.TallStiefelBasis(), orthonormal(n, p).to(dtype)
    generator = torch.Generator().manual_seed(0)
    coords = torch.randint(basis.count((n, p)), (steps, 1), generator=generator)
    amounts = 0.3 * torch.randn(steps, 1, generator=generator, dtype=DOUBLE).to(dtype)
    for at, t in zip(coords, amounts, strict=True):
        basis.move_(x, at, t)
    off = (x.double().T @ x.double() - torch.eye(p, dtype=DOUBLE)).norm()
    assert off < (2e-6 if dtype == torch.float32 else 1e-14)


def test_half_precision_and_points_without_a_gradient():
    manifold = geoopt.EuclideanStiefel()
    table = torch.stack([orthonormal(6, 2, seed=s) for s in range(4)])
    for dtype in (torch.bfloat16, torch.float32):
        x = geoopt.ManifoldParameter(table.to(dtype), manifold=geoopt.Euclidean())
        x.manifold = manifold  # rounding to half precision alone is more than geoopt's check allows
        optimizer = SRCD(
            [x], lr=0.5, basis=bases.TallStiefelBasis(), selection=selections.Uniform(3), momentum=0.5
        )
        before = x.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            x[1:3].float().pow(3).sum().backward()
            optimizer.step()
        changed = (x.detach() != before).flatten(1).any(1)
        assert changed.tolist() == [False, True, True, False]
        assert x.dtype == dtype
        state = optimizer.state[x]["momentum_buffer"]
        assert state[[0, 3]].abs().max() == 0 and state[1:3].abs().amax(-1).min() > 0
