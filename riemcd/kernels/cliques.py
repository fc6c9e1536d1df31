"""The door to compiled products of columns inside groups."""

from __future__ import annotations

import torch
from torch import Tensor

from . import native, team
from .clique_tasks import LARGEST
from .panels import tile
from .tasks import CHUNKS

__all__ = ["clique_products"]

_DEEP = 64  # as in the compiled module
_ROWS = 128  # of a chunk
_SMALLEST = 8  # columns of a group: with fewer, panels are mostly empty


def clique_products(u: Tensor, v: Tensor, nodes: Tensor) -> Tensor | None:
    """Return uᵀv inside groups of columns, ``(c, r, r)``; None if that is not served.

    Parameters
    ----------
    u, v : Tensor
        ``(rows, d)``
    nodes : Tensor
        ``(c, r)``
    """
    if not (u.dim() == 2 and native.serves(u) and native.serves(v) and u.dtype is v.dtype and nodes.is_cpu):
        return None
    (rows, _), (groups, r), size = u.shape, nodes.shape, u.element_size()
    if not (u.stride(1) == 1 == v.stride(1) and v.shape == u.shape and _SMALLEST <= r <= LARGEST):
        return None
    nodes, width = nodes.contiguous(), tile().panel // size
    many = -(-r // width)
    # Shapes decide the chunks, never the number of threads, and with them the order of sums.
    chunks = max(1, min(CHUNKS, rows // _ROWS))
    sums = torch.empty((chunks, groups, many, r, width), dtype=u.dtype)
    slots = min(chunks, max(1, torch.get_num_threads()))
    room = torch.empty(slots * groups * many * width * _DEEP, dtype=u.dtype)
    numbers = (
        *(u.data_ptr(), u.stride(0), v.data_ptr(), v.stride(0), nodes.data_ptr(), sums.data_ptr()),
        *(room.data_ptr(), rows, groups, r, chunks, width, size, slots, *(0,) * 6),
    )
    team.run("clique_products", size, numbers, (0.0, 0.0, 0.0), 2 * rows * nodes.numel())
    total = sums.sum(0) if chunks > 1 else sums[0]
    return total.movedim(1, 2).reshape(groups, r, many * width)[..., :r]
