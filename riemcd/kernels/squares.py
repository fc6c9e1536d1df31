"""Small squares of a matrix, transposed in registers; rules as in `.lanes`."""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from typing import Any

from numba import types
from numba.extending import intrinsic

from .lanes import LINE, VECTOR, load, picked, store, vector_of

__all__ = ["gather_square", "scatter_square"]


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Exchange blocks of one, two, four ... numbers across the diagonal."""
    n, rows, apart = len(rows), list(rows), 1
    while apart < n:
        upper = [j if not j & apart else n + j - apart for j in range(n)]
        lower = [j + apart if not j & apart else n + j for j in range(n)]
        for i in range(n):
            if not i & apart:
                a, b = rows[i], rows[i + apart]
                rows[i], rows[i + apart] = picked(builder, a, b, upper), picked(builder, a, b, lower)
        apart *= 2
    return rows


def _rows(builder: Any, first: Any, apart: Any, valid: Any, nowhere: Any, n: int) -> list[Any]:
    """Return the addresses of ``n`` rows; those from ``valid`` on lie at ``nowhere``."""
    found = []
    for r in range(n):
        number = first.type(r)
        there = builder.add(first, builder.mul(apart, number))
        found.append(builder.select(builder.icmp_signed("<", number, valid), there, nowhere))
    return found


def _square(gathers: bool) -> Any:
    def typed(typing_context: Any, first: Any, apart: Any, valid: Any, nowhere: Any, near: Any, dtype: Any):
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = vector_of(context, dtype, VECTOR)
            number = dtype.dtype.bitwidth // 8
            rows = _rows(builder, *args[:4], kind.count)
            lines = [builder.add(args[4], args[4].type(LINE * c)) for c in range(kind.count)]
            source, target = (rows, lines) if gathers else (lines, rows)
            some = [load(builder, address, kind, number) for address in source]
            for value, address in zip(_transposed(builder, some), target, strict=True):
                store(builder, value, address, number)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 5, dtype), generate

    return typed


@intrinsic
def gather_square(
    typing_context: Any, first: Any, apart: Any, valid: Any, nowhere: Any, near: Any, dtype: Any
):
    """Copy a square, as many rows and columns as a vector holds, into lines: each gets one column."""
    return _square(True)(typing_context, first, apart, valid, nowhere, near, dtype)


@intrinsic
def scatter_square(
    typing_context: Any, first: Any, apart: Any, valid: Any, nowhere: Any, near: Any, dtype: Any
):
    """Copy a square back from lines."""
    return _square(False)(typing_context, first, apart, valid, nowhere, near, dtype)
