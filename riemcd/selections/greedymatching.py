"""The steepest disjoint pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index
from ..partials import Partials
from .base import Selection

__all__ = ["GreedyMatching"]


@final
@dataclass(frozen=True)
class GreedyMatching(Selection):
    """Take the steepest pair, then the steepest one that shares no column with it, and so on.

    Ties go to the lowest index. The sum of the slopes is at least half of what any matching can reach,
    in practice nearly all of it. Every slope is computed. Where single coordinates exist besides
    pairs, all of them are taken; where a pair has several coordinates, their norm counts.
    """

    pairs = True
    disjoint = True
    looks_at_slopes = True

    def select(
        self, index: Index, partials: Partials, draw: Draw, state: dict[str, Any]
    ) -> tuple[Coordinates, Tensor | None]:
        """Read every slope and match greedily, in each element of the batch."""
        if index.nodes < 2:
            nobody = torch.zeros(0, dtype=torch.int64, device=draw.device)
            return index.matching(nobody, nobody), None
        slopes = partials.all()
        batch, d = slopes.shape[:-1], index.nodes
        layers = slopes.view(*batch, index.layers, -1)[..., : index.pairs]
        size = layers.abs().squeeze(-2) if index.layers == 1 else torch.linalg.vector_norm(layers, dim=-2)
        size = size.nan_to_num(nan=torch.inf, posinf=torch.inf).reshape(-1, index.pairs)
        ends = match(size, d)
        return index.matching(*ends.view(*batch, d // 2, 2).unbind(-1)), None


def match(size: Tensor, d: int) -> Tensor:
    """Return the greedy matching, ``(B, d // 2, 2)``, for sizes of pairs, ``(B, d(d-1)/2)``.

    A pair belongs to it as soon as each of its ends likes the other best of all who are left. Every
    round matches all such pairs, so that a few rounds do: the steepest pair left is always one.
    """
    lo, hi = torch.triu_indices(d, d, 1, device=size.device)
    likes = size.new_full((size.shape[0], d, d), -1.0)
    likes[:, lo, hi] = size
    likes[:, hi, lo] = size
    partner = torch.full((size.shape[0], d), -1, device=size.device)
    nodes = torch.arange(d, device=size.device)
    while True:
        value, best = likes.max(-1)
        mutual = (best.gather(-1, best) == nodes) & (value > 0)
        if not mutual.any():
            break
        partner = torch.where(mutual, best, partner)
        likes.masked_fill_(mutual.unsqueeze(-1) | mutual.unsqueeze(-2), -1.0)
    return _ends(partner, d)


def _ends(partner: Tensor, d: int) -> Tensor:
    """Return pairs, ``(B, d // 2, 2)``; those without a partner are paired off in order.

    That is what the greedy rule does with slopes of zero. With an odd ``d`` the last one is left out.
    """
    nodes = torch.arange(d, device=partner.device).expand_as(partner)
    matched = partner >= 0
    # Ends of a pair next to each other, the unmatched behind them in order.
    key = torch.where(matched, torch.minimum(nodes, partner), d + nodes)
    order = (2 * key + (matched & (nodes > partner))).argsort(-1)
    return order[..., : d // 2 * 2].view(-1, d // 2, 2)
