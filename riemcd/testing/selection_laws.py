"""The laws of a selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..draw import Draw
from ..index import Coordinates, Index, linear, linear_to_pair
from ..partials import Partials
from ..selections import Selection
from .registry import Laws

__all__ = ["INDICES", "SELECTION_LAWS", "SelectionCase"]

#: Coordinates of every kind: plain, pairs (even, odd, one, none), with singles, with layers.
INDICES = (
    Index(7),
    Index(1),
    Index.of_pairs(6),
    Index.of_pairs(7),
    Index.of_pairs(2),
    Index.of_pairs(1),
    Index.of_pairs(4, singles=True),
    Index.of_pairs(5, singles=True, layers=2),
)


@dataclass(frozen=True)
class SelectionCase:
    """A rule on some coordinates."""

    rule: Selection
    index: Index
    batch: tuple[int, ...] = ()
    seed: int = 3

    @property
    def applies(self) -> bool:
        """Whether the rule is for such coordinates at all."""
        if self.rule.pairs and not self.index.nodes:
            return False
        try:
            self.rule.check(self.index)
        except ValueError:
            return False
        return True

    def slopes(self, step: int) -> Tensor:
        """Return random slopes, ``(*batch, count)``."""
        generator = torch.Generator().manual_seed(step)
        return torch.randn(*self.batch, self.index.count, generator=generator, dtype=torch.float64)

    def partials(self, step: int) -> Partials:
        """Return the slopes of a step, lazily."""
        slopes = self.slopes(step)

        def read(coords: Coordinates | None) -> Tensor:
            if coords is None:
                return slopes
            at = linear(coords)
            return slopes[..., at] if at.dim() == 1 else slopes.gather(-1, at)

        return Partials(read, self.index.count)

    def select(self, step: int, state: dict[str, Any], seed: int | None = None) -> Tensor:
        """Return the chosen coordinates."""
        draw = Draw(self.seed if seed is None else seed, step, 0)
        coords, weights = self.rule.select(self.index, self.partials(step), draw, state)
        if weights is not None:
            assert weights.shape[-1] == linear(coords).shape[-1]
        return linear(coords)


SELECTION_LAWS: Laws[SelectionCase] = Laws()


@SELECTION_LAWS.add()
def in_range_without_repeats(case: SelectionCase) -> None:
    """Chosen coordinates exist and are different, over many steps."""
    state: dict[str, Any] = {}
    for step in range(12):
        chosen = case.select(step, state)
        assert chosen.dtype == torch.int64
        assert chosen.shape[:-1] in ((), case.batch)
        assert bool(((chosen >= 0) & (chosen < case.index.count)).all())
        ordered = chosen.sort(-1).values
        assert not (ordered.diff(dim=-1) == 0).any(), f"a coordinate was chosen twice: {chosen}"


@SELECTION_LAWS.add(lambda case: case.rule.disjoint)
def pairs_are_disjoint(case: SelectionCase) -> None:
    """No column occurs in two pairs."""
    size = case.index.count // case.index.layers
    for step in range(12):
        chosen_sets = case.select(step, {})
        for chosen in chosen_sets.flatten(0, -2) if chosen_sets.dim() > 1 else [chosen_sets]:
            for layer in range(case.index.layers):
                local = chosen[(chosen // max(size, 1)) == layer] - layer * size
                nodes = torch.cat(linear_to_pair(local[local < case.index.pairs], case.index.nodes))
                assert len(set(nodes.tolist())) == nodes.numel()


@SELECTION_LAWS.add()
def the_same_seed_chooses_the_same(case: SelectionCase) -> None:
    """The same (seed, step, parameter) and slopes give the same coordinates."""
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    for step in range(6):
        assert torch.equal(case.select(step, first), case.select(step, second))


@SELECTION_LAWS.add(lambda case: not case.rule.looks_at_slopes)
def blind_rules_compute_nothing(case: SelectionCase) -> None:
    """A rule that does not look at slopes has none computed, and draws one set for the whole batch."""
    for step in range(6):
        partials = case.partials(step)
        coords, _ = case.rule.select(case.index, partials, Draw(case.seed, step), {})
        assert partials.computed == 0
        assert linear(coords).dim() == 1


@SELECTION_LAWS.add(lambda case: case.rule.sweeps)
def sweeps_cover_everything_once(case: SelectionCase) -> None:
    """A sweep takes every coordinate exactly once, and the next one starts again."""
    for sweep in range(2):
        length = case.rule.steps_per_sweep(case.index)
        taken = [case.select(sweep * length + step, {}) for step in range(length)]
        assert torch.equal(torch.cat(taken).sort().values, torch.arange(case.index.count))


@SELECTION_LAWS.add(lambda case: not case.batch and case.rule.inclusion(case.index) is not None)
def coordinates_are_taken_as_often_as_declared(case: SelectionCase) -> None:
    """Every coordinate is taken with the declared probability, within six standard errors."""
    declared = case.rule.inclusion(case.index)
    assert declared is not None and 0 < declared <= 1
    length = case.rule.steps_per_sweep(case.index) if case.rule.sweeps else 1
    steps = length * max(1, 600 // length)
    taken = torch.zeros(case.index.count)
    state: dict[str, Any] = {}
    for step in range(steps):
        taken[case.select(step, state)] += 1
    error = 0.0 if case.rule.sweeps else 6 * (declared * (1 - declared) / steps) ** 0.5
    worst = float((taken / steps - declared).abs().max()) if case.index.count else 0.0
    assert worst <= error + 1e-6, f"declared {declared:.4f}, off by {worst:.4f}"


@SELECTION_LAWS.add(lambda case: not case.batch)
def weights_keep_the_size_of_a_step(case: SelectionCase) -> None:
    """Weights are positive and, over many steps, sum to as many as there are coordinates taken."""
    state: dict[str, Any] = {}
    taken, weighed = 0, 0.0
    for step in range(300):
        draw = Draw(case.seed, step, 0)
        coords, weights = case.rule.select(case.index, case.partials(step), draw, state)
        taken += linear(coords).shape[-1]
        weighed += linear(coords).shape[-1] if weights is None else float(weights.sum())
        assert weights is None or bool((weights > 0).all()), "a weight is not positive"
    assert abs(weighed - taken) <= 0.25 * taken, f"{taken} coordinates weigh {weighed:.1f}"


@SELECTION_LAWS.add()
def memory_is_plain(case: SelectionCase) -> None:
    """What a rule keeps between steps is plain tensors and numbers, under flat names."""
    state: dict[str, Any] = {}
    for step in range(3):
        case.select(step, state)
    assert all(isinstance(value, Tensor | int | float) for value in state.values())
