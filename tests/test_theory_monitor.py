"""The monitor: Assumption 1 on every step that is taken, the descent inequality on average."""

import logging
import math

import geoopt
import numpy as np
import pytest
import torch

import riemcd
from riemcd.selections import (
    All,
    Cyclic,
    GaussSouthwell,
    Growing,
    Importance,
    Partition,
    RandomMatching,
    RoundRobin,
    Uniform,
)
from riemcd.theory import DescentMonitor, Noise, linear_trace_bound, smoothness


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed, d, batch=()):
    return geoopt.ManifoldParameter(
        torch.linalg.qr(normal(seed, *batch, d, d))[0], manifold=geoopt.EuclideanStiefel()
    )


def train(opt, loss, steps=20, noise=0.0):
    for step in range(steps):
        opt.zero_grad()
        value = loss()
        for group in opt.param_groups:
            for p in group["params"]:
                value = value + noise * (normal(step, *p.shape) * p).sum()
        value.backward()
        opt.step()


RULES = [
    Uniform(),
    Uniform(3),
    Cyclic(2),
    GaussSouthwell(),
    Importance(2),
    RandomMatching(),
    RoundRobin(),
    Partition(3),
    All(),
]


@pytest.mark.parametrize("d", [4, 5])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_rule_obeys_the_exact_constant(rule, d):
    M = normal(0, d, d)
    W = rotation(1, d)
    opt = riemcd.SRCD([W], lr=0.7 / linear_trace_bound(M), selection=rule)
    with DescentMonitor(opt, lambda: -(M * W).sum(), L=linear_trace_bound(M)) as monitor:
        train(opt, lambda: -(M * W).sum(), noise=0.3)
    assert len(monitor.records) == 20
    assert monitor.violations == []
    assert 0 < monitor.needed <= linear_trace_bound(M)


COVERED = [Uniform(), RandomMatching(), Partition(3), Importance(2), Growing(Uniform(), 1, 5, 40), All()]


@pytest.mark.parametrize("rule", COVERED, ids=repr)
@pytest.mark.parametrize("d", [4, 5])
def test_slack_of_the_expected_inequality(rule, d):
    """Without noise, over many steps: on average not negative."""
    M = normal(0, d, d)
    W = rotation(1, d)
    L = linear_trace_bound(M)
    # The weights of Importance make steps up to 1/explore times as long: alpha L M <= mu.
    opt = riemcd.SRCD([W], lr=0.2 / L, selection=rule)
    with DescentMonitor(opt, lambda: -(M * W).sum(), L=L, noise=Noise()) as monitor:
        train(opt, lambda: -(M * W).sum(), steps=60)
    slack = np.array([check.expected_slack for check in monitor.records])
    assert np.isfinite(slack).all()
    assert slack.mean() > -3 * slack.std(ddof=1) / math.sqrt(len(slack))


def test_an_L_that_is_too_small_is_noticed(caplog):
    M = torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0])).double()
    W = rotation(1, 4)
    opt = riemcd.SRCD([W], lr=0.1, selection=All())
    monitor = DescentMonitor(opt, lambda: -(M * W).sum(), L=0.05)
    with caplog.at_level(logging.WARNING, logger="riemcd.theory.monitor"):
        train(opt, lambda: -(M * W).sum(), steps=60, noise=1.0)
    monitor.close()
    assert monitor.violations
    assert monitor.needed > 0.05
    assert "breaks Assumption 1" in caplog.text


def test_free_variables_and_momentum_are_followed():
    """f is quadratic in X with curvature 2: whatever the rule does to X, L = 2 is enough and is needed."""
    X = torch.nn.Parameter(normal(0, 3))
    W = rotation(1, 3)
    opt = riemcd.SRCD([W, X], lr=0.05, momentum=0.9)
    with DescentMonitor(opt, lambda: X.square().sum() + 0 * W.sum()) as monitor:
        train(opt, lambda: X.square().sum() + 0 * W.sum())
    assert monitor.needed == pytest.approx(2.0, rel=1e-6)
    assert all(math.isnan(check.slack) for check in monitor.records)
    values = [check.value for check in monitor.records]
    assert values[1:] == [check.next_value for check in monitor.records[:-1]]


def test_batches_of_points():
    M = normal(0, 3, 4, 4)
    W = rotation(1, 4, (3,))
    L = max(linear_trace_bound(m) for m in M)
    opt = riemcd.SRCD([W], lr=0.5 / L, selection=GaussSouthwell())
    with DescentMonitor(opt, lambda: -(M * W).sum(), L=L) as monitor:
        train(opt, lambda: -(M * W).sum())
    assert monitor.violations == []


def test_other_manifolds():
    x = geoopt.ManifoldParameter(normal(0, 5) / normal(0, 5).norm(), manifold=geoopt.Sphere())
    a = normal(1, 5)
    opt = riemcd.SRCD([x], lr=0.1)
    with DescentMonitor(opt, lambda: (a * x).sum(), L=float(a.norm()), noise=Noise()) as monitor:
        train(opt, lambda: (a * x).sum())
    assert monitor.violations == []
    gradient = a - (a * x.detach()).sum() * x.detach()
    assert monitor.records[-1].squared_norm != pytest.approx(0.0)
    with DescentMonitor(opt, lambda: (a * x).sum()) as again:
        train(opt, lambda: (a * x).sum(), steps=1)
    assert again.records[0].squared_norm == pytest.approx(float(gradient.square().sum()))


def test_records_are_handed_on_and_gradients_left_alone():
    M, W = normal(0, 3, 3), rotation(1, 3)
    seen = []
    opt = riemcd.SRCD([W], lr=0.1)
    with DescentMonitor(opt, lambda: -(M * W).sum(), log=seen.append) as monitor:
        opt.zero_grad()
        (-(2 * M * W).sum()).backward()
        opt.step()
        assert torch.allclose(W.grad, -2 * M)
    assert seen == monitor.records
    train(opt, lambda: -(M * W).sum(), steps=3)
    assert len(monitor.records) == 1  # closed: it does not listen any more


def test_a_run_can_be_handed_to_the_bound():
    M, W = normal(0, 3, 3), rotation(1, 3)
    opt = riemcd.SRCD([W], lr=0.1)
    with DescentMonitor(opt, lambda: -(M * W).sum()) as monitor:
        train(opt, lambda: -(M * W).sum(), steps=5)
    run = monitor.run
    assert run.alphas.tolist() == [0.1] * 5
    assert len(run.values) == 6
    assert run.values[-1] == pytest.approx(float(-(M * W.detach()).sum()))


def test_groups_with_different_rates_have_no_alpha():
    V, W = rotation(1, 3), rotation(2, 3)
    opt = riemcd.SRCD([{"params": [V]}, {"params": [W], "lr": 0.2}], lr=0.1)
    with DescentMonitor(opt, lambda: (V * W).sum(), L=10.0, noise=Noise()) as monitor:
        train(opt, lambda: (V * W).sum(), steps=1)
    assert math.isnan(monitor.records[0].alpha)
    assert math.isnan(monitor.records[0].expected_slack)
    assert monitor.records[0].slack >= 0


@pytest.mark.parametrize("rule", [GaussSouthwell(), Cyclic(), RoundRobin()], ids=repr)
def test_rules_outside_of_the_theorem_are_refused_at_once(rule):
    W = rotation(1, 4)
    opt = riemcd.SRCD([W], selection=rule)
    with pytest.raises(ValueError, match="theorem says nothing"):
        DescentMonitor(opt, lambda: W.sum(), L=1.0, noise=Noise())


def test_refusals():
    W = rotation(1, 4)
    with pytest.raises(ValueError, match="maximize"):
        DescentMonitor(riemcd.SRCD([W], maximize=True), lambda: W.sum())
    with pytest.raises(ValueError, match="needs L"):
        DescentMonitor(riemcd.SRCD([W]), lambda: W.sum(), noise=Noise())
    sampled = smoothness(lambda W: W.sum().cos(), W, samples=4, refine=0)
    with pytest.raises(ValueError, match="no sample can show more"):
        DescentMonitor(riemcd.SRCD([W]), lambda: W.sum(), L=sampled)


def test_slopes_from_layers_are_refused():
    """Without a weight gradient there is nothing exact to compare with."""
    layer = riemcd.nn.OrthogonalLinear(4, 4)
    opt = riemcd.SRCD(layer.parameters(), lr=0.1, skip_weight_grad=True)
    with pytest.raises(ValueError, match="skip_weight_grad"):
        DescentMonitor(opt, lambda: layer(torch.ones(1, 4)).sum())
