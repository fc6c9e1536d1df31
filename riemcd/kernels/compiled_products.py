"""Products of a few rows with a matrix, on one thread; rules are those of :mod:`riemcd.kernels.compiled`.

The matrix is packed into panels of ``width`` columns, each of them contiguous and filled up with zeros. A
tile of a few rows of a panel stays in registers while the sum runs. Every row is summed in the same order,
whatever tile it is in.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import at, share
from .panels import tile

__all__ = ["ENTRIES", "apart", "products", "products_of_columns"]

_BYTES, _VECTORS, _ROWS = tile()
_DEPTH = 256  # rows of a panel that stay in the nearest cache
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def apart(typing_context: Any) -> Any:
    """Keep the function that calls this out of its callers: each copy would have to be compiled."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


class _Tile:
    """Writes the instructions that add the product of some rows with a panel to a tile."""

    def __init__(self, builder: Any, rows: int, real: Any, scalar: Any) -> None:
        self.builder, self.rows, self.size = builder, rows, real.bitwidth // 8
        self.lanes = _BYTES // self.size
        self.vector = ir.VectorType(scalar, self.lanes)
        name = f"llvm.fmuladd.v{self.lanes}f{real.bitwidth}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        self.multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)

    def vectors_at(self, pointer: Any, offset: Any) -> list[Any]:
        """Return pointers to the vectors of a row that begins at an offset."""
        build, kind = self.builder, self.vector.as_pointer()
        places = [build.add(offset, _I64(v * self.lanes)) for v in range(_VECTORS)]
        return [build.bitcast(build.gep(pointer, [place]), kind) for place in places]

    def load(self, places: list[Any]) -> list[Any]:
        return [self.builder.load(place, align=self.size) for place in places]

    def spread(self, number: Any) -> Any:
        """Return a vector of equal numbers."""
        nothing = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(nothing, number, _I32(0))
        zeros = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, nothing, zeros)

    def phis(self, known: list[list[Any]], block: Any) -> list[list[Any]]:
        """Return a variable for each vector of the tile, and what it is when control comes from a block."""
        found = [[self.builder.phi(self.vector) for _ in row] for row in known]
        self.join(found, known, block)
        return found

    def join(self, found: list[list[Any]], known: list[list[Any]], block: Any) -> None:
        for phi_row, row in zip(found, known, strict=True):
            for phi, value in zip(phi_row, row, strict=True):
                phi.add_incoming(value, block)

    def rows_apart(self, a: Any, stride: Any) -> list[Any]:
        """Return pointers to rows that are ``stride`` numbers apart."""
        return [self.builder.gep(a, [self.builder.mul(stride, _I64(r))]) for r in range(self.rows)]

    def columns_at(self, a: Any, numbers: Any) -> list[Any]:
        """Return pointers to the columns whose numbers are at an address."""
        build, kind = self.builder, _I64.as_pointer()
        places = [build.inttoptr(build.add(numbers, _I64(8 * r)), kind) for r in range(self.rows)]
        return [build.gep(a, [build.load(place)]) for place in places]

    def write(
        self, heads: list[Any], step: Any, panel: Any, depth: Any, c: Any, ahead: Any, onto: Any
    ) -> None:
        """Let the numbers of every row of ``a`` be ``step`` apart, from its head on.

        The product is added to what is at ``c``, or written there where ``onto`` is zero.
        """
        build, width = self.builder, _VECTORS * self.lanes
        places = [self.vectors_at(c, build.mul(ahead, _I64(r))) for r in range(self.rows)]
        adds, zero = build.icmp_signed("!=", onto, _I64(0)), ir.Constant(self.vector, [0.0] * self.lanes)
        starts = [[build.select(adds, v, zero) for v in self.load(row)] for row in places]
        before = build.block
        loop, done = build.append_basic_block("sum"), build.append_basic_block("summed")
        build.cbranch(build.icmp_signed(">", depth, _I64(0)), loop, done)

        build.position_at_end(loop)
        k = build.phi(_I64)
        sums = self.phis(starts, before)
        across = self.load(self.vectors_at(panel, build.mul(k, _I64(width))))
        added, there = [], build.mul(k, step)
        for head, row in zip(heads, sums, strict=True):
            number = self.spread(build.load(build.gep(head, [there]), align=self.size))
            added.append(
                [build.call(self.multiply_add, [number, b, s]) for b, s in zip(across, row, strict=True)]
            )
        following = build.add(k, _I64(1))
        k.add_incoming(_I64(0), before)
        k.add_incoming(following, loop)
        self.join(sums, added, loop)
        build.cbranch(build.icmp_signed("<", following, depth), loop, done)

        build.position_at_end(done)
        ends = self.phis(starts, before)
        self.join(ends, added, loop)
        for place_row, row in zip(places, ends, strict=True):
            for place, value in zip(place_row, row, strict=True):
                build.store(value, place, align=self.size)


def _tile(rows: int) -> Callable[..., None]:
    @intrinsic
    def add(
        typing_context: Any, a: Any, stride: Any, panel: Any, depth: Any, c: Any, ahead: Any, onto: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            tile = _Tile(builder, rows, a.dtype, context.get_value_type(a.dtype))
            tile.write(tile.rows_apart(*args[:2]), _I64(1), *args[2:])
            return context.get_dummy_value()

        return types.void(a, types.int64, panel, types.int64, c, types.int64, types.int64), generate

    return add


def _tile_of_columns(rows: int) -> Callable[..., None]:
    @intrinsic
    def add(
        typing_context: Any, a: Any, numbers: Any, step: Any, panel: Any, depth: Any, c: Any, ahead: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            tile = _Tile(builder, rows, a.dtype, context.get_value_type(a.dtype))
            tile.write(tile.columns_at(*args[:2]), *args[2:], _I64(1))
            return context.get_dummy_value()

        return types.void(a, types.int64, types.int64, panel, types.int64, c, types.int64), generate

    return add


_HEIGHTS = (_ROWS, 4, 3, 2, 1)
_whole, _four, _three, _two, _one = (_tile(rows) for rows in _HEIGHTS)
_whole_of, _four_of, _three_of, _two_of, _one_of = (_tile_of_columns(rows) for rows in _HEIGHTS)


@njit(nogil=True)
def products(
    a: int,
    start: int,
    stride: int,
    panels: int,
    depth: int,
    c: int,
    rows: int,
    many: int,
    width: int,
    onto: int,
    dtype: Any,
) -> None:
    """Write the product of some rows with some panels to ``c``, ``(rows, many * width)``.

    Parameters
    ----------
    a, start, stride : int
        Where the rows are: an address, the element at which they begin, and from row to row.
    panels, depth : int
        The address of ``(many, depth, width)``.
    c, rows, many, width : int
    onto : int
        Whether to add it to what is there.
    """
    apart()
    ahead = many * width
    for p in range(many):
        for k in range(0, depth, _DEPTH):
            deep, more = min(depth - k, _DEPTH), np.int64(onto if k == 0 else 1)
            b = at(panels, (p * depth + k) * width, dtype)
            r = 0
            while r + _ROWS <= rows:
                x, y = at(a, start + r * stride + k, dtype), at(c, r * ahead + p * width, dtype)
                _whole(x, stride, b, deep, y, ahead, more)
                r += _ROWS
            if r + 4 <= rows:  # where whole ones are taller
                x, y = at(a, start + r * stride + k, dtype), at(c, r * ahead + p * width, dtype)
                _four(x, stride, b, deep, y, ahead, more)
                r += 4
            x, y = at(a, start + r * stride + k, dtype), at(c, r * ahead + p * width, dtype)
            if rows - r == 3:
                _three(x, stride, b, deep, y, ahead, more)
            elif rows - r == 2:
                _two(x, stride, b, deep, y, ahead, more)
            elif rows - r == 1:
                _one(x, stride, b, deep, y, ahead, more)


@njit(nogil=True)
def products_of_columns(
    a: int, step: int, numbers: int, panel: int, depth: int, c: int, rows: int, width: int, dtype: Any
) -> None:
    """Add the product of some columns, as rows, with one panel to ``c``, ``(rows, width)``.

    Parameters
    ----------
    a, step : int
        The address of the first row of the columns, and how far rows are apart.
    numbers, rows : int
        The address of the numbers of the columns, and how many they are.
    panel, depth : int
        The address of ``(depth, width)``.
    c, width : int
    """
    apart()
    x, b, r = at(a, 0, dtype), at(panel, 0, dtype), 0
    while r + _ROWS <= rows:
        _whole_of(x, numbers + 8 * r, step, b, depth, at(c, r * width, dtype), width)
        r += _ROWS
    if r + 4 <= rows:  # where whole ones are taller
        _four_of(x, numbers + 8 * r, step, b, depth, at(c, r * width, dtype), width)
        r += 4
    if rows - r == 3:
        _three_of(x, numbers + 8 * r, step, b, depth, at(c, r * width, dtype), width)
    elif rows - r == 2:
        _two_of(x, numbers + 8 * r, step, b, depth, at(c, r * width, dtype), width)
    elif rows - r == 1:
        _one_of(x, numbers + 8 * r, step, b, depth, at(c, r * width, dtype), width)


@njit(nogil=True)
def _pack(task: Any, dtype: Any) -> None:
    """Copy a matrix, ``(depth, n)`` with any strides, to panels."""
    q = carray(at(task, 2, np.int64), (20,))
    down, along, depth, n, width = q[1], q[2], q[3], q[4], q[6]
    start, stop = share(task, (n + width - 1) // width)
    for p in range(start, stop):
        valid = min(width, n - p * width)
        for k in range(depth):
            row = carray(at(q[5], (p * depth + k) * width, dtype), (width,))
            for j in range(valid):
                row[j] = carray(at(q[0], k * down + (p * width + j) * along, dtype), (1,))[0]
            for j in range(valid, width):
                row[j] = dtype(0)


# Entries have names of their own, because numba finds what it has cached by name.


def pack_f4(task: int) -> None:
    _pack(task, np.float32)


def pack_f8(task: int) -> None:
    _pack(task, np.float64)


#: What a team can be asked for, by name and bytes of a number.
ENTRIES = {("pack", 4): pack_f4, ("pack", 8): pack_f8}
