"""The tiles in which rows are multiplied by panels of a matrix, as they suit the processor."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

__all__ = ["Tile", "tile"]


class Tile(NamedTuple):
    """Sums that stay in registers: ``rows`` of ``vectors`` with so many ``bytes`` each."""

    bytes: int
    vectors: int
    rows: int

    @property
    def panel(self) -> int:
        """Bytes of a row of a panel."""
        return self.bytes * self.vectors


@cache
def tile() -> Tile:
    """Return the tile for this processor; needs what compiles the kernels.

    Both hide the time that a multiplication takes. AVX-512 has vectors of 64 bytes and 32 registers for
    them, others are taken to have 16 of 32 bytes. Panels of 128 bytes waste less on small groups than
    wider ones.
    """
    llvm: Any = importlib.import_module("llvmlite.binding")
    wide = llvm.get_host_cpu_features().get("avx512f", False)
    return Tile(64, 2, 8) if wide else Tile(32, 3, 4)
