"""Times of contestants that take turns, so that a busy machine is busy for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.benchmark import Timer

__all__ = ["Times", "take_turns"]

THREADS = 2


@dataclass
class Times:
    """Seconds per call, one number for each round of the heat in which it was timed."""

    heat: int = 0
    rounds: list[float] = field(default_factory=list)
    to_first: float = 1.0  # how many times as long as the first contestant of the heat

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def least(self) -> float:
        return min(self.rounds)

    def against(self, other: Times) -> float:
        """Return the median of the ratios within a round, or of the medians of different heats."""
        if self.heat != other.heat:
            return self.median / other.median
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds, strict=False))


def take_turns(
    contestants: dict[str, Callable[[], Any]], rounds: int = 9, seconds: float = 0.05, heat: int = 0
) -> dict[str, Times]:
    """Time every contestant in every round; a slow one (over a second) in the first three only."""
    times = {name: Times(heat) for name in contestants}
    timers, calls = {}, {}
    for name, step in contestants.items():
        timers[name] = Timer("step()", globals={"step": step}, num_threads=THREADS)
        step()
        once = timers[name].timeit(1).median
        if once < 1.0:  # what takes so long does not change by being called once more
            once = min(once, timers[name].timeit(1).median)
            step()
        calls[name] = max(1, min(500, round(seconds / once)))
    for number in range(rounds):
        for name, timer in timers.items():
            if number >= 3 and times[name].least > 1.0:
                continue
            times[name].rounds.append(timer.timeit(calls[name]).median)
    first = next(iter(times.values()))
    for one in times.values():
        one.to_first = one.against(first)
    return times
