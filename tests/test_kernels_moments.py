"""Running means of slopes: compiled, in torch, and written out in double precision."""

from __future__ import annotations

import math

import geoopt
import pytest
import torch
from torch import Tensor

from riemcd import SRCD, selections, stepsizes
from riemcd.coordstate import CoordinateState
from riemcd.index import PairSet, pair_to_linear
from riemcd.kernels import moments, only_torch, team

COUNT = 300


def steps(seed: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return coordinates, in any order, and slopes of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(7):
        coords = torch.randperm(COUNT, generator=generator)[:90]
        slopes = torch.randn(90, generator=generator, dtype=torch.float64)
        slopes *= 10 ** torch.randint(-4, 4, (90,), generator=generator)
        slopes[:3] = 0
        found.append((coords, slopes.to(dtype)))
    return found


def run(rule: stepsizes.Adam, seed: int, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
    entries: dict[str, Tensor] = {}
    amounts = []
    for coords, slopes in steps(seed, dtype):
        state = CoordinateState(entries, coords, torch.Size(()), COUNT, slopes)
        amounts.append(rule.amounts(slopes, coords, lr=0.03, basis=None, state=state))
    return amounts, entries


def written_out(rule: stepsizes.Adam, seed: int, dtype: torch.dtype) -> list[list[float]]:
    """Return what the formula says, coordinate by coordinate."""
    mean, square, visits = [0.0] * COUNT, [0.0] * COUNT, [0] * COUNT
    (one, two), found = rule.betas, []
    for coords, slopes in steps(seed, dtype):
        amounts = []
        for i, slope in zip(coords.tolist(), slopes.double().tolist(), strict=True):
            visits[i] += 1
            mean[i] = one * mean[i] + (1 - one) * slope
            square[i] = two * square[i] + (1 - two) * slope**2
            size = math.sqrt(square[i] / (1 - two ** visits[i])) + rule.eps
            amounts.append(-0.03 * mean[i] / (1 - one ** visits[i]) / size)
        found.append(amounts)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.99), (0.5, 0.0)])
def test_amounts_are_those_of_the_formula(betas: tuple[float, float], dtype: torch.dtype) -> None:
    rule = stepsizes.Adam(betas)
    compiled, kept = run(rule, 0, dtype)
    with only_torch():
        plain, entries = run(rule, 0, dtype)
    expected = written_out(rule, 0, dtype)
    close = {"rtol": 2e-6, "atol": 1e-9} if dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-15}
    for one, other, exact in zip(compiled, plain, expected, strict=True):
        for found in (one, other):
            assert found.dtype is dtype
            assert torch.allclose(found.double(), torch.tensor(exact, dtype=torch.float64), **close)
    assert kept.keys() == entries.keys()
    assert all(kept[name].dtype is entries[name].dtype for name in kept)
    assert torch.equal(kept["visits"], entries["visits"])


@pytest.mark.skipif(not team.available(), reason="numba is not installed")
def test_one_pass_serves_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used where it should be, and changes in place what the optimizer keeps."""
    served = []
    real = moments.adam
    monkeypatch.setattr(moments, "adam", lambda *given: served.append(real(*given)) or served[-1])
    W = geoopt.ManifoldParameter(torch.eye(12), manifold=geoopt.EuclideanStiefel())
    opt = SRCD([W], lr=0.1, selection=selections.Partition(4), stepsize=stepsizes.Adam())
    for _ in range(2):
        W.grad = torch.randn(12, 12, generator=torch.Generator().manual_seed(0))
        opt.step()
    assert len(served) == 2 and all(amounts is not None for amounts in served)
    assert int(opt.state[W]["visits"].sum()) == 2 * 18


@pytest.mark.parametrize("wrong", [[0, COUNT], [-COUNT - 1, 3]])
def test_coordinates_outside_their_range_are_not_written(wrong: list[int]) -> None:
    rule, entries = stepsizes.Adam(), {}
    for coords in (torch.tensor([2, 5]), torch.tensor(wrong)):
        state = CoordinateState(entries, coords, torch.Size(()), COUNT, torch.ones(2))
        if coords.tolist() == wrong:
            with pytest.raises(IndexError):
                rule.amounts(torch.ones(2), coords, lr=0.1, basis=None, state=state)
        else:
            rule.amounts(torch.ones(2), coords, lr=0.1, basis=None, state=state)
    assert int(entries["visits"].sum()) == 2


def test_numbers_of_pairs_in_groups() -> None:
    cliques = (torch.tensor([[1, 4, 6], [0, 2, 9]]), torch.tensor([[3, 5]]), torch.tensor([[7]]))
    pairs = PairSet.partition(cliques, 10)
    assert torch.equal(pairs.linear, pair_to_linear(pairs.lo, pairs.hi, 10))
    assert pairs.linear.shape == (7,)
