"""Bases of the sphere inside SRCD: known minima, subspaces, no drift."""

from __future__ import annotations

import math

import geoopt
import pytest
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def squared_angle(x: Tensor, y: Tensor) -> Tensor:
    """Return squared distances that are smooth where the points meet, unlike the manifold's own."""
    z = (x - y).square().sum(-1) / 4  # sin^2 of half the angle
    exact = torch.asin(z.clamp(min=1e-6).sqrt()).square()
    return 4 * torch.where(z < 1e-5, z + z**2 / 3 + 8 * z**3 / 45, exact)


def descend(manifold: geoopt.Manifold, start: Tensor, loss, make, steps: int) -> Tensor:
    point = geoopt.ManifoldParameter(start.clone(), manifold=manifold)
    optimizer = make([point])
    for _ in range(steps):
        optimizer.zero_grad()
        loss(point).backward()
        optimizer.step()
    return point.detach().as_subclass(Tensor)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"selection": selections.GaussSouthwell()},
        {"selection": selections.Uniform(3)},
        {"basis": bases.SphereGivens()},
        {"basis": bases.SphereGivens(), "selection": selections.GaussSouthwell(2)},
        {"momentum": 0.5, "lr": 0.1},
    ],
)
def test_frechet_mean_is_that_of_riemannian_sgd(options) -> None:
    data = unit(normal(5) + 0.6 * normal(20, 5, seed=1))

    def loss(x: Tensor) -> Tensor:
        return squared_angle(x, data).mean()

    manifold = geoopt.Sphere()
    expected = descend(manifold, data[0], loss, lambda p: geoopt.optim.RiemannianSGD(p, lr=0.2), 200)
    found = descend(manifold, data[0], loss, lambda p: SRCD(p, **{"lr": 0.2, **options}), 300)
    assert float(squared_angle(found, expected).sqrt()) < 1e-5


@pytest.mark.parametrize("basis", [bases.SphereBasis(), bases.SphereGivens()])
def test_least_eigenvector(basis) -> None:
    """The minimum of x·Ax is known from how A was made."""
    q = torch.linalg.qr(normal(6, 6)).Q
    a = q * torch.arange(1.0, 7.0, dtype=DOUBLE) @ q.mT
    start = unit(normal(6, seed=2))
    found = descend(
        geoopt.SphereExact(), start, lambda x: x @ a @ x, lambda p: SRCD(p, lr=0.1, basis=basis), 800
    )
    assert abs(float(found @ q[:, 0])) == pytest.approx(1.0, abs=1e-10)


def test_single_coordinates_follow_the_table_of_formulas() -> None:
    """x_i = sin(φ + a) and the rest scales with cos(φ + a)/cos φ, where φ = asin x_i and a = t cos φ."""
    x = unit(normal(7, 4))
    t = 0.8 * normal(7, 1, seed=1)
    for i in range(4):
        phi = torch.asin(x[:, i : i + 1])
        turned = phi + t * torch.cos(phi)
        expected = x * torch.cos(turned) / torch.cos(phi)
        expected[:, i : i + 1] = torch.sin(turned)
        moved = x.clone()
        bases.SphereBasis().move_(moved, torch.tensor([i]), t)
        assert torch.allclose(moved, expected, atol=1e-13, rtol=0)


def test_no_move_at_the_poles_of_a_coordinate() -> None:
    x = torch.eye(3, dtype=DOUBLE)[0]
    moved = x.clone()
    bases.SphereBasis().move_(moved, torch.tensor([0]), torch.tensor([0.7], dtype=DOUBLE))
    assert torch.allclose(moved, x, atol=1e-15)


@pytest.mark.parametrize("basis", [bases.SphereBasis(), bases.SphereGivens()])
def test_single_precision_does_not_drift(basis) -> None:
    point = unit(normal(16, 7)).float()
    generator = torch.Generator().manual_seed(0)
    count = basis.count(point.shape)
    for step in range(3_000):
        basis.move_(point, torch.tensor([step % count]), 0.1 * torch.randn(16, 1, generator=generator))
    assert float((point.double().norm(dim=-1) - 1).abs().max()) < 2e-6


@pytest.mark.parametrize("kind", ["intersection", "complement"])
def test_subspaces_are_kept(kind: str) -> None:
    """The nearest point to a target inside a subspace is the normalised projection of the target."""
    manifold = geoopt.SphereExact(**{kind: normal(6, 3)})
    target = normal(6, seed=5)
    start = manifold.projx(normal(6, seed=6))
    found = descend(manifold, start, lambda x: -(x @ target), lambda p: SRCD(p, lr=0.2), 600)
    assert torch.allclose(found, manifold.projx(target), atol=1e-8)
    assert manifold.check_point_on_manifold(found, atol=1e-12, rtol=1e-12)


def test_subspaces_that_cannot_be_kept_are_refused() -> None:
    manifold = geoopt.SphereExact(intersection=normal(2, 6, 3))
    with pytest.raises(ValueError, match="one subspace for all points"):
        bases.basis_for(manifold)
    inside = geoopt.SphereExact(intersection=normal(6, 3))
    point = geoopt.ManifoldParameter(inside.projx(normal(6)), manifold=inside)
    for basis in (bases.SphereGivens(), bases.SphereBasis()):
        with pytest.raises(ValueError, match="leave the subspace"):
            SRCD([point], basis=basis)


def test_a_matching_of_entries_reaches_everything_at_once() -> None:
    """Disjoint rotations commute: a matching is the product of its rotations."""
    x = unit(normal(3, 6))
    index = bases.SphereGivens().index(x.shape)
    pairs = index.matching(torch.tensor([0, 4, 3]), torch.tensor([5, 1, 2]))
    amounts = normal(3, 3, seed=1)
    together, one_by_one = x.clone(), x.clone()
    bases.SphereGivens().move_(together, pairs, amounts)
    for m, i in enumerate(pairs.linear.tolist()):
        bases.SphereGivens().move_(one_by_one, torch.tensor([i]), amounts[:, m : m + 1])
    assert torch.allclose(together, one_by_one, atol=1e-14)
    assert torch.allclose(together.norm(dim=-1), torch.ones(3, dtype=DOUBLE), atol=1e-14)


def test_a_great_circle_closes() -> None:
    x = torch.tensor([0.0, 1.0, 0.0], dtype=DOUBLE)
    moved = x.clone()
    bases.SphereBasis().move_(moved, torch.tensor([0]), torch.tensor([2 * math.pi], dtype=DOUBLE))
    assert torch.allclose(moved, x, atol=1e-14)
