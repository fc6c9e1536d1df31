"""Running means of slopes and of their squares, compiled; the rules are those of :mod:`.compiled`."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share

__all__ = ["ENTRIES"]


@njit(nogil=True)
def _adam(task: Any, dtype: Any) -> None:
    """Update the moments of the coordinates that were visited, and write how far they move."""
    q = carray(at(task, 2, np.int64), (20,))
    k = q[6]
    keep1, new1, log1, keep2, new2, log2, eps, rate = carray(at(q[7], 0, np.float64), (8,))
    coords, slopes = carray(at(q[0], 0, np.int64), (k,)), carray(at(q[1], 0, dtype), (k,))
    visits = carray(at(q[2], 0, np.int32), (1,))
    means, squares = carray(at(q[3], 0, dtype), (1,)), carray(at(q[4], 0, dtype), (1,))
    amounts = carray(at(q[5], 0, dtype), (k,))
    start, stop = share(task, k)
    seen, root, factor = 0, dtype(0), dtype(0)
    for m in range(start, stop):
        i, slope = np.uint64(coords[m]), slopes[m]
        visits[i] += 1
        mean = means[i] + dtype(new1) * (slope - means[i]) if keep1 > 0 else slope
        square = dtype(keep2) * squares[i] + dtype(new2) * slope * slope
        means[i], squares[i] = mean, square
        if visits[i] != seen:  # neighbours have often been visited equally often
            seen = visits[i]
            root = dtype(math.sqrt(-math.expm1(seen * log2)))
            factor = dtype(rate / math.expm1(seen * log1))
        amounts[m] = mean / (math.sqrt(square) / root + dtype(eps)) * factor


# Entries have names of their own, because numba finds what it has cached by name.


def adam_f4(task: int) -> None:
    _adam(task, np.float32)


def adam_f8(task: int) -> None:
    _adam(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("adam", 4): adam_f4, ("adam", 8): adam_f8}
