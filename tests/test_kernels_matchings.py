"""Matchings of matrices that a shared cache holds: the same as with torch, on any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from riemcd.index import PairSet
from riemcd.kernels import native, only_torch, team
from riemcd.kernels.rotations import rotate_

pytestmark = pytest.mark.skipif(not team.available(), reason="numba is not installed")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A test may set the number of threads; the next one finds it as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that were run."""
    names: list[str] = []
    run = team.run

    def note(name: str, *rest) -> None:
        names.append(name)
        run(name, *rest)

    monkeypatch.setattr(team, "run", note)
    return names


def descend(x, grad, pairs, rows, whole, threads):
    torch.set_num_threads(threads)
    moved = x.clone()
    found = native.descend_(moved, grad, pairs, rows, 0.7, -0.01, True, True, whole)
    assert found is not None
    return moved, *found


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1024, 600), torch.float32), ((701, 515), torch.float64), ((514, 1023), torch.float32)],
)
@pytest.mark.parametrize("rows", [True, False])
def test_slopes_and_rotations(ran, shape, dtype, rows, whole):
    x, grad = torch.randn(2, *shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if not rows:  # columns are contiguous vectors where they are stored one after the other
        x, grad = x.mT.contiguous().mT, grad.mT.contiguous().mT
    nodes = shape[0] if rows else shape[1]
    pairs = PairSet.matching(torch.randperm(nodes, generator=torch.Generator().manual_seed(1)), nodes)
    moved, amounts, bad = descend(x, grad, pairs, rows, whole, 2)
    assert ran == ["in_order"]
    assert bad == 0
    wide, slopes = (x.double(), grad.double()), []
    lo, hi = pairs.ends
    lo, hi = torch.minimum(lo, hi), torch.maximum(lo, hi)
    u, v = (wide[1].mT, wide[0].mT) if rows else wide
    slopes = 0.7 * ((u[:, lo] * v[:, hi]).sum(0) - (u[:, hi] * v[:, lo]).sum(0))
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    torch.testing.assert_close(amounts.double(), -0.01 * slopes, rtol=tolerance, atol=tolerance)
    expected = wide[0].clone()
    with only_torch():
        rotate_(expected, pairs, -0.01 * slopes, -0.7 if rows else 0.7, rows=rows)
    torch.testing.assert_close(moved.double(), expected, rtol=tolerance, atol=tolerance)
    again = descend(x, grad, pairs, rows, whole, 3)
    alone = descend(x, grad, pairs, rows, whole, 1)
    for other in (again, alone):
        assert torch.equal(other[0], moved)
        assert torch.equal(other[1], amounts)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_not_finite(ran, whole):
    x, grad = torch.randn(2, 800, 800, generator=torch.Generator().manual_seed(0))
    grad[3, 5] = torch.nan
    pairs = PairSet.matching(torch.arange(800), 800)
    moved, amounts, bad = descend(x, grad, pairs, True, whole, 2)
    assert ran == ["in_order"]
    assert bad == 1
    assert amounts[3] == 0
    changed = (moved != x).any(1)
    left_alone = torch.zeros(800, dtype=torch.bool)
    left_alone[[3, 403]] = True
    assert torch.equal(changed, torch.zeros_like(changed) if whole else ~left_alone)


def test_an_odd_row_stays(ran):
    x, grad = torch.randn(2, 901, 600, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(901, generator=torch.Generator().manual_seed(1))
    moved, _, _ = descend(x, grad, PairSet.matching(order[:900], 901), True, True, 2)
    assert ran == ["in_order"]
    assert torch.equal(moved[order[900]], x[order[900]])
    assert (moved != x).any(1).sum() == 900


def test_threads_do_not_disturb_each_other(ran):
    """Four Python threads, each with a team of its own, do what they do alone."""
    torch.set_num_threads(2)
    cases = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, grad = torch.randn(2, 800, 700, generator=generator)
        cases.append((x, grad, PairSet.matching(torch.randperm(800, generator=generator), 800)))
    found = {}

    def work(number):
        x, grad, pairs = cases[number]
        x = x.clone()
        for _ in range(5):
            native.descend_(x, grad, pairs, True, 0.7, -0.01, True, True, True)
        return x

    alone = [work(number) for number in range(4)]
    threads = [threading.Thread(target=lambda n=n: found.update({n: work(n)})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ran) == {"in_order"}
    assert all(torch.equal(found[n], alone[n]) for n in range(4))
