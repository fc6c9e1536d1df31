r"""Both sides of the theorem along runs.

With :math:`\mu = \min(\mu_X, p\,\mu_W)`, :math:`C = C_X + q\,C_W`, :math:`M = \max(M_X, q\,M_W)` and
:math:`\alpha_k L M \le \mu`,

.. math::

   \mathbb E f^{k+1} &\le \mathbb E f^k - \alpha_k \tfrac\mu2 \mathbb E\|g^k\|^2
   + \tfrac L2 \alpha_k^2 C, \\
   \sum_{k \le K} \alpha_k \mathbb E\|g^k\|^2 &\le \frac{2 (f^0 - f_{\inf})}{\mu}
   + \frac{L C}{\mu} \sum_{k \le K} \alpha_k^2 ,

where :math:`p` and :math:`q` say how often the rule takes a coordinate: both are 1/D for a uniform one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .noise import Noise, NoiseConstants
from .robbins_monro import Verdict, is_robbins_monro
from .rules import RuleMoments
from .smoothness import Smoothness, constant

__all__ = ["Constants", "ConvergenceBound", "Premise", "Run", "convergence_bound"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Constants:
    """The three constants of the theorem, of gradient noise and coordinate draw together."""

    mu: float
    C: float
    M: float

    @classmethod
    def of(
        cls,
        noise: Noise | NoiseConstants,
        inclusion: float | RuleMoments | Sequence[RuleMoments],
        *,
        has_X: bool = True,
    ) -> Constants:
        """Combine the constants of Assumption 2 with how often coordinates are taken.

        Parameters
        ----------
        noise : Noise or NoiseConstants
            Of estimates the bad ends are taken.
        inclusion : float, RuleMoments or a sequence of them
            The inclusion probability of every coordinate, or what `rule_moments` says of the rule of each
            manifold parameter.
        has_X : bool
            Whether there are free variables at all; without them their constants do not count.

        Examples
        --------
        >>> Constants.of(Noise(C_W=6.0), 1 / 3)
        Constants(mu=0.3333333333333333, C=2.0, M=1.0)
        """
        numbers = noise.pessimistic() if isinstance(noise, NoiseConstants) else noise
        if isinstance(inclusion, RuleMoments):
            inclusion = [inclusion]
        if isinstance(inclusion, Sequence):
            p = min((rule.least for rule in inclusion), default=1.0)
            q = max((rule.most for rule in inclusion), default=1.0)
        else:
            p = q = float(inclusion)
        if not has_X:
            return cls(p * numbers.mu_W, q * numbers.C_W, q * numbers.M_W)
        return cls(
            min(numbers.mu_X, p * numbers.mu_W),
            numbers.C_X + q * numbers.C_W,
            max(numbers.M_X, q * numbers.M_W),
        )


@dataclass(frozen=True, eq=False)
class Run:
    """What happened along a run.

    Parameters
    ----------
    alphas : array
        ``(K,)``, the steps.
    values : array
        ``(K + 1,)``, the exact loss before each step and after the last.
    squared_norms : array
        ``(K,)``, the squared norm of the exact gradient in X and W together, before each step.
    """

    alphas: Array  # (K,)
    values: Array  # (K + 1,)
    squared_norms: Array  # (K,)

    @classmethod
    def of(cls, alphas: ArrayLike, values: ArrayLike, squared_norms: ArrayLike) -> Run:
        """Make a run from anything that numpy reads."""
        a, f, g = (np.asarray(x, dtype=np.float64) for x in (alphas, values, squared_norms))
        if not (a.ndim == f.ndim == g.ndim == 1 and len(a) == len(g) == len(f) - 1 and len(a) > 0):
            raise ValueError(
                "a run has K steps, K squared norms and K + 1 values, K > 0, "
                f"got shapes {a.shape}, {g.shape} and {f.shape}."
            )
        return cls(a, f, g)


@dataclass(frozen=True)
class Premise:
    """Something the theorem takes for granted, and whether it holds here."""

    name: str
    holds: bool
    reason: str


@dataclass(frozen=True, eq=False)
class ConvergenceBound:
    """Both sides of the theorem, at every K; means over the runs with their standard errors.

    Attributes
    ----------
    left : array
        ``(K,)``, the sum of alpha times the squared gradient.
    right : array
        ``(K,)``, what it may not exceed.
    error : array
        ``(K,)``, the standard error of ``right - left``; zero for a single run.
    step_slack : array
        ``(K,)``, how much the descent inequality of each step has to spare.
    step_error : array
        ``(K,)``, its standard error.
    weighted_mean : array
        ``(K,)``, the mean of the squared gradient with weights alpha, which tends to zero.
    ceiling : array
        ``(K,)``, ``right`` over the sum of alphas: what the theorem promises about ``weighted_mean``.
    premises : tuple of Premise
        What the theorem takes for granted.
    """

    left: Array
    right: Array
    error: Array
    step_slack: Array
    step_error: Array
    weighted_mean: Array
    ceiling: Array
    premises: tuple[Premise, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the premises that do not hold."""
        return tuple(p.name for p in self.premises if not p.holds)

    def holds(self, errors: float = 3.0) -> bool:
        """Return whether the left side stays below the right one at every K, up to some standard errors."""
        return bool((self.left <= self.right + errors * self.error).all())

    def descends(self, errors: float = 3.0) -> bool:
        """Return whether the descent inequality held at every step, up to some standard errors."""
        return bool((self.step_slack >= -errors * self.step_error).all())


def convergence_bound(
    runs: Run | Sequence[Run],
    *,
    L: float | Smoothness,
    f_inf: float,
    constants: Constants,
    schedule: Any = None,
) -> ConvergenceBound:
    """Return both sides of the theorem along runs that differ in their random numbers only.

    Parameters
    ----------
    runs : Run or sequence of Run
        With the same steps alpha.
    L : float or Smoothness
        The constant of Assumption 1; a `Smoothness` without an upper bound is refused.
    f_inf : float
        A lower bound of the loss.
    constants : Constants
        From `Constants.of`.
    schedule : optional
        Where the alphas come from; asked by `is_robbins_monro`. Without it the premise is left out.
    """
    series = [runs] if isinstance(runs, Run) else list(runs)
    if not series:
        raise ValueError("there must be at least one run.")
    alphas = series[0].alphas
    if any(run.alphas.shape != alphas.shape or (run.alphas != alphas).any() for run in series):
        raise ValueError("runs must have the same steps alpha to be averaged; pass them one by one.")
    smooth, mu, C = constant(L), constants.mu, constants.C
    values = np.stack([run.values for run in series])  # (S, K + 1)
    squares = np.stack([run.squared_norms for run in series])  # (S, K)
    left = np.cumsum(alphas * squares, -1)
    # With mu <= 0 the theorem promises nothing, which is what an infinite right side says.
    scale = 1 / mu if mu > 0 else np.inf
    with np.errstate(invalid="ignore"):
        right = scale * (2 * (values[:, :1] - f_inf) + smooth * C * np.cumsum(alphas**2))
    slack = values[:, :-1] - values[:, 1:] - alphas * mu / 2 * squares + smooth / 2 * alphas**2 * C
    with np.errstate(invalid="ignore"):
        error = _standard_error(right - left) if mu > 0 else np.zeros_like(alphas)
    return ConvergenceBound(
        left.mean(0),
        right.mean(0),
        error,
        slack.mean(0),
        _standard_error(slack),
        left.mean(0) / np.cumsum(alphas),
        right.mean(0) / np.cumsum(alphas),
        tuple(_premises(alphas, values, smooth, f_inf, constants, schedule)),
    )


def _standard_error(samples: Array) -> Array:
    if len(samples) < 2:
        return np.zeros(samples.shape[1])
    error: Array = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return error


def _premises(
    alphas: Array, values: Array, L: float, f_inf: float, constants: Constants, schedule: Any
) -> list[Premise]:
    mu, M = constants.mu, constants.M
    found = [
        Premise("gradient", mu > 0, f"mu = {mu:.3g} must be positive."),
        Premise("lower bound", bool(values.min() >= f_inf), f"f went down to {values.min():.6g}."),
    ]
    long = np.flatnonzero(alphas * L * M > mu)
    said = "alpha L M <= mu at every step."
    if long.size:
        said = f"alpha = {alphas[long[0]]:.3g} at step {long[0]} is above mu / (L M) = {mu / (L * M):.3g}."
    found.append(Premise("step size", long.size == 0, said))
    if schedule is not None:
        verdict: Verdict = schedule if isinstance(schedule, Verdict) else is_robbins_monro(schedule)
        found.append(Premise("Robbins-Monro", verdict.holds is True, verdict.reason))
    return found
