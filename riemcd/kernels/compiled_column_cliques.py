"""Groups of columns of contiguous rows that turn together, compiled; rules as in `.compiled`.

Groups share every row, so that threads divide the rows among them and not the groups. A few rows are worked
on at a time, group after group, while the cache holds them.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share
from .compiled_cliques import LARGE, exponential, skew_of
from .lanes import LINE, bytes_of, combine

__all__ = ["ENTRIES"]

_STRIP = 64  # rows that are worked on at a time
_STILL = -1.0  # in the place of the largest entry, where nothing turns


@njit(nogil=True)
def _exponentials(task: Any, dtype: Any) -> None:
    """Write the increment of each group, in double precision where it is large, and its largest entry."""
    q = carray(at(task, 2, np.int64), (20,))
    turn = carray(at(task, 22, np.float64), (3,))[2]
    R = (q[8] + 7) // 8 * 8
    start, stop = share(task, q[10] * q[7])
    slot, _ = share(task, q[15])  # no two threads begin at the same
    table = q[17] + slot * q[16]
    skew = carray(at(table, 0, np.float64), (R * R,))
    for item in range(start, stop):
        largest = carray(at(q[4], item, np.float64), (1,))
        norm = skew_of(q, item, turn, skew, R, dtype)
        if norm == 0.0:
            largest[0] = _STILL
            continue
        exponential(table, R, norm)
        largest[0] = 0.0
        for c in range(R * R):
            largest[0] = max(largest[0], abs(skew[c]))
        there = q[3] + item * 8 * R * R
        whole, rounded = carray(at(there, 0, np.float64), (R * R,)), carray(at(there, 0, dtype), (R * R,))
        if largest[0] > LARGE:
            for c in range(R * R):
                whole[c] = skew[c]
        else:
            for c in range(R * R):
                rounded[c] = skew[c]


@njit(nogil=True)
def _apply(
    x: int, along: int, nodes: Any, width: int, m: int, R: int, near: int, kind: Any, dtype: Any
) -> None:
    """Add to each column of a group a combination of all of them, in a few rows, computed in ``kind``."""
    size, r = bytes_of(kind), len(nodes)
    added = near + R * _STRIP * size
    old, more = carray(at(near, 0, kind), (R, _STRIP)), carray(at(added, 0, kind), (R, _STRIP))
    for c in range(width):
        row = carray(at(x, c * along, dtype), (1,))
        for b in range(r):
            old[b, c] = row[np.uint64(nodes[b])]
    for a in range(0, r, 4):
        for shift in range(0, width * size, LINE):
            combine(
                m + a * size,
                R * size,
                size,
                near + shift,
                _STRIP * size,
                r,
                added + a * _STRIP * size + shift,
                _STRIP * size,
                kind,
            )
    for c in range(width):
        row = carray(at(x, c * along, dtype), (1,))
        for b in range(r):
            # The increment is summed by itself and rounded into the column once.
            row[np.uint64(nodes[b])] = old[b, c] + more[b, c]


@njit(nogil=True)
def _turn_column_cliques(task: Any, dtype: Any) -> None:
    """Turn all groups in this thread's rows."""
    q = carray(at(task, 2, np.int64), (20,))
    along, groups, r, n, batch = q[2], q[7], q[8], q[9], q[10]
    R, size = (r + 7) // 8 * 8, bytes_of(dtype)
    strips = (n + _STRIP - 1) // _STRIP
    start, stop = share(task, batch * strips)
    slot, _ = share(task, q[15])
    near = q[17] + slot * q[16]
    for item in range(start, stop):
        e = item // strips
        first = (item - e * strips) * _STRIP
        width, x = min(_STRIP, n - first), q[0] + size * (e * q[1] + first * along)
        for group in range(groups):
            which = e * groups + group
            nodes, m = carray(at(q[6], group * r, np.int64), (r,)), q[3] + which * 8 * R * R
            largest = carray(at(q[4], which, np.float64), (1,))[0]
            if largest == _STILL:  # not even the sign of a zero changes
                continue
            if largest > LARGE:
                _apply(x, along, nodes, width, m, R, near, np.float64, dtype)
            else:
                _apply(x, along, nodes, width, m, R, near, dtype, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def exponentials_f4(task: int) -> None:
    _exponentials(task, np.float32)


def exponentials_f8(task: int) -> None:
    _exponentials(task, np.float64)


def turn_column_cliques_f4(task: int) -> None:
    _turn_column_cliques(task, np.float32)


def turn_column_cliques_f8(task: int) -> None:
    _turn_column_cliques(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("exponentials", 4): exponentials_f4,
    ("exponentials", 8): exponentials_f8,
    ("turn_column_cliques", 4): turn_column_cliques_f4,
    ("turn_column_cliques", 8): turn_column_cliques_f8,
}
