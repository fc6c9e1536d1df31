r"""Watch a training run: does each step obey the inequalities that the theorem is made of?

Two inequalities are looked at. The first is Assumption 1 on the step that was really taken, whatever rule
chose it and however far it went; it must hold at every single step:

.. math:: f^{k+1} \le f^k + \langle g^k, s^k \rangle + \tfrac L2 \|s^k\|^2 .

The second is the descent inequality of the theorem, which holds on average over the random draws:

.. math:: \mathbb E f^{k+1} \le f^k - \alpha_k \tfrac\mu2 \|g^k\|^2 + \tfrac L2 \alpha_k^2 C .
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..index import linear
from ..optim import SRCD
from ..plan import Plan
from .bound import Constants, Run
from .noise import Noise, NoiseConstants
from .rules import RuleMoments, rule_moments
from .smoothness import Smoothness, constant
from .variables import Variable

__all__ = ["DescentMonitor", "StepCheck"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepCheck:
    """What one step did, and how much each inequality had to spare.

    Attributes
    ----------
    step : int
        Counted from zero.
    alpha : float
        The learning rate; NaN when the groups have different ones.
    value, next_value : float
        The exact loss before and after.
    squared_norm : float
        The squared norm of the exact gradient in all variables.
    predicted : float
        The change of the loss to first order, along the step that was taken.
    squared_step : float
        The squared length of that step.
    needed : float
        The smallest L that this step agrees with.
    slack : float
        What Assumption 1 had to spare; negative when L is too small. NaN without an L.
    expected_slack : float
        What the descent inequality had to spare, on average non-negative. NaN without noise constants.
    """

    step: int
    alpha: float
    value: float
    next_value: float
    squared_norm: float
    predicted: float
    squared_step: float
    needed: float
    slack: float
    expected_slack: float


@dataclass(frozen=True, eq=False)
class _Before:
    value: float
    alpha: float
    slopes: dict[Tensor, Tensor]  # (*batch, D) on a manifold, the shape of the parameter elsewhere
    points: dict[Tensor, Tensor]  # free parameters as they were
    constants: Constants | None


class DescentMonitor:
    """Check the descent inequality at each step of an optimizer, and keep the slack.

    It listens through the optimizer's hooks: training code does not change. Each step costs two more
    evaluations of ``loss_fn`` and one gradient of it, and reads every slope.

    Parameters
    ----------
    opt : SRCD
    loss_fn : callable
        ``loss_fn()``, the exact loss at the current parameters: on all data, without dropout.
    L : float or Smoothness, optional
        The constant of Assumption 1 to hold the steps to; without it only ``needed`` is recorded. A
        `Smoothness` without an upper bound is refused.
    noise : Noise or NoiseConstants, optional
        The constants of Assumption 2; with them the expected inequality is recorded too. This needs a rule
        that draws its coordinates, plain steps and one learning rate.
    log : callable, optional
        Called with every `StepCheck`; by default they go to the logger of this module.

    Examples
    --------
    >>> import geoopt, riemcd
    >>> M = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    >>> W0 = torch.eye(3, dtype=torch.float64).roll(1, 0)
    >>> W = geoopt.ManifoldParameter(W0, manifold=geoopt.EuclideanStiefel())
    >>> opt = riemcd.SRCD([W], lr=0.1)
    >>> with DescentMonitor(opt, lambda: -(M * W).sum(), L=2.5) as monitor:
    ...     for _ in range(5):
    ...         opt.zero_grad()
    ...         (-(M * W).sum()).backward()
    ...         opt.step()
    >>> monitor.violations
    []
    """

    def __init__(
        self,
        opt: SRCD,
        loss_fn: Callable[[], Tensor],
        *,
        L: float | Smoothness | None = None,
        noise: Noise | NoiseConstants | None = None,
        log: Callable[[StepCheck], None] | None = None,
    ) -> None:
        if any(group["maximize"] for group in opt.param_groups):
            raise ValueError("DescentMonitor watches a descent; minimise -f instead of maximize=True.")
        if any(group["skip_weight_grad"] for group in opt.param_groups):
            raise ValueError(
                "DescentMonitor differentiates loss_fn by the weights, which skip_weight_grad=True leaves "
                "out; watch the run without it."
            )
        if noise is not None and L is None:
            raise ValueError("the descent inequality needs L besides the noise constants: pass L=.")
        self.opt = opt
        self.loss_fn = loss_fn
        self.L = None if L is None else constant(L)
        self.noise = noise
        self.log = log
        self.records: list[StepCheck] = []
        if noise is not None:
            self._constants(opt.plans)  # a rule the theorem is silent about is refused now
        self._before: _Before | None = None
        self._hooks = [
            opt.register_step_pre_hook(self._look),
            opt.register_step_post_hook(self._compare),
        ]

    def close(self) -> None:
        """Stop listening; what was recorded stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> DescentMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ what was seen

    @property
    def needed(self) -> float:
        """The largest of all ``needed``: a lower bound of L along this run."""
        return max((check.needed for check in self.records), default=0.0)

    @property
    def violations(self) -> list[StepCheck]:
        """The steps that broke Assumption 1 with the given L."""
        return [check for check in self.records if check.slack < 0]

    @property
    def run(self) -> Run:
        """The run so far, for `convergence_bound`."""
        values = [check.value for check in self.records] + [check.next_value for check in self.records[-1:]]
        return Run.of(
            [check.alpha for check in self.records], values, [check.squared_norm for check in self.records]
        )

    # ------------------------------------------------------------------ the hooks

    def _constants(self, plans: dict[Tensor, Plan]) -> Constants:
        assert self.noise is not None
        rules: list[RuleMoments] = []
        for param, plan in plans.items():
            if plan.basis is not None:
                state = dict(self.opt.state[param])
                step = int(state.get("step", 0))
                rules.append(rule_moments(plan.selection, plan.index, step=step, state=state))
        free = any(plan.basis is None for plan in plans.values())
        return Constants.of(self.noise, rules, has_X=free)

    def _look(self, opt: Any, args: Any, kwargs: Any) -> None:
        plans = opt.plans
        params = [p for p in plans if p.requires_grad]
        with torch.enable_grad():
            loss = self.loss_fn()
            grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
        slopes, points = {}, {}
        for param, grad in zip(params, grads, strict=True):
            basis, point = plans[param].basis, param.detach().as_subclass(Tensor)
            grad = grad.detach().as_subclass(Tensor)
            if basis is None:
                slopes[param], points[param] = grad, point.clone()
            else:
                batch = Variable(point, basis).batch
                slopes[param] = Variable(point, basis).slopes(grad).view(*batch, -1)
        rates = {float(group["lr"]) for group in opt.param_groups}
        alpha = rates.pop() if len(rates) == 1 else math.nan
        constants = None if self.noise is None else self._constants(plans)
        self._before = _Before(float(loss.detach()), alpha, slopes, points, constants)

    def _compare(self, opt: Any, args: Any, kwargs: Any) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        with torch.no_grad():
            after = float(self.loss_fn())
        predicted = squared_step = 0.0
        plans, moved = opt.plans, opt.last_step.moved
        for param, slopes in before.slopes.items():
            if param in before.points:
                step, along = param.detach().as_subclass(Tensor) - before.points[param], slopes
            elif plans[param].name in moved:
                move = moved[plans[param].name]
                step = move.amounts.to(slopes.dtype)
                along = slopes.gather(-1, linear(move.coords).expand(*slopes.shape[:-1], -1))
            else:
                continue
            predicted += float((along * step).sum())
            squared_step += float(step.square().sum())
        self._record(before, after, predicted, squared_step)

    def _record(self, before: _Before, after: float, predicted: float, squared_step: float) -> None:
        remainder = after - before.value - predicted
        eps = max(torch.finfo(s.dtype).eps for s in before.slopes.values())
        # Rounding of the two evaluations must not be taken for a violation.
        remainder -= 32 * eps * (abs(after) + abs(before.value) + abs(predicted))
        needed = max(0.0, 2 * remainder / squared_step) if squared_step else 0.0
        squared_norm = sum(float(s.square().sum()) for s in before.slopes.values())
        slack = expected = math.nan
        if self.L is not None:
            slack = self.L / 2 * squared_step - remainder
        if before.constants is not None and self.L is not None:
            mu, C = before.constants.mu, before.constants.C
            expected = before.value - after - before.alpha * mu / 2 * squared_norm
            expected += self.L / 2 * before.alpha**2 * C
        check = StepCheck(
            len(self.records),
            before.alpha,
            before.value,
            after,
            squared_norm,
            predicted,
            squared_step,
            needed,
            slack,
            expected,
        )
        self.records.append(check)
        if self.log is not None:
            self.log(check)
        else:
            _log.debug("step %d: slack %.3e, expected slack %.3e", check.step, slack, expected)
        if slack < 0:
            _log.warning("step %d breaks Assumption 1: it needs L >= %.6g", check.step, needed)
