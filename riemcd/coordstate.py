"""What a step size remembers: one number per coordinate, read and written at the touched ones only."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .index import Coordinates, all_in_order, linear

__all__ = ["CoordinateState", "Rows"]

#: Which points of a table: one index tensor, ``(r,)``, for each leading dimension that is indexed.
Rows: TypeAlias = tuple[Tensor, ...]


class CoordinateState:
    """A view of a parameter's state at the coordinates of one step.

    Buffers are dense, ``(*batch, count)``, and made on first use; a step reads and writes the touched
    entries. Points that take no part in the step (``active`` false) keep what they had.

    Parameters
    ----------
    entries : dict
        The parameter's flat state, as the optimizer keeps and saves it.
    coords : Tensor or PairSet
        Coordinates, ``(k,)`` shared by the batch or ``(*batch, k)``.
    batch : torch.Size
        Leading dimensions of the parameter.
    count : int
        How many coordinates there are.
    like : Tensor
        The slopes of this step: device and dtype of new buffers.
    active : Tensor, optional
        ``(*batch, 1)`` booleans.
    rows : tuple of Tensor, optional
        The points of a larger table that take part; ``batch`` is then that of the table, and the
        slopes and all that is read and written have one row for each of these points.
    """

    def __init__(
        self,
        entries: dict[str, Any],
        coords: Coordinates,
        batch: torch.Size,
        count: int,
        like: Tensor,
        active: Tensor | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.entries = entries
        self._chosen = coords
        self.active = active
        self.rows = rows
        self.clipped: Tensor | None = None  # how many amounts a rule has cut short, where one does
        self._shape = (*batch, count)
        self._like = like

    @cached_property
    def coords(self) -> Tensor:
        """The numbers of the coordinates; not computed for rules that remember nothing."""
        return linear(self._chosen)

    @property
    def direct(self) -> bool:
        """Whether buffers are ``(count,)`` and all that is read or written are entries ``coords`` of them."""
        return self.active is None and self.rows is None and len(self._shape) == 1

    @cached_property
    def _whole(self) -> bool:
        return all_in_order(self.coords, self._shape[-1])

    def buffer(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return the whole buffer ``name``, ``(*batch, count)``; zeros when it is new."""
        if name not in self.entries:
            self.entries[name] = torch.zeros(
                self._shape, dtype=dtype or self._like.dtype, device=self._like.device
            )
        buffer: Tensor = self.entries[name]
        if dtype is None and buffer.dtype != self._like.dtype:  # the model or a checkpoint was converted
            self.entries[name] = buffer = buffer.to(self._like.dtype)
        return buffer

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return the entries of buffer ``name`` at the coordinates of this step, ``(*batch, k)``."""
        buffer = self.buffer(name, dtype)
        if self.rows is not None:
            buffer = buffer[self.rows]
        if self._whole:
            return buffer.clone() if self.rows is None else buffer
        if self.coords.dim() == 1:
            return buffer[..., self.coords]
        return buffer.gather(-1, self.coords)

    def write(self, name: str, values: Tensor) -> None:
        """Store ``values``, ``(*batch, k)``, at the coordinates of this step."""
        if self.active is not None:
            values = torch.where(self.active, values, self.read(name, values.dtype))
        buffer = self.buffer(name, values.dtype)
        part = buffer if self.rows is None else buffer[self.rows]  # a copy, where there are rows
        if self._whole:
            part.copy_(values)
        elif self.coords.dim() == 1:
            part.index_copy_(-1, self.coords, values.to(buffer.dtype))
        else:
            part.scatter_(-1, self.coords, values.to(buffer.dtype))
        if self.rows is not None:
            buffer.index_put_(self.rows, part)
