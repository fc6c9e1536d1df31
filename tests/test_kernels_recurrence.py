"""The compiled recurrence does what the torch one does, for every shape and number of threads."""

import multiprocessing
import os
import threading

import pytest
import torch

from riemcd import SRCD, bases, selections
from riemcd.kernels import native, recurrence, team
from riemcd.nn import OrthogonalRNN
from riemcd.nn.nonlinearities import NONLINEARITIES

pytestmark = pytest.mark.skipif(not team.available(), reason="numba is not installed")

DTYPES = [torch.float32, torch.float64]
#: (time, batch, hidden, features)
SHAPES = [(1, 1, 1, 1), (3, 1, 25, 2), (4, 5, 13, 3), (2, 67, 12, 30), (5, 131, 49, 10), (3, 9, 300, 270)]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def network(name, shape, dtype, bias=True, **options):
    torch.manual_seed(3)
    rnn = OrthogonalRNN(shape[3], shape[2], name, bias=bias, dtype=dtype, **options)
    if bias:
        torch.nn.init.normal_(rnn.bias, std=0.3)
    return rnn


def given(shape, dtype, start):
    steps, batch, d, features = shape
    x = torch.randn(steps, batch, features, dtype=dtype, requires_grad=True)
    h0 = torch.randn(1, batch, d, dtype=dtype, requires_grad=True) if start else None
    return x, h0


def everything(rnn, x, h0, outer):
    """Return outputs and all gradients; with ``outer`` every output counts, else the last state alone."""
    output, last = rnn(x, h0)
    loss = last.sin().sum() + ((output**2).sum() if outer else 0.0)
    inputs = [one for one in (x, h0, *rnn.parameters()) if one is not None]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    return [output, last, *(g for g in grads if g is not None)]


def served(monkeypatch):
    """Return a list that grows by one name with every call of a compiled kernel."""
    names, run = [], team.run
    monkeypatch.setattr(team, "run", lambda name, *rest: (names.append(name), run(name, *rest))[1])
    return names


@pytest.mark.parametrize("outer", [True, False], ids=["all", "last"])
@pytest.mark.parametrize("start", [True, False], ids=["h0", "zero"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NONLINEARITIES)
def test_every_function_is_that_of_torch(monkeypatch, name, dtype, bias, start, outer):
    names = served(monkeypatch)
    shape = (9, 7, 29, 3)
    monkeypatch.setattr("riemcd.nn.rnn_function._ROWS", 4 * 7)  # pieces of four steps
    rnn, (x, h0) = network(name, shape, dtype, bias), given(shape, dtype, start)
    ours = everything(rnn, x, h0, outer)
    assert {"recurrence", "recurrence_back"} <= set(names)
    with native.only_torch():
        theirs = everything(rnn, x, h0, outer)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4 if dtype is torch.float32 else 1e-11, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_served(threads, shape, dtype):
    rnn, (x, h0) = network("modrelu", shape, dtype), given(shape, dtype, True)
    ours = everything(rnn, x, h0, True)
    with native.only_torch():
        theirs = everything(rnn, x, h0, True)
    tolerance = 2e-5 if dtype is torch.float32 else 1e-12
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).detach().abs().max()) <= tolerance * (1 + float(b.detach().abs().max()))


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_states_and_their_gradients_do_not_depend_on_the_number_of_threads(name):
    shape = (4, 37, 50, 3)
    rnn, (x, h0) = network(name, shape, torch.float32), given(shape, torch.float32, True)
    before, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            output, last = rnn(x, h0)
            found.append([output, *torch.autograd.grad((output**2).sum() + last.sum(), [h0, rnn.bias])])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
@pytest.mark.parametrize(
    "rule", [selections.Uniform(1), selections.Partition(5), selections.GaussSouthwell(k=2)], ids=repr
)
def test_the_slopes_left_are_those_of_torch(rule, basis):
    shape = (6, 5, 20, 3)
    steps = []
    for context in (native.only_torch(), torch.enable_grad()):
        rnn = network("modrelu", shape, torch.float64)
        opt = SRCD(rnn.parameters(), lr=0.1, basis=basis, selection=rule, skip_weight_grad=True)
        torch.manual_seed(5)
        x, _ = given(shape, torch.float64, False)
        with context:
            (rnn(x)[0] ** 2).tanh().sum().backward()
            opt.step()
        steps.append(rnn.weight_hh.detach())
    torch.testing.assert_close(*steps, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_first", [True, False])
def test_inputs_and_gradients_of_any_stride(batch_first):
    rnn = network("tanh", (5, 6, 14, 3), torch.float64, batch_first=batch_first)
    wide = torch.randn(5, 6, 6, dtype=torch.float64)
    for x in (
        wide[..., ::2],
        wide[..., :3],
        wide.transpose(0, 1)[:, :, 1:4],
        wide[:, :1, :3].expand(5, 4, 3),
    ):
        x = x.detach().requires_grad_()
        h0 = torch.randn(1, x.shape[0 if batch_first else 1], 28, dtype=torch.float64)[..., ::2]
        for loss in (lambda o, h: o.sum(), lambda o, h: (o[..., ::2] ** 2).sum() + h.sum()):
            ours = torch.autograd.grad(loss(*rnn(x, h0)), [x, *rnn.parameters()])
            with native.only_torch():
                theirs = torch.autograd.grad(loss(*rnn(x, h0)), [x, *rnn.parameters()])
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tangents_are_right_to_a_few_bits_everywhere(dtype):
    rnn = OrthogonalRNN(1, 1, "tanh", bias=False, dtype=dtype)
    torch.nn.init.ones_(rnn.weight_ih)
    size = torch.logspace(-30, 2.5, 4001, dtype=torch.float64).to(dtype)
    special = torch.tensor([0.0, torch.inf, 1e-40, 8.99, 9.01, 19.1], dtype=dtype)
    z = torch.cat([size, -size, special, -special, special.new_tensor([torch.nan])])
    with torch.no_grad():
        found, _ = rnn(z.view(1, -1, 1))
    expected = z.double().tanh()
    torch.testing.assert_close(
        found.flatten().double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_what_is_not_finite_shows_as_in_torch(name):
    shape = (3, 5, 13, 2)
    rnn, (x, _) = network(name, shape, torch.float64), given(shape, torch.float64, False)
    with torch.no_grad():
        x[1, 2, 0] = torch.nan
    ours = rnn(x)[0].isnan()
    with native.only_torch():
        assert torch.equal(ours, rnn(x)[0].isnan())
    assert not ours[:, [0, 1, 3, 4]].any() and ours[1:, 2].all()


def test_few_rows_and_a_large_weight_are_left_to_torch():
    weight = torch.randn(600, 600)
    assert recurrence.panels_for(torch.zeros(3, 2, 600), weight, None) is None
    assert recurrence.panels_for(torch.zeros(3, 512, 600), weight, None) is not None
    assert recurrence.panels_for(torch.zeros(3, 512, 600), weight.bfloat16(), None) is None


def test_threads_do_not_disturb_each_other():
    shape = (20, 33, 40, 3)
    rnn, (x, h0) = network("modrelu", shape, torch.float32), given(shape, torch.float32, True)
    expected, found = everything(rnn, x, h0, True)[0].detach(), {}

    def work(number):
        found[number] = [rnn(x, h0)[0].detach() for _ in range(20)]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(one, expected) for several in found.values() for one in several)


def _in_a_child(queue, rnn, x):
    torch.set_num_threads(1)  # torch's own loops would wait for ever
    queue.put(float(rnn(x)[0].detach().double().sum()))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_run_it():
    shape = (20, 33, 40, 3)
    rnn, (x, _) = network("modrelu", shape, torch.float32), given(shape, torch.float32, False)
    expected = float(rnn(x)[0].detach().double().sum())
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_a_child, args=(queue, rnn, x.detach()))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == pytest.approx(expected, rel=1e-6)
