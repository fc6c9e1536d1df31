"""Lazy slopes: a rule that asks for nothing makes nothing be computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .index import Coordinates, PairSet, linear

__all__ = ["Partials", "largest"]


class Partials:
    """The slopes of the loss along the coordinates of one parameter, computed when asked for.

    Parameters
    ----------
    read : callable
        ``read(coords)`` returns the slopes at ``coords``, ``read(None)`` all of them.
    count : int
        How many coordinates there are.
    steepest : callable, optional
        Returns the coordinate with the largest slope, ``(*batch, 1)``, or None, without writing down
        every slope.
    """

    def __init__(
        self,
        read: Callable[[Coordinates | None], Tensor],
        count: int,
        steepest: Callable[[], Tensor | None] | None = None,
    ) -> None:
        self._read = read
        self._steepest = steepest
        self._all: Tensor | None = None
        self._last: tuple[Coordinates, Tensor] | None = None
        self.count = count
        self.computed = 0  # slopes computed so far, for those who check the price

    def all(self) -> Tensor:
        """Return every slope, ``(*batch, count)``; computed once."""
        if self._all is None:
            self._all = self._read(None)
            self.computed += self.count
        return self._all

    def largest(self, k: int) -> Tensor:
        """Return the ``k`` coordinates with the largest slopes, ``(*batch, k)``, ties to the lowest."""
        if k == 1 and self._all is None and self._steepest is not None:
            found = self._steepest()
            if found is not None:
                self.computed += self.count
                return found
        return largest(self.all().abs(), k)

    def at(self, coords: Coordinates) -> Tensor:
        """Return the slopes at ``coords``, ``(*batch, k)``."""
        if self._all is None:
            if self._last is None or self._last[0] is not coords:
                self.computed += coords.size if isinstance(coords, PairSet) else coords.shape[-1]
                self._last = coords, self._read(coords)
            return self._last[1]
        index = linear(coords)
        if index.dim() == 1:
            return self._all[..., index]
        return self._all.gather(-1, index)


def largest(magnitude: Tensor, k: int) -> Tensor:
    """Return where the ``k`` largest entries along the last dimension are, the lowest index first.

    NaN counts as largest, so that it is seen by whoever looks at the chosen slopes.
    """
    if k == 1:
        return magnitude.argmax(-1, keepdim=True)
    if k == 0:
        return magnitude.new_zeros((*magnitude.shape[:-1], 0), dtype=torch.int64)
    magnitude = magnitude.nan_to_num(nan=torch.inf, posinf=torch.inf)
    threshold = magnitude.topk(k, -1).values[..., -1:]
    above, tied = magnitude > threshold, magnitude == threshold
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(-1) <= room))
    return chosen.nonzero()[:, -1].view(*magnitude.shape[:-1], k)
