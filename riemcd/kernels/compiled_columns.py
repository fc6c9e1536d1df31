"""Loops over pairs of columns of any stride, or over a few of them, compiled by numba.

Slopes are summed over chunks of rows, added up, and only then can the columns turn: three passes.
The rules are those of :mod:`riemcd.kernels.compiled`.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import EACH, at, share

__all__ = ["ENTRIES"]


@njit(nogil=True, fastmath=EACH)
def _add_row(u: Any, us: int, v: Any, vs: int, lo: Any, hi: Any, acc: Any, k: int, dtype: Any) -> None:
    """Add one row of any stride to the wedge of every pair of columns."""
    for m in range(k):
        i, j = np.int64(lo[m]), np.int64(hi[m])
        ui, uj = carray(at(u, us * i, dtype), (1,))[0], carray(at(u, us * j, dtype), (1,))[0]
        vi, vj = carray(at(v, vs * i, dtype), (1,))[0], carray(at(v, vs * j, dtype), (1,))[0]
        acc[m] += ui * vj - uj * vi


@njit(nogil=True)
def _read_columns(task: Any, dtype: Any) -> None:
    """Sum the slopes of pairs of columns over chunks of rows; `_finish` adds the chunks up.

    The chunks depend on the shape alone, so that the result does not depend on the number of threads.
    """
    q = carray(at(task, 2, np.int64), (20,))
    batch, k, rows, chunks, size = q[14], q[15], q[16], q[17], q[19]
    start, stop = share(task, batch * chunks)
    for item in range(start, stop):
        e = item // chunks
        c = item - e * chunks
        lo, hi = carray(at(q[9], e * q[11], np.uint64), (k,)), carray(at(q[10], e * q[11], np.uint64), (k,))
        acc = carray(at(q[12], item * k, dtype), (k,))
        for m in range(k):
            acc[m] = 0
        for row in range(rows * c // chunks, rows * (c + 1) // chunks):
            u, v = q[0] + size * (e * q[1] + row * q[2]), q[4] + size * (e * q[5] + row * q[6])
            _add_row(u, q[3], v, q[7], lo, hi, acc, k, dtype)


@njit(nogil=True)
def _finish(task: Any, dtype: Any) -> None:
    """Add up the chunks of the slopes, and turn amounts into the sine and the half tangent of angles."""
    q = carray(at(task, 2, np.int64), (20,))
    scale, rate, turn = carray(at(task, 22, np.float64), (3,))
    batch, k, chunks, reads, moves, skips = q[14], q[15], q[16], q[17], q[18], q[19]
    start, stop = share(task, batch * k)
    for item in range(start, stop):
        e = item // k
        m = item - e * k
        out = carray(at(q[12], item, dtype), (1,))
        i = carray(at(q[9], e * q[11] + m, np.int64), (1,))[0]
        j = carray(at(q[10], e * q[11] + m, np.int64), (1,))[0]
        sign = 1.0 if i < j else -1.0  # the other kernels take the two ends as they come
        if reads:
            total = 0.0
            for c in range(chunks):
                total += carray(at(q[0], (e * chunks + c) * k + m, dtype), (1,))[0]
            amount = rate * (sign * scale * total)
            if skips:
                carray(at(q[13], item, np.bool_), (1,))[0] = not math.isfinite(total)
                if not math.isfinite(total):
                    amount = 0.0
            out[0] = amount
        if moves:
            angle = sign * turn * np.float64(out[0])
            s, tau = math.sin(angle), math.tan(0.5 * angle)
            carray(at(q[1], item, dtype), (1,))[0] = s
            carray(at(q[2], item, dtype), (1,))[0] = tau


@njit(nogil=True, fastmath=EACH)
def _turn_columns(task: Any, dtype: Any) -> None:
    """Rotate a few pairs of columns, or columns of any stride, row by row."""
    q = carray(at(task, 2, np.int64), (20,))
    batch, k, rows = q[14], q[15], q[16]
    start, stop = share(task, batch * rows)
    for item in range(start, stop):
        e = item // rows
        place = e * q[1] + (item - e * rows) * q[2]
        for m in range(k):
            i = carray(at(q[9], e * q[11] + m, np.int64), (1,))[0]
            j = carray(at(q[10], e * q[11] + m, np.int64), (1,))[0]
            s = carray(at(q[4], e * k + m, dtype), (1,))[0]
            tau = carray(at(q[5], e * k + m, dtype), (1,))[0]
            if s == 0:
                continue
            first = carray(at(q[0], place + q[3] * i, dtype), (1,))
            second = carray(at(q[0], place + q[3] * j, dtype), (1,))
            a, b = first[0], second[0]
            first[0] = a - s * (b + tau * a)
            second[0] = b + s * (a - tau * b)


@njit(nogil=True)
def _few(task: Any, dtype: Any) -> None:
    """Read slopes of a few pairs of vectors of any stride, or rotate them, or both, pair by pair."""
    q = carray(at(task, 2, np.int64), (20,))
    scale, rate, turn = carray(at(task, 22, np.float64), (3,))
    k, n, reads, moves, skips, second = q[14], q[15], q[16], q[17], q[18], q[19]
    x, along = (q[4], q[6]) if second else (q[0], q[2])  # which of the two factors is the point
    start, stop = share(task, q[13] * k)
    for item in range(start, stop):
        e = item // k
        i = carray(at(q[8], e * q[10] + item - e * k, np.int64), (1,))[0]
        j = carray(at(q[9], e * q[10] + item - e * k, np.int64), (1,))[0]
        lo, hi = min(i, j), max(i, j)
        out = carray(at(q[11], item, dtype), (1,))
        if reads:
            total = 0.0
            a, b = e * q[1] + lo * q[3], e * q[1] + hi * q[3]
            g, h = e * q[5] + lo * q[7], e * q[5] + hi * q[7]
            for _ in range(n):
                total += (
                    carray(at(q[0], a, dtype), (1,))[0] * carray(at(q[4], h, dtype), (1,))[0]
                    - carray(at(q[0], b, dtype), (1,))[0] * carray(at(q[4], g, dtype), (1,))[0]
                )
                a, b, g, h = a + q[2], b + q[2], g + q[6], h + q[6]
            slope = scale * total
            amount = rate * slope
            if skips:
                carray(at(q[12], item, np.bool_), (1,))[0] = not math.isfinite(slope)
                if not math.isfinite(slope):
                    amount = 0.0
            out[0] = amount
        angle = turn * np.float64(out[0])
        if moves and angle != 0.0:
            s, tau = dtype(math.sin(angle)), dtype(math.tan(0.5 * angle))
            a = (e * q[5] + lo * q[7]) if second else (e * q[1] + lo * q[3])
            b = (e * q[5] + hi * q[7]) if second else (e * q[1] + hi * q[3])
            for _ in range(n):
                first, other = carray(at(x, a, dtype), (1,)), carray(at(x, b, dtype), (1,))
                y, z = first[0], other[0]
                first[0] = y - s * (z + tau * y)
                other[0] = z + s * (y - tau * z)
                a, b = a + along, b + along


# Entries have names of their own, because numba finds what it has cached by name.


def read_columns_f4(task: int) -> None:
    _read_columns(task, np.float32)


def read_columns_f8(task: int) -> None:
    _read_columns(task, np.float64)


def finish_f4(task: int) -> None:
    _finish(task, np.float32)


def finish_f8(task: int) -> None:
    _finish(task, np.float64)


def turn_columns_f4(task: int) -> None:
    _turn_columns(task, np.float32)


def turn_columns_f8(task: int) -> None:
    _turn_columns(task, np.float64)


def few_f4(task: int) -> None:
    _few(task, np.float32)


def few_f8(task: int) -> None:
    _few(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("few", 4): few_f4,
    ("few", 8): few_f8,
    ("read_columns", 4): read_columns_f4,
    ("read_columns", 8): read_columns_f8,
    ("finish", 4): finish_f4,
    ("finish", 8): finish_f8,
    ("turn_columns", 4): turn_columns_f4,
    ("turn_columns", 8): turn_columns_f8,
}
