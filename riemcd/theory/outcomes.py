"""Every outcome of a random rule: the rule is run once for each result its draws can have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Index, linear
from ..partials import Partials
from ..selections import Selection

__all__ = ["Outcome", "outcomes"]

#: A probability, linear coordinates ``(k,)`` or ``(*batch, k)``, and weights of their slopes or None.
Outcome = tuple[float, Tensor, Tensor | None]

_RESOLUTION = 2.0**-50  # how finely a jump of a rule in its uniform number is located


@lru_cache(maxsize=8)
def _orders(n: int) -> Tensor:
    return torch.tensor(list(permutations(range(n)))).view(-1, n)


@lru_cache(maxsize=8)
def _subsets(count: int, k: int) -> Tensor:
    return torch.tensor(list(combinations(range(count), k)), dtype=torch.int64).view(-1, k)


class _Script(Draw):
    """A draw that follows a script: outcome ``path[n]`` at its n-th question, the first one after that."""

    def __init__(self, step: int, path: list[int], u: float, limit: int) -> None:
        super().__init__(0, step)
        self.path = list(path)
        self.widths: list[int] = []
        self.asked_uniform = False
        self._u = u
        self._limit = limit

    @property
    def generator(self) -> torch.Generator:
        raise ValueError(
            "this rule takes numbers from draw.generator itself, whose outcomes cannot be enumerated; "
            "only permutation, sample, integer and uniform(1) can."
        )

    def _branch(self, width: int) -> int:
        if math.prod(self.widths) * width > self._limit:
            raise ValueError(
                f"the rule has more than limit={self._limit} outcomes here: enumeration is for small points."
            )
        self.widths.append(width)
        if len(self.path) < len(self.widths):
            self.path.append(0)
        return self.path[len(self.widths) - 1]

    def permutation(self, n: int) -> Tensor:
        branch = self._branch(math.factorial(n))
        return _orders(n)[branch]

    def integer(self, count: int) -> int:
        return self._branch(count)

    def sample(self, count: int, k: int) -> Tensor:
        branch = self._branch(math.comb(count, k))
        return _subsets(count, k)[branch]

    def uniform(self, n: int) -> Tensor:
        if n != 1 or self.asked_uniform:
            raise ValueError(f"the rule takes {n} uniform numbers; only one per step can be enumerated.")
        self.asked_uniform = True
        return torch.tensor([self._u], dtype=torch.float64)


def outcomes(
    selection: Selection,
    index: Index,
    partials: Partials,
    *,
    step: int = 0,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> Iterator[Outcome]:
    """Yield what a rule may choose in one step, each outcome with its probability.

    The rule runs with a draw that answers every question in every possible way: all permutations, all
    subsets. One uniform number per step is enumerated too, for rules that are piecewise constant and
    monotone in it, as systematic sampling is: its jumps are found by bisection.

    Parameters
    ----------
    selection : Selection
    index : Index
    partials : Partials
        The slopes, for rules that look at them.
    step : int
        How many updates the parameter has had.
    state : dict, optional
        What the rule has noted down; it is not changed.
    limit : int
        Refuse beyond this many outcomes.
    """

    def run(path: list[int], u: float) -> tuple[_Script, Tensor, Tensor | None]:
        script = _Script(step, path, u, limit)
        coords, weights = selection.select(index, partials, script, dict(state or {}))
        return script, linear(coords), weights

    path: list[int] | None = []
    while path is not None:
        script, coords, weights = run(path, 0.0)
        share = 1.0 / math.prod(script.widths)
        if script.asked_uniform:
            for length, chosen, weight in _intervals(run, script.path):
                yield share * length, chosen, weight
        else:
            yield share, coords, weights
        path = _next(script.path, script.widths)


def _next(path: list[int], widths: list[int]) -> list[int] | None:
    """Return the script after this one, counting like an odometer."""
    path = path[: len(widths)]
    while path and path[-1] + 1 == widths[len(path) - 1]:
        path.pop()
    return [*path[:-1], path[-1] + 1] if path else None


def _intervals(run: Any, path: list[int]) -> Iterator[Outcome]:
    """Yield the pieces of [0, 1) on which the rule does the same, from the left."""

    def at(u: float) -> tuple[Tensor, Tensor | None]:
        _, coords, weights = run(path, u)
        return coords, weights

    start, here = 0.0, at(0.0)
    pieces = [(0.0, 1.0 - 2.0**-53, here, at(1.0 - 2.0**-53))]
    while pieces:  # a stack, the leftmost piece on top
        low, high, first, last = pieces.pop()
        if _same(first, last):
            continue
        if high - low > _RESOLUTION:
            middle = (low + high) / 2
            between = at(middle)
            pieces.append((middle, high, between, last))
            pieces.append((low, middle, first, between))
            continue
        yield high - start, *here
        start, here = high, last
    yield 1.0 - start, *here


def _same(a: tuple[Tensor, Tensor | None], b: tuple[Tensor, Tensor | None]) -> bool:
    if not torch.equal(a[0], b[0]):
        return False
    if a[1] is None or b[1] is None:
        return a[1] is b[1]
    return torch.equal(a[1], b[1])
