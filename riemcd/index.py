r"""Sets of coordinates: how many there are, which are pairs, matchings and partitions of them.

Pairs :math:`0 \le j < l < d` are numbered row by row, as in the paper (there one-based):

.. math:: i = \sum_{k<j} (d - 1 - k) + (l - j - 1) = j d - j(j+1)/2 + (l - j - 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import TypeAlias

import torch
from torch import Tensor

from .components import Block, blocks_of_cliques, blocks_of_pairs

__all__ = ["Coordinates", "Index", "PairSet", "all_in_order", "linear", "linear_to_pair", "pair_to_linear"]

_FEW = 16


def pair_to_linear(lo: Tensor, hi: Tensor | int, nodes: int) -> Tensor:
    """Number the pairs ``lo < hi`` out of ``nodes``.

    >>> pair_to_linear(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), 3)
    tensor([0, 1, 2])
    """
    return lo * (2 * nodes - 3 - lo) // 2 + hi - 1


def _pair(number: int, nodes: int) -> tuple[int, int]:
    """Return the pair with a number, in integers."""
    b = 2 * nodes - 1
    lo = (b - 1 - isqrt(max(b * b - 8 * number - 1, 0))) // 2  # the square root, rounded up
    return lo, number - lo * (b - lo) // 2 + lo + 1


def linear_to_pair(i: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Return the pairs with the numbers ``i``: the inverse of `pair_to_linear`."""
    b = 2 * nodes - 1
    if i.is_cpu and i.numel() <= _FEW:  # twenty calls cost more than the arithmetic
        pairs = i.new_tensor([_pair(number, nodes) for number in i.flatten().tolist()]).view(*i.shape, 2)
        return pairs[..., 0], pairs[..., 1]
    root = torch.sqrt((b * b - 8 * i).double())
    lo = ((b - root) / 2).long().clamp_(0, max(nodes - 2, 0))
    # The square root may round across an integer: put it right in integers.
    lo -= (i < lo * (2 * nodes - 1 - lo) // 2).long()
    lo += (i >= (lo + 1) * (2 * nodes - 2 - lo) // 2).long()
    return lo, i - lo * (2 * nodes - 1 - lo) // 2 + lo + 1


def _check_range(coords: Tensor, nodes: int) -> None:
    """Raise where a number is not that of a pair; found out on the CPU only, without waiting for a device."""
    if not coords.is_cpu or coords.numel() == 0:
        return
    least, most = coords.aminmax()
    if least < 0 or most >= nodes * (nodes - 1) // 2:
        raise IndexError(
            f"coordinates must lie in 0, ..., {nodes * (nodes - 1) // 2 - 1} for pairs of {nodes}, "
            f"got {int(least)} to {int(most)}."
        )


class PairSet:
    """A set of pairs that remembers what is known of its structure.

    Parameters
    ----------
    lo, hi : Tensor
        The pairs, ``lo < hi``; ``(k,)`` shared by the batch or ``(*batch, k)``.
    nodes : int
        Out of how many columns (or rows) the pairs are taken.
    disjoint : bool
        Promised: no column occurs twice.
    cliques : tuple of Tensor
        ``(c, r)`` sorted columns; when given, the pairs are those of each clique in turn, in the order
        of the upper triangle.
    """

    single: tuple[int, int] | None = None  # the only pair there is, on the CPU

    def __init__(
        self,
        lo: Tensor,
        hi: Tensor,
        nodes: int,
        disjoint: bool = False,
        cliques: tuple[Tensor, ...] = (),
    ) -> None:
        self.nodes = nodes
        self.disjoint = disjoint
        self.cliques = cliques
        self.order: Tensor | None = None
        self.size = lo.shape[-1]
        lo, hi = lo.long(), hi.long()  # kernels read nothing else
        self.__dict__.update(lo=lo, hi=hi, ends=(lo, hi))

    @classmethod
    def matching(cls, order: Tensor, nodes: int) -> PairSet:
        """Return the disjoint pairs of ``order[m]`` and ``order[k + m]``, ``k = len(order) // 2``.

        Cutting a permutation in two and putting ends in order takes as long as a small rotation: it is
        done when somebody asks.
        """
        pairs = cls.__new__(cls)
        pairs.nodes, pairs.disjoint, pairs.cliques, pairs.order = nodes, True, (), order
        pairs.size = order.shape[0] // 2
        return pairs

    @classmethod
    def one(cls, number: int, nodes: int) -> PairSet:
        """Return the pair with this number, on the CPU; tensors are made when somebody asks."""
        pairs = cls.__new__(cls)
        pairs.nodes, pairs.disjoint, pairs.cliques, pairs.order = nodes, True, (), None
        pairs.size, pairs.single = 1, _pair(number, nodes)
        return pairs

    @classmethod
    def partition(cls, cliques: tuple[Tensor, ...], nodes: int) -> PairSet:
        """Return the pairs of cliques, ``(c, r)`` sorted columns; they are listed when somebody asks."""
        pairs = cls.__new__(cls)
        pairs.nodes, pairs.disjoint, pairs.cliques, pairs.order = nodes, False, cliques, None
        pairs.size = sum(c.shape[0] * (c.shape[1] * (c.shape[1] - 1) // 2) for c in cliques)
        return pairs

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Both ends of each pair, in any order."""
        if self.single is not None:
            return torch.tensor(self.single[:1]), torch.tensor(self.single[1:])
        if self.order is None:
            inside = [clique[:, _triangle(clique.shape[-1], clique.device)] for clique in self.cliques]
            lo, hi = (torch.cat([i[:, end].flatten() for i in inside]) for end in (0, 1))
            return lo, hi
        return self.order[: self.size], self.order[self.size : 2 * self.size]

    @cached_property
    def lo(self) -> Tensor:
        """The lower end of each pair."""
        return self.ends[0] if self.cliques else torch.minimum(*self.ends)

    @cached_property
    def hi(self) -> Tensor:
        """The upper end of each pair."""
        return self.ends[1] if self.cliques else torch.maximum(*self.ends)

    @classmethod
    def of(cls, coords: Coordinates, nodes: int) -> PairSet:
        """Read coordinates of either form as pairs."""
        if isinstance(coords, PairSet):
            return coords
        coords = coords.long()
        _check_range(coords, nodes)
        if coords.is_cpu and coords.dim() == 1 and coords.shape[0] == 1:
            pairs = cls.one(int(coords), nodes)
        else:
            pairs = cls(*linear_to_pair(coords, nodes), nodes, disjoint=coords.shape[-1] == 1)
        pairs.__dict__["linear"] = coords  # known already
        return pairs

    @cached_property
    def linear(self) -> Tensor:
        """The numbers of the pairs."""
        if self.cliques:
            return torch.cat([_inside(clique, self.nodes) for clique in self.cliques])
        return pair_to_linear(self.lo, self.hi, self.nodes)

    @cached_property
    def blocks(self) -> list[Block]:
        """The connected components of the pairs, as a graph on the columns, grouped by size."""
        if self.cliques:
            return blocks_of_cliques(self.cliques)
        return blocks_of_pairs(self.lo, self.hi, self.nodes)


Coordinates: TypeAlias = Tensor | PairSet


def linear(coords: Coordinates) -> Tensor:
    """Return the numbers of the coordinates."""
    return coords.linear if isinstance(coords, PairSet) else coords


def _inside(clique: Tensor, nodes: int) -> Tensor:
    """Return the numbers of all pairs of cliques, ``(c, r)`` sorted columns."""
    if clique.shape[-1] == nodes:
        return torch.arange(nodes * (nodes - 1) // 2, device=clique.device)
    a, b = _triangle(clique.shape[-1], clique.device)
    return (pair_to_linear(clique, 0, nodes)[:, a] + clique[:, b]).flatten()


def _triangle(r: int, device: torch.device | None) -> Tensor:
    return torch.triu_indices(r, r, 1, device=device)


def all_in_order(numbers: Tensor, count: int) -> bool:
    """Return whether these are all coordinates in their order, so that nothing has to be picked out.

    Known on the CPU only: asking another device would make the step wait.
    """
    if numbers.dim() != 1 or numbers.shape[0] != count or not numbers.is_cpu:
        return False
    return torch.equal(numbers, torch.arange(count))


@dataclass(frozen=True)
class Index:
    """What a selection may know about the coordinates of a parameter.

    Coordinates come in ``layers``; each layer holds the pairs of ``nodes`` things, followed by the
    ``nodes`` single ones where ``singles``. With ``nodes = 0`` coordinates are just numbered.

    Parameters
    ----------
    count : int
        Number of coordinates.
    nodes : int
        Pairs of how many things; 0 when coordinates are not pairs.
    singles : bool
        Whether each node has a coordinate of its own (the diagonal ones of SPD matrices).
    layers : int
        How many copies of all this there are (imaginary and real on the upper half space).

    Examples
    --------
    >>> index = Index.of_pairs(4)
    >>> index.count
    6
    >>> linear(index.matching(torch.tensor([3, 0]), torch.tensor([1, 2])))
    tensor([4, 1])
    """

    count: int
    nodes: int = 0
    singles: bool = False
    layers: int = 1

    @classmethod
    def of_pairs(cls, nodes: int, *, singles: bool = False, layers: int = 1) -> Index:
        """Return the index of all pairs of ``nodes`` things."""
        pairs = nodes * (nodes - 1) // 2
        return cls(layers * (pairs + (nodes if singles else 0)), nodes, singles, layers)

    @property
    def pairs(self) -> int:
        """Number of pairs in one layer."""
        return self.nodes * (self.nodes - 1) // 2

    def resolve(self, coords: Coordinates) -> Coordinates:
        """Return coordinates as pairs where all of them are, so that this is found out only once."""
        if self.nodes and not self.singles and self.layers == 1:
            return PairSet.of(coords, self.nodes)
        return coords

    def matching(self, a: Tensor, b: Tensor, singles: Tensor | None = None) -> Coordinates:
        """Return the coordinates of the disjoint pairs ``(a, b)``, and every single one.

        ``singles`` names the nodes whose single coordinates are taken, where not all of them are.
        """
        pairs = PairSet(torch.minimum(a, b), torch.maximum(a, b), self.nodes, disjoint=True)
        return self._with_singles(pairs, singles)

    def halves(self, order: Tensor) -> Coordinates:
        """Return the disjoint pairs of ``order[m]`` and ``order[d // 2 + m]``, and every single one."""
        return self._with_singles(PairSet.matching(order, self.nodes))

    def one(self, number: int, device: torch.device | None = None) -> Coordinates:
        """Return a single coordinate."""
        pairs = self.nodes and not self.singles and self.layers == 1
        if pairs and (device is None or device.type == "cpu"):
            return PairSet.one(number, self.nodes)
        return torch.tensor([number], device=device)

    def partition(self, groups: tuple[Tensor, ...]) -> Coordinates:
        """Return the coordinates of cliques, ``(c, r)`` each, and every single one."""
        cliques = tuple(group.sort(dim=-1).values for group in groups if group.numel() > len(group))
        if not cliques:
            nobody = torch.zeros(0, dtype=torch.int64, device=groups[0].device)
            return self.matching(nobody, nobody)
        return self._with_singles(PairSet.partition(cliques, self.nodes))

    def everything(self, device: torch.device | None = None) -> Coordinates:
        """Return all coordinates in order."""
        if self.nodes < 2 or self.singles or self.layers > 1:
            return torch.arange(self.count, device=device)
        return PairSet.partition((torch.arange(self.nodes, device=device)[None],), self.nodes)

    def _with_singles(self, pairs: PairSet, singles: Tensor | None = None) -> Coordinates:
        if not self.singles and self.layers == 1:
            return pairs
        layer = pairs.linear
        if self.singles:
            if singles is None:
                singles = torch.arange(self.nodes, device=layer.device)
            layer = torch.cat([layer, (self.pairs + singles).expand(*layer.shape[:-1], -1)], -1)
        size = self.count // self.layers
        return torch.cat([layer + size * n for n in range(self.layers)], -1)
