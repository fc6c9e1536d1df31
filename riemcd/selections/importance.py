"""Coordinates that were steep before, without bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection, check_size
from .validate import positive_integer, proper_fraction

__all__ = ["Importance"]


@final
@dataclass(frozen=True)
class Importance(Selection):
    r"""Draw ``k`` coordinates with probabilities that follow a running average of their slopes.

    .. math:: p_i = (1 - \epsilon) \frac{a_i}{\sum_j a_j} + \frac{\epsilon}{D}, \qquad
              \pi_i = \min(1, c\,p_i), \qquad \sum_i \pi_i = k

    where :math:`a_i` is the average of :math:`|\partial_i|` over the steps that took :math:`i`, and
    :math:`c = k` unless some coordinate is certain to be taken. The draw is systematic, so that
    coordinate :math:`i` is in the set with probability :math:`\pi_i` exactly, and its slope is weighted by
    :math:`(k/D)/\pi_i`: the expected step is :math:`k/D` times the gradient, as it is for `Uniform`.
    No weight exceeds :math:`1/\epsilon` times that of uniform draws. A batch shares one set, and its
    average. The average is one number per coordinate, and a step goes through all of them.

    Parameters
    ----------
    k : int
        How many coordinates a step takes.
    explore : float
        The share :math:`\epsilon` of the probability that all coordinates get alike.
    decay : float
        How much of its average a coordinate keeps when it is taken, in [0, 1).
    """

    k: int = 1
    explore: float = 0.2
    decay: float = 0.5

    looks_at_slopes = True
    grows = "k"

    def __post_init__(self) -> None:
        positive_integer("Importance", "k", self.k)
        proper_fraction("Importance", "explore", self.explore)
        if not 0 <= self.decay < 1:
            raise ValueError(f"Importance: decay must lie in [0, 1), got {self.decay}.")

    @classmethod
    def examples(cls) -> Sequence[Importance]:
        """One coordinate, and several."""
        return [cls(), cls(3)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Draw first; only then look at the slopes of the chosen, for the average."""
        k = min(self.k, index.count)
        if k == 0:
            return torch.zeros(0, dtype=torch.int64, device=draw.device), None
        average = state.get("importance")
        if average is None:
            average = torch.zeros(index.count, device=draw.device)
        inclusion = self.probabilities(average, k)
        upto = inclusion.cumsum(0)
        # Points one apart on a line on which coordinate i has length inclusion[i] <= 1 hit k different
        # ones; the line is stretched to end at k whatever the rounding was.
        points = torch.arange(k, device=upto.device) + draw.uniform(1)
        chosen = torch.searchsorted(upto, points * (upto[-1:] / k), right=True)
        chosen = _different(chosen, index.count)
        coords = index.resolve(chosen)
        seen = partials.at(coords).detach().abs().to(average.dtype).reshape(-1, k).mean(0)
        before = average[chosen]
        after = torch.where(before > 0, self.decay * before + (1 - self.decay) * seen, seen)
        state["importance"] = average.index_copy(0, chosen, torch.where(torch.isfinite(after), after, before))
        return coords, (k / index.count) / inclusion[chosen]

    def probabilities(self, average: Tensor, k: int) -> Tensor:
        """Return the inclusion probabilities, float64 ``(D,)``; they add up to ``k``."""
        count, average = average.numel(), average.double()
        total = average.sum()
        share = torch.where(total > 0, average / total, 1.0 / count)
        p = (1 - self.explore) * share + self.explore / count
        # The t largest are certain; the rest shares k - t. The right t is the first that leaves no
        # probability above one.
        top = p.topk(k).values
        rest = p.sum() - top.cumsum(0) + top  # without the t largest, t = 0, ..., k - 1
        scale = torch.arange(k, 0, -1, device=p.device) / rest
        fits = top * scale <= 1
        first = fits.long().argmax()
        c = torch.where(fits.any(), scale[first], torch.inf)
        return torch.clamp(c * p, max=1.0)

    def check(self, index: Index) -> None:
        """There must be ``k`` coordinates."""
        check_size(self, self.k, index)


def _different(chosen: Tensor, count: int) -> Tensor:
    """Push equal neighbours of a sorted list apart: rounding may have made two of one certain hit."""
    steps = torch.arange(chosen.numel(), device=chosen.device)
    apart = (chosen - steps).cummax(0).values
    return apart.clamp_(max=count - chosen.numel()) + steps
