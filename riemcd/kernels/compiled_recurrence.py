"""A recurrence through time and back, compiled; the rules are those of :mod:`riemcd.kernels.compiled`.

Sequences of a batch have nothing to do with each other: a thread takes some of them through all steps without
waiting for anybody.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic, overload

from .compiled import at, share
from .compiled_products import apart, products

__all__ = ["ENTRIES"]

_SPAN = 8  # panels that are worked on together: rows long enough for loops over them, and all in the cache

#: Numbers by which functions are known here; any other is the identity.
_MODRELU, _RELU, _TANH = 1, 2, 3


@intrinsic
def _bits(typing_context: Any, value: Any, kind: Any) -> Any:
    """Read the bits of a number as a number of another kind."""
    other = kind.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(other))

    return other(value, kind), generate


# exp(y) - 1 = 2^k (exp(r) - 1) + (2^k - 1) with y = k log 2 + r, and tanh(x) follows from y = 2 |x| without
# cancellation. Adding 1.5 * 2^(bits of the mantissa) rounds to an integer, which the lowest bits then hold.


def _tanh_f4(x: Any) -> Any:
    f = np.float32
    y = abs(x) + abs(x)
    y = f(40) if y > f(40) else y
    whole = y * f(1.44269504) + f(12582912.0)
    k = whole - f(12582912.0)
    r = (y - k * f(0.693359375)) + k * f(2.12194440e-4)
    p = f(1 / 5040) * r + f(1 / 720)
    p = (((p * r + f(1 / 120)) * r + f(1 / 24)) * r + f(1 / 6)) * r + f(0.5)
    two = _bits(np.int32((_bits(whole, np.int32) << 23) + 0x3F800000), np.float32)
    e = two * (p * r * r + r) + (two - f(1))
    h = e / (e + f(2))
    return -h if x < f(0) else h


def _tanh_f8(x: Any) -> Any:
    y = abs(x) + abs(x)
    y = 80.0 if y > 80.0 else y
    whole = y * 1.4426950408889634 + 6755399441055744.0
    k = whole - 6755399441055744.0
    r = (y - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = (1 / 6227020800) * r + 1 / 479001600
    p = ((p * r + 1 / 39916800) * r + 1 / 3628800) * r + 1 / 362880
    p = (((p * r + 1 / 40320) * r + 1 / 5040) * r + 1 / 720) * r + 1 / 120
    p = ((p * r + 1 / 24) * r + 1 / 6) * r + 0.5
    two = _bits((_bits(whole, np.int64) << 52) + 0x3FF0000000000000, np.float64)
    e = two * (p * r * r + r) + (two - 1.0)
    h = e / (e + 2.0)
    return -h if x < 0.0 else h


def _tanh(x: Any) -> Any:
    """Return the hyperbolic tangent, without a call so that loops over it become vectors."""


@overload(_tanh)
def _tanh_of(x: Any) -> Any:
    return _tanh_f4 if x is types.float32 else _tanh_f8


@njit(nogil=True)
def _copy(a: Any, b: Any, n: int) -> None:
    apart()
    for j in range(n):
        b[j] = a[j]


@njit(nogil=True)
def _add(a: Any, b: Any, n: int) -> None:
    apart()
    for j in range(n):
        b[j] += a[j]


@njit(nogil=True)
def _apply(code: int, z: Any, b: Any, h: Any, n: int, zero: Any) -> None:
    """Write the function of one row."""
    apart()
    if code == _MODRELU:
        for j in range(n):
            size = abs(z[j]) + b[j]
            size = zero if size < zero else size  # not a number stays what it is
            # Neither positive nor negative: zero, or not a number, stays what it is.
            h[j] = size if z[j] > zero else (-size if z[j] < zero else z[j])
    elif code == _RELU:
        for j in range(n):
            h[j] = zero if z[j] < zero else z[j]
    elif code == _TANH:
        for j in range(n):
            h[j] = _tanh(z[j])
    else:
        for j in range(n):
            h[j] = z[j]


@njit(nogil=True)
def _descend(code: int, h: Any, dh: Any, delta: Any, n: int, zero: Any, one: Any) -> None:
    """Write the derivative at one row times what comes from above."""
    apart()
    if code == _MODRELU:
        for j in range(n):
            delta[j] = dh[j] * (zero if h[j] == zero else one)
    elif code == _RELU:
        for j in range(n):
            delta[j] = dh[j] * (one if h[j] > zero else zero)
    elif code == _TANH:
        for j in range(n):
            delta[j] = dh[j] * (one - h[j] * h[j])
    else:
        for j in range(n):
            delta[j] = dh[j]


@njit(nogil=True)
def _gather(code: int, h: Any, delta: Any, sums: Any, n: int, zero: Any) -> None:
    """Add to the gradient of the bias."""
    apart()
    if code == _MODRELU:
        for j in range(n):
            sums[j] += delta[j] if h[j] > zero else (-delta[j] if h[j] < zero else zero * delta[j])
    else:
        for j in range(n):
            sums[j] += delta[j]


@njit(nogil=True)
def _forward(task: Any, dtype: Any) -> None:
    """Write all states from the first; a panel is finished before the next one is begun."""
    q = carray(at(task, 2, np.int64), (20,))
    x, x_step, x_row, states, across, inward = q[0], q[1], q[2], q[3], q[4], q[5]
    added, own, room = q[6], q[7], q[8]  # biases, one of which is zero or both
    steps, batch, d, features, code, first, each, width = (
        q[9],
        q[10],
        q[11],
        q[12],
        q[13],
        q[14],
        q[15],
        q[16],
    )
    zero, size = dtype(0), width * q[17]
    panels = (d + width - 1) // width
    start, stop = share(task, (batch + each - 1) // each)
    for group in range(start, stop):
        top = group * each
        rows = min(each, batch - top)
        c = room + top * _SPAN * size
        for t in range(steps):
            now, before = t * x_step + top * x_row, (t * batch + top) * d
            for p in range(0, panels, _SPAN):
                left, many = p * width, min(_SPAN, panels - p)
                n = min(many * width, d - left)
                tile = carray(at(c, 0, dtype), (rows, many * width))
                if added != 0:
                    for r in range(rows):
                        _copy(carray(at(added, left, dtype), (n,)), tile[r], n)
                columns = inward + p * features * size
                products(x, now, x_row, columns, features, c, rows, many, width, int(added != 0), dtype)
                if t >= first:
                    products(states, before, d, across + p * d * size, d, c, rows, many, width, 1, dtype)
                for r in range(rows):
                    h = carray(at(states, before + (batch + r) * d + left, dtype), (n,))
                    _apply(code, tile[r], carray(at(own, left, dtype), (n,)), h, n, zero)


@njit(nogil=True)
def _back(
    q: Any, code: int, t: int, top: int, rows: int, left: int, n: int, dh: int, ahead: int, dtype: Any
) -> None:
    """Write the derivative of some entries of a step from that of its states, ``dh``, ``ahead`` per row."""
    apart()
    states, deltas, sums, start, batch, d = q[0], q[1], q[8], q[10], q[12], q[13]
    zero, one = dtype(0), dtype(1)
    for r in range(rows):
        h = carray(at(states, ((t + 1) * batch + top + r) * d + left, dtype), (n,))
        delta = carray(at(deltas, ((t - start) * batch + top + r) * d + left, dtype), (n,))
        _descend(code, h, carray(at(dh, r * ahead, dtype), (n,)), delta, n, zero, one)
        if sums != 0:
            each = carray(at(sums, (top + r) // 4 * d + left, dtype), (n,))
            _gather(code, h, delta, each, n, zero)


@njit(nogil=True)
def _backward(task: Any, dtype: Any) -> None:
    """Write the derivatives of the steps ``[start, stop)`` and what is carried to the step before."""
    q = carray(at(task, 2, np.int64), (20,))
    deltas, kept, outer, outer_step, outer_row, dh, across, room = (
        q[1],
        q[2],
        q[3],
        q[4],
        q[5],
        q[6],
        q[7],
        q[9],
    )
    start, stop, batch, d, code, each, width = q[10], q[11], q[12], q[13], q[14], q[15], q[16]
    last, size = q[17], q[18]  # the last step of which a product is wanted, bytes per number
    panels = (d + width - 1) // width
    first, beyond = share(task, (batch + each - 1) // each)
    for group in range(first, beyond):
        top = group * each
        rows = min(each, batch - top)
        c = room + top * _SPAN * width * size
        _back(q, code, stop - 1, top, rows, 0, d, dh + top * d * size, d, dtype)
        for t in range(stop - 1, last - 1, -1):
            now = ((t - start) * batch + top) * d
            for p in range(0, panels, _SPAN):
                left, many = p * width, min(_SPAN, panels - p)
                n = min(many * width, d - left)
                tile = carray(at(c, 0, dtype), (rows, many * width))
                products(deltas, now, d, across + p * d * width * size, d, c, rows, many, width, 0, dtype)
                for r in range(rows):
                    if kept != 0:
                        _copy(tile[r], carray(at(kept, now + r * d + left, dtype), (n,)), n)
                    if outer != 0 and t > 0:
                        given = (t - 1) * outer_step + (top + r) * outer_row + left
                        _add(carray(at(outer, given, dtype), (n,)), tile[r], n)
                    if t == start:
                        _copy(tile[r], carray(at(dh, (top + r) * d + left, dtype), (n,)), n)
                if t > start:
                    _back(q, code, t - 1, top, rows, left, n, c, many * width, dtype)


# Entries have names of their own, because numba finds what it has cached by name.


def forward_f4(task: int) -> None:
    _forward(task, np.float32)


def forward_f8(task: int) -> None:
    _forward(task, np.float64)


def backward_f4(task: int) -> None:
    _backward(task, np.float32)


def backward_f8(task: int) -> None:
    _backward(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {
    ("recurrence", 4): forward_f4,
    ("recurrence", 8): forward_f8,
    ("recurrence_back", 4): backward_f4,
    ("recurrence_back", 8): backward_f8,
}
