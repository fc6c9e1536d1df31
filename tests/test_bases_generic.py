"""The generic basis: any geoopt manifold, slow but right."""

import itertools
import warnings

import geoopt
import pytest
import torch
from torch import Tensor

import riemcd
from riemcd import SRCD, bases, selections, stepsizes

DOUBLE = torch.float64


class Ellipsoid(geoopt.Manifold):
    """The level set sum_i a_i x_i^2 = 1, written by somebody who knows nothing of coordinates."""

    name = "Ellipsoid"
    ndim = 1
    reversible = False

    def __init__(self, axes):
        super().__init__()
        self.register_buffer("axes", axes)

    def projx(self, x):
        return x / (self.axes * x * x).sum(-1, keepdim=True).sqrt()

    def proju(self, x, u):
        normal = self.axes * x
        u -= normal * (normal * u).sum(-1, keepdim=True) / (normal * normal).sum(-1, keepdim=True)  # in place
        return u

    egrad2rgrad = proju

    def retr(self, x, u):
        return self.projx(x + u)

    expmap = retr

    def transp(self, x, y, v):
        return self.proju(y, v.clone())

    def inner(self, x, u, v=None, *, keepdim=False):
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    def _check_point_on_manifold(self, x, *, atol=1e-5, rtol=1e-5):
        ok = bool(((self.axes * x * x).sum(-1) - 1).abs().max() <= atol)
        return ok, None if ok else "not on the ellipsoid"

    def _check_vector_on_tangent(self, x, u, *, atol=1e-5, rtol=1e-5):
        return True, None


def ellipsoid():
    return Ellipsoid(torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE))


def minimise(x, loss, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
    return x.detach().as_subclass(Tensor)


# ---------------------------------------------------------------- which manifolds get it


def lengthened(metric):
    with warnings.catch_warnings():  # geoopt warns that metrics other than AIM are unfinished
        warnings.simplefilter("ignore")
        return geoopt.SymmetricPositiveDefinite(metric)


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [
        (geoopt.BoundedDomain(), (3, 3)),
        (lengthened("SM"), (3, 3)),
        (lengthened("LEM"), (3, 3)),
        (ellipsoid(), (3,)),
    ],
    ids=repr,
)
def test_manifolds_without_a_basis_of_their_own_get_it(manifold, shape):
    basis = bases.basis_for(manifold, shape)
    assert basis == bases.GenericBasis(manifold)
    assert basis.note(manifold, shape) == "correct, not cheap"


def test_what_is_no_manifold_gets_a_sentence():
    with pytest.raises(ValueError, match=r"there is no basis for manifold object. Pass basis="):
        bases.basis_for(object())
    with pytest.raises(TypeError, match=r"GenericBasis needs a geoopt.Manifold, got an object of type str"):
        bases.GenericBasis("sphere")


@pytest.mark.parametrize(
    "manifold", [geoopt.CanonicalStiefel(), geoopt.Scaled(geoopt.Sphere(), 2.0)], ids=repr
)
def test_retractions_that_do_not_follow_their_vector_are_refused(manifold):
    """The reason is measured here: t -> retr(x, t u) does not leave with velocity u."""
    x = manifold.random(4, 4, dtype=DOUBLE).as_subclass(Tensor)
    u = manifold.proju(x, torch.ones(4, 4, dtype=DOUBLE))
    velocity = (manifold.retr(x, 1e-6 * u) - manifold.retr(x, -1e-6 * u)) / 2e-6
    assert (velocity - u).norm() > 0.1 * u.norm()
    with pytest.raises(ValueError, match="leaves along its tangent vector"):
        bases.GenericBasis(manifold)


def test_report_says_that_it_is_not_cheap():
    model = torch.nn.Module()
    model.z = geoopt.ManifoldParameter(
        torch.zeros(2, 2, dtype=torch.complex128), manifold=geoopt.BoundedDomain()
    )
    assert "correct, not cheap" in str(riemcd.report(model, SRCD(model.parameters())))


# ---------------------------------------------------------------- slopes and moves


@pytest.mark.parametrize(
    ("manifold", "shape"),
    [
        (geoopt.Sphere(), (5,)),
        (geoopt.Lorentz(), (5,)),
        (geoopt.EuclideanStiefel(), (5, 2)),
        (geoopt.SymmetricPositiveDefinite(), (3, 3)),
        (geoopt.PoincareBall(), (4,)),
        (geoopt.UpperHalf(), (2, 2)),
        (geoopt.BoundedDomain(), (2, 2)),
        (ellipsoid(), (3,)),
    ],
    ids=repr,
)
def test_slopes_are_those_along_every_projected_axis(manifold, shape):
    """Against the definition, axis by axis, without any reverse mode."""
    torch.manual_seed(0)
    basis = bases.GenericBasis(manifold)
    dtype = torch.complex128 if basis.complex_points else DOUBLE
    draw = (
        0.3 * torch.randn(2, *shape, dtype=DOUBLE)
        if len(shape) == 1
        else manifold.random(2, *shape, dtype=dtype)
    )
    x = manifold.projx(draw.as_subclass(Tensor)).detach()
    g = torch.randn(x.shape, dtype=dtype)
    units = torch.eye(x[0].numel(), dtype=dtype).view(-1, *shape)
    axes = torch.cat([units, 1j * units]) if basis.complex_points else units
    slopes = basis.partials(basis.covector(x, g))
    assert slopes.shape == (2, len(axes)) == (2, basis.count(x.shape))
    for i, axis in enumerate(axes):
        eta = manifold.proju(x, axis.expand(x.shape).clone())
        expected = (g.conj() * eta).real.flatten(1).sum(1)
        assert torch.allclose(slopes[:, i], expected, atol=1e-12)


def test_points_without_a_move_keep_their_bits():
    torch.manual_seed(0)
    manifold = geoopt.EuclideanStiefel()
    x = manifold.random(3, 4, 2).as_subclass(Tensor)
    old, basis = x.clone(), bases.GenericBasis(manifold)
    basis.move_(x, torch.tensor([1, 3]), torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 0.0]]))
    assert torch.equal(x[[0, 2]], old[[0, 2]]) and not torch.equal(x[1], old[1])
    basis.move_(x[:0], torch.tensor([1]), torch.zeros(0, 1))  # an empty table is no error
    assert basis.partials(basis.covector(x[:0], x[:0])).shape == (0, 8)


def test_curvature_is_read_at_every_step():
    manifold = geoopt.Lorentz(torch.tensor(1.0, dtype=DOUBLE), learnable=True)
    basis = bases.GenericBasis(manifold)
    with torch.no_grad():
        manifold.k.fill_(2.0)
    x = manifold.projx(torch.tensor([0.0, 0.3, -0.4], dtype=DOUBLE)).detach()
    fresh, twin = geoopt.Lorentz(torch.tensor(2.0, dtype=DOUBLE)), x.clone()
    coords, amounts = torch.arange(3), torch.tensor([0.1, -0.2, 0.3], dtype=DOUBLE)
    basis.move_(x, coords, amounts)
    bases.GenericBasis(fresh).move_(twin, coords, amounts)
    assert torch.equal(x, twin) and not x.requires_grad


def test_half_precision_is_computed_in_single():
    x = geoopt.ManifoldParameter(torch.eye(4, 2).bfloat16(), manifold=geoopt.EuclideanStiefel())
    optimizer = SRCD([x], lr=0.1, basis=bases.GenericBasis(geoopt.EuclideanStiefel()))
    minimise(x, lambda x: (x.float() - 1).square().sum(), optimizer, 3)
    assert x.dtype == torch.bfloat16 and torch.isfinite(x.float()).all()


# ---------------------------------------------------------------- inside the optimizer


def test_takes_everything_by_default_and_goes_down():
    manifold, generator = ellipsoid(), torch.Generator().manual_seed(0)
    goal = torch.tensor([1.0, 2.0, -1.0], dtype=DOUBLE)
    x = geoopt.ManifoldParameter(
        manifold.projx(torch.randn(3, generator=generator, dtype=DOUBLE)), manifold=manifold
    )
    optimizer = SRCD([x], lr=0.05)
    values = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (x - goal).square().sum()
        loss.backward()
        values.append(float(loss.detach()))
        optimizer.step()
        assert optimizer.last_step.coordinates["0.0"].tolist() == [0, 1, 2]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    # At the nearest point the difference is normal.
    x = x.detach().as_subclass(Tensor)
    assert manifold.proju(x, goal - x).norm() < 1e-8


@pytest.mark.parametrize(
    "selection", [selections.Cyclic(), selections.Uniform(2), selections.GaussSouthwell()], ids=repr
)
def test_any_selection_reaches_the_minimum_of_riemannian_sgd(selection):
    manifold, goal = ellipsoid(), torch.tensor([1.0, 2.0, -1.0], dtype=DOUBLE)

    def run(make, steps):
        x = geoopt.ManifoldParameter(torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE), manifold=manifold)
        return minimise(x, lambda x: (x - goal).square().sum(), make([x]), steps)

    expected = run(lambda p: geoopt.optim.RiemannianSGD(p, lr=0.05), 200)
    found = run(lambda p: SRCD(p, lr=0.1, selection=selection), 400)
    assert (found - expected).norm() < 1e-5


def test_rules_that_remember_need_directions_known_to_be_smooth():
    strange = geoopt.ManifoldParameter(torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE), manifold=ellipsoid())
    with pytest.raises(ValueError, match="do not keep their meaning"):
        SRCD([strange], lr=0.1, momentum=0.9)
    known = geoopt.ManifoldParameter(
        torch.zeros(2, 2, dtype=torch.complex128), manifold=geoopt.BoundedDomain()
    )
    SRCD([known], lr=0.1, momentum=0.9)


# ---------------------------------------------------------------- two points in the bounded domain


def unitary(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.complex128)).Q


def disc_midpoint(a, b):
    """The hyperbolic midpoint of numbers in the unit disc: send a to 0, halve, and send it back."""
    moved = (b - a) / (1 - a.conj() * b)
    half = moved / moved.abs() * torch.tanh(torch.atanh(moved.abs()) / 2)
    return (half + a) / (1 + a.conj() * half)


def test_the_midpoint_of_two_points_of_the_bounded_domain():
    """Z -> U Z U' is an isometry, and on diagonal matrices the metric is that of a product of discs."""
    manifold, u = geoopt.BoundedDomain(), unitary(3, 1)
    a = torch.tensor([0.3 + 0.2j, -0.4j, 0.5 + 0.0j], dtype=torch.complex128)
    b = torch.tensor([-0.1 + 0.6j, 0.3 + 0.1j, -0.2 - 0.2j], dtype=torch.complex128)
    first, second, expected = (u @ torch.diag(z) @ u.T for z in (a, b, disc_midpoint(a, b)))

    def run(make, steps):
        # Not at the centre, where geoopt's own distance has no gradient (equal eigenvalues).
        start = u.conj() @ torch.diag(0.1 * a) @ u.conj().T + 0.1 * second
        z = geoopt.ManifoldParameter(start, manifold=manifold)
        return minimise(
            z, lambda z: manifold.dist(z, first) ** 2 + manifold.dist(z, second) ** 2, make([z]), steps
        )

    found = run(lambda p: SRCD(p, lr=0.05), 40)
    theirs = run(lambda p: geoopt.optim.RiemannianSGD(p, lr=0.05), 40)
    assert manifold.dist(found, expected) < 1e-5
    assert manifold.dist(found, theirs) < 1e-5
    greedy = run(lambda p: SRCD(p, lr=0.05, selection=selections.GaussSouthwell(3)), 120)
    assert manifold.dist(greedy, expected) < 1e-5
    with_momentum = run(lambda p: SRCD(p, lr=0.005, momentum=0.8, stepsize=stepsizes.Constant()), 160)
    assert manifold.dist(with_momentum, expected) < 1e-5
