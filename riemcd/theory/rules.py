"""How often a rule takes each coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Any

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Index
from ..partials import Partials
from ..selections import Growing, Importance, Partition, RandomMatching, Selection
from .outcomes import outcomes

__all__ = ["RuleMoments", "at_slopes", "blind", "enumerated", "moments_in_closed_form", "rule_moments"]


@dataclass(frozen=True, eq=False)
class RuleMoments:
    """How often a rule takes each coordinate.

    Attributes
    ----------
    first : Tensor
        ``(D,)``, the mean of the weight of each coordinate, zero where it is not taken: its inclusion
        probability where a rule has no weights.
    second : Tensor
        ``(D,)``, the mean of the squared weight.
    """

    first: Tensor  # (D,)
    second: Tensor  # (D,)

    @property
    def least(self) -> float:
        """The smallest entry of ``first``: how much of the descent of a full step is kept at least."""
        return float(self.first.min()) if self.first.numel() else 1.0

    @property
    def most(self) -> float:
        """The largest entry of ``second``: how much of the noise of a full step remains at most."""
        return float(self.second.max()) if self.second.numel() else 1.0

    @property
    def even(self) -> bool:
        """Whether all coordinates are alike, so that the mean step points along the gradient."""
        first = self.first
        return first.numel() == 0 or bool((first - first[0]).abs().max() <= 1e-9 * first[0].abs())


def at_slopes(
    selection: Selection,
    index: Index,
    slopes: Tensor,
    *,
    step: int | None = None,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> RuleMoments:
    """Return how often a rule takes each coordinate when the slopes are these, ``(D,)``, by enumeration."""
    if selection.looks_at_slopes or state:
        return enumerated(selection, index, _fixed(slopes, index), step, state, limit)
    return blind(selection, index, step, limit)


@lru_cache(maxsize=256)
def blind(selection: Selection, index: Index, step: int | None, limit: int) -> RuleMoments:
    """Go through a rule that looks at no slopes and keeps nothing: once for all points."""
    return enumerated(selection, index, _no_partials(selection, index), step, None, limit)


def enumerated(
    selection: Selection,
    index: Index,
    partials: Partials,
    step: int | None,
    state: dict[str, Any] | None,
    limit: int,
) -> RuleMoments:
    """Go through the outcomes of one step, or of a step taken at random from a sweep."""
    steps = [step or 0]
    if step is None and selection.sweeps:
        steps = list(range(selection.steps_per_sweep(index)))
    first = torch.zeros(index.count, dtype=torch.float64)
    second = torch.zeros(index.count, dtype=torch.float64)
    for number in steps:
        for chance, coords, weights in outcomes(
            selection, index, partials, step=number, state=state, limit=limit
        ):
            weight = torch.ones(coords.shape, dtype=torch.float64) if weights is None else weights.double()
            first.index_add_(0, coords, weight * (chance / len(steps)))
            second.index_add_(0, coords, weight.square() * (chance / len(steps)))
    return RuleMoments(first, second)


def _fixed(slopes: Tensor, index: Index) -> Partials:
    partials = Partials(lambda _: slopes, index.count)
    partials.all()
    return partials


def _no_partials(selection: Selection, index: Index) -> Partials:
    def refuse(_: Any) -> Tensor:
        raise ValueError(f"{selection!r} reads slopes without declaring looks_at_slopes.")

    return Partials(refuse, index.count)


def rule_moments(
    selection: Selection,
    index: Index,
    *,
    step: int = 0,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> RuleMoments:
    """Return how often a rule takes each coordinate: by a formula, else by enumeration.

    Parameters
    ----------
    selection : Selection
        A rule that draws; the theorem is silent about rules whose choice follows the slopes, or a
        fixed order, and so is this function.
    index : Index
    step : int
        How many updates the parameter has had.
    state : dict, optional
        What the rule has noted down in them.
    limit : int
        Refuse to go through more outcomes than this.

    Examples
    --------
    >>> from riemcd import selections
    >>> rule_moments(selections.RandomMatching(), Index.of_pairs(5)).least  # 1/d for odd d
    0.2
    """
    selection.check(index)
    if selection.sweeps and selection.steps_per_sweep(index) > 1:
        raise ValueError(
            f"{selection!r} follows a fixed order, so nothing is drawn that could be averaged and the "
            f"theorem says nothing about it. {_ADVICE}"
        )
    known = moments_in_closed_form(selection, index, step, state or {})
    if known is not None:
        return known
    if not selection.looks_at_slopes:
        if state:
            return enumerated(selection, index, _no_partials(selection, index), step, state, limit)
        return blind(selection, index, step, limit)
    # A rule may look at slopes only to remember them: then it does the same whatever they are now.
    rising = torch.arange(1.0, index.count + 1, dtype=torch.float64)
    found, other = (
        enumerated(selection, index, _fixed(slopes, index), step, state, limit)
        for slopes in (rising, rising.flip(0))
    )
    if not torch.allclose(found.first, other.first, rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"{selection!r} follows the slopes, so its mean step is not a multiple of the gradient and the "
            f"theorem says nothing about it. {_ADVICE}"
        )
    return found


_ADVICE = "Use Uniform, RandomMatching, Partition or Importance."


@singledispatch
def moments_in_closed_form(
    selection: Selection, index: Index, step: int, state: dict[str, Any]
) -> RuleMoments | None:
    """Return the moments of a rule by a formula, or None; register one for a rule with weights.

    Rules without weights that say how often they take a coordinate need nothing.
    """
    even = selection.inclusion(index)
    if even is None or selection.looks_at_slopes:
        return None
    weights = selection.select(index, _no_partials(selection, index), Draw(0, step), dict(state))[1]
    return (
        None if weights is not None else RuleMoments(*torch.full((2, index.count), even, dtype=torch.float64))
    )


@moments_in_closed_form.register
def _(selection: Importance, index: Index, step: int, state: dict[str, Any]) -> RuleMoments | None:
    k = min(selection.k, index.count)
    average = state.get("importance", torch.zeros(index.count))
    inclusion = selection.probabilities(average, k)
    p = k / index.count
    return RuleMoments(torch.full_like(inclusion, p), p**2 / inclusion)


@moments_in_closed_form.register
def _(selection: Growing, index: Index, step: int, state: dict[str, Any]) -> RuleMoments | None:
    return rule_moments(selection.at(step), index, step=step, state=state)


@moments_in_closed_form.register(RandomMatching)
@moments_in_closed_form.register(Partition)
def _(selection: Selection, index: Index, step: int, state: dict[str, Any]) -> RuleMoments | None:
    # A matching of a layer takes every single coordinate, besides the pairs it is a matching of.
    pairs = selection.inclusion(Index.of_pairs(index.nodes)) or 0.0
    layer = [torch.full((index.pairs,), pairs, dtype=torch.float64)]
    if index.singles:
        layer.append(torch.ones(index.nodes, dtype=torch.float64))
    first = torch.cat(layer * index.layers)
    return RuleMoments(first, first)
