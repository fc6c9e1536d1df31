"""Instructions on whole vectors of numbers, for kernels whose loops numba does not vectorise well.

A `line` is 64 bytes, what a cache moves at a time; a `vector` is half of it. Addresses are integers, in
bytes. The types are those of LLVM, which breaks vectors up for processors that have none so long.
Importing this module needs numba.
"""

from __future__ import annotations

# What numba compiles has the types of numba, not of Python.
# mypy: ignore-errors
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once, for_range, get_or_insert_function
from numba.extending import intrinsic

__all__ = [
    "LINE",
    "VECTOR",
    "add_wedge",
    "bytes_of",
    "call_for",
    "combine",
    "fold",
    "fused",
    "load",
    "picked",
    "products",
]
__all__ += ["spread", "store", "turn_ahead", "turn_line", "vector_of"]

#: Bytes.
LINE, VECTOR = 64, 32


def vector_of(context: Any, dtype: Any, size: int) -> Any:
    """Return the type of as many numbers as fill ``size`` bytes."""
    number = context.get_value_type(dtype.dtype)
    return ir.VectorType(number, size * 8 // dtype.dtype.bitwidth)


def load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    """Return the vector of type ``kind`` at an address that is a multiple of ``align``."""
    return builder.load(builder.inttoptr(address, ir.PointerType(kind)), align=align, typ=kind)


def store(builder: Any, value: Any, address: Any, align: int) -> None:
    """Write a vector to an address that is a multiple of ``align``."""
    builder.store(value, builder.inttoptr(address, ir.PointerType(value.type)), align=align)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c, in one instruction where there is one."""
    kind = a.type
    name = f"llvm.fmuladd.v{kind.count}f{32 if isinstance(kind.element, ir.FloatType) else 64}"
    function = get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [a, b, c])


def spread(builder: Any, number: Any, kind: Any) -> Any:
    """Return a vector of equal numbers."""
    one = ir.IntType(32)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), number, one(0))
    zeros = ir.Constant(ir.VectorType(one, kind.count), [0] * kind.count)
    return builder.shuffle_vector(single, single, zeros)


def picked(builder: Any, a: Any, b: Any, which: list[int]) -> Any:
    """Return the numbers ``which`` out of those of ``a`` followed by those of ``b``."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(which)), which))


def _folded(builder: Any, some: Any) -> Any:
    """Return the sum of the numbers of a vector."""
    n = some.type.count
    while n > 1:
        n //= 2
        low, high = (picked(builder, some, some, [at + i for i in range(n)]) for at in (0, n))
        some = builder.fadd(low, high)
    return builder.extract_element(some, ir.IntType(32)(0))


@intrinsic
def bytes_of(typing_context: Any, dtype: Any) -> Any:
    """Return how long a number is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.int64, dtype.dtype.bitwidth // 8)

    return types.int64(dtype), generate


@intrinsic
def add_wedge(typing_context: Any, first: Any, second: Any, total: Any, dtype: Any) -> Any:
    """Add u_i v_j - u_j v_i to the vector at ``total``; one line has u_i and v_i, the other u_j and v_j."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = vector_of(context, dtype, VECTOR)
        (ui, vi), (uj, vj) = (
            [load(builder, builder.add(line, line.type(part)), kind, VECTOR) for part in (0, VECTOR)]
            for line in args[:2]
        )
        acc = fused(builder, ui, vj, load(builder, args[2], kind, VECTOR))
        store(builder, fused(builder, builder.fneg(uj), vi, acc), args[2], VECTOR)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 3, dtype), generate


@intrinsic
def fold(typing_context: Any, address: Any, dtype: Any) -> Any:
    """Return the sum of the numbers of a vector."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = vector_of(context, dtype, VECTOR)
        return _folded(builder, load(builder, args[0], kind, VECTOR))

    return dtype.dtype(types.int64, dtype), generate


@intrinsic
def turn_line(typing_context: Any, a: Any, b: Any, s: Any, tau: Any, dtype: Any) -> Any:
    """Rotate two lines by increments: a -= s (b + tau a), b += s (a - tau b)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = vector_of(context, dtype, LINE)
        x, y = load(builder, args[0], kind, LINE), load(builder, args[1], kind, LINE)
        sine, half = spread(builder, args[2], kind), spread(builder, args[3], kind)
        minus = builder.fneg(half)
        first = fused(builder, builder.fneg(sine), fused(builder, half, x, y), x)
        second = fused(builder, sine, fused(builder, minus, y, x), y)
        store(builder, first, args[0], LINE)
        store(builder, second, args[1], LINE)
        return context.get_dummy_value()

    number = dtype.dtype
    return types.void(types.int64, types.int64, number, number, dtype), generate


def _alloca(builder: Any, kind: Any, count: int) -> list[Any]:
    """Return places for vectors, filled with zeros; the compiler keeps them in registers."""
    zero = ir.Constant(kind, [0.0] * kind.count)
    places = [alloca_once(builder, kind) for _ in range(count)]
    for place in places:
        builder.store(zero, place)
    return places


@intrinsic
def combine(
    typing_context: Any,
    m: Any,
    step: Any,
    next_: Any,
    x: Any,
    apart: Any,
    n: Any,
    out: Any,
    below: Any,
    dtype: Any,
) -> Any:
    """Write four combinations of ``n`` lines: number i is the sum over b of m[b step + i next] x[b apart].

    They are written ``below`` bytes apart, from ``out`` on.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        m, step, next_, x, apart, n, out, below, _ = args
        kind, number = vector_of(context, dtype, VECTOR), dtype.dtype.bitwidth // 8
        sums = _alloca(builder, kind, 8)
        with for_range(builder, n) as loop:
            at_m = builder.add(m, builder.mul(loop.index, step))
            at_x = builder.add(x, builder.mul(loop.index, apart))
            halves = [load(builder, builder.add(at_x, x.type(part)), kind, number) for part in (0, VECTOR)]
            for i in range(4):
                place = builder.add(at_m, builder.mul(next_, m.type(i)))
                factor = spread(builder, load(builder, place, kind.element, number), kind)
                for half in range(2):
                    total = sums[2 * i + half]
                    builder.store(fused(builder, factor, halves[half], builder.load(total, typ=kind)), total)
        for i in range(4):
            place = builder.add(out, builder.mul(below, m.type(i)))
            for half in range(2):
                there = builder.add(place, m.type(half * VECTOR))
                store(builder, builder.load(sums[2 * i + half], typ=kind), there, number)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8, dtype), generate


@intrinsic
def products(
    typing_context: Any, u0: Any, u1: Any, u2: Any, u3: Any, v0: Any, v1: Any, n: Any, out: Any, dtype: Any
) -> Any:
    """Write the inner products of four with two arrays of ``n`` vectors, row by row, to ``out``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        us, vs, n, out = args[:4], args[4:6], args[6], args[7]
        kind, number = vector_of(context, dtype, VECTOR), dtype.dtype.bitwidth // 8
        sums = _alloca(builder, kind, 8)
        with for_range(builder, n) as loop:
            shift = builder.mul(loop.index, n.type(VECTOR))
            first = [load(builder, builder.add(u, shift), kind, number) for u in us]
            second = [load(builder, builder.add(v, shift), kind, number) for v in vs]
            for i in range(4):
                for j in range(2):
                    total = sums[2 * i + j]
                    builder.store(fused(builder, first[i], second[j], builder.load(total, typ=kind)), total)
        for i, total in enumerate(sums):
            store(
                builder,
                _folded(builder, builder.load(total, typ=kind)),
                builder.add(out, out.type(i * number)),
                number,
            )
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8, dtype), generate


@intrinsic
def turn_ahead(
    typing_context: Any,
    a: Any,
    b: Any,
    n: Any,
    s: Any,
    tau: Any,
    a1: Any,
    b1: Any,
    g1: Any,
    h1: Any,
    dtype: Any,
) -> Any:
    """Rotate two arrays of ``n`` lines by increments, and call for the lines of the four that come next.

    The last two of them will be written.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, n, s, tau = args[:5]
        kind, number = vector_of(context, dtype, VECTOR), dtype.dtype.bitwidth // 8
        sine, half = spread(builder, s, kind), spread(builder, tau, kind)
        less, minus = builder.fneg(sine), builder.fneg(half)
        with for_range(builder, n) as loop:
            shift = builder.mul(loop.index, n.type(LINE))
            _call_for(builder, args[5:9], shift)
            for part in (0, VECTOR):
                at_a, at_b = (builder.add(x, builder.add(shift, n.type(part))) for x in (a, b))
                x, y = load(builder, at_a, kind, number), load(builder, at_b, kind, number)
                store(builder, fused(builder, less, fused(builder, half, x, y), x), at_a, number)
                store(builder, fused(builder, sine, fused(builder, minus, y, x), y), at_b, number)
        return context.get_dummy_value()

    real = dtype.dtype
    return types.void(*(types.int64,) * 3, real, real, *(types.int64,) * 4, dtype), generate


def _call_for(builder: Any, addresses: Sequence[Any], shift: Any) -> None:
    """Ask for a line of each of four arrays to be brought near; the last two are to be written."""
    byte, word = ir.PointerType(ir.IntType(8)), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for which, address in enumerate(addresses):
        place = builder.inttoptr(builder.add(address, shift), byte)
        builder.call(function, [place, word(int(which > 1)), word(3), word(1)])


@intrinsic
def call_for(typing_context: Any, a: Any, b: Any, g: Any, h: Any, n: Any) -> Any:
    """Ask for ``n`` lines of each of four arrays; the last two will be written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with for_range(builder, args[4]) as loop:
            _call_for(builder, args[:4], builder.mul(loop.index, args[4].type(LINE)))
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 5), generate
