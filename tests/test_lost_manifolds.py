"""A manifold that got lost is noticed where that can be seen, and repaired by the group."""

import warnings

import geoopt
import pytest
import torch
from problems_for_tests import violation
from torch import nn

import riemcd
from riemcd import SRCD, constrain_
from riemcd.errors import ManifoldLostWarning


def model():
    return nn.Sequential(constrain_(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 1))


def train(net, opt, steps=2):
    for _ in range(steps):
        opt.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        opt.step()


def to_empty(net):
    values = net.state_dict()
    net.to("meta").to_empty(device="cpu")
    net.load_state_dict(values)


def assign(net):
    net.load_state_dict(model().state_dict(), assign=True)


def overwrite(net):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        net.double().float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def swap(net):
    net.zero_grad()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.load_state_dict(model().state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


WAYS = [to_empty, assign, overwrite, swap]


@pytest.mark.parametrize("lose", WAYS)
def test_before_the_optimizer_is_made(lose):
    net = model()
    lose(net)
    assert not isinstance(net[0].weight, geoopt.ManifoldParameter)
    with pytest.warns(ManifoldLostWarning, match="no parameter handed to SRCD has a manifold"):
        SRCD(net.parameters())
    with pytest.raises(ValueError, match="no parameter handed to SRCD has a manifold"):
        SRCD(net.parameters(), strict=True)


@pytest.mark.parametrize("lose", WAYS)
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "between steps"])
def test_after_the_optimizer_was_made(lose, steps):
    net = model()
    opt = SRCD(net.parameters(), lr=0.01, momentum=0.9)
    train(net, opt, steps)
    lose(net)
    with pytest.warns(ManifoldLostWarning, match=r"manifold") as caught:
        train(net, opt, 3)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "(parameter '0.0', shape (4, 4))" in str(caught[0].message)


@pytest.mark.parametrize("lose", WAYS)
def test_strict_raises_before_anything_moves(lose):
    net = model()
    opt = SRCD(net.parameters(), lr=0.01, momentum=0.9, strict=True)
    train(net, opt)
    lose(net)
    before = [p.detach().clone() for p in (*net.parameters(), *opt.param_groups[0]["params"])]
    for _ in range(2):
        with pytest.raises(ValueError, match="manifold"):
            train(net, opt, 1)
    after = (*net.parameters(), *opt.param_groups[0]["params"])
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("lose", WAYS)
def test_a_groups_manifold_repairs_it(lose):
    net = model()
    lose(net)
    opt = SRCD(
        [
            {"params": [net[0].weight], "manifold": geoopt.EuclideanStiefel()},
            {"params": [net[0].bias, *net[2].parameters()]},
        ],
        lr=0.05,
        strict=True,
    )
    before = net[0].weight.detach().clone()
    train(net, opt, 5)
    assert not torch.equal(net[0].weight, before) and violation(net[0].weight) < 1e-5


def test_a_swapped_parameter_is_repaired_in_the_running_optimizer():
    net = model()
    opt = SRCD(
        [{"params": [net[0].weight]}, {"params": [net[0].bias, *net[2].parameters()]}], lr=0.05, momentum=0.9
    )
    train(net, opt)
    swap(net)
    opt.param_groups[0]["manifold"] = geoopt.EuclideanStiefel()
    train(net, opt, 5)
    assert violation(net[0].weight) < 1e-5


def test_a_swapped_parameter_goes_on_as_a_plain_one():
    net = model()
    opt = SRCD(net.parameters(), lr=0.01, momentum=0.9)
    train(net, opt)
    swap(net)
    with pytest.warns(ManifoldLostWarning, match="trained by plain SGD"):
        train(net, opt, 1)
    assert opt.state[net[0].weight]["momentum_buffer"].shape == (4, 4)
    train(net, opt)


@pytest.mark.parametrize("why", ["frozen", "unused", "held elsewhere", "no backward"])
def test_parameters_without_a_gradient_are_not_taken_for_lost_ones(why):
    net, other = model(), model()
    opt = SRCD([*net.parameters(), *other.parameters()], lr=0.01, momentum=0.9, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if why == "no backward":
            opt.step()
        train(net, opt)
        if why == "frozen":
            net[0].weight.requires_grad_(False)
        train(other if why == "unused" else net, opt)


def test_loading_converting_and_copying_keep_the_manifold():
    net = model()
    net.load_state_dict(model().state_dict())
    net.double().to(torch.bfloat16).float().share_memory()
    assert isinstance(net[0].weight, geoopt.ManifoldParameter)


def test_one_of_two_manifolds_that_got_lost_after_the_first_step():
    net = nn.Sequential(model(), constrain_(nn.Linear(1, 1)))
    opt = SRCD(net.named_parameters(), lr=0.01)
    train(net, opt)
    assign(net[0])
    with pytest.warns(ManifoldLostWarning, match="'0.0.weight'"):
        train(net, opt)


@pytest.mark.parametrize("loses", ["assign", "to_empty"])
def test_a_weight_whose_gradient_is_never_formed_is_missed_too(loses):
    net = nn.Sequential(riemcd.nn.OrthogonalLinear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = SRCD(net.parameters(), lr=0.01, strict=True, skip_weight_grad=True)

    def iterate():
        opt.zero_grad()
        net(torch.ones(3, 4)).square().sum().backward()
        opt.step()

    iterate()
    if loses == "assign":
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)
    else:
        net.to("meta").to_empty(device="cpu")
        for param in net.parameters():
            nn.init.constant_(param, 0.1)
    with pytest.raises(ValueError, match="only the optimizer holds this parameter"):
        iterate()
