"""Reading slopes of rotations from two factors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..components import Block
from ..index import PairSet

__all__ = ["wedge_all", "wedge_at"]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to compute for tensors of ``dtype``: float32 at least."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def wedge_all(u: Tensor, v: Tensor) -> Tensor:
    """Return the wedge of every pair, ``(*batch, d(d-1)/2)``, from factors ``(*batch, rows, d)``."""
    wide = accumulator(u.dtype)
    product = u.to(wide).mT @ v.to(wide)
    d = product.shape[-1]
    lo, hi = torch.triu_indices(d, d, 1, device=u.device)
    return product[..., lo, hi] - product[..., hi, lo]


def wedge_at(u: Tensor, v: Tensor, pairs: PairSet) -> Tensor:
    """Return the wedge of some pairs, ``(*batch, k)``, reading only the columns they name."""
    wide = accumulator(u.dtype)
    if pairs.cliques:
        return torch.cat([_of_cliques(u, v, block, wide) for block in pairs.blocks], -1)

    def columns(x: Tensor, at: Tensor) -> Tensor:  # (*batch, rows, k)
        if at.dim() == 1:
            return x.index_select(-1, at).to(wide)
        return x.gather(-1, at.unsqueeze(-2).expand(*x.shape[:-1], -1)).to(wide)

    lo, hi = pairs.lo, pairs.hi
    product = columns(u, lo) * columns(v, hi)
    product -= columns(u, hi) * columns(v, lo)
    return product.sum(-2)


def _of_cliques(u: Tensor, v: Tensor, block: Block, wide: torch.dtype) -> Tensor:
    """Return the wedges inside cliques: one small product each, r x rows x r."""
    c, r = block.nodes.shape
    left, right = (
        x.index_select(-1, block.nodes.flatten()).to(wide).view(*x.shape[:-1], c, r).movedim(-2, -3)
        for x in (u, v)
    )  # (*batch, c, rows, r)
    product: Tensor = left.mT @ right
    wedge = product - product.mT
    return wedge[..., block.which, block.a, block.b]
