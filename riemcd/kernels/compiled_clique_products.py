"""Products of columns inside groups, compiled; the rules are those of :mod:`riemcd.kernels.compiled`."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share
from .compiled_products import products_of_columns

__all__ = ["ENTRIES"]

_DEEP = 64  # rows that are gathered at once


@njit(nogil=True)
def _gather(v: Any, chosen: Any, row: Any, n: int) -> None:
    """Copy some numbers of a row."""
    for j in range(n):
        row[j] = v[np.uint64(chosen[j])]


@njit(nogil=True)
def _clique_products(task: Any, dtype: Any) -> None:
    """Write uᵀv inside every group of columns, a sum for each chunk of rows.

    Columns of v are gathered into panels: then a group is one product, which reads those of u where they are.
    """
    q = carray(at(task, 2, np.int64), (20,))
    u, u_row, v, v_row, nodes, out, room = q[0], q[1], q[2], q[3], q[4], q[5], q[6]
    rows, groups, r, chunks, width, size = q[7], q[8], q[9], q[10], q[11], q[12]
    many = (r + width - 1) // width
    ahead = many * width
    start, stop = share(task, q[13])  # slots, one for each thread at most, which have a room each
    near = room + start * groups * ahead * _DEEP * size
    if start < stop:
        carray(at(near, 0, dtype), (groups * ahead * _DEEP,))[:] = dtype(0)
    for chunk in range(chunks * start // q[13], chunks * stop // q[13]):
        first, last = rows * chunk // chunks, rows * (chunk + 1) // chunks
        sums = out + chunk * groups * r * ahead * size
        carray(at(sums, 0, dtype), (groups, r, ahead))[:] = dtype(0)
        for top in range(first, last, _DEEP):
            deep = min(_DEEP, last - top)
            for k in range(deep):
                b = carray(at(v, (top + k) * v_row, dtype), (1,))
                for g in range(groups):
                    for p in range(many):
                        n = min(width, r - p * width)
                        chosen = carray(at(nodes, g * r + p * width, np.int64), (n,))
                        row = carray(at(near, ((g * many + p) * _DEEP + k) * width, dtype), (width,))
                        _gather(b, chosen, row, n)
            a = u + top * u_row * size
            for g in range(groups):
                for p in range(many):
                    panel = near + (g * many + p) * _DEEP * width * size
                    c = sums + (g * many + p) * r * width * size
                    products_of_columns(a, u_row, nodes + g * r * 8, panel, deep, c, r, width, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def clique_products_f4(task: int) -> None:
    _clique_products(task, np.float32)


def clique_products_f8(task: int) -> None:
    _clique_products(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("clique_products", 4): clique_products_f4, ("clique_products", 8): clique_products_f8}
