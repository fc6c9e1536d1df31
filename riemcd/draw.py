"""Random draws that depend on nothing but (seed, step, parameter).

Ranks and devices agree without talking, and nothing random has to be saved in a checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Draw"]

_MASK = (1 << 64) - 1


def _mix(*words: int) -> int:
    """Scramble some integers into one seed (the finaliser of splitmix64, once per word)."""
    h = 0x9E3779B97F4A7C15
    for word in words:
        h = (h ^ (word & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        h = (h ^ (h >> 27)) * 0x94D049BB133111EB & _MASK
        h ^= h >> 31
    return h


class Draw:
    """A source of random numbers for one step of one parameter.

    Parameters
    ----------
    seed : int
        The user's seed.
    step : int
        How many times this parameter was updated before.
    ordinal : int
        The place of the parameter among all parameters of the optimizer.
    device : torch.device, optional
        Where the results go; they are always drawn on the CPU.
    """

    __slots__ = ("_generator", "_integers", "device", "ordinal", "seed", "step")

    def __init__(self, seed: int, step: int, ordinal: int = 0, device: torch.device | None = None) -> None:
        self.seed = seed
        self.step = step
        self.ordinal = ordinal
        self.device = device
        self._generator: torch.Generator | None = None
        self._integers = 0

    @property
    def generator(self) -> torch.Generator:
        """The generator behind the draws, made on first use."""
        if self._generator is None:
            # torch seeds its Mersenne twister with the low 32 bits only.
            self._generator = torch.Generator().manual_seed(_mix(self.seed, self.step, self.ordinal) >> 32)
        return self._generator

    def _placed(self, x: Tensor) -> Tensor:
        return x if self.device is None or self.device.type == "cpu" else x.to(self.device)

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return self._generator is not None or self._integers > 0

    def permutation(self, n: int) -> Tensor:
        """Return a random permutation of ``0, ..., n-1``."""
        return self._placed(torch.randperm(n, generator=self.generator))

    def integer(self, count: int) -> int:
        """Return one of ``0, ..., count-1`` without making a tensor, which takes as long as a small step."""
        self._integers += 1
        return _mix(self.seed, self.step, self.ordinal, self._integers) * count >> 64

    def uniform(self, n: int) -> Tensor:
        """Return ``n`` float64 numbers, uniform on [0, 1)."""
        return self._placed(torch.rand(n, generator=self.generator, dtype=torch.float64))

    def sample(self, count: int, k: int) -> Tensor:
        """Return ``k`` different numbers out of ``0, ..., count-1``, every set equally likely.

        Repeats are thrown away and drawn again while ``k`` is small, so that the price is that of
        ``k`` numbers and not of ``count``.
        """
        if k == 1 and count > 0:
            return self._placed(torch.tensor([self.integer(count)]))
        if 3 * k >= count:
            return self._placed(torch.randperm(count, generator=self.generator)[:k])
        chosen = torch.randint(count, (k,), generator=self.generator)
        while True:
            values, first = _first_occurrences(chosen)
            if values.numel() >= k:
                chosen = chosen[first.sort().values[:k]]
                break
            chosen = torch.cat([chosen, torch.randint(count, (k,), generator=self.generator)])
        return self._placed(chosen)


def _first_occurrences(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values of ``x`` and where each occurs first."""
    values, inverse = torch.unique(x, return_inverse=True)
    positions = torch.arange(x.numel())
    first = torch.full((values.numel(),), x.numel()).scatter_reduce_(0, inverse, positions, "amin")
    return values, first
