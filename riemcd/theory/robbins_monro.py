r"""Do steps satisfy :math:`\sum_k \alpha_k = \infty` and :math:`\sum_k \alpha_k^2 < \infty`?

No finite prefix of a sequence can answer this. What is decided is a formula: a power law, or a scheduler of
torch whose tail is known. For everything else the answer says what was tested, and stays undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler

from ..stepsizes import RobbinsMonroLR, TheoremLR

__all__ = ["PowerLaw", "Verdict", "is_robbins_monro"]

_DOUBLINGS = 40  # callables are looked at up to step 2^40


@dataclass(frozen=True)
class PowerLaw:
    r"""The steps :math:`\alpha_k = a\,(1 + k/b)^{-p}`.

    Parameters
    ----------
    power : float
        The p: the Robbins-Monro conditions hold for 1/2 < p <= 1 and for no other.
    initial : float
        The a, the first step.
    offset : float
        The b, after how many steps the decay sets in.

    Examples
    --------
    >>> PowerLaw(power=1.0, initial=0.5)(1)
    0.25
    >>> bool(is_robbins_monro(PowerLaw(0.75)))
    True
    """

    power: float
    initial: float = 1.0
    offset: float = 1.0

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.offset > 0 and math.isfinite(self.power)):
            raise ValueError(f"PowerLaw needs initial > 0, offset > 0 and a finite power, got {self}.")

    def __call__(self, k: int) -> float:
        """Return the step at iteration k."""
        return float(self.initial * (1 + k / self.offset) ** -self.power)


@dataclass(frozen=True)
class Verdict:
    """An answer, and what it rests on.

    Attributes
    ----------
    sum_diverges, squares_converge : bool or None
        The two conditions; None where they could not be decided.
    reason : str
        What decided them, or what was tested.
    suggests : bool or None
        Where nothing is decided: what the tested numbers look like, if they look like anything.
    """

    sum_diverges: bool | None
    squares_converge: bool | None
    reason: str
    suggests: bool | None = None

    @property
    def holds(self) -> bool | None:
        """Whether both conditions hold; None where that is not decided."""
        if self.sum_diverges is False or self.squares_converge is False:
            return False
        return None if self.sum_diverges is None or self.squares_converge is None else True

    def __bool__(self) -> bool:
        if self.holds is None:
            raise ValueError(
                f"the Robbins-Monro conditions are not decided here: {self.reason} See .suggests."
            )
        return self.holds

    def __str__(self) -> str:
        """Say the answer in a sentence."""
        answer = {True: "holds", False: "does not hold", None: "not decided"}[self.holds]
        return f"Robbins-Monro: {answer}. {self.reason}"


def power_law(power: float, what: str) -> Verdict:
    """Decide a power law, which is the whole theory of p-series."""
    diverges, converges = power <= 1, power > 0.5
    first = "diverges since p <= 1" if diverges else "converges since p > 1"
    second = "converges since p > 1/2" if converges else "diverges since p <= 1/2"
    reason = f"{what} falls like k^-{power:g}: the sum {first}, the sum of squares {second}."
    return Verdict(diverges, converges, reason)


def _eventually_constant(what: str) -> Verdict:
    return Verdict(True, False, f"{what}: steps that do not tend to zero have a divergent sum of squares.")


def _summable(what: str) -> Verdict:
    return Verdict(False, True, f"{what}: the sum of all steps is finite, so the iterates may stop short.")


@singledispatch
def is_robbins_monro(schedule: Any) -> Verdict:
    r"""Say whether :math:`\sum \alpha_k = \infty` and :math:`\sum \alpha_k^2 < \infty`.

    Decided exactly: `PowerLaw`, `RobbinsMonroLR`, a number (a constant step), and the schedulers of torch
    whose tail is a formula (constant, step-wise, exponential, polynomial, linear, cosine, cyclic). Any other
    callable ``k -> alpha_k``, such as that of a ``LambdaLR``, is sampled at the powers of two, and a finite
    sequence is fitted by a power law: such an answer is undecided, ``bool()`` of it raises, and ``suggests``
    says what it looks like.

    Parameters
    ----------
    schedule : PowerLaw, float, lr scheduler, callable or sequence of float

    Returns
    -------
    Verdict

    Examples
    --------
    >>> print(is_robbins_monro(PowerLaw(0.4)))  # doctest: +NORMALIZE_WHITESPACE
    Robbins-Monro: does not hold. PowerLaw falls like k^-0.4: the sum diverges since p <= 1,
    the sum of squares diverges since p <= 1/2.
    >>> is_robbins_monro([1 / k for k in range(1, 100)]).holds is None
    True
    """
    if callable(schedule):
        return _sampled(schedule)
    raise TypeError(
        "a schedule must be a PowerLaw, a number, an lr scheduler, a callable of the step or a sequence, "
        f"got a {type(schedule).__name__}."
    )


@is_robbins_monro.register
def _(schedule: PowerLaw) -> Verdict:
    return power_law(schedule.power, "PowerLaw")


@is_robbins_monro.register(RobbinsMonroLR)
@is_robbins_monro.register(TheoremLR)
def _(schedule: RobbinsMonroLR | TheoremLR) -> Verdict:
    return power_law(schedule.power, type(schedule).__name__)


@is_robbins_monro.register(int)
@is_robbins_monro.register(float)
def _(schedule: float) -> Verdict:
    if schedule == 0:
        return _summable("zero steps")
    return _eventually_constant(f"the constant step {schedule:g}")


@is_robbins_monro.register(list)
@is_robbins_monro.register(tuple)
@is_robbins_monro.register(Tensor)
def _(schedule: Sequence[float] | Tensor) -> Verdict:
    steps = torch.as_tensor(schedule, dtype=torch.float64).flatten()
    if steps.numel() < 16 or not bool((steps > 0).all()):
        return Verdict(
            None,
            None,
            f"{steps.numel()} steps were given: 16 positive ones are needed to fit a power law, "
            "and no finite number decides.",
        )
    k = torch.arange(steps.numel() // 2, steps.numel(), dtype=torch.float64)
    x, y = k.log(), steps[steps.numel() // 2 :].log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    worst = float((y - y.mean() - slope * (x - x.mean())).abs().max())
    off = math.expm1(worst)
    seen = f"the second half of {steps.numel()} steps was fitted by k^{slope:.3f}, off by {off:.1%}"
    return Verdict(None, None, f"{seen}; no finite number of steps decides.", _looks(-slope, worst < 0.1))


def _looks(power: float, fits: bool, margin: float = 0.02) -> bool | None:
    """Say what a fitted exponent suggests; nothing near the borders 1/2 and 1."""
    if not fits or abs(power - 0.5) < margin or abs(power - 1) < margin:
        return None
    return 0.5 < power < 1


def _sampled(schedule: Callable[[int], Any]) -> Verdict:
    """Look at the powers of two: for decreasing steps Cauchy's condensation needs no others."""
    try:
        steps = [float(schedule(2**j)) for j in range(_DOUBLINGS + 1)]
    except OverflowError:
        return Verdict(None, None, "the schedule overflows before step 2^40, so nothing was tested.")
    tail = steps[_DOUBLINGS // 2 :]
    if any(not math.isfinite(a) or a < 0 for a in steps):
        return Verdict(None, None, "some of the steps 1, 2, 4, ..., 2^40 are negative or not finite.")
    if tail[-1] == 0:
        return Verdict(
            None, None, f"the steps are 0 at k = 2^{_DOUBLINGS}, as if their sum were finite.", False
        )
    powers = [math.log2(a / b) for a, b in pairwise(tail)]
    low, high = min(powers), max(powers)
    where = f"between k = 2^{_DOUBLINGS // 2} and 2^{_DOUBLINGS}"
    seen = f"{where} the steps fall like k^-p with p in [{low:.3f}, {high:.3f}]"
    looks = _looks((low + high) / 2, high - low < 0.02)
    return Verdict(None, None, f"{seen}, seen at the powers of two only; that decides nothing.", looks)


@is_robbins_monro.register
def _(schedule: lr_scheduler.LRScheduler) -> Verdict:
    name = type(schedule).__name__
    return Verdict(None, None, f"{name} has no formula that is known here, and nothing was tested.")


@is_robbins_monro.register
def _(schedule: lr_scheduler.LambdaLR) -> Verdict:
    verdicts = [_sampled(factor) for factor in schedule.lr_lambdas]
    return verdicts[0] if len(verdicts) == 1 else _jointly(verdicts)


def _jointly(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the answer for several groups: all of them must hold."""
    suggestions = [v.suggests for v in verdicts]
    suggests = False if False in suggestions else None if None in suggestions else True
    reasons = " ".join(f"Group {n}: {v.reason}" for n, v in enumerate(verdicts))
    return Verdict(None, None, reasons, suggests)


@is_robbins_monro.register(lr_scheduler.ExponentialLR)
@is_robbins_monro.register(lr_scheduler.StepLR)
def _(schedule: Any) -> Verdict:
    what = f"{type(schedule).__name__} with gamma = {schedule.gamma:g}"
    if schedule.gamma == 1:
        return _eventually_constant(what)
    if schedule.gamma > 1:
        return Verdict(True, False, f"{what} grows without bound.")
    return _summable(f"{what} falls geometrically")


@is_robbins_monro.register
def _(schedule: lr_scheduler.MultiStepLR) -> Verdict:
    return _eventually_constant("MultiStepLR changes the step finitely often")


@is_robbins_monro.register(lr_scheduler.ConstantLR)
@is_robbins_monro.register(lr_scheduler.LinearLR)
def _(schedule: Any) -> Verdict:
    if getattr(schedule, "end_factor", 1.0) == 0:
        return _summable("LinearLR ends at zero")
    return _eventually_constant(f"{type(schedule).__name__} ends at a constant step")


@is_robbins_monro.register
def _(schedule: lr_scheduler.PolynomialLR) -> Verdict:
    return _summable(f"PolynomialLR is zero after {schedule.total_iters} steps")


@is_robbins_monro.register(lr_scheduler.CosineAnnealingLR)
@is_robbins_monro.register(lr_scheduler.CosineAnnealingWarmRestarts)
@is_robbins_monro.register(lr_scheduler.CyclicLR)
def _(schedule: Any) -> Verdict:
    return _eventually_constant(f"{type(schedule).__name__} returns to its largest step in every period")
