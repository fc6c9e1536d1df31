"""The fused recurrence against a loop that torch differentiates."""

import copy

import pytest
import torch
from torch import nn

from riemcd import SRCD, bases, selections
from riemcd.nn import ModReLU, OrthogonalRNN
from riemcd.nn.demand import gradient_node
from riemcd.nn.functional import modrelu
from riemcd.nn.nonlinearities import NONLINEARITIES
from riemcd.nn.rnn_function import Recurrence

NAMES = list(NONLINEARITIES)


def network(nonlinearity="modrelu", d=6, **options):
    torch.manual_seed(2)
    rnn = OrthogonalRNN(3, d, nonlinearity, dtype=torch.float64, **options)
    if rnn.bias is not None:
        nn.init.normal_(rnn.bias, std=0.3)  # some of modReLU's must cut off, some must push away
    return rnn


def sequence(steps=7, batch=4, seed=0, features=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, batch, features, dtype=torch.float64, generator=generator)


def loop(rnn, x, h=None):
    """Return all states, as a plain autograd loop computes them."""
    functions = {"tanh": torch.tanh, "relu": torch.relu, "identity": lambda z: z}
    h = x.new_zeros(x.shape[1], rnn.hidden_size) if h is None else h
    states = []
    for x_t in x:
        z = x_t @ rnn.weight_ih.T + h @ rnn.weight_hh.T
        if rnn.nonlinearity == "modrelu":
            h = z if rnn.bias is None else modrelu(z, rnn.bias)
        else:
            h = functions[rnn.nonlinearity](z if rnn.bias is None else z + rnn.bias)
        states.append(h)
    return torch.stack(states)


def loss_of(output):
    return (output**3).sum() + output[-1].cos().sum()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("start", [True, False], ids=["h0", "zero"])
@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_the_loop(name, start, bias):
    rnn, x = network(name, bias=bias), sequence().requires_grad_()
    h0 = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True) if start else None
    inputs = [x, *rnn.parameters(), *([h0] if start else [])]
    expected = loop(rnn, x, h0[0] if start else None)
    output, last = rnn(x, h0)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last[0], expected[-1])
    ours = torch.autograd.grad(loss_of(output) + last.sin().sum(), inputs)
    theirs = torch.autograd.grad(loss_of(expected) + expected[-1].sin().sum(), inputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("start", [True, False], ids=["h0", "zero"])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, start):
    rnn, x = network(name, d=4), sequence(4, 2).requires_grad_()
    h0 = torch.randn(2, 4, dtype=torch.float64, requires_grad=True) if start else None
    leaves = [p.detach().clone().requires_grad_() for p in (rnn.weight_ih, rnn.weight_hh, rnn.bias)]

    def run(x, h0, inward, weight, bias):
        return Recurrence.apply(x, h0, inward, weight, bias, NONLINEARITIES[name], gradient_node(weight))

    assert torch.autograd.gradcheck(run, (x, h0, *leaves))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
def test_gradcheck_while_slopes_are_left(name, basis):
    rnn, x = network(name, d=4), sequence(4, 2).requires_grad_()
    h0 = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    opt = SRCD(rnn.parameters(), basis=basis, skip_weight_grad=True)
    assert torch.autograd.gradcheck(lambda *given: rnn(given[0], given[1]), (x, h0, *rnn.parameters()))
    assert opt._office.slot(rnn.weight_hh) is None


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("start", [True, False], ids=["h0", "zero"])
@pytest.mark.parametrize("every", [None, 4])
@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
@pytest.mark.parametrize(
    "rule",
    [
        selections.Uniform(1),
        selections.RandomMatching(),
        selections.Partition(3),
        selections.GaussSouthwell(k=3),
    ],
    ids=repr,
)
def test_the_slopes_left_are_those_of_the_gradient(monkeypatch, rule, basis, every, start, steps):
    monkeypatch.setattr("riemcd.nn.rnn_function._ROWS", 12)  # several pieces of three steps
    rnn, x = network(checkpoint_every=every), sequence(steps)
    h0 = torch.randn(1, 4, 6, dtype=torch.float64) if start else None
    weight = rnn.weight_hh
    (gradient,) = torch.autograd.grad(
        loss_of(loop(rnn, x, h0[0] if start else None)), weight, allow_unused=True
    )
    gradient = torch.zeros_like(weight) if gradient is None else gradient
    expected = basis.partials(basis.covector(weight.detach(), gradient))
    opt = SRCD(rnn.parameters(), lr=1.0, basis=basis, selection=rule, skip_weight_grad=True)
    loss_of(rnn(x, h0)[0]).backward()
    assert weight.grad is None
    assert rnn.weight_ih.grad is not None
    opt.step()
    if steps == 1 and not start:  # the recurrence took no part
        assert not opt.last_step.moved or not opt.last_step.moved["0.1"].amounts.any()
        return
    moved, coords = opt.last_step.moved["0.1"], opt.last_step.coordinates["0.1"]
    torch.testing.assert_close(-moved.amounts, expected[coords], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_checkpointing_changes_nothing(every):
    plain, x = network(), sequence().requires_grad_()
    thrifty = network(checkpoint_every=every)
    h0 = torch.randn(1, 4, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for rnn in (plain, thrifty):
        output, last = rnn(x, h0)
        grads = torch.autograd.grad(loss_of(output) + last.sum(), [x, h0, *rnn.parameters()])
        found.append([output, last, *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def train(rnn, steps, skip, **options):
    rnn = copy.deepcopy(rnn)
    opt = SRCD(rnn.parameters(), lr=0.01, skip_weight_grad=skip, **options)
    for step in range(steps):
        opt.zero_grad()
        output, _ = rnn(sequence(5, 3, seed=step))
        (output**2).sum(-1).tanh().mean().backward()
        opt.step()
    return rnn


@pytest.mark.parametrize(
    "rule", [selections.Uniform(1), selections.RandomMatching(), selections.GaussSouthwell(k=2)], ids=repr
)
@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
def test_two_hundred_steps_are_the_same_with_and_without_the_weight_gradient(rule, basis):
    rnn = network()
    runs = [train(rnn, 200, skip, selection=rule, basis=basis) for skip in (False, True)]
    for a, b in zip(*(run.parameters() for run in runs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert not torch.equal(rnn.weight_hh, runs[0].weight_hh)


@pytest.mark.parametrize("batch_first", [True, False])
def test_call_and_shapes_are_those_of_torch(batch_first):
    theirs = nn.RNN(3, 6, nonlinearity="tanh", batch_first=batch_first, dtype=torch.float64)
    ours = network("tanh", batch_first=batch_first)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.weight_ih)
        theirs.weight_hh_l0.copy_(ours.weight_hh)
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    x, h0 = sequence(), torch.randn(1, 4, 6, dtype=torch.float64)
    x = x.transpose(0, 1) if batch_first else x
    for arguments in ((x,), (x, h0), (x[0],), (x[0], h0[:, 0])):
        for a, b in zip(ours(*arguments), theirs(*arguments), strict=True):
            torch.testing.assert_close(a, b)


def test_only_the_last_state_may_be_used():
    rnn, x = network(), sequence().requires_grad_()
    ours = torch.autograd.grad(rnn(x)[1].sin().sum(), [x, rnn.weight_hh])
    theirs = torch.autograd.grad(loop(rnn, x)[-1].sin().sum(), [x, rnn.weight_hh])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("every", [None, 3])
def test_a_parametrized_weight_gets_its_gradient(every):
    """As geotorch and torch.nn.utils.parametrizations leave it: made anew whenever somebody asks for it."""
    rnn, x = network(checkpoint_every=every), sequence()
    rnn.weight_hh = nn.Parameter(rnn.weight_hh.detach().as_subclass(torch.Tensor).clone())
    nn.utils.parametrizations.orthogonal(rnn, "weight_hh")
    free = rnn.parametrizations.weight_hh.original
    ours, theirs = (torch.autograd.grad(loss_of(output), free) for output in (rnn(x)[0], loop(rnn, x)))
    assert float(theirs[0].abs().max()) > 0.1
    torch.testing.assert_close(ours, theirs)
    loss_of(rnn(x)[0]).backward()
    torch.testing.assert_close(free.grad, theirs[0])


def test_changing_the_output_in_place_is_refused_by_torch():
    """The output is what backward reads."""
    output, _ = network()(sequence())
    with pytest.raises(RuntimeError, match="inplace"):
        output.mul_(2)
    with torch.no_grad():
        output.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        output.sum().backward()


def test_evaluation_without_gradients():
    rnn, x = network(), sequence()
    with torch.no_grad():
        output, _ = rnn(x)
    assert not output.requires_grad
    torch.testing.assert_close(output, loop(rnn, x))


def test_differentiating_twice_is_refused_with_a_sentence():
    rnn, x = network(), sequence().requires_grad_()
    with pytest.raises(RuntimeError, match="OrthogonalRNN cannot be differentiated twice"):
        torch.autograd.grad(rnn(x)[0].sum(), x, create_graph=True)


def test_wrong_arguments_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="nonlinearity must be one of modrelu"):
        OrthogonalRNN(3, 4, "sigmoid")
    with pytest.raises(ValueError, match="checkpoint_every"):
        OrthogonalRNN(3, 4, checkpoint_every=0)
    rnn = network()
    with pytest.raises(ValueError, match=r"input must be \(time, batch, 3\)"):
        rnn(torch.zeros(5, 2, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"hx must have shape \(1, 2, 6\)"):
        rnn(torch.zeros(5, 2, 3, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="at least one time step"):
        rnn(torch.zeros(0, 2, 3, dtype=torch.float64))
    packed = nn.utils.rnn.pack_sequence([torch.zeros(5, 3, dtype=torch.float64)])
    with pytest.raises(TypeError, match="pad_packed_sequence"):
        rnn(packed)


def test_modrelu_module_keeps_signs():
    module = ModReLU(50)
    assert bool((module.bias.abs() <= 0.01).all())
    z = torch.randn(20, 50)
    out = module(z)
    assert bool(((out == 0) | (out.sign() == z.sign())).all())
    torch.testing.assert_close(out.abs(), (z.abs() + module.bias).clamp(min=0))
    assert repr(module) == "ModReLU(50)"
    assert "nonlinearity='modrelu'" in repr(network())


@pytest.mark.parametrize("skips", [False, True])
def test_an_empty_batch_goes_back(skips):
    rnn = OrthogonalRNN(2, 3)
    opt = SRCD(rnn.parameters(), lr=0.1, skip_weight_grad=skips)
    output, _ = rnn(torch.randn(4, 0, 2))
    output.sum().backward()
    opt.step()
    assert output.shape == (4, 0, 3)


def test_a_bias_that_is_not_a_number_shows():
    """Compiled or not, what has diverged is not taken for zero."""
    rnn = OrthogonalRNN(2, 3)
    with torch.no_grad():
        rnn.bias.fill_(torch.nan)
        assert bool(torch.isnan(rnn(torch.randn(2, 5, 2))[0]).all())
