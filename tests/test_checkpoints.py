"""A run that was interrupted anywhere goes on bit for bit as if it had not been."""

import os
import random
import signal
import time

import geoopt
import pytest
import torch
import torch.distributed.checkpoint as dcp
from problems_for_tests import orthogonal
from processes import start, wait
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import riemcd
from riemcd import SRCD, selections, stepsizes
from riemcd.files import save_atomically, write_atomically

RULES = {
    "momentum": lambda: dict(momentum=0.9, dampening=0.1),
    "cyclic": lambda: dict(selection=selections.Cyclic(4), momentum=0.9),
    "round robin": lambda: dict(selection=selections.RoundRobin(), stabilize=4),
    "greedy": lambda: dict(selection=selections.GaussSouthwell(3), stepsize=stepsizes.RMSProp()),
    "growing": lambda: dict(selection=selections.Growing(selections.Uniform(1), 1, 5, 9)),
    "partition": lambda: dict(selection=selections.Partition(3)),
    "importance": lambda: dict(selection=selections.Importance(3)),
    "adam": lambda: dict(stepsize=stepsizes.Adam(amsgrad=True), selection=selections.Cyclic(5)),
    "skipping": lambda: dict(skip_weight_grad=True, selection=selections.Cyclic(4), momentum=0.9),
}
STEPS, HALF = 12, 5  # a sweep of 15 coordinates, four at a time, is broken in its second round


class Network(nn.Module):
    """An orthogonal layer and plain parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = riemcd.nn.OrthogonalLinear(6, 6, dtype=torch.float64)
        self.head = nn.Linear(6, 1, dtype=torch.float64)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)))


def make(rule):
    net = Network()
    return net, SRCD(net.parameters(), lr=0.05, **RULES[rule]())


def advance(net, opt, begin, end):
    for step in range(begin, end):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()


def weights(net):
    return [param.detach().as_subclass(torch.Tensor).clone() for param in net.parameters()]


def uninterrupted(rule, steps=STEPS):
    net, opt = make(rule)
    advance(net, opt, 0, steps)
    return weights(net)


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def run_to(rule, path, end):
    """Go on from the checkpoint, if there is one, to step ``end``; save after it."""
    net, opt = make(rule)
    begin = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        begin = saved["step"]
    advance(net, opt, begin, end)
    save_atomically({"net": net.state_dict(), "opt": opt.state_dict(), "step": end}, path)


@pytest.mark.parametrize("rule", RULES)
def test_in_the_middle_of_a_sweep(rule, tmp_path):
    path = tmp_path / "run.pt"
    for end in (3, HALF, STEPS):
        run_to(rule, path, end)
    found = torch.load(path, weights_only=True)["net"]
    assert same(found.values(), uninterrupted(rule))


@pytest.mark.parametrize("rule", ["cyclic", "skipping"])
def test_across_processes(rule, tmp_path):
    path = str(tmp_path / "run.pt")
    for end in (HALF, STEPS):
        assert wait(start(run_to, rule, path, end)) == 0
    assert same(torch.load(path, weights_only=True)["net"].values(), uninterrupted(rule))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_through_distributed_checkpoint(rule, flat, tmp_path):
    """torch's functions make the state of a fresh optimizer by a step with zero gradients and lr 0."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    net, opt = make(rule)
    advance(net, opt, 0, HALF)
    saved = dict(zip(("net", "opt"), get_state_dict(net, opt, options=options), strict=True))
    dcp.save(saved, checkpoint_id=tmp_path)
    net, opt = make(rule)
    before = weights(net)
    loaded = dict(zip(("net", "opt"), get_state_dict(net, opt, options=options), strict=True))
    assert same(weights(net), before)
    dcp.load(loaded, checkpoint_id=tmp_path)
    set_state_dict(net, opt, model_state_dict=loaded["net"], optim_state_dict=loaded["opt"], options=options)
    advance(net, opt, HALF, STEPS)
    assert same(weights(net), uninterrupted(rule))


@pytest.mark.parametrize("rule", ["cyclic", "adam"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_through_distributed_checkpoint_as_it_is(rule, tmp_path):
    """Plain state_dicts go through as well, into an optimizer that has its state already."""
    net, opt = make(rule)
    advance(net, opt, 0, HALF)
    dcp.save({"net": net.state_dict(), "opt": opt.state_dict()}, checkpoint_id=tmp_path)
    net, opt = make(rule)
    advance(net, opt, 0, 1)
    loaded = {"net": net.state_dict(), "opt": opt.state_dict()}
    dcp.load(loaded, checkpoint_id=tmp_path)
    net.load_state_dict(loaded["net"])
    opt.load_state_dict(loaded["opt"])
    advance(net, opt, HALF, STEPS)
    assert same(weights(net), uninterrupted(rule))


def test_points_with_a_memory_of_their_own_go_on_too(tmp_path):
    """SPD matrices keep a factor between steps."""

    def steps(W, opt, begin, end):
        for step in range(begin, end):
            generator = torch.Generator().manual_seed(step)
            grad = torch.randn(5, 5, generator=generator, dtype=torch.float64)
            W.grad = grad + grad.mT
            opt.step()

    def begin():
        q = orthogonal(5, 5)
        start = q @ torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64)) @ q.mT
        W = geoopt.ManifoldParameter(start, manifold=geoopt.SymmetricPositiveDefinite())
        return W, SRCD([W], lr=0.01)

    whole, opt = begin()
    steps(whole, opt, 0, STEPS)
    half, opt = begin()
    steps(half, opt, 0, HALF)
    torch.save({"W": half.detach().as_subclass(torch.Tensor), "opt": opt.state_dict()}, tmp_path / "c.pt")
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    rest = geoopt.ManifoldParameter(saved["W"], manifold=geoopt.SymmetricPositiveDefinite())
    opt = SRCD([rest], lr=0.01)
    opt.load_state_dict(saved["opt"])
    steps(rest, opt, HALF, STEPS)
    assert torch.equal(rest, whole)


def endless(path):
    """Steps and checkpoints, one after the other, until somebody ends it."""
    net, opt = make("cyclic")
    ballast = torch.zeros(300_000)  # writing takes longer than stepping
    step = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        step = saved["step"]
    while True:
        advance(net, opt, step, step + 1)
        step += 1
        content = {"net": net.state_dict(), "opt": opt.state_dict(), "step": step, "ballast": ballast + step}
        save_atomically(content, path)


def test_killed_at_any_moment(tmp_path):
    """kill -9 between steps or while writing: the file is whole, and the run goes on from it."""
    path = tmp_path / "run.pt"
    rng, last = random.Random(0), 0
    for _ in range(3):
        process = start(endless, str(path))
        _wait_for(lambda: path.exists() and torch.load(path, weights_only=True)["step"] > last)  # noqa: B023
        time.sleep(rng.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        assert wait(process) == -signal.SIGKILL
        saved = torch.load(path, weights_only=True)
        assert saved["step"] > last and bool((saved["ballast"] == saved["step"]).all())
        last = saved["step"]
    assert same(saved["net"].values(), uninterrupted("cyclic", last))


def _wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_file_is_replaced_or_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    path.chmod(0o640)

    def half(file):
        file.write(b"aft")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]
    write_atomically(path, lambda file: file.write(b"after"))
    assert path.read_bytes() == b"after" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        save_atomically({}, tmp_path / "nowhere" / "file")


def test_an_interrupted_step_is_taken_again(tmp_path):
    """Between backward and step a checkpoint knows nothing of the gradients: the step is done once."""
    expected = uninterrupted("skipping")
    net, opt = make("skipping")
    advance(net, opt, 0, HALF)
    net(torch.ones(2, 6, dtype=torch.float64)).sum().backward()  # lost in the crash
    saved = {"net": net.state_dict(), "opt": opt.state_dict()}
    torch.save(saved, tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    net, opt = make("skipping")
    net.load_state_dict(saved["net"])
    opt.load_state_dict(saved["opt"])
    advance(net, opt, HALF, STEPS)
    assert same(weights(net), expected)
