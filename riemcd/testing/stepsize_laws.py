"""The laws of a step size."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import geoopt
import torch
from torch import Tensor

from ..bases import RightGivens
from ..coordstate import CoordinateState
from ..optim import SRCD
from ..selections import Cyclic
from ..stepsizes import StepSize
from .registry import Laws

__all__ = ["STEPSIZE_LAWS", "StepSizeCase"]


@dataclass(frozen=True)
class StepSizeCase:
    """A rule and a seed."""

    rule: StepSize
    seed: int = 0

    def amounts(self, slopes: Tensor, lr: float = 0.1) -> Tensor:
        """Return the first amounts of a fresh parameter."""
        coords = torch.arange(slopes.shape[-1])
        state = CoordinateState({}, coords, slopes.shape[:-1], slopes.shape[-1], slopes)
        return self.rule.amounts(slopes, coords, lr=lr, basis=RightGivens(), state=state)


STEPSIZE_LAWS: Laws[StepSizeCase] = Laws()


def _moves_by_slopes(case: StepSizeCase) -> bool:
    return not case.rule.needs_problem


@STEPSIZE_LAWS.add(_moves_by_slopes)
def zero_slope_does_not_move(case: StepSizeCase) -> None:
    """With fresh state a zero slope gives a zero amount."""
    assert not case.amounts(torch.zeros(2, 5)).any()


@STEPSIZE_LAWS.add(_moves_by_slopes)
def first_amounts_descend(case: StepSizeCase) -> None:
    """With fresh state every amount goes against its slope."""
    slopes = torch.randn(3, 6, generator=torch.Generator().manual_seed(case.seed))
    amounts = case.amounts(slopes)
    assert amounts.shape == slopes.shape
    assert bool((amounts * slopes < 0).all())


@STEPSIZE_LAWS.add(lambda case: not case.rule.needs_problem)
def no_learning_rate_no_move(case: StepSizeCase) -> None:
    """With ``lr = 0`` nothing moves, and with more nothing moves less."""
    slopes = torch.randn(3, 6, generator=torch.Generator().manual_seed(case.seed))
    assert not case.amounts(slopes, lr=0.0).any(), "it moves at lr = 0"
    assert bool((case.amounts(slopes, lr=0.2).abs() >= case.amounts(slopes, lr=0.1).abs()).all())


@STEPSIZE_LAWS.add(lambda case: not case.rule.needs_problem and not case.rule.stateful)
def only_stateful_rules_remember(case: StepSizeCase) -> None:
    """A rule that is not ``stateful`` keeps nothing: it may be used on any basis."""
    kept: dict[str, Any] = {}
    slopes = torch.randn(6)
    state = CoordinateState(kept, torch.arange(6), torch.Size(()), 6, slopes)
    case.rule.amounts(slopes, torch.arange(6), lr=0.1, basis=RightGivens(), state=state)
    assert not kept, f"it keeps {', '.join(kept)}"


def _steps(opt: SRCD, W: Tensor, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        W.grad = torch.randn(W.shape, generator=generator).to(W.dtype)
        opt.step()


def _optimizer(case: StepSizeCase, dtype: torch.dtype) -> tuple[SRCD, Tensor]:
    start = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1))).Q
    W = torch.nn.Parameter(start.to(dtype))
    group = {"params": [W], "manifold": geoopt.EuclideanStiefel()}
    return SRCD([group], lr=0.05, stepsize=case.rule, selection=Cyclic(4), stabilize=None), W


@STEPSIZE_LAWS.add(_moves_by_slopes)
def memory_survives_a_checkpoint(case: StepSizeCase) -> None:
    """A run resumed in mid-sweep equals the uninterrupted one bit for bit, in every dtype."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        opt, W = _optimizer(case, dtype)
        _steps(opt, W, range(3))
        file = io.BytesIO()
        torch.save(opt.state_dict(), file)
        file.seek(0)
        resumed, V = _optimizer(case, dtype)
        with torch.no_grad():
            V.copy_(W)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        saved, loaded = opt.state[W], resumed.state[V]
        assert saved.keys() == loaded.keys()
        for name, value in saved.items():
            assert getattr(value, "dtype", None) == getattr(loaded[name], "dtype", None), name
        _steps(opt, W, range(3, 9))
        _steps(resumed, V, range(3, 9))
        assert torch.equal(W, V), dtype


@STEPSIZE_LAWS.add(lambda case: case.rule.has_torch_twin)
def plain_parameters_get_what_torch_does(case: StepSizeCase) -> None:
    """Parameters without a manifold end where the torch optimizer of that name takes them, bit for bit."""
    start = torch.randn(7, 3, generator=torch.Generator().manual_seed(2))
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    manifold = geoopt.ManifoldParameter(torch.eye(2), manifold=geoopt.EuclideanStiefel())
    for options in ({}, {"weight_decay": 0.1}, {"maximize": True}):
        groups = [{"params": [ours]}, {"params": [manifold], "weight_decay": 0}]
        opt = SRCD(groups, lr=0.03, stepsize=case.rule, **options)
        reference = case.rule.torch_optimizer([theirs], lr=0.03, **options)
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            ours.grad = torch.randn(ours.shape, generator=generator)
            theirs.grad = ours.grad.clone()
            opt.step()
            reference.step()
            assert torch.equal(ours, theirs), (options, step)
