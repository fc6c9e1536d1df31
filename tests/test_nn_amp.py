"""Mixed precision: autocast, gradient scalers, and what clipping sees."""

import copy
import warnings

import pytest
import torch
from torch import nn

from riemcd import SRCD, selections, stepsizes
from riemcd.nn import OrthogonalLinear, OrthogonalRNN


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(OrthogonalLinear(8, 8), nn.Tanh(), OrthogonalLinear(8, 5), nn.Linear(5, 1))


def data(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 8, generator=generator)
    return x, x.prod(-1, keepdim=True).tanh()


def train(model, steps, *, skip, scaler=None, dtype=None, **options):
    model = copy.deepcopy(model)
    opt = SRCD(model.parameters(), lr=0.05, skip_weight_grad=skip, **options)
    losses = []
    for step in range(steps):
        x, y = data(step % 7)
        opt.zero_grad()
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.mse_loss(model(x).float(), y)
        losses.append(float(loss.detach()))
        if scaler is None:
            loss.backward()
            opt.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return model, losses


@pytest.mark.parametrize("rule", [selections.RandomMatching(), selections.GaussSouthwell(k=3)], ids=repr)
def test_a_scale_is_divided_out(rule):
    """The scale is a power of two: the numbers must be those without it, to the last bit or nearly."""
    plain, _ = train(model_of(), 20, skip=True, selection=rule)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled, _ = train(model_of(), 20, skip=True, selection=rule, scaler=scaler)
    for a, b in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_the_protocol_is_spoken_only_where_slopes_are_left():
    layer = OrthogonalLinear(4, 4)
    assert not SRCD(layer.parameters())._step_supports_amp_scaling
    opt = SRCD(layer.parameters(), skip_weight_grad=True)
    assert opt._step_supports_amp_scaling


def overflowing_step(layer, opt, scaler):
    loss = layer(torch.ones(2, 4)).sum() * 1e36  # finite, but not when it is scaled
    scaler.scale(loss).backward()
    before = [p.detach().clone() for p in layer.parameters()]
    scaler.step(opt)
    scaler.update()
    return before


@pytest.mark.parametrize("separate", [False, True], ids=["one optimizer", "weight alone"])
def test_a_step_that_overflows_is_skipped_and_its_slopes_forgotten(separate):
    torch.manual_seed(0)
    layer = OrthogonalLinear(4, 4)
    params = [layer.weight] if separate else list(layer.parameters())
    opt = SRCD(params, lr=0.1, skip_weight_grad=True)
    other = torch.optim.SGD([layer.bias], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    if separate:  # the scaler sees the overflow in the other optimizer's gradients only
        loss = layer(torch.ones(2, 4)).sum() * 1e36  # finite, but not when it is scaled
        scaler.scale(loss).backward()
        before = [p.detach().clone() for p in layer.parameters()]
        scaler.step(opt)
        scaler.step(other)
        scaler.update()
    else:
        before = overflowing_step(layer, opt, scaler)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
    assert scaler.get_scale() == 2.0**15
    assert opt._office.slot(layer.weight) is None
    assert not hasattr(opt, "found_inf")


def test_unscaling_by_hand_is_refused_with_a_sentence():
    layer = OrthogonalLinear(4, 4)
    opt = SRCD(layer.parameters(), lr=0.1, skip_weight_grad=True)
    scaler = torch.amp.GradScaler("cpu")
    before = layer.weight.detach().clone()
    scaler.scale(layer(torch.ones(2, 4)).sum()).backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match=r"scaler.unscale_\(optimizer\) divides gradients, but"):
        scaler.step(opt)
    assert torch.equal(before, layer.weight)
    assert not hasattr(opt, "grad_scale"), "a later step would take the scale twice"


def test_unscaling_by_hand_works_without_slopes():
    layer = OrthogonalLinear(4, 4)
    opt = SRCD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = layer.weight.detach().clone()
    scaler.scale((layer(torch.arange(8.0).view(2, 4)) ** 3).sum()).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    scaler.step(opt)
    assert not torch.equal(before, layer.weight)


def test_a_disabled_scaler_is_nothing():
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    plain, _ = train(model_of(), 5, skip=True)
    through, _ = train(model_of(), 5, skip=True, scaler=scaler)
    for a, b in zip(plain.parameters(), through.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scaled", [False, True])
def test_autocast_trains_as_well_as_single_precision(scaled):
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    _, exact = train(model_of(), 150, skip=True)
    model, losses = train(model_of(), 150, skip=True, dtype=torch.bfloat16, scaler=scaler)
    assert sum(losses[-14:]) < 0.7 * sum(losses[:14])
    assert sum(losses[-14:]) < 1.2 * sum(exact[-14:])
    weight = model[0].weight.detach()
    assert weight.dtype is torch.float32
    assert float((weight.mT @ weight - torch.eye(8)).abs().max()) < 1e-5


def test_slopes_under_autocast_are_those_of_the_gradient_to_the_precision_of_bfloat16():
    torch.manual_seed(0)
    layer, x = OrthogonalLinear(16, 16), torch.randn(64, 16, requires_grad=True)
    opt = SRCD(layer.parameters(), lr=1.0, selection=selections.All())
    basis = opt.plans[layer.weight].basis
    layer(x).pow(3).sum().backward()
    expected = basis.partials(basis.covector(layer.weight.detach(), layer.weight.grad))
    layer.zero_grad()
    opt = SRCD(layer.parameters(), lr=1.0, selection=selections.All(), skip_weight_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        assert y.dtype is torch.bfloat16
    y.float().pow(3).sum().backward()
    assert x.grad.dtype is torch.float32
    opt.step()
    slopes = -opt.last_step.moved["0.0"].amounts
    assert slopes.dtype is torch.float32
    assert (slopes - expected).norm() < 8 * 2.0**-8 * expected.norm()


@pytest.mark.parametrize("skip", [False, True])
def test_the_recurrence_under_autocast(skip):
    torch.manual_seed(0)
    rnn = OrthogonalRNN(3, 16)
    opt = SRCD(rnn.parameters(), lr=0.1, skip_weight_grad=skip)
    with torch.autocast("cpu", torch.bfloat16):
        output, last = rnn(torch.randn(5, 4, 3))
    assert output.dtype is last.dtype is torch.bfloat16
    reference, _ = rnn(torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0)))
    assert reference.dtype is torch.float32
    before = rnn.weight_hh.detach().clone()
    output.float().square().sum().backward()
    assert (rnn.weight_hh.grad is None) == skip
    assert rnn.weight_ih.grad.dtype is torch.float32
    opt.step()
    assert not torch.equal(before, rnn.weight_hh)


def test_clip_grad_norm_sees_ordinary_gradients_only_and_clipped_limits_the_rest():
    torch.manual_seed(0)
    layer = OrthogonalLinear(6, 6)
    opt = SRCD(
        layer.parameters(),
        lr=10.0,
        stepsize=stepsizes.Clipped(stepsizes.Constant(), 0.1),
        skip_weight_grad=True,
    )
    (layer(torch.randn(9, 6)) ** 3).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    assert norm > 1
    torch.testing.assert_close(layer.bias.grad.norm(), torch.tensor(1.0), rtol=1e-4, atol=0)
    opt.step()
    assert opt.last_step.clipped > 0
    assert opt.last_step.largest_angle <= 0.1 + 1e-6
