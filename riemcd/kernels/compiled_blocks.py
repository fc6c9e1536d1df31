"""The loop that moves small groups of vectors together, compiled by numba; rules as in `.compiled`."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import EACH, at, share

__all__ = ["ENTRIES", "TILE"]

TILE = 128  # how many entries of each vector are worked on at a time, near enough to be read again


@njit(nogil=True, fastmath=EACH)
def _add(total: Any, some: Any, factor: Any, n: int) -> None:
    for c in range(n):
        total[c] += factor * some[c]


@njit(nogil=True)
def _copy(x: Any, y: Any, n: int) -> None:
    for c in range(n):
        y[c] = x[c]


@njit(nogil=True)
def _cliques(task: Any, dtype: Any) -> None:
    """Add to each vector of a group a combination of all of them, ``x_a += sum_b m_ba x_b``."""
    q = carray(at(task, 2, np.int64), (20,))
    x, apart, groups, r, n, slots = q[0], q[2], q[6], q[7], q[8], q[10]
    start, stop = share(task, q[9] * groups)
    slot, _ = share(task, slots)  # no two threads begin at the same
    near = q[5] + slot * q[11]
    for item in range(start, stop):
        e = item // groups
        nodes = carray(at(q[3], (item - e * groups) * r, np.int64), (r,))
        m = carray(at(q[4], item * r * r, dtype), (r * r,))
        for first in range(0, n, TILE):
            width = min(TILE, n - first)
            for b in range(r):
                source = carray(at(x, e * q[1] + nodes[b] * apart + first, dtype), (width,))
                _copy(source, carray(at(near, b * TILE, dtype), (width,)), width)
            for a in range(r):
                # The increment is summed by itself and rounded into the vector once.
                increment = carray(at(near, r * TILE, dtype), (width,))
                for c in range(width):
                    increment[c] = 0
                for b in range(r):
                    some = carray(at(near, b * TILE, dtype), (width,))
                    _add(increment, some, m[b * r + a], width)
                total = carray(at(x, e * q[1] + nodes[a] * apart + first, dtype), (width,))
                _add(total, increment, dtype(1), width)


# Entries have names of their own, because numba finds what it has cached by name.


def cliques_f4(task: int) -> None:
    _cliques(task, np.float32)


def cliques_f8(task: int) -> None:
    _cliques(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("cliques", 4): cliques_f4, ("cliques", 8): cliques_f8}
