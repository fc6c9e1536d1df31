"""Lazy slopes: a rule that asks for nothing makes nothing be computed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .index import Coordinates, PairSet, linear

__all__ = ["Partials"]


class Partials:
    """The slopes of the loss along the coordinates of one parameter, computed when asked for.

    Parameters
    ----------
    read : callable
        ``read(coords)`` returns the slopes at ``coords``, ``read(None)`` all of them.
    count : int
        How many coordinates there are.
    """

    def __init__(self, read: Callable[[Coordinates | None], Tensor], count: int) -> None:
        self._read = read
        self._all: Tensor | None = None
        self.count = count
        self.computed = 0  # slopes computed so far, for those who check the price

    def all(self) -> Tensor:
        """Return every slope, ``(*batch, count)``; computed once."""
        if self._all is None:
            self._all = self._read(None)
            self.computed += self.count
        return self._all

    def at(self, coords: Coordinates) -> Tensor:
        """Return the slopes at ``coords``, ``(*batch, k)``."""
        if self._all is None:
            self.computed += (coords.lo if isinstance(coords, PairSet) else coords).shape[-1]
            return self._read(coords)
        index = linear(coords)
        if index.dim() == 1:
            return self._all[..., index]
        return self._all.gather(-1, index)
