"""Random search for the largest remainder of Assumption 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..draw import Draw
from ..index import linear
from ..partials import Partials
from ..selections import Selection
from .variables import Loss, Variable, gradients

__all__ = ["Search", "Witness", "remainder_ratio"]


@dataclass(frozen=True, eq=False)
class Witness:
    """Where a constant is needed: a start, and how far to move from there.

    Attributes
    ----------
    point : tuple of Tensor
        The start, one tensor for each argument of the loss.
    amounts : tuple of Tensor
        ``(count,)`` each: the move along all coordinates of that argument.
    ratio : float
        Twice the remainder of Assumption 1 over the squared length of the move.
    """

    point: tuple[Tensor, ...]
    amounts: tuple[Tensor, ...]
    ratio: float

    @property
    def length(self) -> float:
        """The length of the move."""
        return math.sqrt(sum(float(a.square().sum()) for a in self.amounts))


def remainder_ratio(f: Loss, start: Sequence[Variable], amounts: Sequence[Tensor]) -> float:
    """Return twice the remainder of Assumption 1 over the squared length of the move, less its rounding.

    Parameters
    ----------
    f : callable
        The loss of as many tensors as there are variables.
    start : sequence of Variable
    amounts : sequence of Tensor
        ``(count,)`` each, along all coordinates of the variable.
    """
    value, grads = gradients(f, [v.value for v in start])
    slopes = [v.slopes(g) for v, g in zip(start, grads, strict=True)]
    return _ratio(f, start, value, slopes, amounts)


def _ratio(
    f: Loss, start: Sequence[Variable], value: float, slopes: Sequence[Tensor], amounts: Sequence[Tensor]
) -> float:
    square = sum(float(a.square().sum()) for a in amounts)
    if square == 0:
        return 0.0
    with torch.no_grad():
        after = float(f(*[v.moved(a) for v, a in zip(start, amounts, strict=True)]))
    linear_part = sum(float(s @ a) for s, a in zip(slopes, amounts, strict=True))
    size = abs(value) + abs(after) + abs(linear_part)
    # A lower bound must survive rounding: what the evaluations may be off by is taken away.
    rounding = 32 * torch.finfo(slopes[0].dtype).eps * size
    return 2 * max(0.0, abs(after - value - linear_part) - rounding) / square


class Search:
    """Random search for the largest ratio."""

    def __init__(
        self,
        f: Loss,
        start: tuple[Variable, ...],
        selection: Selection | None,
        lengths: tuple[float, float],
        inside: Callable[..., bool] | None,
        seed: int,
    ) -> None:
        self.f, self.start, self.selection = f, start, selection
        self.lengths, self.inside, self.seed = lengths, inside, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.draws = 0

    def normal(self, variable: Variable) -> Tensor:
        like = variable.value.real if variable.value.is_complex() else variable.value
        noise = torch.randn(variable.count, generator=self.generator, dtype=torch.float64)
        return noise.to(like.device, like.dtype)

    def uniform(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def scaled(self, amounts: Sequence[Tensor], length: float) -> tuple[Tensor, ...]:
        norm = math.sqrt(sum(float(a.square().sum()) for a in amounts)) or 1.0
        return tuple(a * (length / norm) for a in amounts)

    def allowed(self, points: Sequence[Tensor]) -> bool:
        return self.inside is None or bool(self.inside(*points))

    def direction(self, here: Sequence[Variable], slopes: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return a random direction, among the chosen coordinates where a rule is given."""
        noise = [self.normal(v) for v in here]
        if self.selection is None:
            return tuple(noise)
        return tuple(
            n if v.basis is None else n * self.chosen(v, s)
            for v, s, n in zip(here, slopes, noise, strict=True)
        )

    def chosen(self, variable: Variable, slopes: Tensor) -> Tensor:
        """Return ones at the coordinates that the rule takes, ``(count,)``."""
        assert variable.basis is not None and self.selection is not None
        index = variable.basis.index(variable.value.shape)
        table = slopes.view(*variable.batch, -1)
        partials = Partials(lambda _: table, index.count)
        partials.all()
        self.draws += 1
        coords, _ = self.selection.select(index, partials, Draw(self.seed, self.draws), {})
        mask = torch.zeros_like(table)
        return mask.scatter_(-1, linear(coords).expand(*variable.batch, -1), 1.0).view(-1)

    def look(self, here: Sequence[Variable], amounts: tuple[Tensor, ...]) -> Witness | None:
        """Return what a move shows; None when it leaves the region."""
        after = [v.moved(a) for v, a in zip(here, amounts, strict=True)]
        if not self.allowed(after):
            return None
        ratio = remainder_ratio(self.f, here, amounts)
        return Witness(tuple(v.value for v in here), amounts, ratio)

    def slopes(self, here: Sequence[Variable]) -> list[Tensor]:
        _, grads = gradients(self.f, [v.value for v in here])
        return [v.slopes(g) for v, g in zip(here, grads, strict=True)]

    def sample(self, samples: int, spread: float) -> Witness:
        """Try starts and directions at random."""
        best = Witness(tuple(v.value for v in self.start), tuple(0 * self.normal(v) for v in self.start), 0.0)
        starts = max(1, math.isqrt(samples))
        low, high = self.lengths
        for number in range(starts):
            here = self.start
            if number:
                away = self.scaled([self.normal(v) for v in here], spread * self.uniform())
                here = tuple(v.at(v.moved(a)) for v, a in zip(here, away, strict=True))
            if not self.allowed([v.value for v in here]):
                continue
            slopes = self.slopes(here)
            for _ in range(samples // starts):
                length = low * (high / low) ** self.uniform()
                found = self.look(here, self.scaled(self.direction(here, slopes), length))
                if found is not None and found.ratio > best.ratio:
                    best = found
        return best

    def refine(self, best: Witness, tries: int) -> Witness:
        """Improve a find: shift start and direction a little, keep what is better, adapt the stride."""
        stride = 0.5
        masks = [a.ne(0) for a in best.amounts]
        for _ in range(tries):
            here = [v.at(p) for v, p in zip(self.start, best.point, strict=True)]
            shift = self.scaled([self.normal(v) for v in here], stride)
            moved = [v.at(v.moved(a)) for v, a in zip(here, shift, strict=True)]
            noise = self.scaled([m * self.normal(v) for m, v in zip(masks, here, strict=True)], stride)
            turned = [a / (best.length or 1.0) + n for a, n in zip(best.amounts, noise, strict=True)]
            length = max(self.lengths[0], best.length * 0.5 ** self.uniform())
            found = None
            if self.allowed([v.value for v in moved]):
                found = self.look(moved, self.scaled(turned, length))
            if found is not None and found.ratio > best.ratio:
                best, stride = found, min(1.0, stride * 1.5)
            else:
                stride = max(1e-3, stride * 0.9)
        return best
