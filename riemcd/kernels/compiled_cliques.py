r"""Groups of contiguous vectors that turn together, compiled by numba; rules as in `.compiled`.

A group of r vectors has a slope for each of its pairs, and moves by the exponential of one small skew matrix.
Small matrices have R rows and columns, r rounded up to whole lines of doubles; what is beyond r is zero.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
import math
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import at, share
from .lanes import LINE, VECTOR, bytes_of, combine, products

__all__ = ["ENTRIES", "LARGE", "exponential", "skew_of"]

_TILE = 128  # how many entries of each vector are worked on at a time, near enough to be read again
_BLOCK = 4096  # how many terms are summed in the working precision before they go into a double
LARGE = 0.1  # increments above this are applied in double precision, or their rounding would add up


@njit(nogil=True)
def _inner(q: Any, e: int, nodes: Any, r: int, table: int, sums: int, dtype: Any) -> None:
    """Write the inner products of all vectors of a group, u_a v_b, as doubles, R apart."""
    size, n, R = bytes_of(dtype), q[9], (r + 7) // 8 * 8
    wide = VECTOR // size
    found, eight = carray(at(table, 0, np.float64), (R * R,)), carray(at(sums, 0, dtype), (8,))
    for c in range(R * R):
        found[c] = 0.0
    for first in range(0, n, _BLOCK):
        width = min(_BLOCK, n - first)
        whole = width // wide
        u, v = q[0] + size * (e * q[1] + first), q[3] + size * (e * q[4] + first)
        for a in range(0, r, 4):
            # Beyond the last vector that one is taken again, and not looked at.
            a1, a2, a3 = min(a + 1, r - 1), min(a + 2, r - 1), min(a + 3, r - 1)
            u0, u1 = u + size * q[2] * nodes[a], u + size * q[2] * nodes[a1]
            u2, u3 = u + size * q[2] * nodes[a2], u + size * q[2] * nodes[a3]
            for b in range(0, r, 2):
                b1 = min(b + 1, r - 1)
                v0, v1 = v + size * q[5] * nodes[b], v + size * q[5] * nodes[b1]
                products(u0, u1, u2, u3, v0, v1, whole, sums, dtype)
                for i in range(min(4, r - a)):
                    for j in range(min(2, r - b)):
                        found[(a + i) * R + b + j] += eight[2 * i + j]
        for c in range(whole * wide, width):
            for a in range(r):
                left = carray(at(u, q[2] * nodes[a] + c, dtype), (1,))[0]
                for b in range(r):
                    right = carray(at(v, q[5] * nodes[b] + c, dtype), (1,))[0]
                    found[a * R + b] += np.float64(left) * right


@njit(nogil=True)
def _read_cliques(task: Any, dtype: Any) -> None:
    """Write the slopes of all pairs of each group, times a rate."""
    q = carray(at(task, 2, np.int64), (20,))
    scale, rate, _ = carray(at(task, 22, np.float64), (3,))
    groups, r, batch = q[7], q[8], q[10]
    start, stop = share(task, batch * groups)
    slot, _ = share(task, q[15])  # no two threads begin at the same
    table, R = q[17] + slot * q[16], (r + 7) // 8 * 8
    for item in range(start, stop):
        e = item // groups
        group = item - e * groups
        nodes = carray(at(q[6], group * r, np.int64), (r,))
        _inner(q, e, nodes, r, table, table + 8 * R * R, dtype)
        found = carray(at(table, 0, np.float64), (R * R,))
        place = e * q[12] + q[13] + group * (r * (r - 1) // 2)
        for a in range(r):
            for b in range(a + 1, r):
                slope = scale * (found[a * R + b] - found[b * R + a])
                amount = rate * slope
                if q[14]:
                    carray(at(q[14], place, np.bool_), (1,))[0] = not math.isfinite(slope)
                    if not math.isfinite(slope):
                        amount = 0.0
                carray(at(q[11], place, dtype), (1,))[0] = amount
                place += 1


@njit(nogil=True)
def _times(a: int, b: int, out: int, R: int, transposed: bool) -> None:
    """Multiply two matrices, the first one transposed where asked for."""
    step, next_ = (8 * R, 8) if transposed else (8, 8 * R)
    for row in range(0, R, 4):
        for shift in range(0, 8 * R, LINE):
            combine(
                a + row * next_,
                step,
                next_,
                b + shift,
                8 * R,
                R,
                out + row * 8 * R + shift,
                8 * R,
                np.float64,
            )


@njit(nogil=True)
def _series(a: int, a2: int, a3: int, a4: int, total: int, other: int, R: int, terms: int) -> None:
    """Write the sum of a^k / k! for k = 1, ..., terms + 3, by powers of a^4."""
    x, y = carray(at(a, 0, np.float64), (R * R,)), carray(at(a2, 0, np.float64), (R * R,))
    z, t = carray(at(a3, 0, np.float64), (R * R,)), carray(at(total, 0, np.float64), (R * R,))
    s = carray(at(other, 0, np.float64), (R * R,))
    for c in range(R * R):
        t[c] = 0.0
    k = terms
    while k >= 0:
        if k < terms:
            _times(a4, total, other, R, False)
        else:
            for c in range(R * R):
                s[c] = 0.0
        whole = 1.0
        for i in range(2, k + 1):
            whole /= i
        one, two, three = whole / (k + 1), whole / ((k + 1) * (k + 2)), whole / ((k + 1) * (k + 2) * (k + 3))
        for c in range(R * R):
            t[c] = s[c] + one * x[c] + two * y[c] + three * z[c]
        if k > 0:
            for c in range(R):
                t[c * R + c] += whole
        k -= 4


@njit(nogil=True)
def exponential(skew: int, R: int, norm: float) -> None:
    """Replace a skew matrix by e^S - I, as `riemcd.kernels.rotations.skew_exponential` does."""
    each = 8 * R * R
    a2, a3, a4, p, other = skew + each, skew + 2 * each, skew + 3 * each, skew + 4 * each, skew + 5 * each
    s, squarings = carray(at(skew, 0, np.float64), (R * R,)), 0
    while norm > 0.5 and norm < np.inf:
        norm, squarings = 0.5 * norm, squarings + 1
    if squarings:
        by = 0.5**squarings
        for c in range(R * R):
            s[c] *= by
    _times(skew, skew, a2, R, False)
    _times(a2, skew, a3, R, False)
    # What is left out is below the last digit of the first term.
    terms = 12 if not norm <= 0.1 else (8 if norm > 0.02 else (4 if norm > 5e-6 else 0))
    if terms:
        _times(a2, a2, a4, R, False)
    _series(skew, a2, a3, a4, p, other, R, terms)
    x, y = carray(at(p, 0, np.float64), (R * R,)), carray(at(other, 0, np.float64), (R * R,))
    for _ in range(squarings):
        _times(p, p, other, R, False)
        for c in range(R * R):
            x[c] = 2 * x[c] + y[c]
    # What is left of the product with the transposed, beside one, is rounding: half of it is taken out.
    _times(p, p, a2, R, True)
    error = carray(at(a2, 0, np.float64), (R * R,))
    for a in range(R):
        for b in range(R):
            error[a * R + b] += x[a * R + b] + x[b * R + a]
    _times(p, a2, other, R, False)
    for c in range(R * R):
        s[c] = x[c] - 0.5 * (error[c] + y[c])


@njit(nogil=True)
def skew_of(q: Any, item: int, turn: float, skew: Any, R: int, dtype: Any) -> float:
    """Put the angles of a group into a matrix, and return its 1-norm."""
    groups, r = q[7], q[8]
    e = item // groups
    for c in range(R * R):
        skew[c] = 0.0
    place, norm = e * q[12] + q[13] + (item - e * groups) * (r * (r - 1) // 2), 0.0
    for a in range(r):
        for b in range(a + 1, r):
            angle = turn * np.float64(carray(at(q[11], place, dtype), (1,))[0])
            skew[a * R + b], skew[b * R + a] = angle, -angle
            place += 1
    for a in range(r):
        total = 0.0
        for b in range(r):
            total += abs(skew[a * R + b])
        if not total <= norm:
            norm = total
    return norm


@njit(nogil=True)
def _apply(
    x: int, apart: int, nodes: Any, r: int, n: int, m: int, R: int, near: int, kind: Any, dtype: Any
) -> None:
    """Add to each vector a combination of all of them, ``x_a += sum_b m_ba x_b``, computed in ``kind``."""
    size = bytes_of(kind)
    out = near + R * _TILE * size
    for first in range(0, n, _TILE):
        width = min(_TILE, n - first)
        for b in range(r):
            source = carray(at(x, nodes[b] * apart + first, dtype), (width,))
            target = carray(at(near, b * _TILE, kind), (width,))
            for c in range(width):
                target[c] = source[c]
        for a in range(0, r, 4):
            for shift in range(0, width * size, LINE):
                combine(
                    m + a * size,
                    R * size,
                    size,
                    near + shift,
                    _TILE * size,
                    r,
                    out + shift,
                    _TILE * size,
                    kind,
                )
            for i in range(min(4, r - a)):
                total = carray(at(x, nodes[a + i] * apart + first, dtype), (width,))
                old = carray(at(near, (a + i) * _TILE, kind), (width,))
                more = carray(at(out, i * _TILE, kind), (width,))
                # The increment is summed by itself and rounded into the vector once.
                for c in range(width):
                    total[c] = old[c] + more[c]


@njit(nogil=True)
def _turn_cliques(task: Any, dtype: Any) -> None:
    """Turn each group by the exponential of its angles."""
    q = carray(at(task, 2, np.int64), (20,))
    turn = carray(at(task, 22, np.float64), (3,))[2]
    groups, r, n, batch = q[7], q[8], q[9], q[10]
    start, stop = share(task, batch * groups)
    slot, _ = share(task, q[15])
    table, R, size = q[17] + slot * q[16], (r + 7) // 8 * 8, bytes_of(dtype)
    single = table + 6 * 8 * R * R
    near = single + 8 * R * R
    skew, rounded = carray(at(table, 0, np.float64), (R * R,)), carray(at(single, 0, dtype), (R * R,))
    for item in range(start, stop):
        e = item // groups
        nodes = carray(at(q[6], (item - e * groups) * r, np.int64), (r,))
        norm = skew_of(q, item, turn, skew, R, dtype)
        if norm == 0.0:  # not even the sign of a zero changes
            continue
        exponential(table, R, norm)
        largest = 0.0
        for c in range(R * R):
            rounded[c] = skew[c]
            largest = max(largest, abs(skew[c]))
        x = q[0] + size * e * q[1]
        if largest > LARGE:
            _apply(x, q[2], nodes, r, n, table, R, near, np.float64, dtype)
        else:
            _apply(x, q[2], nodes, r, n, single, R, near, dtype, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def read_cliques_f4(task: int) -> None:
    _read_cliques(task, np.float32)


def read_cliques_f8(task: int) -> None:
    _read_cliques(task, np.float64)


def turn_cliques_f4(task: int) -> None:
    _turn_cliques(task, np.float32)


def turn_cliques_f8(task: int) -> None:
    _turn_cliques(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("read_cliques", 4): read_cliques_f4,
    ("read_cliques", 8): read_cliques_f8,
    ("turn_cliques", 4): turn_cliques_f4,
    ("turn_cliques", 8): turn_cliques_f8,
}
