"""Putting weights of modules on manifolds, and the report about it."""

import math

import geoopt
import pytest
import torch
from problems_for_tests import violation
from torch import nn

import riemcd
from riemcd import SRCD, constrain_, report, unconstrain_


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (3, 8)])
@pytest.mark.parametrize("init", ["nearest", "haar", "identity"])
def test_linear_layers_of_any_shape(shape, init):
    out, inp = shape
    layer = nn.Linear(inp, out)
    before = layer.weight.detach().clone()
    assert constrain_(layer, "weight", init=init) is layer
    weight = layer.weight.detach().clone()
    assert weight.shape == shape
    assert violation(weight if out >= inp else weight.T) < 1e-5
    if init == "nearest":
        u, _, v = torch.linalg.svd(before, full_matrices=False)
        assert (weight - u @ v).abs().max() < 1e-5
    if init == "identity":
        assert torch.equal(weight, torch.eye(*shape))
    opt = SRCD(layer.named_parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        layer(torch.randn(6, inp)).square().sum().backward()
        opt.step()
    assert violation(layer.weight.detach() if out >= inp else layer.weight.detach().T) < 1e-5
    assert not torch.equal(layer.weight, weight)
    value = layer.weight.detach().clone()
    assert unconstrain_(layer, "weight") is layer
    assert type(layer.weight) is nn.Parameter and torch.equal(layer.weight, value)
    assert list(dict(layer.named_parameters())) in (["weight", "bias"], ["bias", "weight"])


def test_blocks_are_constrained_one_by_one():
    cell = constrain_(nn.GRUCell(4, 4), "weight_hh", blocks=3)
    for block in cell.weight_hh.detach().chunk(3):
        assert violation(block) < 1e-5
    (points,) = (p for p in cell.parameters() if isinstance(p, geoopt.ManifoldParameter))
    assert points.shape == (3, 4, 4)


def test_convolutions_are_flattened():
    conv = constrain_(nn.Conv2d(2, 30, 3), "weight")
    assert conv.weight.shape == (30, 2, 3, 3)
    assert violation(conv.weight.detach().reshape(30, 18)) < 1e-5
    assert conv(torch.randn(1, 2, 5, 5)).shape == (1, 30, 3, 3)


def test_requires_grad_and_dtype_are_kept():
    layer = nn.Linear(4, 4).to(torch.bfloat16).requires_grad_(False)
    constrain_(layer)
    assert layer.weight.dtype == torch.bfloat16 and not layer.weight.requires_grad


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: constrain_(m, "wieght"), r"Linear has no parameter 'wieght'; it has 'weight', 'bias'"),
        (lambda m: constrain_(m, blocks=3), "blocks must divide the 4 rows of 'weight', got 3"),
        (
            lambda m: constrain_(m, init="random"),
            "init must be 'nearest', 'haar' or 'identity', got 'random'",
        ),
        (lambda m: unconstrain_(m), "'weight' of Linear is not on a manifold"),
        (lambda m: constrain_(constrain_(m, blocks=2), blocks=2), "parametrized already"),
    ],
    ids=range(5),
)
def test_mistakes_are_said_in_a_sentence(call, words):
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=words):
        call(layer)


@pytest.mark.parametrize("init", ["haar", "identity"])
def test_starts_of_stiefel_matrices_are_for_stiefel_manifolds(init):
    layer = nn.Linear(4, 6)
    with pytest.raises(ValueError, match="on Sphere start from the nearest point"):
        constrain_(layer, manifold=geoopt.Sphere(), init=init)
    assert type(layer.weight) is nn.Parameter
    constrain_(layer, manifold=geoopt.Sphere())
    assert geoopt.Sphere().check_point_on_manifold(layer.weight.detach())


def test_manifolds_are_instances():
    with pytest.raises(TypeError, match="instance of a geoopt manifold"):
        constrain_(nn.Linear(4, 4), manifold=geoopt.Stiefel)


def test_report_is_a_table_of_what_happens():
    model = nn.Sequential(
        constrain_(nn.Linear(6, 6)), constrain_(nn.Linear(3, 8, bias=False)), nn.Linear(8, 2)
    )
    opt = SRCD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    lines = report(model, opt).splitlines()
    head, *rows = lines
    assert head.split() == [
        "parameter",
        "manifold",
        "shape",
        "basis",
        "selection",
        "coordinates",
        "violation",
        "note",
    ]
    assert len(rows) == 5
    assert "0.weight" in rows[0] and "RightGivens" in rows[0] and " 15 " in rows[0]
    assert "plain: as in torch.optim" in rows[1]
    assert "LeftGivens" in rows[2] and " 28 " in rows[2] and "descends the canonical gradient" in rows[2]
    assert "not in this optimizer" in rows[3]


def test_diagnostics():
    W = geoopt.ManifoldParameter(torch.eye(5, dtype=torch.float64), manifold=geoopt.EuclideanStiefel())
    with pytest.raises(ValueError, match=r"call backward\(\) first"):
        riemcd.diagnostics.partial_derivatives(W)
    W.grad = torch.zeros(5, 5, dtype=torch.float64)
    W.grad[0, 1], W.grad[3, 2] = 3.0, 4.0
    slopes = riemcd.diagnostics.partial_derivatives(W)
    assert float(slopes.norm()) == pytest.approx(5 / 2**0.5)
    assert riemcd.diagnostics.gradient_sparsity(W, (0.5, 0.99)) == {0.5: 0.1, 0.99: 0.2}
    assert riemcd.diagnostics.gradient_sparsity(W, (0.6, 0.65), squared=True) == {0.6: 0.1, 0.65: 0.2}
    assert riemcd.diagnostics.constraint_violation(W) == 0
    assert riemcd.diagnostics.slope_check(riemcd.bases.RightGivens(), W) < 1e-8
    W.grad[0, 1] = torch.nan
    assert all(map(math.isnan, riemcd.diagnostics.gradient_sparsity(W).values()))
