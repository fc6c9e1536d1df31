"""The loop of :mod:`riemcd.kernels.exact`, compiled by numba; importing this module needs numba."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from typing import Any

from numba import njit

__all__ = ["align"]


@njit(nogil=True, cache=True, boundscheck=False, fastmath={"reassoc", "contract"})
def align(x: Any, m: Any, lo: Any, hi: Any, relax: float) -> float:
    """Turn pairs of rows of ``x`` towards those of ``m`` in order, and return the largest angle."""
    largest = 0.0
    for k in range(lo.shape[0]):
        xi, xj, mi, mj = x[lo[k]], x[hi[k]], m[lo[k]], m[hi[k]]
        along, across = 0.0, 0.0
        for c in range(x.shape[1]):
            along += mi[c] * xi[c] + mj[c] * xj[c]
            across += mi[c] * xj[c] - mj[c] * xi[c]
        theta = relax * math.atan2(across, along)
        largest = max(largest, abs(theta))
        s, tau = x.dtype.type(math.sin(theta)), x.dtype.type(math.tan(theta / 2))
        for c in range(x.shape[1]):
            a, b = xi[c], xj[c]
            xi[c] = a + s * (b - tau * a)
            xj[c] = b - s * (a + tau * b)
    return largest
