"""The loop of :mod:`riemcd.kernels.frames`, compiled by numba; rules as in `.compiled`."""

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
def _turn(a: Any, b: Any, n: int, sign: float, s: float, tau: float) -> None:
    """Rotate two rows by increments, after a turn by pi where the sign says so."""
    for i in range(n):
        x, y = a[i], b[i]
        a[i] = sign * (x + s * (y - tau * x))
        b[i] = sign * (y - s * (x + tau * y))


@njit(nogil=True, fastmath=EACH)
def _turn_columns(a: Any, n: int, i: int, j: int, s: float, tau: float) -> None:
    """Rotate two columns of a square matrix by increments."""
    for k in range(n):
        x, y = a[k * n + i], a[k * n + j]
        a[k * n + i] = x + s * (y - tau * x)
        a[k * n + j] = y - s * (x + tau * y)


@njit(nogil=True)
def _symmetrize(a: Any, w: int, i: int, j: int, least: float) -> Any:
    """Return cosine and sine of the exact angle."""
    along = a[i * w + i] + a[j * w + j]
    across = a[j * w + i] - a[i * w + j]
    if not (abs(across) > least or along < -least):
        return 1.0, 0.0
    size = math.sqrt(along * along + across * across)
    return along / size, across / size


@njit(nogil=True)
def _diagonalize(a: Any, w: int, i: int, j: int, c: float, s: float, least: float) -> Any:
    """Return cosine and sine that diagonalise two rows and columns once they are symmetric."""
    off = c * a[i * w + j] + s * a[j * w + j]
    if not abs(off) > least:
        return 1.0, 0.0
    first = c * a[i * w + i] + s * a[j * w + i]
    second = c * a[j * w + j] - s * a[i * w + j]
    z = (first - second) / (2.0 * off)
    t = math.copysign(1.0 / (abs(z) + math.sqrt(1.0 + z * z)), z)
    cosine = 1.0 / math.sqrt(1.0 + t * t)
    return cosine, t * cosine


def frames_f8(task: int) -> None:
    """Turn pairs of rows of small matrices one after another; see `riemcd.kernels.frames.turn_blocks_`."""
    q = carray(at(task, 2, np.int64), (20,))
    least = carray(at(task, 22, np.float64), (3,))[0]
    count, w = q[7], q[8]
    first, second = carray(at(q[4], 0, np.int64), (count,)), carray(at(q[5], 0, np.int64), (count,))
    start, stop = share(task, q[9])
    for item in range(start, stop):
        a = carray(at(q[0], item * w * w, np.float64), (w * w,))
        real = carray(at(q[3], item * w, np.bool_), (w,))
        largest = 0.0  # a monotone function of the modulus of the angle
        for k in range(count):
            i, j = first[k], second[k]
            if not (real[i] and real[j]):
                continue
            c, s = _symmetrize(a, w, i, j, least)
            largest = max(largest, abs(s) if c >= 0.0 else 2.0 - abs(s))
            e, f = _diagonalize(a, w, i, j, c, s, least)
            if s == 0.0 and f == 0.0 and c > 0.0:
                continue
            c, s = c * e - s * f, s * e + c * f
            sign = 1.0 if c >= 0.0 else -1.0
            c, s = sign * c, sign * s
            tau = s / (1.0 + c)
            for base in (q[0], q[1]):
                _turn(
                    carray(at(base, (item * w + i) * w, np.float64), (w,)),
                    carray(at(base, (item * w + j) * w, np.float64), (w,)),
                    w, sign, s, tau,
                )  # fmt: skip
            if f != 0.0:
                tau = f / (1.0 + e)
                _turn_columns(a, w, i, j, f, tau)
                _turn(
                    carray(at(q[2], (item * w + i) * w, np.float64), (w,)),
                    carray(at(q[2], (item * w + j) * w, np.float64), (w,)),
                    w, 1.0, f, tau,
                )  # fmt: skip
        angle = math.asin(min(1.0, largest)) if largest <= 1.0 else math.pi - math.asin(2.0 - largest)
        carray(at(q[6], item, np.float64), (1,))[0] = angle


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("frames", 8): frames_f8}
