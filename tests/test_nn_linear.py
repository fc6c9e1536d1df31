"""Linear layers: the slopes they leave are those of the true gradient, and training is the same."""

import copy

import geoopt
import pytest
import torch
from torch.nn import functional

import riemcd
from riemcd import SRCD, bases, selections
from riemcd.nn import OrthogonalLinear
from riemcd.nn.functional import linear

SHAPES = {"square": (6, 6), "tall": (4, 7), "wide": (7, 4)}  # in, out
BASES = [bases.RightGivens(), bases.LeftGivens(), bases.RightGivens(canonical=True)]
RULES = [
    selections.Uniform(1),
    selections.Uniform(3),
    selections.Cyclic(2),
    selections.RandomMatching(),
    selections.RoundRobin(),
    selections.Partition(3),
    selections.All(),
    selections.GaussSouthwell(),
    selections.GaussSouthwell(k=2),
]


def layer_of(shape, **options):
    torch.manual_seed(3)
    layer = OrthogonalLinear(*SHAPES[shape], dtype=torch.float64, **options)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer


def inputs(shape, *batch, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, SHAPES[shape][0], dtype=torch.float64, generator=generator)


def loss_of(layer, x):
    return (layer(x) ** 3).sum() + layer(x.flip(0)).sin().sum()  # the weight is used twice


def true_slopes(layer, x, basis):
    """Return every slope, from the gradient that torch itself computes."""
    weight = layer.weight.detach().clone().requires_grad_()
    matrix = weight.mT if layer.transposed else weight
    y = functional.linear(x.detach(), matrix, layer.bias)
    flipped = functional.linear(x.detach().flip(0), matrix, layer.bias)
    ((y**3).sum() + flipped.sin().sum()).backward()
    basis = basis.for_shape(weight.shape)
    return basis.partials(basis.covector(weight.detach(), weight.grad))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("basis", BASES, ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("frozen", [False, True], ids=["x", "frozen x"])
def test_the_slopes_left_are_those_of_the_gradient(shape, basis, rule, frozen):
    layer, x = layer_of(shape), inputs(shape, 3, 2)
    expected = true_slopes(layer, x, basis)
    opt = SRCD(layer.parameters(), lr=1.0, basis=basis, selection=rule, skip_weight_grad=True)
    loss_of(layer, x.requires_grad_(not frozen)).backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    opt.step()
    moved = opt.last_step.moved["0.0"]
    coords = opt.last_step.coordinates["0.0"]
    torch.testing.assert_close(-moved.amounts, expected[coords], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [False, True])
def test_input_and_bias_gradients_are_those_of_torch(shape, bias):
    layer, x = layer_of(shape, bias=bias), inputs(shape, 5).requires_grad_()
    loss_of(layer, x).backward()
    expected = [x.grad.clone(), layer.bias.grad.clone() if bias else None]
    x.grad = None
    layer.zero_grad()
    SRCD_alive = SRCD(layer.parameters(), skip_weight_grad=True)
    loss_of(layer, x).backward()
    torch.testing.assert_close(x.grad, expected[0])
    if bias:
        torch.testing.assert_close(layer.bias.grad, expected[1])
    assert layer.weight.grad is None
    del SRCD_alive


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("basis", BASES[:2], ids=repr)
def test_gradcheck_with_a_slot(shape, basis):
    layer, x = layer_of(shape), inputs(shape, 3).requires_grad_()
    opt = SRCD(layer.parameters(), basis=basis, skip_weight_grad=True)

    def through(x, bias):
        return linear(x, layer.weight, bias, transposed=layer.transposed)

    assert torch.autograd.gradcheck(through, (x, layer.bias))
    # The weight is asked for by name: the true gradient comes, whatever the optimizer wants.
    assert torch.autograd.gradcheck(
        lambda weight: linear(x, layer.weight, layer.bias, transposed=layer.transposed), (layer.weight,)
    )
    assert opt._office.slot(layer.weight) is None, "autograd.grad must leave nothing in the mailbox"


def train(layer, steps, skip, accumulate=1, **options):
    layer = copy.deepcopy(layer)
    opt = SRCD(layer.parameters(), lr=0.02, skip_weight_grad=skip, **options)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(accumulate):
            x = torch.randn(8, layer.in_features, dtype=torch.float64, generator=generator)
            loss_of(layer, x.requires_grad_()).tanh().backward()
        opt.step()
        assert (layer.weight.grad is None) == skip
    return layer


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {"selection": selections.Uniform(1)},
        {"selection": selections.RandomMatching(), "momentum": 0.9},
        {"selection": selections.GaussSouthwell(k=2)},
        {"selection": selections.RandomMatching(), "maximize": True, "accumulate": 2},
        {"basis": bases.RightGivens(), "stepsize": riemcd.stepsizes.Constant(), "nonfinite": "skip"},
    ],
    ids=["uniform", "momentum", "greedy", "maximize", "right"],
)
def test_two_hundred_steps_are_the_same_with_and_without_the_weight_gradient(shape, options):
    layer = layer_of(shape)
    with_gradient = train(layer, 200, False, **options)
    without = train(layer, 200, True, **options)
    for a, b in zip(with_gradient.parameters(), without.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert not torch.allclose(layer.weight, without.weight, atol=1e-3), "nothing was trained"


def test_any_optimizer_trains_the_layer():
    layer, x = layer_of("square"), inputs("square", 9)
    opt = geoopt.optim.RiemannianSGD(layer.parameters(), lr=1e-2)
    before = loss_of(layer, x)
    for _ in range(5):
        opt.zero_grad()
        loss_of(layer, x).backward()
        assert layer.weight.grad is not None
        opt.step()
    assert loss_of(layer, x) < before


def test_evaluation_without_gradients_leaves_nothing():
    layer, x = layer_of("square"), inputs("square", 9)
    opt = SRCD(layer.parameters(), skip_weight_grad=True)
    with torch.no_grad():
        y = layer(x)
    torch.testing.assert_close(y, functional.linear(x, layer.weight, layer.bias))
    assert not y.requires_grad
    opt.step()
    assert not opt.last_step.moved


def test_a_frozen_weight_takes_no_slopes():
    layer, x = layer_of("square"), inputs("square", 9).requires_grad_()
    opt = SRCD(layer.parameters(), lr=1.0, skip_weight_grad=True)
    layer.weight.requires_grad_(False)
    before = layer.weight.detach().clone()
    loss_of(layer, x).backward()
    opt.step()
    assert torch.equal(before, layer.weight)


def test_differentiating_twice_is_refused_with_a_sentence():
    layer, x = layer_of("square"), inputs("square", 2).requires_grad_()
    opt = SRCD(layer.parameters(), skip_weight_grad=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(loss_of(layer, x), x, create_graph=True)
    del opt


def test_a_gradient_penalty_pass_leaves_nothing_behind():
    layer, x = layer_of("square"), inputs("square", 4).requires_grad_()
    opt = SRCD(layer.parameters(), lr=1.0, selection=selections.All(), skip_weight_grad=True)
    torch.autograd.grad(loss_of(layer, x), x)
    opt.step()
    assert "0.0" not in opt.last_step.moved


def test_matrix_and_repr():
    layer = layer_of("wide")
    assert layer.weight.shape == (7, 4)
    assert layer.matrix.shape == (4, 7)
    assert "in_features=7" in repr(layer)
    with pytest.raises(TypeError, match="Stiefel"):
        OrthogonalLinear(3, 3, manifold=geoopt.Sphere())
    with pytest.raises(TypeError, match="fills a tensor"):
        OrthogonalLinear(3, 3, init="haar")
