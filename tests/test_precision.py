"""Parameters of every floating type: how far they drift, and mixed precision around them."""

import geoopt
import pytest
import torch
from problems_for_tests import orthogonal, violation
from torch import nn

from riemcd import SRCD, constrain_

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def drift(dtype, steps, stabilize=None, d=32):
    """‖WᵀW − I‖_F after steps along random gradients, and that of the rounded start."""
    W = geoopt.ManifoldParameter(orthogonal(d, d, dtype=dtype), manifold=geoopt.EuclideanStiefel())
    opt = SRCD([W], lr=0.05, stabilize=stabilize)
    start = violation(W)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        W.grad = torch.randn(d, d, generator=generator).to(dtype)
        opt.step()
    return violation(W), start


def projected(dtype, d=32):
    """The error that geoopt's projection leaves behind in this type, or in float32 where that is wider."""
    wide = torch.promote_types(dtype, torch.float32)
    return violation(geoopt.EuclideanStiefel().projx(orthogonal(d, d, dtype=wide)).to(dtype))


def bound(dtype, steps, d=32):
    """What rounding alone may do: every entry is rounded once per step, with errors that add up by chance.

    A rounding changes an entry of size 1/√d by at most ε/2 of it, which changes WᵀW − I by at most
    2·‖δ‖_F = ε·√d per step; independent errors of many steps add like their squares.
    """
    return torch.finfo(dtype).eps * (d * (1 + steps)) ** 0.5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drift_is_that_of_rounding(dtype):
    end, _ = drift(dtype, 300)
    assert end < 2 * bound(dtype, 300)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stabilize_brings_back_to_the_error_of_a_projection(dtype):
    end, start = drift(dtype, 300, stabilize=100)
    assert end < 4 * max(start, projected(dtype))


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_drift_over_ten_thousand_steps(dtype):
    free, start = drift(dtype, 10_000)
    held, _ = drift(dtype, 10_000, stabilize=100)
    print(f"\n{dtype}: start {start:.1e}, after 10000 steps {free:.1e}, with stabilize=100 {held:.1e}")
    assert free < 2 * bound(dtype, 10_000)
    assert held < 4 * max(start, projected(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_are_computed_in_float32_and_rounded_once(dtype):
    W = geoopt.ManifoldParameter(orthogonal(8, 8, dtype=dtype), manifold=geoopt.EuclideanStiefel())
    wide = nn.Parameter(W.detach().float())
    # Off the manifold by a rounding of the half type, which float32 is not forgiven.
    opt, twin = SRCD([W], lr=0.1), None
    point = geoopt.ManifoldParameter(torch.eye(8), manifold=geoopt.EuclideanStiefel())
    twin = SRCD([point], lr=0.1)
    with torch.no_grad():
        point.copy_(wide)
    grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    W.grad, point.grad = grad, grad.float()
    opt.step()
    twin.step()
    assert torch.equal(
        W.detach().as_subclass(torch.Tensor), point.detach().as_subclass(torch.Tensor).to(dtype)
    )


def net():
    torch.manual_seed(0)
    return nn.Sequential(constrain_(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_trains_float32_weights(dtype):
    model = net()
    opt = SRCD(model.parameters(), lr=0.05)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (model(x) - y).float().square().mean()
        loss.backward()
        assert model[0].weight.grad.dtype == torch.float32
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] and violation(model[0].weight) < 1e-5


def test_a_scaler_gives_the_same_steps_and_skips_overflows():
    model, twin = net(), net()
    opt, plain = SRCD(model.parameters(), lr=0.05), SRCD(twin.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    x, y = torch.randn(64, 8), torch.randn(64, 1)
    for step in range(10):
        opt.zero_grad()
        loss = (model(x) - y).square().mean()
        scaler.scale(loss * float("inf") if step == 4 else loss).backward()
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(opt)
        scaler.update()
        if step == 4:
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            continue
        plain.zero_grad()
        (twin(x) - y).square().mean().backward()
        plain.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-5
    assert scaler.get_scale() == 2.0**9


def test_clipping_after_unscaling():
    model = net()
    opt = SRCD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(model(torch.randn(64, 8)).square().mean()).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(opt)
    assert 0 < opt.last_step.largest_angle < 0.05 * 0.1
