"""Loops over one matrix and its Cholesky factor, compiled by numba: each touches every entry once.

A column of the factor is zero above the diagonal, so that only the part of a matrix behind row ``i`` is
read or written. Importing this module needs numba.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

__all__ = ["form", "move_", "same"]


def _compiled(**options: Any) -> Callable[[Any], Any]:
    def wrap(function: Any) -> Any:
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # no directory to cache in
            return njit(nogil=True, **options)(function)

    return wrap


@_compiled()
def same(a: Any, b: Any) -> bool:
    """Return whether two matrices agree in every entry; NaN agrees with nothing."""
    for p in range(a.shape[0]):
        differ = 0
        for q in range(a.shape[1]):  # without a branch, so that it vectorises
            differ += a[p, q] != b[p, q]
        if differ:
            return False
    return True


@_compiled(fastmath={"reassoc", "contract"})
def form(upper: Any, grad: Any, i: int, j: int) -> float:
    """Return the sum of (G + G') over two columns, i <= j."""
    n, total = grad.shape[0], 0.0
    a, b = upper[i], upper[j]
    for p in range(i, n):
        with_a, with_b = 0.0, 0.0
        for q in range(i, n):
            with_a += grad[p, q] * a[q]
            with_b += grad[p, q] * b[q]
        total += a[p] * with_b + b[p] * with_a
    return total


@_compiled(fastmath={"contract"})
def move_(point: Any, written: Any, upper: Any, i: int, j: int, t: float) -> None:
    """Move one coordinate, i <= j, of the factor, of the matrix and of its copy."""
    n = upper.shape[0]
    a = t if i == j else t * math.sqrt(0.5)
    first, second = upper[i], upper[j]
    plus, minus = np.zeros(n), np.zeros(n)
    if i == j:
        rise, fall = math.expm1(a), 0.0
    else:
        rise, fall = math.expm1(a) / 2, math.expm1(-a) / 2
    up, down = math.sqrt(abs(rise)), math.sqrt(abs(fall))
    for p in range(i, n):
        plus[p] = up * (first[p] if i == j else first[p] + second[p])
        minus[p] = down * (first[p] - second[p])
    for p in range(i, n):
        # Both sides have the root of the weight: (p, q) and (q, p) are sums of the same products.
        x, y = math.copysign(plus[p], rise * plus[p]), math.copysign(minus[p], fall * minus[p])
        for q in range(i, n):
            value = written[p, q] + x * plus[q] + y * minus[q]
            written[p, q] = value
            point[p, q] = value
    c = math.sqrt(math.cosh(a))
    mixed = math.sinh(a) / c
    for p in range(i, n):
        if i == j:
            first[p] *= math.exp(a / 2)
        else:
            first[p] = c * first[p] + mixed * second[p]
            second[p] /= c
