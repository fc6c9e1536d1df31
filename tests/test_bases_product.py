"""Products and scaled manifolds inside SRCD."""

import geoopt
import pytest
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections

DOUBLE = torch.float64


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def polar(m):
    u, _, vt = torch.linalg.svd(m, full_matrices=False)
    return u @ vt


def minimise(x, loss, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()
    return x.detach().as_subclass(Tensor)


def mixed():
    """Two points of a sphere, a tall matrix, a ball and two scalars."""
    return geoopt.ProductManifold(
        (geoopt.Sphere(), (2, 3)),
        (geoopt.EuclideanStiefel(), (4, 2)),
        (geoopt.PoincareBall(torch.tensor(1.0, dtype=DOUBLE)), 3),
        (geoopt.Euclidean(), 2),
    )


# ---------------------------------------------------------------- how coordinates are numbered


def test_factors_are_found_and_numbered_in_order():
    basis = bases.basis_for(mixed(), (5, 19))
    kinds = [bases.SphereBasis, bases.LeftGivens, bases.StereographicBasis, bases.EuclideanBasis]
    assert [type(factor) for factor in basis.factors] == kinds
    assert basis.count((5, 19)) == 2 * 3 + 6 + 3 + 2
    assert (basis.frame, basis.geodesic, basis.cheap, basis.pairs) == ("parseval", False, True, False)
    assert "factor 1: descends the canonical gradient" in basis.note(mixed(), (19,))


def test_flags_are_those_of_every_factor():
    ball = geoopt.PoincareBall()
    torus = bases.basis_for(geoopt.StereographicProductManifold((ball, 2), (geoopt.SphereProjection(), 3)))
    assert (torus.frame, torus.geodesic, torus.consistent, torus.reversible) == (
        "orthonormal",
        True,
        True,
        False,
    )
    generic = bases.ProductBasis((bases.EuclideanBasis(), bases.GenericBasis(ball)), ((2,), (2,)))
    assert (generic.frame, generic.cheap, generic.geodesic) == ("spanning", False, False)


def test_shapes_that_do_not_fit_get_a_sentence():
    with pytest.raises(ValueError, match=r"have 19 entries, got shape \(5, 18\)"):
        bases.basis_for(mixed(), (5, 18))
    with pytest.raises(ValueError, match="a shape for each factor, got 1 factors and 2 shapes"):
        bases.ProductBasis((bases.EuclideanBasis(),), ((2,), (3,)))
    with pytest.raises(
        ValueError, match=r"LeftGivens needs at least 2 dimensions, got a factor of shape \(3,\)"
    ):
        bases.ProductBasis((bases.LeftGivens(),), ((3,),))


def test_a_part_moves_as_it_would_alone():
    """Whatever was chosen in the other factors, shared by a batch or not."""
    manifold, batch = mixed(), 3
    x = manifold.random(batch, 19, dtype=DOUBLE).as_subclass(Tensor)
    whole, amounts = bases.basis_for(manifold, x.shape), 0.3 * random(batch, 5)
    sets = torch.tensor([[0, 4, 6, 13, 16], [6, 8, 1, 11, 15], [2, 12, 13, 14, 7]])
    first = [0, 3, 6, 12, 15, 17]
    alone = [
        bases.SphereBasis(),
        bases.SphereBasis(),
        bases.LeftGivens(),
        whole.factors[2],
        bases.EuclideanBasis(),
    ]
    moved = x.clone()
    whole.move_(moved, sets, amounts)
    for e in range(batch):
        views = [x[e, :3], x[e, 3:6], x[e, 6:14].view(4, 2), x[e, 14:17], x[e, 17:]]
        for basis, view, start, stop in zip(alone, views, first[:-1], first[1:], strict=True):
            here = (sets[e] >= start) & (sets[e] < stop)
            if here.any():
                basis.move_(view, sets[e][here] - start, amounts[e][here])
    assert torch.allclose(moved, x, atol=1e-14)


# ---------------------------------------------------------------- problems with a known solution


@pytest.mark.parametrize(
    "selection", [None, selections.All(), selections.GaussSouthwell(3), selections.Cyclic(4)], ids=repr
)
def test_a_problem_on_every_factor_is_solved(selection):
    """Nearest points on sphere, Stiefel and flat space, and a point of the ball."""
    manifold = mixed()
    directions, m, goal, flat = (
        random(2, 3, seed=1),
        random(4, 2, seed=2),
        0.2 * random(3, seed=3),
        random(2, seed=4),
    )

    def loss(x):
        s, w, p, e = manifold.unpack_tensor(x)
        return (
            -(s * directions).sum()
            - (w * m).sum()
            + (p - goal).square().sum() * 4
            + (e - flat).square().sum()
        )

    torch.manual_seed(0)
    x = geoopt.ManifoldParameter(manifold.random(19, dtype=DOUBLE), manifold=manifold)
    steps = {None: 1500, selections.All(): 100}.get(selection, 400)
    found = minimise(x, loss, SRCD([x], lr=0.2, selection=selection), steps)
    expected = torch.cat(
        [torch.nn.functional.normalize(directions, dim=-1).flatten(), polar(m).flatten(), goal, flat]
    )
    assert (found - expected).norm() < 1e-5
    torch.manual_seed(0)
    y = geoopt.ManifoldParameter(manifold.random(19, dtype=DOUBLE), manifold=manifold)
    theirs = minimise(y, loss, geoopt.optim.RiemannianSGD([y], lr=0.1), 200)
    assert (found - theirs).norm() < 1e-5


def test_a_torus_of_balls_is_one_parameter():
    """A table of points on a StereographicProductManifold; rows without a gradient do not move."""
    manifold = geoopt.StereographicProductManifold((geoopt.PoincareBall(), 2), (geoopt.SphereProjection(), 3))
    torch.manual_seed(1)
    start, goal = (0.3 * torch.randn(6, 5) for _ in range(2))
    x = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
    optimizer = SRCD([x], lr=0.4, momentum=0.3, selection=selections.Uniform(2))
    minimise(x, lambda x: (x - goal)[:4].square().sum(), optimizer, 250)
    assert (x.detach() - goal)[:4].abs().max() < 1e-5
    assert torch.equal(x.detach()[4:], start[4:])
    assert not optimizer.state[x]["momentum_buffer"][4:].any()


# ---------------------------------------------------------------- state of factors


def test_state_of_factors_is_flat_and_resumes():
    """Two positive definite factors keep their own, under their numbers, and a checkpoint is plain data."""
    spd = geoopt.SymmetricPositiveDefinite()
    manifold = geoopt.ProductManifold((spd, (3, 3)), (geoopt.Sphere(), 3), (spd, (2, 2)))
    torch.manual_seed(2)
    goal, start = (manifold.random(16, dtype=DOUBLE).as_subclass(Tensor) for _ in range(2))

    def make():
        x = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
        return x, SRCD([x], lr=0.02, selection=selections.Cyclic(2))

    def loss(x):
        return (x - goal).square().sum()

    x, optimizer = make()
    minimise(x, loss, optimizer, 25)
    saved = {k: v for k, v in optimizer.state[x].items() if isinstance(v, Tensor)}
    assert {"0.factor", "2.factor"} <= set(saved) and not any(key.startswith("1.") for key in saved)
    assert all(isinstance(value, Tensor | int | float) for value in optimizer.state[x].values())
    y, resumed = make()
    with torch.no_grad():
        y.copy_(x)
    resumed.load_state_dict(optimizer.state_dict())
    minimise(x, loss, optimizer, 10)
    minimise(y, loss, resumed, 10)
    assert torch.equal(x.detach(), y.detach())


def test_a_product_in_a_product():
    inner = geoopt.ProductManifold((geoopt.Sphere(), 2), (geoopt.SymmetricPositiveDefinite(), (2, 2)))
    manifold = geoopt.ProductManifold((inner, 6), (geoopt.Scaled(geoopt.Sphere(), 0.5), 3))
    torch.manual_seed(3)
    start, goal = (
        torch.cat(
            [
                inner.random(6, dtype=DOUBLE),
                torch.nn.functional.normalize(torch.randn(3, dtype=DOUBLE), dim=0),
            ]
        )
        for _ in range(2)
    )
    x = geoopt.ManifoldParameter(start.as_subclass(Tensor), manifold=manifold)
    optimizer = SRCD([x], lr=0.1, selection=selections.All())
    found = minimise(x, lambda x: (x - goal).square().sum(), optimizer, 300)
    assert (found - goal).norm() < 1e-5
    assert "0.1.factor" in optimizer.state[x]


# ---------------------------------------------------------------- scaled manifolds


def nearest(manifold, optimizer, steps, m):
    torch.manual_seed(4)
    x = geoopt.ManifoldParameter(
        manifold.random(*m.shape, dtype=DOUBLE).as_subclass(Tensor), manifold=manifold
    )
    return minimise(x, lambda x: (x * m).sum().neg(), optimizer([x]), steps)


@pytest.mark.parametrize(
    ("base", "shape"),
    [(geoopt.Sphere(), (4,)), (geoopt.EuclideanStiefel(), (5, 2)), (geoopt.EuclideanStiefel(), (4, 4))],
)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_a_scale_changes_the_speed_and_not_the_minimum(base, shape, scale):
    manifold, m = geoopt.Scaled(base, scale), random(*shape, seed=6)
    lr = 0.2 * scale**2  # a step moves by lr/s² of the base's gradient
    found = nearest(manifold, lambda p: SRCD(p, lr=lr, selection=selections.All()), 200, m)
    same = nearest(base, lambda p: SRCD(p, lr=0.2, selection=selections.All()), 200, m)
    theirs = nearest(manifold, lambda p: geoopt.optim.RiemannianSGD(p, lr=0.2 * scale), 200, m)
    assert (found - same).norm() < 1e-9
    assert (found - theirs).norm() < 1e-5
    assert (found - (m / m.norm() if len(shape) == 1 else found)).norm() < 1e-5


def test_a_learned_scale_is_read_at_every_step():
    manifold = geoopt.Scaled(geoopt.Sphere(), 1.0, learnable=True)
    basis, x = bases.basis_for(manifold, (3,)), torch.tensor([0.6, 0.8, 0.0], dtype=DOUBLE)
    covector = basis.covector(x, random(3))
    before, y = basis.partials(covector), x.clone()
    with torch.no_grad():
        manifold.log_scale.add_(torch.tensor(2.0).log())
    assert torch.allclose(basis.partials(covector), before / 2)
    basis.move_(x, torch.tensor([2]), torch.tensor([0.5], dtype=DOUBLE))
    bases.SphereBasis().move_(y, torch.tensor([2]), torch.tensor([0.25], dtype=DOUBLE))
    assert torch.allclose(x, y) and not x.requires_grad
    assert basis.arclength(1.0) == pytest.approx(2.0)


def test_everything_but_the_unit_is_the_base_s_own():
    manifold = geoopt.Scaled(geoopt.CanonicalStiefel(), 2.0)
    for shape in ((4, 4), (6, 3)):
        basis, base = bases.basis_for(manifold, shape), bases.basis_for(manifold.base, shape)
        flags = (
            "pairs",
            "frame",
            "spans",
            "geodesic",
            "reversible",
            "consistent",
            "fixed_norm",
            "cheap",
            "point_dims",
        )
        assert [getattr(basis, flag) for flag in flags] == [getattr(base, flag) for flag in flags]
        assert basis.index(shape) == base.index(shape)


def test_what_has_no_single_scale_gets_a_sentence():
    with pytest.raises(ValueError, match=r"ScaledBasis reads one scale, got shape \(2,\)"):
        bases.basis_for(geoopt.Scaled(geoopt.Sphere(), torch.tensor([1.0, 2.0])))
    with pytest.raises(TypeError, match="got an object of type Sphere"):
        bases.ScaledBasis(bases.SphereBasis(), geoopt.Sphere())


def test_a_basis_for_another_manifold_is_refused_before_anything_moves():
    """Whatever is wrapped is asked about the manifold that it is wrapped around."""
    sphere, part = (
        geoopt.Sphere(),
        geoopt.Sphere(complement=torch.tensor([[1.0], [0.0], [0.0]], dtype=DOUBLE)),
    )
    product = geoopt.ProductManifold((part, 3), (sphere, 3))
    scaled = geoopt.Scaled(part, 2.0)
    inside = torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE)
    two = (bases.SphereBasis(), bases.SphereBasis())
    for point, manifold, basis, sentence in [
        (inside.repeat(2), product, bases.ProductBasis(two, ((3,), (3,))), "leave the subspace"),
        (inside.repeat(2), product, bases.ProductBasis(two, ((2,), (4,))), "are not those of"),
        (inside, scaled, bases.ScaledBasis(bases.SphereBasis(), scaled), "leave the subspace"),
        (inside, sphere, bases.ScaledBasis(bases.SphereBasis(), scaled), "is for geoopt.Scaled"),
        (inside, sphere, bases.GenericBasis(geoopt.Lorentz()), "was made for Lorentz"),
        (torch.eye(3), geoopt.SymmetricPositiveDefinite(), bases.TallStiefelBasis(), "orthonormal columns"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            SRCD([geoopt.ManifoldParameter(point, manifold=manifold)], basis=basis)
    SRCD([geoopt.ManifoldParameter(inside.repeat(2), manifold=product)])
