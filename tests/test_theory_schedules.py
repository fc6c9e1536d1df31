"""The Robbins-Monro conditions: decided for formulas, and only tested for everything else."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from riemcd.stepsizes import RobbinsMonroLR, TheoremLR
from riemcd.theory import PowerLaw, is_robbins_monro


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)


@given(st.floats(-1, 3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_power_laws_are_decided(power, initial, offset):
    verdict = is_robbins_monro(PowerLaw(power, initial, offset))
    assert verdict.sum_diverges == (power <= 1)
    assert verdict.squares_converge == (power > 0.5)
    assert bool(verdict) == (0.5 < power <= 1)


def test_the_borders():
    assert is_robbins_monro(PowerLaw(1.0)).holds is True
    assert is_robbins_monro(PowerLaw(0.5)).holds is False
    assert is_robbins_monro(PowerLaw(math.nextafter(0.5, 1))).holds is True
    assert is_robbins_monro(PowerLaw(math.nextafter(1.0, 2))).holds is False


def test_the_condition_as_printed_in_the_paper_cannot_be_met():
    """ "The sum of squares is 0" leaves the steps no choice but to be zero, and then their sum is."""
    assert is_robbins_monro(0.0).holds is False
    assert is_robbins_monro(0.0).sum_diverges is False


def test_shipped_schedulers_are_decided():
    assert is_robbins_monro(RobbinsMonroLR(optimizer(), power=0.75)).holds is True
    assert is_robbins_monro(RobbinsMonroLR(optimizer(), power=1.0)).holds is True
    assert is_robbins_monro(TheoremLR(optimizer(), smoothness=2.0)).holds is True


def test_the_shipped_scheduler_follows_its_power_law():
    opt = optimizer()
    scheduler = RobbinsMonroLR(opt, power=0.75, delay=10.0)
    law = PowerLaw(0.75, 0.5, 10.0)
    for k in range(50):
        assert opt.param_groups[0]["lr"] == pytest.approx(law(k))
        opt.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("make", "sums", "squares"),
    [
        (lambda opt: lr_scheduler.ConstantLR(opt), True, False),
        (lambda opt: lr_scheduler.LinearLR(opt), True, False),
        (lambda opt: lr_scheduler.LinearLR(opt, end_factor=0.0), False, True),
        (lambda opt: lr_scheduler.StepLR(opt, 10), False, True),
        (lambda opt: lr_scheduler.MultiStepLR(opt, [10, 20]), True, False),
        (lambda opt: lr_scheduler.ExponentialLR(opt, 0.99), False, True),
        (lambda opt: lr_scheduler.ExponentialLR(opt, 1.0), True, False),
        (lambda opt: lr_scheduler.ExponentialLR(opt, 1.01), True, False),
        (lambda opt: lr_scheduler.PolynomialLR(opt, 10), False, True),
        (lambda opt: lr_scheduler.CosineAnnealingLR(opt, 10), True, False),
        (lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 10), True, False),
    ],
)
def test_schedulers_of_torch_with_a_known_tail(make, sums, squares):
    verdict = is_robbins_monro(make(optimizer()))
    assert (verdict.sum_diverges, verdict.squares_converge) == (sums, squares)
    assert verdict.holds is False
    assert type(make(optimizer())).__name__ in str(verdict)


def test_constant_steps():
    assert is_robbins_monro(0.1).squares_converge is False
    assert is_robbins_monro(1).holds is False


@pytest.mark.parametrize(("power", "suggests"), [(0.75, True), (0.3, False), (1.5, False), (0.5, None)])
def test_callables_are_tested_and_not_decided(power, suggests):
    for schedule in (
        lambda k: (1 + k) ** -power,
        lr_scheduler.LambdaLR(optimizer(), lambda k: (1 + k) ** -power),
    ):
        verdict = is_robbins_monro(schedule)
        assert verdict.holds is None
        assert verdict.suggests is suggests
        assert "powers of two" in verdict.reason
        with pytest.raises(ValueError, match="not decided"):
            bool(verdict)


def test_several_groups_must_all_look_well():
    opt = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]} for _ in range(2)], lr=1.0)
    verdict = is_robbins_monro(
        lr_scheduler.LambdaLR(opt, [lambda k: (1 + k) ** -0.75, lambda k: (1 + k) ** -0.2])
    )
    assert verdict.suggests is False
    assert "Group 1" in verdict.reason


def test_sequences_are_fitted_and_not_decided():
    law = PowerLaw(0.75, offset=3.0)
    verdict = is_robbins_monro([law(k) for k in range(2000)])
    assert verdict.holds is None
    assert verdict.suggests is True
    assert is_robbins_monro(torch.full((100,), 0.1)).suggests is False
    assert is_robbins_monro([1.0, 0.5]).suggests is None  # too few to say anything
    assert is_robbins_monro([0.0] * 100).suggests is None


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (lambda k: -1.0, "negative"),
        (lambda k: math.nan, "not finite"),
        (lambda k: 2.0 ** -min(k, 2000), "0 at k"),
    ],
)
def test_odd_callables(schedule, said):
    verdict = is_robbins_monro(schedule)
    assert verdict.holds is None
    assert said in verdict.reason


def test_what_is_no_schedule():
    with pytest.raises(TypeError, match="got a dict"):
        is_robbins_monro({})
    with pytest.raises(ValueError, match="initial > 0"):
        PowerLaw(0.75, initial=-1.0)
    plateau = is_robbins_monro(lr_scheduler.ReduceLROnPlateau(optimizer()))
    assert plateau.holds is None
