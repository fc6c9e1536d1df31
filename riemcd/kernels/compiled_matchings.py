"""Matchings of the rows of one matrix, compiled; the rules are those of :mod:`riemcd.kernels.compiled`.

In a matrix that a shared cache can hold, what another core has written last is slow to read. Pairs go to
threads in the order of their first ends, so that the first rows stay with one thread, and whoever has read a
pair turns it.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import all_fine, at, coming, move, part, place, read_pair, share, take
from .lanes import LINE, bytes_of, call_for

__all__ = ["ENTRIES"]


@njit(nogil=True)
def _sorted(q: Any, room: Any, marks: Any) -> None:
    """Write the pairs to ``room`` in the order of their first ends."""
    marks[:] = 0
    for m in range(q[15]):
        marks[place(q, m)[1]] = m + 1
    found = 0
    for i in range(len(marks)):
        if marks[i] > 0:
            room[found] = marks[i] - 1
            found += 1


@njit(nogil=True)
def _in_order(task: Any, dtype: Any) -> None:
    """Read slopes of pairs of contiguous vectors and rotate them; where ``moves`` is two, all or none."""
    q = carray(at(task, 2, np.int64), (20,))
    scale, rate, sense = carray(at(task, 22, np.float64), (3,))
    t, parts = part(task)
    items, nodes, moves = q[15], q[17], q[18]
    mine = carray(at(q[14], t * (items + nodes), np.int64), (items,))
    _sorted(q, mine, carray(at(q[14], t * (items + nodes) + items, np.int64), (nodes,)))
    start, stop = share(task, items)
    if moves == 2:
        wrong = 0
        lines = q[16] * bytes_of(dtype) // LINE
        for spot in range(start, stop):
            a, b, g, h = coming(q, mine[min(spot + 1, stop - 1)], False, bytes_of(dtype))
            call_for(a, b, g, h, lines)
            wrong += 0 if read_pair(q, mine[spot], scale, rate, dtype) else 1
        take(task, wrong, 1)
        take(task, 1, 2)
        if not all_fine(task, parts):
            return
    first, last, step = start, stop - 1, 1
    if moves == 2:  # what was read last is nearest
        first, last, step = last, first, -1
    for number in range(stop - start):
        spot = first + step * number
        following = last if spot == last else spot + step
        item = mine[spot]
        if moves != 2:
            read_pair(q, item, scale, rate, dtype)
        angle = sense * np.float64(carray(at(q[12], item, dtype), (1,))[0])
        if angle != 0.0:
            move(q, item, mine[following], angle, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def in_order_f4(task: int) -> None:
    _in_order(task, np.float32)


def in_order_f8(task: int) -> None:
    _in_order(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("in_order", 4): in_order_f4, ("in_order", 8): in_order_f8}
