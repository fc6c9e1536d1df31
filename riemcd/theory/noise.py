r"""The constants of Assumption 2, estimated from mini-batches.

.. math::

   \langle g_Z, \mathbb E\,\tilde g_Z \rangle \ge \mu_Z \|g_Z\|^2, \qquad
   \mathbb E \|\tilde g_Z\|^2 \le C_Z + M_Z \|g_Z\|^2, \qquad Z \in \{X, W\}

Gradients on a manifold are compared through their slopes: in an orthonormal basis, and in a Parseval frame,
:math:`\langle g, \tilde g \rangle = \sum_i \partial_i \tilde\partial_i`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bases import Basis
from .variables import Variable, variables

__all__ = ["Estimate", "Noise", "NoiseConstants", "Observation", "noise_constants", "observe_noise"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """The constants of Assumption 2 as numbers; the defaults are exact gradients.

    Attributes
    ----------
    mu_X, mu_W : float
        How much of the gradient its estimate keeps on average; 1 when it is unbiased.
    C_X, C_W : float
        The part of the second moment that stays where the gradient vanishes.
    M_X, M_W : float
        The part that grows with the gradient.
    """

    mu_X: float = 1.0  # noqa: N815 - the letters of the paper
    mu_W: float = 1.0  # noqa: N815
    C_X: float = 0.0
    C_W: float = 0.0
    M_X: float = 1.0
    M_W: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class NoiseConstants:
    """Estimates of the constants of Assumption 2; None for a kind of variable that the loss does not have.

    They speak of the points that were observed, and of no others.
    """

    mu_X: Estimate | None  # noqa: N815 - the letters of the paper
    mu_W: Estimate | None  # noqa: N815
    C_X: Estimate | None
    C_W: Estimate | None
    M_X: Estimate | None
    M_W: Estimate | None
    points: int
    batches: int
    confidence: float

    def pessimistic(self) -> Noise:
        """Return the bad ends of all intervals: the small mu, the large C and M."""
        given: dict[str, float] = {}
        for name in ("mu_X", "mu_W", "C_X", "C_W", "M_X", "M_W"):
            estimate: Estimate | None = getattr(self, name)
            if estimate is not None:
                given[name] = estimate.low if name.startswith("mu") else estimate.high
        return Noise(**given)


@dataclass(frozen=True, eq=False)
class Observation:
    """Mini-batch gradients at one point, as the numbers that Assumption 2 speaks of.

    Attributes
    ----------
    square : dict
        By kind of variable, "X" or "W": the squared norm of the exact gradient.
    inner, norms : dict
        By kind: the inner product of each mini-batch gradient with the exact one, and its squared norm,
        ``(batches,)``.
    """

    square: dict[str, float]
    inner: dict[str, Array]
    norms: dict[str, Array]


def observe_noise(
    params: Tensor | Sequence[Tensor],
    loss_fn: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    exact: Callable[[], Tensor] | None = None,
    basis: Basis | Sequence[Basis | None] | None = None,
) -> Observation:
    """Take gradients of mini-batches at the current point; neither parameters nor ``.grad`` change.

    Parameters
    ----------
    params : Tensor or sequence of Tensor
        What the loss depends on; geoopt's manifold parameters are W, all others X.
    loss_fn : callable
        ``loss_fn(batch)``, the loss on a mini-batch.
    batches : iterable
        Mini-batches, drawn as in training.
    exact : callable, optional
        ``exact()``, the loss whose gradient is meant; by default the mean over ``batches``, which is then all
        of the data and cannot be biased.
    basis : Basis or sequence, optional
        As in `smoothness`.
    """
    tensors = [params] if isinstance(params, Tensor) else list(params)
    parts = variables(tensors, basis)
    noisy = [_slopes(parts, tensors, loss_fn(batch)) for batch in batches]
    if len(noisy) < 2:
        raise ValueError(f"noise needs at least 2 mini-batches to be seen, got {len(noisy)}.")
    square, inner, norms = {}, {}, {}
    true = None if exact is None else _slopes(parts, tensors, exact())
    for kind in noisy[0]:
        table = torch.stack([slopes[kind] for slopes in noisy]).double()  # (batches, coordinates)
        g = table.mean(0) if true is None else true[kind].double()
        square[kind] = float(g @ g)
        inner[kind] = (table @ g).cpu().numpy()
        norms[kind] = table.square().sum(-1).cpu().numpy()
    return Observation(square, inner, norms)


def _slopes(parts: Sequence[Variable], tensors: Sequence[Tensor], loss: Tensor) -> dict[str, Tensor]:
    """Return the slopes of a loss by kind of variable, ``(coordinates,)`` each."""
    grads = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
    kinds: dict[str, list[Tensor]] = {}
    for part, grad in zip(parts, grads, strict=True):
        slopes = part.slopes(grad.detach().as_subclass(Tensor))
        kinds.setdefault("X" if part.basis is None else "W", []).append(slopes)
    return {kind: torch.cat(slopes) for kind, slopes in kinds.items()}


def noise_constants(
    observations: Observation | Sequence[Observation],
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> NoiseConstants:
    r"""Estimate the constants of Assumption 2 from observations at one or several points.

    :math:`\mu` is the smallest mean of :math:`\langle g, \tilde g\rangle / \|g\|^2` over the points.
    :math:`C` and :math:`M` are a line above the second moments of all points, the lowest on average among
    those with :math:`M \ge \mu^2`, which Jensen's inequality asks for. Intervals come from the bootstrap:
    mini-batches are drawn again at each point.

    Parameters
    ----------
    observations : Observation or sequence
        From `observe_noise`, along a run for instance.
    confidence : float
        Of each interval by itself.
    resamples : int
    seed : int

    Examples
    --------
    >>> x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    >>> noise = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    >>> seen = observe_noise(x, lambda xi: ((1 + xi) * x).sum(), noise)
    >>> found = noise_constants(seen)
    >>> round(found.mu_X.value, 6), round(found.C_X.value, 6), round(found.M_X.value, 6)
    (1.0, 1.0, 1.0)
    """
    seen = [observations] if isinstance(observations, Observation) else list(observations)
    if not seen:
        raise ValueError("there must be at least one observation.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}.")
    generator = np.random.default_rng(seed)
    found: dict[str, Estimate | None] = {}
    for kind in ("X", "W"):
        here = [o for o in seen if o.square.get(kind, 0.0) > 0]
        names = [f"{name}_{kind}" for name in ("mu", "C", "M")]
        if not here:
            found.update(dict.fromkeys(names))
            continue
        square = np.array([o.square[kind] for o in here])
        values = _constants(square, *_means(here, kind))
        again = zip(*_resampled(here, kind, resamples, generator), strict=True)
        draws = np.array([_constants(square, inner, second) for inner, second in again])
        low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        for name, v, a, b in zip(names, values, low, high, strict=True):
            found[name] = Estimate(float(v), float(min(a, v)), float(max(b, v)))
    fewest = min(len(norms) for o in seen for norms in o.norms.values())
    return NoiseConstants(**found, points=len(seen), batches=fewest, confidence=confidence)


def _means(seen: Sequence[Observation], kind: str) -> tuple[Array, Array]:
    """Return mean inner products and second moments, ``(points,)`` each."""
    return np.array([o.inner[kind].mean() for o in seen]), np.array([o.norms[kind].mean() for o in seen])


def _resampled(
    seen: Sequence[Observation], kind: str, resamples: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """Return the same for mini-batches drawn again, ``(resamples, points)`` each."""
    inner, norms = [], []
    for o in seen:
        n = len(o.norms[kind])
        chosen = generator.integers(n, size=(resamples, n))
        inner.append(o.inner[kind][chosen].mean(-1))
        norms.append(o.norms[kind][chosen].mean(-1))
    return np.stack(inner, -1), np.stack(norms, -1)


def _constants(square: Array, inner: Array, second: Array) -> tuple[float, float, float]:
    """Return mu, and the lowest line C + M x above the second moments with M at least mu squared."""
    mu = float((inner / square).min())
    least = max(mu, 0.0) ** 2
    # The height of the lowest line at the mean of x is convex and piecewise linear in its slope M: its
    # minimum is at a slope through two of the points, at the one where C reaches zero, or at the least M.
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = ((second[:, None] - second) / (square[:, None] - square)).ravel()
    candidates = np.append(slopes[np.isfinite(slopes)], [least, (second / square).max()])
    candidates = np.unique(np.maximum(candidates, least))
    C = np.maximum(0.0, (second - candidates[:, None] * square).max(-1))
    best = int(np.argmin(C + candidates * square.mean()))
    return mu, float(C[best]), float(candidates[best])
