"""Doubly stochastic matrices: sums are kept by four-entry moves, and no entry leaves its bounds."""

import geoopt
import pytest
import torch

import riemcd
from riemcd.bases import BirkhoffBasis, basis_for
from riemcd.selections import Cyclic, GaussSouthwell, Uniform

BASIS = BirkhoffBasis()


def inside(*shape, seed=0, low=0.2, dtype=torch.float64):
    """Return random matrices whose sums are one to rounding; the last number of the shape is both n."""
    generator = torch.Generator().manual_seed(seed)
    x = low + torch.rand(*shape, shape[-1], generator=generator, dtype=torch.float64)
    for _ in range(300):
        x = x / x.sum(-1, keepdim=True)
        x = x / x.sum(-2, keepdim=True)
    return x.to(dtype)


def normal(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def drift(x, start):
    """Return by how much a sum of a row or a column has changed, without rounding of its own."""
    change = (x.double() - start.double()).numpy().astype("longdouble")
    return max(abs(change.sum(-1)).max(), abs(change.sum(-2)).max())


def cells(at, n):
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    (i, j), (k, l) = pairs[at // len(pairs)], pairs[at % len(pairs)]
    return i, j, k, l


@pytest.mark.parametrize("n", [2, 3, 10, 40])
@pytest.mark.parametrize("size", [1e-3, 1.0], ids=["small", "clipped"])
def test_sums_stay_within_1e14_over_a_thousand_moves(n, size):
    x = inside(n, seed=n)
    start = x.clone()
    coords = torch.randint(BASIS.count((n, n)), (1000,), generator=torch.Generator().manual_seed(n))
    for at, t in zip(coords, size * normal(1000), strict=True):
        BASIS.move_(x, at[None], t[None])
    assert drift(x, start) <= 1e-14
    assert (x > 0).all()


def test_sums_stay_within_1e14_over_a_thousand_moves_of_sets():
    x = inside(8)
    start = x.clone()
    for step in range(1000):
        coords = torch.randperm(28 * 28, generator=torch.Generator().manual_seed(step))[:6]
        BASIS.move_(x, coords, 1e-2 * normal(6, seed=step))
    assert drift(x, start) <= 1e-14
    assert (x > 0).all()


def test_one_coordinate_changes_four_entries_and_no_other_bit():
    n = 5
    for at in range(BASIS.count((n, n))):
        x, before = inside(n), inside(n)
        i, j, k, l = cells(at, n)
        BASIS.move_(x, torch.tensor([at]), torch.tensor([0.01], dtype=torch.float64))
        change = x - before
        expected = torch.zeros(n, n, dtype=torch.float64)
        expected[i, k] = expected[j, l] = 0.01
        expected[i, l] = expected[j, k] = -0.01
        torch.testing.assert_close(change, expected, rtol=0, atol=1e-16)
        assert (change != 0).sum() == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_move_stops_before_the_first_entry_vanishes(dtype, sign):
    n = 4
    for at in range(0, 36, 5):
        x = inside(n, seed=at, dtype=dtype)
        i, j, k, l = cells(at, n)
        bound = min(x[i, l], x[j, k]) if sign > 0 else min(x[i, k], x[j, l])
        moved = x.clone()
        BASIS.move_(moved, torch.tensor([at]), torch.tensor([sign * 5.0], dtype=dtype))
        assert (moved > 0).all()
        reached = sign * (moved[i, k] - x[i, k])
        assert float(reached / bound) == pytest.approx(1 - BASIS.margin, rel=1e-5)


def test_a_set_is_scaled_by_one_factor():
    x, coords = inside(5), torch.tensor([3, 50, 77])
    amounts = torch.tensor([0.9, -0.2, 0.4], dtype=torch.float64)
    whole, tiny = x.clone(), x.clone()
    BASIS.move_(whole, coords, amounts)
    BASIS.move_(tiny, coords, 1e-6 * amounts)
    ratio = (whole - x) / (1e-6 * ((tiny - x) / 1e-6))
    kept = ratio[(tiny - x).abs() > 1e-9]
    torch.testing.assert_close(kept, kept[:1].expand_as(kept), rtol=1e-6, atol=0)
    torch.testing.assert_close((whole / x).min(), torch.tensor(1e-3, dtype=torch.float64), rtol=1e-9, atol=0)


def test_each_element_of_a_batch_has_its_own_factor():
    x = inside(2, 3)
    expected = x.clone()
    amounts = torch.tensor([[3.0, 1.0], [1e-3, 1e-3]], dtype=torch.float64)
    for element in range(2):
        BASIS.move_(expected[element], torch.tensor([0, 4]), amounts[element])
    BASIS.move_(x, torch.tensor([0, 4]), amounts)
    assert torch.equal(x, expected)


def test_there_and_back_while_no_bound_is_met():
    x, t = inside(6), torch.tensor([0.02], dtype=torch.float64)
    for at in range(0, 225, 7):
        moved = x.clone()
        BASIS.move_(moved, torch.tensor([at]), t)
        BASIS.move_(moved, torch.tensor([at]), -t)
        torch.testing.assert_close(moved, x, rtol=0, atol=1e-16)


def test_an_entry_on_the_boundary_is_left_alone():
    x = torch.eye(3, dtype=torch.float64)
    for at in range(9):
        BASIS.move_(x, torch.tensor([at]), torch.tensor([0.0], dtype=torch.float64))
        assert torch.equal(x, torch.eye(3, dtype=torch.float64))
    BASIS.move_(x, torch.tensor([0]), torch.tensor([0.5], dtype=torch.float64))
    assert torch.equal(x, torch.eye(3, dtype=torch.float64))
    BASIS.move_(x, torch.tensor([0]), torch.tensor([-0.25], dtype=torch.float64))
    assert torch.equal(x[:2, :2], torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_pressing_on_never_reaches_zero(dtype):
    x = inside(4, dtype=dtype)
    for _ in range(300):
        BASIS.move_(x, torch.tensor([7]), torch.tensor([1.0], dtype=dtype))
    assert (x > 0).all()
    assert torch.isfinite(x).all()


def test_slopes_read_four_entries():
    n, g = 4, normal(3, 4, 4)
    covector = BASIS.covector(inside(3, n), g)
    slopes = BASIS.partials(covector)
    for at in range(36):
        i, j, k, l = cells(at, n)
        expected = g[:, i, k] - g[:, i, l] - g[:, j, k] + g[:, j, l]
        torch.testing.assert_close(slopes[:, at], expected)
        assert torch.equal(BASIS.partials(covector, torch.tensor([at]))[:, 0], expected)


def test_the_margin_must_leave_something():
    for margin in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="margin between 0 and 1"):
            BirkhoffBasis(margin)


def test_it_is_what_the_polytope_gets():
    basis = basis_for(geoopt.BirkhoffPolytope(), (3, 3))
    assert basis == BirkhoffBasis()
    assert "change of an entry" in basis.note(geoopt.BirkhoffPolytope(), (3, 3))


def test_matrices_of_one_entry_have_nothing_to_move():
    x = geoopt.ManifoldParameter(torch.ones(1, 1), manifold=geoopt.BirkhoffPolytope())
    optimizer = riemcd.SRCD([x], lr=0.1)
    x.grad = torch.ones(1, 1)
    optimizer.step()
    assert torch.equal(x.detach(), torch.ones(1, 1))


def nearest(make, target, steps, manifold):
    x = geoopt.ManifoldParameter(inside(target.shape[-1], seed=9), manifold=manifold)
    optimizer = make([x])
    for _ in range(steps):
        optimizer.zero_grad()
        (x - target).square().sum().div(2).backward()
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize(
    ("selection", "steps"), [(None, 1500), (Cyclic(1), 1500), (GaussSouthwell(1), 400)], ids=repr
)
def test_the_nearest_doubly_stochastic_matrix_is_found(selection, steps):
    """Adding a number to a row or to a column does not change the projection."""
    manifold, expected = geoopt.BirkhoffPolytope(tol=1e-9), inside(4, seed=3)
    target = expected + normal(4, 1, seed=4) + normal(1, 4, seed=5)
    # Along one coordinate the loss is a parabola of curvature four.
    found = nearest(lambda p: riemcd.SRCD(p, lr=0.25, selection=selection), target, steps, manifold)
    reference = nearest(lambda p: geoopt.optim.RiemannianSGD(p, lr=2.0), target, 150, manifold)
    assert (reference - expected).norm() < 1e-5
    assert (found - expected).norm() < 1e-5
    assert (found - reference).norm() < 1e-5
    assert (found.sum(-1) - 1).abs().max() < 1e-14


def test_an_optimum_on_the_boundary_is_approached():
    """The assignment problem: the best permutation is a corner of the polytope."""
    cost = torch.tensor([[1.0, 9.0, 9.0], [9.0, 9.0, 1.0], [9.0, 1.0, 9.0]], dtype=torch.float64)
    x = geoopt.ManifoldParameter(
        torch.full((3, 3), 1 / 3, dtype=torch.float64), manifold=geoopt.BirkhoffPolytope()
    )
    optimizer = riemcd.SRCD([x], lr=0.1, selection=Uniform(1))
    for _ in range(300):
        optimizer.zero_grad()
        (cost * x).sum().backward()
        optimizer.step()
    corner = (cost == 1.0).double()
    assert (x.detach() - corner).abs().max() < 1e-6
