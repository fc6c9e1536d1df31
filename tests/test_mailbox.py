"""Slots: what lies in them, when it is taken, and when it is forgotten."""

import copy
import gc
import io

import geoopt
import pytest
import torch
from torch.nn import functional

from riemcd import SRCD, bases, mailbox, selections
from riemcd.nn import OrthogonalLinear
from riemcd.nn.functional import linear


def weight_of(d=6, seed=0):
    torch.manual_seed(seed)
    return geoopt.ManifoldParameter(
        torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q, manifold=geoopt.EuclideanStiefel()
    )


def inputs(d=6, seed=1):
    return torch.randn(5, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss_of(weight, x, layer=linear):
    return (layer(x, weight) ** 3).sum()


def step_of(opt, weight):
    """Take a step and return by how much the weight moved."""
    before = weight.detach().clone()
    opt.step()
    return weight.detach() - before


def ordinary_step(*passes, **options):
    """Return what a step with the weight gradient does after some backward passes."""
    weight = weight_of()
    opt = SRCD([weight], lr=0.1, **options)
    for x in passes:
        loss_of(weight, x, functional.linear).backward()
    return step_of(opt, weight)


@pytest.fixture
def owned():
    weight = weight_of()
    return weight, SRCD([weight], lr=0.1, skip_weight_grad=True)


def test_a_step_takes_what_was_left_and_only_once(owned):
    weight, opt = owned
    loss_of(weight, inputs()).backward()
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))
    assert not step_of(opt, weight).any()


def test_backward_passes_add_up(owned):
    weight, opt = owned
    a, b = inputs(seed=1), inputs(seed=2)
    loss_of(weight, a).backward()
    loss_of(weight, b).backward()
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(a, b))


def test_zero_grad_of_the_optimizer_forgets(owned):
    weight, opt = owned
    loss_of(weight, inputs(seed=2)).backward()
    opt.zero_grad()
    loss_of(weight, inputs()).backward()
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))


def test_zero_grad_of_the_model_cannot_be_seen():
    layer = OrthogonalLinear(6, 6, dtype=torch.float64)
    opt = SRCD(layer.parameters(), lr=0.1, skip_weight_grad=True)
    layer(inputs()).sum().backward()
    layer.zero_grad()
    opt.step()
    assert "0.0" in opt.last_step.moved, "documented: only the optimizer's zero_grad forgets slopes"


@pytest.mark.parametrize("rule", [selections.RandomMatching(), selections.GaussSouthwell(k=2)], ids=repr)
def test_an_ordinary_gradient_of_the_same_weight_is_added(rule):
    weight = weight_of()
    opt = SRCD([weight], lr=0.1, selection=rule, skip_weight_grad=True)
    loss_of(weight, inputs(seed=1)).backward()
    loss_of(weight, inputs(seed=2), functional.linear).backward()
    assert weight.grad is not None
    expected = ordinary_step(inputs(seed=1), inputs(seed=2), selection=rule)
    torch.testing.assert_close(step_of(opt, weight), expected)


def test_a_weight_used_only_outside_our_layers_is_trained_as_ever(owned):
    weight, opt = owned
    loss_of(weight, inputs(), functional.linear).backward()
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))


def test_a_weight_that_took_no_part_is_left_alone(owned):
    weight, opt = owned
    assert not step_of(opt, weight).any()
    assert not opt.state[weight]


def test_a_closure_may_run_backward(owned):
    weight, opt = owned

    def closure():
        opt.zero_grad()
        loss = loss_of(weight, inputs())
        loss.backward()
        return loss

    before = weight.detach().clone()
    assert opt.step(closure) is not None
    torch.testing.assert_close(weight.detach() - before, ordinary_step(inputs()))


def test_nothing_moves_when_slopes_are_not_finite_and_they_can_be_forgotten(owned):
    weight, opt = owned
    before = weight.detach().clone()
    loss_of(weight, inputs() * float("nan")).backward()
    with pytest.raises(ValueError, match="NaN or infinite"):
        opt.step()
    assert torch.equal(before, weight)
    opt.zero_grad()
    loss_of(weight, inputs()).backward()
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))


def test_slots_do_not_keep_an_optimizer_alive(owned):
    weight, opt = owned
    assert mailbox.find(weight) is not None
    del opt, owned
    gc.collect()


def test_when_the_optimizer_is_gone_layers_give_ordinary_gradients():
    weight = weight_of()
    opt = SRCD([weight], skip_weight_grad=True)
    y = loss_of(weight, inputs())
    del opt
    gc.collect()
    assert mailbox.find(weight) is None
    y.backward()  # forward had found a slot
    ours = weight.grad.clone()
    weight.grad = None
    loss_of(weight, inputs(), functional.linear).backward()
    torch.testing.assert_close(ours, weight.grad)


def test_the_newest_optimizer_owns_the_weight(owned):
    weight, _ = owned
    other = SRCD([weight], lr=0.1)
    loss_of(weight, inputs()).backward()
    assert weight.grad is not None
    torch.testing.assert_close(step_of(other, weight), ordinary_step(inputs()))


def test_the_option_can_be_switched_in_the_group(owned):
    weight, opt = owned
    opt.param_groups[0]["skip_weight_grad"] = False
    opt.step()  # takes the change over
    loss_of(weight, inputs()).backward()
    assert weight.grad is not None
    opt.zero_grad()
    opt.param_groups[0]["skip_weight_grad"] = True
    opt.step()
    loss_of(weight, inputs()).backward()
    assert weight.grad is None
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))


def test_another_rule_after_backward_keeps_the_coordinates(owned):
    weight, opt = owned
    loss_of(weight, inputs()).backward()
    opt.param_groups[0]["selection"] = selections.Uniform(2)
    torch.testing.assert_close(step_of(opt, weight), ordinary_step(inputs()))
    loss_of(weight, inputs()).backward()
    opt.step()
    assert opt.last_step.coordinates["0.0"].shape == (2,)


def test_another_basis_after_backward_is_refused(owned):
    weight, opt = owned
    loss_of(weight, inputs()).backward()
    opt.param_groups[0]["basis"] = bases.LeftGivens()
    with pytest.raises(ValueError, match="basis was changed between backward and step"):
        opt.step()
    opt.zero_grad()
    loss_of(weight, inputs()).backward()
    opt.step()


def test_checkpoints_resume_bit_for_bit(owned):
    weight, opt = owned
    for seed in range(3):
        loss_of(weight, inputs(seed=seed)).backward()
        opt.step()
    saved, point = copy.deepcopy(opt.state_dict()), weight.detach().clone()
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loss_of(weight, inputs(seed=9)).backward()
    expected = step_of(opt, weight)
    with torch.no_grad():
        weight.copy_(point)
    loss_of(weight, inputs(seed=4)).backward()  # left for a step that never comes
    opt.load_state_dict(torch.load(file, weights_only=True))
    loss_of(weight, inputs(seed=9)).backward()
    assert torch.equal(step_of(opt, weight), expected)


def test_copies_have_slots_of_their_own():
    layer = OrthogonalLinear(6, 6, bias=False, dtype=torch.float64)
    opt = SRCD(layer.parameters(), lr=0.1, skip_weight_grad=True)
    twin, twin_opt = copy.deepcopy((layer, opt))
    (twin(inputs()) ** 3).sum().backward()
    assert twin.weight.grad is None
    opt.step()
    assert torch.equal(layer.weight, twin.weight), "the copy's slopes went to the original"
    twin_opt.step()
    assert not torch.equal(layer.weight, twin.weight)


def test_what_cannot_work_is_refused_at_construction():
    point = geoopt.ManifoldParameter(torch.tensor([1.0, 0.0, 0.0]), manifold=geoopt.Sphere())
    with pytest.raises(ValueError, match=r"skip_weight_grad=True .* not Sphere"):
        SRCD([point], skip_weight_grad=True)
    stack = geoopt.ManifoldParameter(torch.eye(3).expand(2, 3, 3).clone(), manifold=geoopt.EuclideanStiefel())
    with pytest.raises(ValueError, match="one matrix"):
        SRCD([stack], skip_weight_grad=True)


def test_nothing_to_turn_is_no_error():
    weight = geoopt.ManifoldParameter(torch.ones(1, 1), manifold=geoopt.EuclideanStiefel())
    opt = SRCD([weight], skip_weight_grad=True)
    linear(torch.ones(2, 1), weight).sum().backward()
    opt.step()
    assert weight.item() == 1


def test_the_coordinates_are_drawn_once_per_step():
    class Counting(mailbox.Slot):
        turns = "columns"
        posted = 0

        def columns(self):
            return None

        def post(self, u, v, *, few=False):
            self.posted += 1
            assert u.shape == v.shape == (5, 6)

    weight, slot = weight_of(), Counting()
    mailbox.assign(weight, slot)
    x = inputs().requires_grad_()
    (loss_of(weight, x) + loss_of(weight, x)).backward()
    assert slot.posted == 2
    mailbox.withdraw(weight)
    assert mailbox.find(weight) is None
    mailbox.withdraw(weight)
