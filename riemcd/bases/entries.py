"""Vectors whose coordinates are entries: reading, adding to and summing over the chosen ones.

The models of constant curvature all move along :math:`\\sum_i t_i \\eta_i` by scaling the point and adding
to the chosen entries, so that a step is a few passes over a table whatever its number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from ..index import Coordinates, all_in_order, linear

__all__ = [
    "Entries",
    "add_",
    "entries_of",
    "in_wide_precision_",
    "length",
    "ratio",
    "row_dot",
    "row_square",
    "take",
    "total",
]


#: Which entries of a vector: ``(k,)`` shared by the batch, ``(*batch, k)``, or all from one on.
Entries: TypeAlias = Tensor | slice


def entries_of(coords: Coordinates, count: int, first: int = 0) -> Entries:
    """Return the entries that belong to coordinates, where coordinate 0 is entry ``first``."""
    numbers = linear(coords)
    if all_in_order(numbers, count):
        return slice(first, None)
    return numbers + first if first else numbers


def take(x: Tensor, entries: Entries) -> Tensor:
    """Return the entries of ``x``, ``(*batch, n)``."""
    return x[..., entries] if isinstance(entries, slice) or entries.dim() == 1 else x.gather(-1, entries)


def add_(x: Tensor, entries: Entries, values: Tensor) -> None:
    """Add ``values``, ``(*batch, k)``, to the entries of ``x`` in place."""
    if isinstance(entries, slice):
        x[..., entries].add_(values)
    elif entries.dim() == 1:
        x.index_add_(-1, entries, values)
    else:
        x.scatter_add_(-1, entries, values)


def row_dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the dot product of every row, ``(*batch, 1)``, without a table of products in between."""
    return (x.unsqueeze(-2) @ y.unsqueeze(-1)).squeeze(-1)


def row_square(x: Tensor) -> Tensor:
    """Return the squared norm of every row, ``(*batch, 1)``."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_()


def total(values: Tensor) -> Tensor:
    """Return the sum over the chosen coordinates, ``(*batch, 1)``; nothing to add up for one of them."""
    return values if values.shape[-1] == 1 else values.sum(-1, keepdim=True)


def length(amounts: Tensor) -> Tensor:
    """Return the Euclidean length of the amounts, ``(*batch, 1)``."""
    if amounts.shape[-1] == 1:
        return amounts.abs()
    norm: Tensor = torch.linalg.vector_norm(amounts, dim=-1, keepdim=True)
    return norm


def ratio(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return ``function(z) / z``, and its limit 1 at 0 (for the sines and tangents of the geometries)."""
    return torch.where(z == 0, 1, function(z) / z)


def in_wide_precision_(point: Tensor, move_: Callable[[Tensor], None]) -> None:
    """Let ``move_`` change ``point`` in place, computing in float32 at least."""
    if point.dtype.itemsize >= 4:
        move_(point)
        return
    wide = point.float()
    move_(wide)
    point.copy_(wide)
