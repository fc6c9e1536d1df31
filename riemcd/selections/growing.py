"""A rule that takes more and more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection
from .partition import Partition
from .uniform import Uniform
from .validate import positive_integer

__all__ = ["Growing"]


@final
@dataclass(frozen=True)
class Growing(Selection):
    r"""Let the size of another rule grow, from ``start`` to ``stop`` over ``steps`` steps.

    .. math:: \text{size}(t) = \text{start} \, (\text{stop} / \text{start})^{\min(t / \text{steps},\, 1)}

    rounded where the size is a number of coordinates. Gradients tend to lose their sparsity while
    training goes on: few coordinates carry them at first, more of them later. Sizes may shrink too.

    Parameters
    ----------
    inner : Selection
        A rule with a size: ``Uniform``, ``GaussSouthwell`` (its ``k`` or its ``fraction``),
        ``Partition`` or ``Importance``. Its own size is not used.
    start, stop : int or float
        The first and the last size.
    steps : int
        After how many updates of a parameter the last size is reached.

    Examples
    --------
    >>> from riemcd.selections import Uniform
    >>> rule = Growing(Uniform(), start=1, stop=100, steps=10)
    >>> [rule.at(step).k for step in (0, 5, 10, 20)]
    [1, 10, 100, 100]
    """

    inner: Selection
    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Selection):
            raise TypeError(f"Growing takes a Selection and lets it grow, got {type(self.inner).__name__}.")
        if self.inner.grows is None:
            raise ValueError(f"Growing cannot let {self.inner!r} grow: it has no size.")
        positive_integer("Growing", "steps", self.steps)
        for step in (0, self.steps):
            self.at(step)  # the inner rule says what is wrong with a size

    @property
    def looks_at_slopes(self) -> bool:  # type: ignore[override]
        """Whether the inner rule does."""
        return self.inner.looks_at_slopes

    @property
    def pairs(self) -> bool:  # type: ignore[override]
        """Whether the inner rule chooses pairs."""
        return self.inner.pairs

    @property
    def disjoint(self) -> bool:  # type: ignore[override]
        """Whether the inner rule's pairs are disjoint."""
        return self.inner.disjoint

    def at(self, step: int) -> Any:
        """Return the inner rule as it is after ``step`` updates."""
        return _grown(self, min(step, self.steps))

    @classmethod
    def examples(cls) -> Sequence[Growing]:
        """A rule that grows, and one that shrinks."""
        return [cls(Uniform(), 1, 4, 3), cls(Partition(2), 4, 2, 3)]

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Ask the inner rule at its present size."""
        chosen: tuple[Coordinates, Tensor | None] = self.at(draw.step).select(index, partials, draw, state)
        return chosen

    def check(self, index: Index) -> None:
        """The inner rule must serve at both ends."""
        self.at(0).check(index)
        self.at(self.steps).check(index)


@lru_cache(maxsize=1024)
def _grown(rule: Growing, step: int) -> Selection:
    if rule.start <= 0 or rule.stop <= 0:
        raise ValueError(f"Growing: sizes must be positive, got {rule.start} and {rule.stop}.")
    name = rule.inner.grows
    assert name is not None
    share = step / rule.steps
    size = rule.start ** (1 - share) * rule.stop**share
    whole = isinstance(rule.start, int) and isinstance(rule.stop, int)
    return replace(rule.inner, **{name: round(size) if whole else size})  # type: ignore[type-var]
