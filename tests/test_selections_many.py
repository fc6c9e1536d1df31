"""Rules that take many coordinates: what each promises beyond the laws of all selections."""

from __future__ import annotations

import itertools
from typing import Any

import geoopt
import networkx
import pytest
import scipy.linalg
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections
from riemcd.draw import Draw
from riemcd.index import Index, PairSet, linear
from riemcd.partials import Partials


def reader(slopes: Tensor) -> Partials:
    """Return the slopes, ``(*batch, D)``, as a rule sees them."""

    def read(coords: Any) -> Tensor:
        if coords is None:
            return slopes
        at = linear(coords)
        return slopes[..., at] if at.dim() == 1 else slopes.gather(-1, at)

    return Partials(read, slopes.shape[-1])


def chosen(rule: selections.Selection, index: Index, slopes: Tensor, step: int = 0) -> Tensor:
    return linear(rule.select(index, reader(slopes), Draw(0, step), {})[0])


# ------------------------------------------------------------------ round robin


@pytest.mark.parametrize("d", range(2, 12))
def test_a_round_robin_sweep_is_a_tournament(d: int) -> None:
    """Everybody meets everybody once, in as few rounds as there can be, nobody twice in a round."""
    index, rule = Index.of_pairs(d), selections.RoundRobin()
    rounds = [
        chosen(rule, index, torch.zeros(index.count), step) for step in range(rule.steps_per_sweep(index))
    ]
    assert len(rounds) == (d - 1 if d % 2 == 0 else d)
    assert all(len(matching) == d // 2 for matching in rounds)
    assert sorted(torch.cat(rounds).tolist()) == list(range(index.count))


# ------------------------------------------------------------------ greedy rules


def greedily(sizes: list[float], d: int) -> list[int]:
    """Sort all pairs and take what is still free: the definition."""
    pairs, used, taken = list(itertools.combinations(range(d), 2)), set(), []
    for _, i in sorted((-size, i) for i, size in enumerate(sizes)):
        if not used & set(pairs[i]):
            used |= set(pairs[i])
            taken.append(i)
    return sorted(taken)


@pytest.mark.parametrize("d", [2, 3, 6, 9, 20])
@pytest.mark.parametrize("kind", ["different", "tied", "sparse", "zero"])
def test_greedy_matching_is_the_greedy_matching(kind: str, d: int) -> None:
    """In every element of a batch, ties to the lowest index."""
    index = Index.of_pairs(d)
    slopes = torch.randn(3, index.count, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    slopes = {
        "different": slopes,
        "tied": slopes.round(),
        "sparse": slopes * (slopes > 1),
        "zero": 0 * slopes,
    }[kind]
    taken = chosen(selections.GreedyMatching(), index, slopes)
    for element in range(3):
        assert sorted(taken[element].tolist()) == greedily(slopes[element].abs().tolist(), d)


def test_greedy_matchings_weigh_nearly_as_much_as_the_best() -> None:
    """Half is guaranteed; on random slopes nearly all of the maximum-weight matching is reached."""
    d, index = 30, Index.of_pairs(30)
    shares = []
    for seed in range(5):
        sizes = torch.randn(index.count, generator=torch.Generator().manual_seed(seed)).abs()
        graph = networkx.Graph()
        for i, (a, b) in enumerate(itertools.combinations(range(d), 2)):
            graph.add_edge(a, b, weight=float(sizes[i]), number=i)
        best = networkx.max_weight_matching(graph, maxcardinality=True)
        most = sum(graph[a][b]["weight"] for a, b in best)
        shares.append(float(sizes[chosen(selections.GreedyMatching(), index, sizes)].sum()) / most)
    assert min(shares) > 0.85


def test_candidates_are_few_and_the_best_of_them_is_taken() -> None:
    """Only as many slopes are read as there are candidates, and the result is one of the steepest of them."""
    index = Index.of_pairs(40)
    slopes = torch.randn(index.count, generator=torch.Generator().manual_seed(0))
    partials = reader(slopes)
    coords, _ = selections.GaussSouthwell(candidates=50).select(index, partials, Draw(0, 1), {})
    assert partials.computed == 50
    drawn = Draw(0, 1).sample(index.count, 50)
    assert linear(coords).item() == drawn[slopes[drawn].abs().argmax()].item()
    several, _ = selections.GaussSouthwell(k=5, candidates=50).select(index, reader(slopes), Draw(0, 1), {})
    assert set(linear(several).tolist()) == set(drawn[slopes[drawn].abs().topk(5).indices].tolist())
    everyone = chosen(selections.GaussSouthwell(candidates=10**6), index, slopes)
    assert everyone.item() == slopes.abs().argmax().item()


@pytest.mark.parametrize("basis", [bases.LeftGivens(), bases.RightGivens()], ids=["left", "right"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_steepest_coordinate_in_every_basis(batch: tuple[int, ...], basis: bases.Basis) -> None:
    """The shortcut through the product of the factors finds what reading every slope finds."""
    torch.manual_seed(0)
    point = torch.linalg.qr(torch.randn(*batch, 20, 20)).Q
    covector = basis.covector(point, torch.randn(*batch, 20, 20))
    every = basis.partials(covector)
    assert torch.equal(basis.steepest(covector), every.abs().argmax(-1, keepdim=True))


# ------------------------------------------------------------------ partitions


@pytest.mark.parametrize("size", [3, 5, 16, 64])
def test_a_partition_step_is_a_dense_exponential(size: int) -> None:
    """From a matching to the full gradient step, against scipy's exponential of the masked gradient."""
    d = 16
    torch.manual_seed(size)
    start = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    param = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
    param.grad = torch.randn(d, d, dtype=torch.float64)
    opt = SRCD([param], lr=0.3, basis=bases.RightGivens(), selection=selections.Partition(size))
    opt.step()
    lo, hi = PairSet.of(opt.last_step.coordinates["0.0"], d).ends
    a = start.T @ param.grad
    omega = torch.zeros_like(a)
    omega[lo, hi] = -0.3 * (a - a.T)[lo, hi] / 2
    expected = start @ torch.from_numpy(scipy.linalg.expm((omega - omega.T).numpy()))
    torch.testing.assert_close(param.detach(), expected, rtol=0, atol=1e-13)
    assert lo.numel() == round(selections.Partition(size).inclusion(Index.of_pairs(d)) * d * (d - 1) / 2)


# ------------------------------------------------------------------ importance


@pytest.mark.parametrize("k", [1, 4, 9, 15])
def test_importance_sampling_is_unbiased(k: int) -> None:
    """E[weight_i, where i is taken] = k/D for every i: exactly, by summing over a fine grid of draws."""
    index, rule = Index.of_pairs(6), selections.Importance(k)
    average = torch.rand(15, generator=torch.Generator().manual_seed(0)) ** 6
    inclusion = rule.probabilities(average, k)
    assert float(inclusion.sum()) == pytest.approx(k)
    assert float(inclusion.max()) <= 1.0
    expected = torch.zeros(15, dtype=torch.float64)
    slopes, grid = torch.randn(15, dtype=torch.float64), 600

    class Point(Draw):
        """A draw that goes through a grid instead of drawing."""

        def uniform(self, n: int) -> Tensor:
            return torch.tensor([(self.step + 0.5) / grid], dtype=torch.float64)

    for step in range(grid):
        coords, weights = rule.select(index, reader(slopes), Point(0, step), {"importance": average})
        assert weights is not None and linear(coords).numel() == k
        assert float(weights.max()) <= 1 / rule.explore + 1e-9
        expected[linear(coords)] += weights / grid
    # A coordinate of probability p is met on p * grid points of the grid, give or take one.
    bound = (k / 15) / inclusion / grid * 1.01
    assert bool(((expected - k / 15).abs() <= bound).all())


def test_importance_follows_the_slopes() -> None:
    """Steep coordinates come to be taken more often, in proportion to their slopes, all of them sometimes."""
    index, rule = Index.of_pairs(8), selections.Importance(4)
    slopes = torch.full((index.count,), 0.01, dtype=torch.float64)
    slopes[5] = 1.0
    state: dict[str, Any] = {}
    taken = torch.zeros(index.count)
    for step in range(300):
        coords, _ = rule.select(index, reader(slopes), Draw(0, step), state)
        taken[linear(coords)] += 1
    assert taken[5] > 250
    assert taken.min() > 3
    assert state["importance"][5] == pytest.approx(1.0)


def test_importance_notes_nothing_for_a_step_that_is_not_taken() -> None:
    """A step that raises leaves the average as it was."""
    param = geoopt.ManifoldParameter(torch.eye(6), manifold=geoopt.EuclideanStiefel())
    opt = SRCD([param], lr=0.1, selection=selections.Importance(3))
    param.grad = torch.arange(36.0).view(6, 6).sin()
    opt.step()
    before = opt.state[param]["importance"].clone()
    param.grad = torch.full((6, 6), torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        opt.step()
    assert torch.equal(opt.state[param]["importance"], before)


# ------------------------------------------------------------------ growing


def test_growing_goes_from_start_to_stop() -> None:
    """Geometrically, then it stays; shares of the coordinates stay shares."""
    rule = selections.Growing(selections.Uniform(), start=2, stop=32, steps=4)
    index = Index.of_pairs(20)
    sizes = [len(chosen(rule, index, torch.zeros(index.count), step)) for step in range(7)]
    assert sizes == [2, 4, 8, 16, 32, 32, 32]
    share = selections.Growing(selections.GaussSouthwell(fraction=0.1), 0.1, 0.4, 2)
    slopes = torch.randn(index.count)
    assert [len(chosen(share, index, slopes, step)) for step in (0, 1, 2)] == [19, 38, 76]
    assert share.looks_at_slopes and not rule.looks_at_slopes


def test_what_cannot_grow_says_so() -> None:
    """At construction, in a sentence."""
    with pytest.raises(ValueError, match="has no size"):
        selections.Growing(selections.RandomMatching(), 1, 2, 3)
    with pytest.raises(TypeError, match="takes a Selection"):
        selections.Growing("uniform", 1, 2, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        selections.Growing(selections.Uniform(), 1.5, 2.5, 3)
    with pytest.raises(ValueError, match="positive"):
        selections.Growing(selections.Uniform(), 0, 2, 3)
    with pytest.raises(ValueError, match="only 3"):
        SRCD(
            [geoopt.ManifoldParameter(torch.eye(3), manifold=geoopt.EuclideanStiefel())],
            selection=selections.Growing(selections.Uniform(), 1, 10, 3),
        )


# ------------------------------------------------------------------ how often a coordinate is taken


@pytest.mark.parametrize(
    "rule",
    [selections.RandomMatching(), selections.Partition(3), selections.Uniform(4), selections.All()],
    ids=repr,
)
@pytest.mark.parametrize("d", [6, 7])
def test_inclusion_is_the_share_of_draws(d: int, rule: selections.Selection) -> None:
    """Every coordinate is taken as often as the rule says, within five standard deviations."""
    index, draws = Index.of_pairs(d), 1200
    taken = torch.zeros(index.count)
    for step in range(draws):
        taken[chosen(rule, index, torch.zeros(index.count), step)] += 1
    p = rule.inclusion(index)
    assert p is not None
    assert float((taken / draws - p).abs().max()) <= 5 * (p * (1 - p) / draws) ** 0.5
