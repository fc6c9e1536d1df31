"""Loops over pairs of columns compiled by numba: rows are contiguous, and pairs are gathered from them.

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
def _add_rows(
    u: Any, us: int, v: Any, vs: int, lo: Any, hi: Any, acc: Any, k: int, d: int, dtype: Any
) -> None:
    """Add two contiguous rows to the wedge of every pair of columns; more of them would not stay in L1."""
    u0, v0 = carray(at(u, 0, dtype), (d,)), carray(at(v, 0, dtype), (d,))
    u1, v1 = carray(at(u, us, dtype), (d,)), carray(at(v, vs, dtype), (d,))
    for m in range(k):
        i, j = lo[m], hi[m]
        acc[m] += (u0[i] * v0[j] - u0[j] * v0[i]) + (u1[i] * v1[j] - u1[j] * v1[i])


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
    batch, k, rows, chunks, d, size = q[14], q[15], q[16], q[17], q[18], q[19]
    start, stop = share(task, batch * chunks)
    for item in range(start, stop):
        e = item // chunks
        c = item - e * chunks
        last = rows * (c + 1) // chunks
        lo, hi = carray(at(q[9], e * q[11], np.uint64), (k,)), carray(at(q[10], e * q[11], np.uint64), (k,))
        acc = carray(at(q[12], item * k, dtype), (k,))
        for m in range(k):
            acc[m] = 0
        row = rows * c // chunks
        while row < last:
            u, v = q[0] + size * (e * q[1] + row * q[2]), q[4] + size * (e * q[5] + row * q[6])
            if q[3] == 1 and q[7] == 1 and row + 2 <= last:
                _add_rows(u, q[2], v, q[6], lo, hi, acc, k, d, dtype)
                row += 2
            else:
                _add_row(u, q[3], v, q[7], lo, hi, acc, k, dtype)
                row += 1


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
            if q[3]:  # one number for each column, which finds its partner there too
                place = e * q[4]
                carray(at(q[3], place + i, np.int64), (1,))[0] = j
                carray(at(q[3], place + j, np.int64), (1,))[0] = i
                carray(at(q[1], place + i, dtype), (1,))[0] = s
                carray(at(q[1], place + j, dtype), (1,))[0] = -s
                carray(at(q[2], place + i, dtype), (1,))[0] = tau
                carray(at(q[2], place + j, dtype), (1,))[0] = -tau
            else:
                carray(at(q[1], item, dtype), (1,))[0] = s
                carray(at(q[2], item, dtype), (1,))[0] = tau


@njit(nogil=True, fastmath=EACH)
def _turn_whole_row(x: Any, partner: Any, s: Any, tau: Any, other: Any, d: int) -> None:
    """Rotate every entry of one contiguous row with its partner: gathered once, then all at a time."""
    for c in range(d):
        other[c] = x[partner[c]]
    for c in range(d):
        turned = x[c] - s[c] * (other[c] + tau[c] * x[c])
        x[c] = turned if s[c] != 0 else x[c]  # not even the sign of a zero changes


@njit(nogil=True)
def _turn_matrix(task: Any, dtype: Any) -> None:
    """Rotate pairs of columns that together are most of the columns, row by row."""
    q = carray(at(task, 2, np.int64), (20,))
    batch, rows, chunks, d = q[14], q[16], q[17], q[18]
    start, stop = share(task, batch * chunks)
    for item in range(start, stop):
        e = item // chunks
        c = item - e * chunks
        partner = carray(at(q[6], e * d, np.uint64), (d,))
        s, tau = carray(at(q[4], e * d, dtype), (d,)), carray(at(q[5], e * d, dtype), (d,))
        other = carray(at(q[7], item * d, dtype), (d,))
        for r in range(rows * c // chunks, rows * (c + 1) // chunks):
            _turn_whole_row(carray(at(q[0], e * q[1] + r * q[2], dtype), (d,)), partner, s, tau, other, d)


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


# Entries have names of their own, because numba finds what it has cached by name.


def read_columns_f4(task: int) -> None:
    _read_columns(task, np.float32)


def read_columns_f8(task: int) -> None:
    _read_columns(task, np.float64)


def finish_f4(task: int) -> None:
    _finish(task, np.float32)


def finish_f8(task: int) -> None:
    _finish(task, np.float64)


def turn_matrix_f4(task: int) -> None:
    _turn_matrix(task, np.float32)


def turn_matrix_f8(task: int) -> None:
    _turn_matrix(task, np.float64)


def turn_columns_f4(task: int) -> None:
    _turn_columns(task, np.float32)


def turn_columns_f8(task: int) -> None:
    _turn_columns(task, np.float64)


ENTRIES = {
    ("read_columns", 4): read_columns_f4,
    ("read_columns", 8): read_columns_f8,
    ("finish", 4): finish_f4,
    ("finish", 8): finish_f8,
    ("turn_matrix", 4): turn_matrix_f4,
    ("turn_matrix", 8): turn_matrix_f8,
    ("turn_columns", 4): turn_columns_f4,
    ("turn_columns", 8): turn_columns_f8,
}
