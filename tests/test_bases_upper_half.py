"""The upper half space: exact geodesics, which have no closed form in geoopt to be compared with."""

import geoopt
import pytest
import scipy.linalg
import torch

import riemcd
from riemcd.bases import UpperHalfBasis, basis_for
from riemcd.selections import All, Cyclic, GaussSouthwell, Uniform

BASIS = UpperHalfBasis()
MANIFOLD = geoopt.UpperHalf()
METRICS = ["riem", "fone", "finf", "fmin", "wsum"]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def points(*shape, seed=0):
    """Return random points; the last number of the shape is both n."""
    x, y = normal(2, *shape, shape[-1], seed=seed)
    eye = torch.eye(shape[-1], dtype=torch.float64)
    return torch.complex(x + x.mT, y @ y.mT / shape[-1] + 0.5 * eye)


def unit(at, n):
    """Return the direction of one coordinate at iI: imaginary first, pairs first."""
    names = [(i, j) for i in range(n) for j in range(i + 1, n)] + [(i, i) for i in range(n)]
    i, j = names[at % len(names)]
    e = torch.zeros(n, n, dtype=torch.complex128)
    e[i, j] = e[j, i] = 1.0 if i == j else 0.5**0.5
    return e if at >= len(names) else 1j * e


def siegel_embedding(z):
    """Return [[Y + X Y⁻¹ X, X Y⁻¹], [Y⁻¹ X, Y⁻¹]]: an isometry onto its image in SPD(2n), up to √2."""
    x, y = z.real, z.imag
    inverse = torch.linalg.inv(y)
    return torch.cat(
        [torch.cat([y + x @ inverse @ x, x @ inverse], -1), torch.cat([inverse @ x, inverse], -1)], -2
    )


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_sets_are_geodesics_of_positive_definite_matrices(k):
    """Siegel space is a totally geodesic part of SPD(2n): its geodesics are those of the larger space."""
    n = 4
    z, spd = points(n), geoopt.SymmetricPositiveDefinite()
    coords = torch.randperm(20, generator=torch.Generator().manual_seed(k))[:k]
    amounts = 0.5 * normal(k, seed=k)
    lower = torch.linalg.cholesky(z.imag).to(z.dtype)
    velocity = sum(t * lower @ unit(int(i), n) @ lower.mT for i, t in zip(coords, amounts, strict=True))
    h = 1e-5
    tangent = (siegel_embedding(z + h * velocity) - siegel_embedding(z - h * velocity)) / (2 * h)
    moved = z.clone()
    BASIS.move_(moved, coords, amounts)
    expected = spd.expmap(siegel_embedding(z), tangent)
    found = siegel_embedding(moved)
    assert float((found - expected).abs().max()) < 1e-7 * float(expected.abs().max())
    distance = spd.dist(siegel_embedding(z), found) / 2**0.5
    torch.testing.assert_close(distance, amounts.norm(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(MANIFOLD.dist(z, moved), amounts.norm(), rtol=1e-7, atol=1e-7)


def test_one_coordinate_is_a_set_of_one():
    n = 3
    for at in range(12):
        z, t = points(n, seed=at), normal(1, seed=at)
        alone, together, kept, kept_set = z.clone(), z.clone(), {}, {}
        BASIS.move_(alone, torch.tensor([at]), t, kept)
        other = (at + 5) % 12
        BASIS.move_(together, torch.tensor([other, at]), torch.cat([torch.zeros_like(t), t]), kept_set)
        torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(kept["factor"], kept_set["factor"], rtol=1e-12, atol=1e-12)


def test_large_steps_stay_in_the_space():
    z, state = points(3), {}
    amounts = 12 * normal(12)
    BASIS.move_(z, torch.arange(12), amounts, state)
    assert torch.isfinite(torch.view_as_real(z)).all()
    assert (state["factor"].diagonal() > 0).all()


def test_slopes_follow_torch_s_convention_for_complex_gradients():
    n = 3
    z = points(2, n).requires_grad_()
    weights = torch.complex(normal(2, n, n, seed=4), normal(2, n, n, seed=5))
    loss = (weights * z).real.sum() + z.imag.square().sum()
    (grad,) = torch.autograd.grad(loss, z)
    lower = torch.linalg.cholesky(z.detach().imag).to(z.dtype)
    slopes = BASIS.partials(BASIS.covector(z.detach(), grad))
    for at in range(12):
        eta = lower @ unit(at, n) @ lower.mT
        # d/dt of the loss itself, from its formula
        expected = (weights * eta).real.sum((-2, -1)) + 2 * (z.detach().imag * eta.imag).sum((-2, -1))
        torch.testing.assert_close(slopes[:, at], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64])
@pytest.mark.parametrize("selection", [Uniform(1), None, GaussSouthwell(2)], ids=repr)
def test_the_kept_factor_is_that_of_the_imaginary_part(dtype, selection):
    z = geoopt.ManifoldParameter(points(4).to(dtype), manifold=MANIFOLD)
    target = points(4, seed=6).to(dtype)
    optimizer = riemcd.SRCD([z], lr=0.02, selection=selection)
    for _ in range(150):
        optimizer.zero_grad()
        (z - target).abs().square().sum().backward()
        optimizer.step()
    state, eps = optimizer.state[z], torch.finfo(dtype).eps
    lower, imaginary = state["factor"].mT, z.detach().imag.double()
    assert torch.equal(lower, lower.tril())
    scale = float(imaginary.abs().max())
    assert float((lower @ lower.mT - imaginary).abs().max()) <= (2 * eps + 1e-13) * scale
    assert torch.equal(state["written"].to(dtype), z.detach())


def test_a_parameter_changed_behind_our_back_is_noticed():
    z = geoopt.ManifoldParameter(points(3), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([z], lr=0.02, selection=Uniform(1))
    for change in (lambda: z.mul_(2), lambda: z.data.imag.diagonal().add_(1.0), lambda: z.add_(0.5)):
        z.grad = torch.complex(normal(3, 3), normal(3, 3, seed=1))
        optimizer.step()
        with torch.no_grad():
            change()
        optimizer.step()
        lower = torch.linalg.cholesky(z.detach().imag)
        torch.testing.assert_close(optimizer.state[z]["factor"].mT, lower, rtol=1e-12, atol=1e-12)


def test_a_run_resumes_from_a_checkpoint_bit_for_bit():
    def start():
        z = geoopt.ManifoldParameter(points(2, 3).to(torch.complex64), manifold=MANIFOLD)
        return z, riemcd.SRCD([z], lr=0.02, momentum=0.5, selection=Cyclic(1))

    def run(z, optimizer, steps):
        for step in steps:
            z.grad = torch.complex(normal(2, 3, 3, seed=step), normal(2, 3, 3, seed=99 + step)).to(z.dtype)
            optimizer.step()

    z, optimizer = start()
    run(z, optimizer, range(10))
    again, resumed = start()
    with torch.no_grad():
        again.copy_(z)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[again]["written"].dtype == torch.complex128
    run(z, optimizer, range(10, 20))
    run(again, resumed, range(10, 20))
    assert torch.equal(z, again)


def test_what_is_not_in_the_space_is_refused_in_a_sentence():
    z = geoopt.ManifoldParameter(points(3), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([z], lr=0.02)
    with torch.no_grad():
        z.copy_(z.conj())
    z.grad = points(3)
    with pytest.raises(ValueError, match="UpperHalfBasis needs a positive definite imaginary part"):
        optimizer.step()


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_the_same_coordinates(metric):
    kind = geoopt.manifolds.siegel.vvd_metrics.SiegelMetricType(metric)
    assert basis_for(geoopt.UpperHalf(metric=kind, rank=3), (3, 3)) == UpperHalfBasis()


def two_points(make, a, b, start, steps):
    z = geoopt.ManifoldParameter(start.clone(), manifold=MANIFOLD)
    optimizer = make([z])
    for _ in range(steps):
        optimizer.zero_grad()
        (MANIFOLD.dist(z, a).square() + MANIFOLD.dist(z, b).square()).div(4).backward()
        optimizer.step()
    return z.detach()


def midpoint(a, b):
    """Return the middle of the geodesic, found in SPD(2n) and read off the embedding."""
    p, q = siegel_embedding(a).numpy(), siegel_embedding(b).numpy()
    root = scipy.linalg.sqrtm(p).real
    inverse = scipy.linalg.inv(root)
    middle = torch.from_numpy(root @ scipy.linalg.sqrtm(inverse @ q @ inverse).real @ root)
    n = a.shape[-1]
    imaginary = torch.linalg.inv(middle[n:, n:])
    return torch.complex(middle[:n, n:] @ imaginary, imaginary)


@pytest.mark.parametrize(
    ("selection", "steps"), [(None, 80), (All(), 40), (Uniform(1), 500)], ids=["default", "all", "one"]
)
def test_the_point_between_two_is_the_one_riemannian_sgd_finds(selection, steps):
    a, b = points(2, 2, seed=2)
    start = points(2, seed=7)
    expected = midpoint(a, b)
    reference = two_points(lambda p: geoopt.optim.RiemannianSGD(p, lr=0.2), a, b, start, 200)
    found = two_points(lambda p: riemcd.SRCD(p, lr=0.7, selection=selection), a, b, start, steps)
    assert MANIFOLD.dist(reference, expected) < 1e-5
    assert MANIFOLD.dist(found, expected) < 1e-5
    assert MANIFOLD.dist(found, reference) < 1e-5
