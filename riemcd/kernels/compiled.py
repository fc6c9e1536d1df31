"""Loops over vectors and tiles compiled by numba; each does its thread's share of a task.

A kernel takes the address of a task, packed numbers laid out as in :mod:`riemcd.kernels.native`, and does
the part of it that belongs to the thread it runs on. It allocates nothing, takes no lock and needs no
interpreter, so that any thread may run it. Importing this module needs numba.

Indices are unsigned: numba wraps negative ones around, which costs a comparison per element.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic

from .lanes import LINE, bytes_of, turn_ahead

__all__ = ["EACH", "ENTRIES", "NUM_THREADS", "THREAD_NUM", "all_fine", "at", "coming", "move", "part"]
__all__ += ["place", "read_pair", "share", "take"]

#: Names under which the team must be known to the linker before anything is compiled or loaded.
THREAD_NUM, NUM_THREADS = "riemcd_thread_num", "riemcd_num_threads"
_thread_num = types.ExternalFunction(THREAD_NUM, types.int32())
_num_threads = types.ExternalFunction(NUM_THREADS, types.int32())

#: Sums may be reordered so that they vectorise; NaN and infinity keep their meaning.
_SUM = {"reassoc", "contract"}
#: The same for what is not a sum: only a product and a sum may become one instruction.
EACH = {"contract"}
_BLOCK = 1024  # how many terms are summed in the working precision before they go into a double
_TILE = 64


@intrinsic
def at(typing_context: Any, address: Any, offset: Any, dtype: Any) -> Any:
    """Return a pointer to element ``offset`` of the array of ``dtype`` that starts at ``address``."""
    pointer = types.CPointer(dtype.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base = builder.inttoptr(args[0], context.get_value_type(pointer))
        return builder.gep(base, [args[1]])

    return pointer(types.int64, types.int64, dtype), generate


@njit(nogil=True, inline="always")
def part(task: Any) -> Any:
    """Return the number of this thread, and how many there are."""
    words = carray(at(task, 0, np.int64), (2,))
    t, parts = words[0], words[1]
    if parts == 0:  # called by a team of OpenMP threads
        t, parts = np.int64(_thread_num()), np.int64(_num_threads())
    return t, parts


@njit(nogil=True, inline="always")
def share(task: Any, items: int) -> Any:
    """Return the first and the last item of this thread's part, ``[start, stop)``."""
    t, parts = part(task)
    return items * t // parts, items * (t + 1) // parts


@intrinsic
def _add_atomically(typing_context: Any, address: Any, amount: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_value_type(types.CPointer(types.int64)))
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@njit(nogil=True, inline="always")
def take(task: Any, items: int, counter: int) -> int:
    """Return the first of some items that no thread has taken yet, and take them: counters go up only."""
    return _add_atomically(carray(at(task, 25, np.int64), (1,))[0] + 8 * counter, items)


@njit(nogil=True, inline="always")
def all_fine(task: Any, count: int) -> bool:
    """Wait until ``count`` is reached in counter 2, and return whether nothing wrong is in counter 1."""
    while take(task, 0, 2) < count:  # somebody is still reading
        pass
    return take(task, 0, 1) == 0


@njit(nogil=True, fastmath=_SUM)
def _wedge(a: Any, b: Any, g: Any, h: Any, n: int, zero: Any) -> Any:
    """Return the sum of a h - b g, summed in blocks."""
    total = 0.0
    for start in range(0, n, _BLOCK):
        part = zero
        for i in range(start, min(n, start + _BLOCK)):
            part += a[i] * h[i] - b[i] * g[i]
        total += part
    return total


@njit(nogil=True, fastmath=EACH)
def _turn(a: Any, b: Any, n: int, s: Any, tau: Any) -> None:
    """Rotate two vectors by increments."""
    for i in range(n):
        x, y = a[i], b[i]
        a[i] = x - s * (y + tau * x)
        b[i] = y + s * (x - tau * y)


@njit(nogil=True, inline="always")
def place(q: Any, item: int) -> Any:
    """Return the element of the batch and the ends of a pair."""
    e = item // q[15]
    m = item - e * q[15]
    i = carray(at(q[9], e * q[11] + m, np.int64), (1,))[0]
    j = carray(at(q[10], e * q[11] + m, np.int64), (1,))[0]
    return e, min(i, j), max(i, j)


@njit(nogil=True, inline="always")
def coming(q: Any, item: int, only_moves: bool, size: int) -> Any:
    """Return where two vectors are that will be read of a pair, and two that will be rotated."""
    e, i, j = place(q, item)
    g, h = q[6] + size * (e * q[7] + i * q[8]), q[6] + size * (e * q[7] + j * q[8])
    if only_moves:
        return g, h, g, h
    one = 0 if q[3] == q[6] else 3  # the factor that is not the point
    a = q[one] + size * (e * q[one + 1] + i * q[one + 2])
    b = q[one] + size * (e * q[one + 1] + j * q[one + 2])
    return a, b, g, h


@njit(nogil=True)
def move(q: Any, item: int, following: int, angle: float, dtype: Any) -> None:
    """Rotate one pair, and call for what is read of the following one."""
    size, n = bytes_of(dtype), q[16]
    e, lo, hi = place(q, item)
    s, tau = dtype(math.sin(angle)), dtype(math.tan(0.5 * angle))
    x, y = q[6] + size * (e * q[7] + lo * q[8]), q[6] + size * (e * q[7] + hi * q[8])
    a, b, g, h = coming(q, following, q[17] == 0 or q[18] == 2, size)
    lines = n * size // LINE
    turn_ahead(x, y, lines, s, tau, a, b, g, h, dtype)
    rest = lines * LINE // size
    _turn(carray(at(x, rest, dtype), (n - rest,)), carray(at(y, rest, dtype), (n - rest,)), n - rest, s, tau)


@njit(nogil=True)
def _slope(q: Any, item: int, dtype: Any) -> float:
    """Read the wedge of one pair."""
    e, lo, hi = place(q, item)
    n = q[16]
    return _wedge(
        carray(at(q[0], e * q[1] + lo * q[2], dtype), (n,)),
        carray(at(q[0], e * q[1] + hi * q[2], dtype), (n,)),
        carray(at(q[3], e * q[4] + lo * q[5], dtype), (n,)),
        carray(at(q[3], e * q[4] + hi * q[5], dtype), (n,)),
        n,
        dtype(0),
    )


@njit(nogil=True)
def read_pair(q: Any, item: int, scale: float, rate: float, dtype: Any) -> bool:
    """Write the amount of one pair, and return whether its slope is finite where that is asked for."""
    slope = scale * _slope(q, item, dtype)
    amount, fine = rate * slope, True
    if q[19]:
        fine = math.isfinite(slope)
        carray(at(q[13], item, np.bool_), (1,))[0] = not fine
        if not fine:
            amount = 0.0
    carray(at(q[12], item, dtype), (1,))[0] = amount
    return fine


@njit(nogil=True)
def _vectors(task: Any, dtype: Any) -> None:
    """Read slopes of pairs of contiguous vectors, or rotate them, or both in one pass.

    A pair is read and rotated while it is in the cache: the memory traffic is that of plain SGD. Threads
    take some pairs at a time, so that one that comes late leaves its work to the others. Where ``moves`` is
    two, nothing is rotated before every slope was found to be finite.
    """
    q = carray(at(task, 2, np.int64), (20,))
    scale, rate, turn = carray(at(task, 22, np.float64), (3,))
    items, reads, moves = q[14] * q[15], q[17], q[18]
    some = max(1, _BLOCK * 8 // max(1, q[16]))
    if moves == 2:
        start = take(task, some, 0)
        while start < items:
            stop, wrong = min(start + some, items), 0
            for item in range(start, stop):
                wrong += 0 if read_pair(q, item, scale, rate, dtype) else 1
            take(task, wrong, 1)
            take(task, stop - start, 2)
            start = take(task, some, 0)
        if not all_fine(task, items):
            return
    counter = 3 if moves == 2 else 0
    start = take(task, some, counter)
    while start < items:
        stop = min(start + some, items)
        for item in range(start, stop):
            if reads and moves != 2:
                read_pair(q, item, scale, rate, dtype)
            angle = turn * np.float64(carray(at(q[12], item, dtype), (1,))[0])
            if moves and angle != 0.0:
                move(q, item, min(item + 1, stop - 1), angle, dtype)
        start = take(task, some, counter)


@njit(nogil=True)
def _upper(task: Any, dtype: Any) -> None:
    """Read a_ij - a_ji above the diagonal, in tiles: write all of it, or keep the largest.

    NaN counts as largest, and ties go to the lowest index. Rows of tiles are dealt round to the
    threads, since the first ones are the longest.
    """
    q = carray(at(task, 2, np.int64), (20,))
    scale = carray(at(task, 22, np.float64), (3,))[0]
    d, batch, writes = q[3], q[14], q[15]
    bands = (d + _TILE - 1) // _TILE
    start, stop = share(task, q[16])  # slots, one for each thread at most
    for slot in range(start, stop):
        for e in range(batch):
            best, where = -1.0, np.int64(d) * d
            for band in range(slot, bands, q[16]):
                for left in range(band, bands):
                    for i in range(band * _TILE, min(d, (band + 1) * _TILE)):
                        row = carray(at(q[0], e * q[1] + i * d, dtype), (d,))
                        number = i * (2 * d - 3 - i) // 2 - 1
                        for j in range(max(i + 1, left * _TILE), min(d, (left + 1) * _TILE)):
                            wedge = row[j] - carray(at(q[0], e * q[1] + j * d + i, dtype), (1,))[0]
                            if writes:
                                carray(at(q[2], e * q[4] + number + j, dtype), (1,))[0] = dtype(scale * wedge)
                            else:
                                size = abs(wedge) if wedge == wedge else np.inf
                                if size > best or (size == best and number + j < where):
                                    best, where = size, number + j
            if not writes:
                carray(at(q[5], slot * batch + e, np.float64), (1,))[0] = best
                carray(at(q[6], slot * batch + e, np.int64), (1,))[0] = where


# Entries have names of their own, because numba finds what it has cached by name.


def vectors_f4(task: int) -> None:
    _vectors(task, np.float32)


def vectors_f8(task: int) -> None:
    _vectors(task, np.float64)


def upper_f4(task: int) -> None:
    _upper(task, np.float32)


def upper_f8(task: int) -> None:
    _upper(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("vectors", 4): vectors_f4,
    ("vectors", 8): vectors_f8,
    ("upper", 4): upper_f4,
    ("upper", 8): upper_f8,
}
