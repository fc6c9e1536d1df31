"""The socket for selections: which coordinates to take now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials

__all__ = ["Selection", "check_size"]


class Selection(ABC):
    """A rule that chooses coordinates.

    Rules hold no tensors and no randomness: draws come from ``draw``, and what must be remembered
    between steps lives in ``state``. A rule that does not look at slopes draws one set that the whole
    batch shares; a greedy rule chooses for each element of the batch.

    Attributes
    ----------
    looks_at_slopes : bool
        The rule reads slopes before it chooses.
    pairs : bool
        The rule chooses pairs, and needs a basis whose coordinates are pairs.
    disjoint : bool
        No column or row occurs in two chosen pairs.
    sweeps : bool
        Consecutive steps cover every coordinate exactly once, then start again.
    grows : str or None
        The name of the field that says how much the rule takes, for `Growing`.
    """

    looks_at_slopes: bool = False
    pairs: bool = False
    disjoint: bool = False
    sweeps: bool = False
    grows: str | None = None

    @abstractmethod
    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Return the coordinates, ``(k,)`` or ``(*batch, k)``, and weights for their slopes or None."""

    def check(self, index: Index) -> None:  # noqa: B027 - most rules serve any coordinates
        """Raise a ValueError when this rule cannot serve such coordinates."""

    def inclusion(self, index: Index) -> float | None:
        """Return the probability that a coordinate is in the set, where it is the same for all of them.

        For rules that go through the coordinates in sweeps it is the mean over a sweep. None where
        coordinates differ, or where the slopes decide.
        """
        return 1.0 / self.steps_per_sweep(index) if self.sweeps else None

    @classmethod
    def examples(cls) -> Sequence[Selection]:
        """Return rules of this kind for the laws to try; the plain one unless told otherwise."""
        return [cls()]

    def steps_per_sweep(self, index: Index) -> int:
        """Return how many steps make a sweep, for rules with ``sweeps``."""
        raise TypeError(f"{self!r} does not go through the coordinates in sweeps.")


def check_size(rule: Selection, k: int, index: Index) -> None:
    """Raise a ValueError when a rule wants more coordinates than there are (none at all is no error)."""
    if index.count and k > index.count:
        raise ValueError(
            f"{rule!r} takes {k} coordinates, but there are only {index.count}: take fewer, or All() of them."
        )
