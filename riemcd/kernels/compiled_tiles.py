"""Loops over pairs of columns of contiguous rows, compiled by numba; rules as in `.compiled`.

Columns of a few rows are brought together first, each into a line of the cache of its own, by transposing
small squares in registers. Pairs jump about between lines then, and what they find there is worked on whole.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share
from .lanes import LINE, VECTOR, add_wedge, bytes_of, fold, turn_line
from .squares import gather_square, scatter_square

__all__ = ["ENTRIES"]


@njit(nogil=True, inline="always")
def _zeros(address: int, bytes_: int) -> None:
    some = carray(at(address, 0, np.uint8), (bytes_,))
    for c in range(bytes_):
        some[c] = 0


@njit(nogil=True)
def _bring(x: int, apart: int, rows: int, d: int, nothing: int, near: int, gathers: bool, dtype: Any) -> None:
    """Copy at most a vector's worth of rows, the first at ``x``, into half lines, or back from them.

    Rows that there are not are taken from ``nothing``, a vector of zeros, and put back there.
    """
    size = bytes_of(dtype)
    wide = VECTOR // size
    for c in range(0, d, wide):
        # The last squares may overlap: then some columns are copied twice.
        column = min(c, d - wide)
        if gathers:
            gather_square(x + column * size, apart, rows, nothing, near + column * LINE, dtype)
        else:
            scatter_square(x + column * size, apart, rows, nothing, near + column * LINE, dtype)


@njit(nogil=True)
def _read_tiles(task: Any, dtype: Any) -> None:
    """Sum the slopes of pairs of columns over chunks of rows; `_finish` adds the chunks up.

    A line gets a few rows of a column of both factors.
    """
    q = carray(at(task, 2, np.int64), (20,))
    batch, k, rows, chunks, d, slots = q[14], q[15], q[16], q[17], q[18], q[19]
    size = bytes_of(dtype)
    start, stop = share(task, batch * chunks)
    slot, _ = share(task, slots)  # no two threads begin at the same
    nothing = q[8] + slot * q[13]
    near = nothing + LINE
    totals = near + d * LINE
    _zeros(nothing, VECTOR)
    for item in range(start, stop):
        e = item // chunks
        c = item - e * chunks
        lo, hi = carray(at(q[9], e * q[11], np.int64), (k,)), carray(at(q[10], e * q[11], np.int64), (k,))
        _zeros(totals, k * VECTOR)
        last = rows * (c + 1) // chunks
        for row in range(rows * c // chunks, last, VECTOR // size):
            u, v = q[0] + size * (e * q[1] + row * q[2]), q[4] + size * (e * q[5] + row * q[6])
            _bring(u, q[2] * size, last - row, d, nothing, near, True, dtype)
            _bring(v, q[6] * size, last - row, d, nothing, near + VECTOR, True, dtype)
            for m in range(k):
                add_wedge(near + lo[m] * LINE, near + hi[m] * LINE, totals + m * VECTOR, dtype)
        sums = carray(at(q[12], item * k, dtype), (k,))
        for m in range(k):
            sums[m] = fold(totals + m * VECTOR, dtype)


@njit(nogil=True)
def _turn_tiles(task: Any, dtype: Any) -> None:
    """Rotate pairs of columns of contiguous rows."""
    q = carray(at(task, 2, np.int64), (20,))
    batch, k, rows, chunks, d, slots = q[14], q[15], q[16], q[17], q[18], q[19]
    size = bytes_of(dtype)
    tall = VECTOR // size
    start, stop = share(task, batch * chunks)
    slot, _ = share(task, slots)
    nothing = q[8] + slot * q[13]
    near = nothing + LINE
    _zeros(nothing, VECTOR)
    for item in range(start, stop):
        e = item // chunks
        c = item - e * chunks
        lo, hi = carray(at(q[9], e * q[11], np.int64), (k,)), carray(at(q[10], e * q[11], np.int64), (k,))
        s, tau = carray(at(q[4], e * k, dtype), (k,)), carray(at(q[5], e * k, dtype), (k,))
        last = rows * (c + 1) // chunks
        for row in range(rows * c // chunks, last, 2 * tall):
            x = q[0] + size * (e * q[1] + row * q[2])
            y, apart = x + tall * q[2] * size, q[2] * size
            _bring(x, apart, last - row, d, nothing, near, True, dtype)
            _bring(y, apart, last - row - tall, d, nothing, near + VECTOR, True, dtype)
            for m in range(k):
                if s[m] != 0:  # not even the sign of a zero changes
                    turn_line(near + lo[m] * LINE, near + hi[m] * LINE, s[m], tau[m], dtype)
            _bring(x, apart, last - row, d, nothing, near, False, dtype)
            _bring(y, apart, last - row - tall, d, nothing, near + VECTOR, False, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def read_tiles_f4(task: int) -> None:
    _read_tiles(task, np.float32)


def read_tiles_f8(task: int) -> None:
    _read_tiles(task, np.float64)


def turn_tiles_f4(task: int) -> None:
    _turn_tiles(task, np.float32)


def turn_tiles_f8(task: int) -> None:
    _turn_tiles(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("read_tiles", 4): read_tiles_f4,
    ("read_tiles", 8): read_tiles_f8,
    ("turn_tiles", 4): turn_tiles_f4,
    ("turn_tiles", 8): turn_tiles_f8,
}
