"""Loops over single entries compiled by numba; the rules are those of :mod:`riemcd.kernels.compiled`."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share

__all__ = ["ENTRIES"]


@njit(nogil=True)
def _modrelu_row(z: Any, b: Any, d: int, zero: Any) -> None:
    for c in range(d):
        size = abs(z[c]) + b[c]
        size = zero if size < zero else size  # not a number stays what it is
        # Neither positive nor negative: zero, or not a number, stays what it is.
        z[c] = size if z[c] > zero else (-size if z[c] < zero else z[c])


@njit(nogil=True)
def _modrelu(task: Any, dtype: Any) -> None:
    """Apply sign(z) max(|z| + b, 0) to contiguous rows in place."""
    q = carray(at(task, 2, np.int64), (20,))
    rows, d = q[2], q[3]
    b = carray(at(q[1], 0, dtype), (d,))
    start, stop = share(task, rows)
    for r in range(start, stop):
        _modrelu_row(carray(at(q[0], r * d, dtype), (d,)), b, d, dtype(0))


# Entries have names of their own, because numba finds what it has cached by name.


def modrelu_f4(task: int) -> None:
    _modrelu(task, np.float32)


def modrelu_f8(task: int) -> None:
    _modrelu(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("modrelu", 4): modrelu_f4, ("modrelu", 8): modrelu_f8}
