"""Lorentz and stereographic bases inside SRCD: known minima, learned curvature, tables of points."""

from __future__ import annotations

import geoopt
import pytest
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections

DOUBLE = torch.float64


def number(k: float) -> Tensor:
    return torch.tensor(k, dtype=DOUBLE)


MANIFOLDS = {
    "lorentz": lambda: geoopt.Lorentz(number(1.0)),
    "lorentz k=2.5": lambda: geoopt.Lorentz(number(2.5)),
    "poincare": lambda: geoopt.PoincareBall(number(1.0)),
    "poincare exact c=0.3": lambda: geoopt.PoincareBallExact(number(0.3)),
    "sphere projection": lambda: geoopt.SphereProjectionExact(number(0.5)),
    "stereographic flat": lambda: geoopt.StereographicExact(number(0.0)),
}


def cloud(manifold: geoopt.Manifold, count: int, n: int, seed: int = 0, size: float = 0.25) -> Tensor:
    """Return random points, (count, n)."""
    generator = torch.Generator().manual_seed(seed)
    return manifold.projx(size * torch.randn(count, n, generator=generator, dtype=DOUBLE)).detach()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def squared_distance(manifold: geoopt.Manifold, x: Tensor, y: Tensor) -> Tensor:
    """Return squared distances that are smooth where the points meet, unlike the manifold's own."""
    k = manifold.k.detach()
    if isinstance(manifold, geoopt.Lorentz):
        d = (x - y).square()
        half = (d[..., 1:].sum(-1) - d[..., 0]) / (4 * k)  # sinh^2 of half the distance
        return 4 * k * _arc_squared(half, -1.0)
    half = (x - y).square().sum(-1) / (1 + k * x.square().sum(-1)) / (1 + k * y.square().sum(-1))
    if k == 0:
        return 4 * half
    return 4 / k.abs() * _arc_squared(k.abs() * half, float(k.sign()))


def _arc_squared(z: Tensor, sign: float) -> Tensor:
    """asinh(sqrt z)^2 or asin(sqrt z)^2; their series where z is small."""
    series = z - sign * -1 * z**2 / 3 + 8 * z**3 / 45
    root = z.clamp(min=1e-6).sqrt()
    exact = (torch.asin(root) if sign > 0 else torch.asinh(root)).square()
    return torch.where(z < 1e-5, series, exact)


def frechet_mean(manifold: geoopt.Manifold, data: Tensor, make, steps: int) -> Tensor:
    point = geoopt.ManifoldParameter(data[0].clone(), manifold=manifold)
    optimizer = make([point])
    for _ in range(steps):
        optimizer.zero_grad()
        squared_distance(manifold, point, data).mean().backward()
        optimizer.step()
    return point.detach().as_subclass(Tensor)


@pytest.mark.parametrize(
    ("name", "selection"),
    [
        *((name, None) for name in MANIFOLDS),
        ("lorentz", selections.GaussSouthwell()),
        ("poincare", selections.Cyclic(2)),
    ],
)
def test_frechet_mean_is_that_of_riemannian_sgd(name: str, selection) -> None:
    manifold = MANIFOLDS[name]()
    data = cloud(manifold, 20, 4)
    expected = frechet_mean(manifold, data, lambda p: geoopt.optim.RiemannianSGD(p, lr=0.2), 200)
    found = frechet_mean(manifold, data, lambda p: SRCD(p, lr=0.2, selection=selection), 300)
    assert float(squared_distance(manifold, found, expected).sqrt()) < 1e-5


@pytest.mark.parametrize("name", MANIFOLDS)
def test_all_coordinates_are_the_exponential_of_the_gradient(name: str) -> None:
    manifold = MANIFOLDS[name]()
    table, goal = cloud(manifold, 6, 5), cloud(manifold, 6, 5, seed=1)
    point = geoopt.ManifoldParameter(table.clone(), manifold=manifold)
    squared_distance(manifold, point, goal).sum().backward()
    step = manifold.expmap(table, -0.1 * manifold.egrad2rgrad(table, point.grad.clone()))
    SRCD([point], lr=0.1, selection=selections.All()).step()
    assert torch.allclose(point.detach(), step, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "make", [geoopt.Lorentz, geoopt.PoincareBall, geoopt.Stereographic, geoopt.SphereProjection]
)
def test_learned_curvature_is_read_at_step_time(make) -> None:
    """After the curvature has changed, a step is that of a manifold which had this curvature always."""
    manifold = make(number(1.0), learnable=True)
    basis = bases.basis_for(manifold)
    point = cloud(manifold, 4, 3)
    with torch.no_grad():
        next(manifold.parameters()).add_(0.7)
    fresh = (
        geoopt.Lorentz(manifold.k.detach().clone())
        if make is geoopt.Lorentz
        else geoopt.Stereographic(manifold.k.detach().clone())
    )
    if make is geoopt.PoincareBall:
        point[0] *= 0.99 / point[0].norm()  # outside the ball of the new curvature
    expected = fresh.projx(point)
    grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)
    index, amounts = torch.tensor([1, 0]), 0.3 * grad[:, :2]
    if make is not geoopt.Lorentz:  # there the slope also reads entry 0, which is still that of the old k
        slopes = bases.basis_for(fresh).partials(bases.basis_for(fresh).covector(expected, grad))
        assert torch.allclose(basis.partials(basis.covector(point, grad)), slopes, atol=1e-12)
    basis.move_(point, index, amounts)
    bases.basis_for(fresh).move_(expected, index, amounts)
    assert torch.allclose(point, expected, atol=1e-12)
    assert manifold.check_point_on_manifold(point)


def test_learnable_curvature_trains_beside_the_points() -> None:
    manifold = geoopt.Lorentz(number(1.0), learnable=True)
    table = geoopt.ManifoldParameter(cloud(manifold, 8, 4), manifold=manifold)
    optimizer = SRCD([table, *manifold.parameters()], lr=1e-2, selection=selections.All())
    for _ in range(20):
        optimizer.zero_grad()
        (manifold.dist0(table) - 2.0).square().mean().backward()
        optimizer.step()
    assert float(manifold.k.detach()) != 1.0
    # The curvature moves after the points within a step: stabilize brings both together.
    optimizer.stabilize()
    assert manifold.check_point_on_manifold(table)


def test_points_stay_inside_the_ball() -> None:
    for dtype in (torch.float32, DOUBLE):
        manifold = geoopt.PoincareBall(torch.tensor(1.0, dtype=dtype))
        basis, point = bases.basis_for(manifold), torch.zeros(1, 3, dtype=dtype)
        for _ in range(20):
            basis.move_(point, torch.tensor([0]), torch.full((1, 1), 3.0, dtype=dtype))
        assert manifold.check_point_on_manifold(point)
        assert bool(torch.isfinite(basis.partials(basis.covector(point, torch.ones_like(point)))).all())


@pytest.mark.parametrize("name", ["lorentz", "poincare"])
def test_single_precision_does_not_drift(name: str) -> None:
    """Thousands of moves leave points on the manifold to the rounding of one."""
    manifold = geoopt.Lorentz() if name == "lorentz" else geoopt.PoincareBall()
    basis = bases.basis_for(manifold)
    point = cloud(manifold, 16, 6).float()
    generator = torch.Generator().manual_seed(0)
    for step in range(3_000):
        amounts = 0.02 * torch.randn(16, 1, generator=generator)
        basis.move_(point, torch.tensor([step % basis.count(point.shape)]), amounts)
    wide = point.double()
    if name == "lorentz":
        form = wide[:, 1:].square().sum(-1) - wide[:, 0].square() + 1
        assert float((form.abs() / wide[:, 0].square()).max()) < 5e-7
    assert bool(torch.isfinite(wide).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [geoopt.Lorentz, geoopt.PoincareBall, geoopt.SphereExact])
def test_half_precision_computes_in_float32(make, dtype: torch.dtype) -> None:
    manifold = make()
    basis = bases.basis_for(manifold)
    point = manifold.projx(torch.randn(5, 4, generator=torch.Generator().manual_seed(2)) * 0.3).to(dtype)
    grad = torch.ones(5, 4, dtype=dtype)
    slopes = basis.partials(basis.covector(point, grad), torch.tensor([1]))
    assert slopes.dtype == torch.float32
    wide = point.float()
    basis.move_(wide, torch.tensor([1]), 0.3 * slopes)
    basis.move_(point, torch.tensor([1]), 0.3 * slopes)
    assert torch.equal(point, wide.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_far_points_are_taken(dtype: torch.dtype) -> None:
    """geoopt's own check squares the entries, and fails far out for want of digits."""
    manifold = geoopt.Lorentz(torch.tensor(1.0, dtype=dtype))
    size = 1e3 if dtype == torch.float32 else 1e7
    far = manifold.projx(size * normal(4, 3).to(dtype))
    assert not manifold.check_point_on_manifold(far)
    table = geoopt.ManifoldParameter(far.clone(), manifold=manifold)
    optimizer = SRCD([table], lr=0.1)
    table.grad = torch.ones_like(far) / size  # slopes of order one
    optimizer.step()
    assert torch.allclose(manifold.projx(table.detach()), table.detach(), rtol=1e-6, atol=0)
    with torch.no_grad():
        far[:, 0] *= 1.01
    with pytest.raises(ValueError, match="off its manifold"):
        SRCD([geoopt.ManifoldParameter(far, manifold=manifold)])


def test_several_curvatures_in_one_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match="one curvature"):
        bases.basis_for(geoopt.Lorentz(torch.ones(3, 1)))
    with pytest.raises(ValueError, match="one curvature"):
        bases.basis_for(geoopt.Stereographic(torch.ones(3, 1)))


# ---------------------------------------------------------------------------- tables of points

RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampened": {"momentum": 0.9, "dampening": 0.1},
    "decay": {"weight_decay": 0.1},
    "greedy": {"momentum": 0.5, "selection": selections.GaussSouthwell(2)},
    "all": {"momentum": 0.5, "selection": selections.All(), "maximize": True},
}


def embedding_losses(table: Tensor, sparse: bool, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 12, (7,), generator=generator)  # with repeats, and never the last rows
    picked = torch.nn.functional.embedding(ids, table, sparse=sparse)
    return (picked * torch.randn(picked.shape, generator=generator, dtype=DOUBLE)).sum()


@pytest.mark.parametrize(
    ("name", "rule"),
    # Weight decay does nothing on a sphere, and warns.
    [(n, r) for n in ("lorentz", "poincare", "sphere") for r in RULES if (n, r) != ("sphere", "decay")],
)
def test_sparse_gradients_do_what_dense_ones_do(name: str, rule: str) -> None:
    manifold = geoopt.Sphere() if name == "sphere" else MANIFOLDS[name]()
    start = cloud(manifold, 20, 5)
    tables, optimizers = [], []
    for sparse in (False, True):
        table = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
        optimizer = SRCD([table], lr=0.1, **RULES[rule])
        for step in range(12):
            optimizer.zero_grad()
            embedding_losses(table, sparse, step).backward()
            assert table.grad.is_sparse == sparse
            optimizer.step()
        tables.append(table)
        optimizers.append(optimizer)
    assert torch.allclose(tables[0].detach(), tables[1].detach(), atol=1e-12, rtol=0)
    assert torch.equal(tables[0].detach()[12:], start[12:])  # rows without a gradient keep every bit
    for key, value in optimizers[0].state[tables[0]].items():
        other = optimizers[1].state[tables[1]][key]
        assert torch.allclose(torch.as_tensor(value).double(), torch.as_tensor(other).double(), atol=1e-12)


def test_rows_without_gradient_keep_point_and_state() -> None:
    manifold = geoopt.Lorentz(number(1.0))
    table = geoopt.ManifoldParameter(cloud(manifold, 6, 4), manifold=manifold)
    optimizer = SRCD([table], lr=0.1, momentum=0.9, selection=selections.All())
    table.grad = torch.ones(6, 4, dtype=DOUBLE)
    optimizer.step()
    before, ball = table.detach().clone(), optimizer.state[table]["momentum_buffer"].clone()
    for sparse in (False, True):
        grad = torch.zeros(6, 4, dtype=DOUBLE)
        grad[2] = 1.0
        table.grad = grad.to_sparse(1) if sparse else grad
        optimizer.step()
        still = [0, 1, 3, 4, 5]
        assert torch.equal(table.detach()[still], before[still])
        assert torch.equal(optimizer.state[table]["momentum_buffer"][still], ball[still])
    assert not torch.equal(table.detach()[2], before[2])


def test_sparse_gradients_touch_only_their_rows() -> None:
    """A sparse step on a table that cannot be read elsewhere (NaN) works, and says which rows it moved."""
    manifold = geoopt.PoincareBall(number(1.0))
    table = geoopt.ManifoldParameter(cloud(manifold, 6, 4), manifold=manifold)
    optimizer = SRCD([table], lr=0.1, momentum=0.9)
    with torch.no_grad():
        table[3:] = torch.nan
    values = torch.ones(3, 4, dtype=DOUBLE)
    table.grad = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1]]), values, (6, 4), check_invariants=True)
    optimizer.step()
    assert [rows.tolist() for rows in optimizer.last_step.moved["0.0"].rows] == [[0, 1]]
    assert bool(torch.isfinite(table.detach()[:3]).all())


def test_sparse_gradients_of_deeper_tables() -> None:
    """Two leading dimensions, of which one or both are sparse."""
    manifold = geoopt.Lorentz(number(1.0))
    start = cloud(manifold, 6, 4).view(2, 3, 4)
    dense = torch.zeros(2, 3, 4, dtype=DOUBLE)
    dense[1] = torch.arange(12.0).view(3, 4) - 5
    results = []
    for grad in (dense, dense.to_sparse(1), dense.to_sparse(2)):
        table = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
        optimizer = SRCD([table], lr=0.01, momentum=0.9, selection=selections.GaussSouthwell())
        table.grad = grad.clone()
        optimizer.step()
        optimizer.step()
        results.append((table.detach().clone(), optimizer.state[table]["momentum_buffer"]))
    for point, ball in results[1:]:
        assert torch.allclose(point, results[0][0], atol=1e-13, rtol=0)
        assert torch.allclose(ball, results[0][1], atol=1e-13, rtol=0)


def test_a_gradient_sparse_inside_a_point_is_refused() -> None:
    manifold = geoopt.Lorentz(number(1.0))
    table = geoopt.ManifoldParameter(cloud(manifold, 6, 4), manifold=manifold)
    before = table.detach().clone()
    optimizer = SRCD([table], lr=0.1)
    table.grad = torch.eye(6, 4, dtype=DOUBLE).to_sparse(2)
    with pytest.raises(ValueError, match="sparse inside a point"):
        optimizer.step()
    assert torch.equal(table.detach(), before)


@pytest.mark.parametrize("sparse", [False, True])
def test_nothing_to_do_is_no_error(sparse: bool) -> None:
    manifold = geoopt.Lorentz(number(1.0))
    table = geoopt.ManifoldParameter(cloud(manifold, 6, 4), manifold=manifold)
    before = table.detach().clone()
    grad = torch.zeros(6, 4, dtype=DOUBLE)
    for selection in (None, selections.GaussSouthwell(), selections.All()):
        table.grad = grad.to_sparse(1) if sparse else grad
        SRCD([table], lr=0.1, momentum=0.9, selection=selection).step()
        assert torch.equal(table.detach(), before)


def to_ball(x: Tensor) -> Tensor:
    """Return the stereographic projection of the hyperboloid of k = 1."""
    return x[..., 1:] / (1 + x[..., :1])


@pytest.mark.parametrize(
    "selection", [None, selections.Uniform(3), selections.GaussSouthwell(2), selections.All()]
)
def test_lorentz_and_poincare_take_the_same_steps(selection) -> None:
    """The two frames are one frame in two models: whole runs agree, momentum included."""
    lorentz, ball = geoopt.Lorentz(number(1.0)), geoopt.PoincareBall(number(1.0))
    start, goal = cloud(lorentz, 5, 5, size=0.5), cloud(lorentz, 5, 5, seed=1, size=0.5)
    tables = [
        geoopt.ManifoldParameter(start.clone(), manifold=lorentz),
        geoopt.ManifoldParameter(to_ball(start), manifold=ball),
    ]
    for table, manifold, end in zip(tables, (lorentz, ball), (goal, to_ball(goal)), strict=True):
        optimizer = SRCD([table], lr=0.05, momentum=0.8, selection=selection)
        for _ in range(10):
            optimizer.zero_grad()
            squared_distance(manifold, table, end).sum().backward()
            optimizer.step()
    assert torch.allclose(to_ball(tables[0].detach()), tables[1].detach(), atol=1e-7)


@pytest.mark.parametrize("make", [geoopt.PoincareBall, geoopt.PoincareBallExact, geoopt.Stereographic])
def test_a_ball_that_has_shrunk_is_noticed_within_a_step(make) -> None:
    """Under no_grad a computed curvature no longer says that it is learned."""
    manifold = (
        make(number(1.0), learnable=True)
        if make is not geoopt.Stereographic
        else make(number(-1.0), learnable=True)
    )
    basis, x = bases.StereographicBasis(manifold), torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64)
    with torch.no_grad():
        for param in manifold.parameters():
            param.add_(2.0 if make is not geoopt.Stereographic else -2.0)
        covector = basis.covector(x, torch.ones_like(x))
        assert (basis.partials(covector) > 0).all()  # the scale of the metric is positive inside


def test_slopes_on_a_hyperboloid_whose_curvature_has_moved_are_those_of_its_geodesics() -> None:
    manifold = geoopt.Lorentz(number(1.0), learnable=True)
    basis = bases.LorentzBasis(manifold)
    x = manifold.projx(torch.randn(5, dtype=torch.float64)).detach()
    with torch.no_grad():
        manifold.k.fill_(2.0)
        g = torch.randn(5, dtype=torch.float64)
        slopes = basis.partials(basis.covector(x, g))
        for i in range(basis.count(x.shape)):
            values = []
            for t in (1e-5, -1e-5):
                moved = x.clone()
                basis.move_(moved, torch.tensor([i]), torch.tensor([t], dtype=torch.float64))
                values.append(g @ moved)
            assert abs((values[0] - values[1]) / 2e-5 - slopes[i]) < 1e-8
