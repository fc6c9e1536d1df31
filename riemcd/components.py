"""Connected components of a set of pairs: each needs one small exponential of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

__all__ = ["Block", "blocks_of_cliques", "blocks_of_pairs"]


@dataclass(frozen=True, eq=False)
class Block:
    """The components of one size.

    Pair ``edges[m]`` of the set joins the local columns ``a[m] < b[m]`` of component ``which[m]``.
    """

    nodes: Tensor  # (c, r) sorted columns of each component
    element: Tensor | None  # (c,) the batch element each belongs to, where elements differ
    edges: Tensor  # (e,) positions in the set, flattened over the batch
    which: Tensor  # (e,)
    a: Tensor  # (e,)
    b: Tensor  # (e,)


def blocks_of_cliques(cliques: tuple[Tensor, ...]) -> list[Block]:
    """Return the blocks of pairs laid out clique by clique: nothing has to be searched."""
    blocks, start = [], 0
    for nodes in cliques:
        c, r = nodes.shape
        a, b = torch.triu_indices(r, r, 1, device=nodes.device)
        edges = torch.arange(start, start + c * a.shape[0], device=nodes.device)
        which = torch.arange(c, device=nodes.device).repeat_interleave(a.shape[0])
        blocks.append(Block(nodes, None, edges, which, a.repeat(c), b.repeat(c)))
        start += c * a.shape[0]
    return blocks


def blocks_of_pairs(lo: Tensor, hi: Tensor, nodes: int) -> list[Block]:
    """Return the connected components of the pairs, grouped by size."""
    per_element = lo.dim() > 1
    first, second = (x.detach().cpu().numpy().reshape(-1) for x in (lo, hi))
    if per_element:
        # One graph for the whole batch: element e owns the nodes e*nodes, ..., e*nodes + nodes - 1.
        offset = np.arange(first.size) // lo.shape[-1] * nodes
        first, second = first + offset, second + offset
    touched, ends = np.unique(np.concatenate([first, second]), return_inverse=True)
    a, b = ends[: first.size], ends[first.size :]
    graph = coo_matrix((np.ones(a.size, np.int8), (a, b)), shape=(touched.size, touched.size))
    _, label = connected_components(graph, directed=False)
    size = np.bincount(label)
    order = np.argsort(label, kind="stable")  # by component, and by column inside it
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size) - np.repeat(np.cumsum(size) - size, size)

    def to(x: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(lo.device, torch.int64)

    blocks = []
    for r in np.unique(size):
        here = np.flatnonzero(size == r)
        number = np.full(size.size, -1)
        number[here] = np.arange(here.size)
        members = touched[order[size[label[order]] == r]].reshape(-1, r)
        edges = np.flatnonzero(size[label[a]] == r)
        blocks.append(
            Block(
                to(members % nodes),
                to(members[:, 0] // nodes) if per_element else None,
                to(edges),
                to(number[label[a[edges]]]),
                to(rank[a[edges]]),
                to(rank[b[edges]]),
            )
        )
    return blocks
