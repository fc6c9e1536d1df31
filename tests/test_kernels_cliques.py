"""Groups of vectors that turn together: compiled, in torch, and as dense exponentials."""

from __future__ import annotations

import geoopt
import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from riemcd import SRCD, bases, selections
from riemcd.index import PairSet
from riemcd.kernels import clique_tasks, descend_, native, only_torch, team, wedge_at
from riemcd.kernels.rotations import rotate_

pytestmark = pytest.mark.skipif(not team.available(), reason="numba is not installed")

TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-13}
#: Sizes of groups, and lengths of vectors that fill neither vectors nor tiles.
SIZES = [(3, 5), (4, 8), (7, 130), (16, 129), (19, 3), (32, 300), (57, 65), (64, 64), (6, 1)]


def groups(r: int, seed: int, rest: int = 2) -> PairSet:
    """Return two groups of ``r`` and one of ``rest`` columns, scattered over all there are."""
    d = 2 * r + rest
    order = torch.randperm(d, generator=torch.Generator().manual_seed(seed))
    cliques = (order[: 2 * r].view(2, r), order[2 * r :].view(1, rest))
    return PairSet.partition(tuple(clique.sort(-1).values for clique in cliques), d)


def rows(pairs: PairSet, length: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (3, pairs.nodes, length)
    x, g = torch.randn(2, *shape, generator=generator, dtype=torch.float64) / length**0.5
    return x.to(dtype), g.to(dtype)


def dense(x: Tensor, pairs: PairSet, angles: Tensor) -> Tensor:
    """Turn the rows of each batch element by the exponential of all angles at once, in double precision."""
    found = []
    for one, some in zip(x.double(), angles.double(), strict=True):
        skew = np.zeros((pairs.nodes, pairs.nodes))
        skew[pairs.lo.numpy(), pairs.hi.numpy()] = some.numpy()
        found.append(torch.from_numpy(scipy.linalg.expm(skew - skew.T)).mT @ one)
    return torch.stack(found)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("r", "length"), SIZES)
def test_slopes_are_those_of_the_product(r: int, length: int, dtype: torch.dtype) -> None:
    pairs = groups(r, r)
    x, g = rows(pairs, length, dtype, r)
    product = (x.double() @ g.double().mT)[:, pairs.lo, pairs.hi]
    other = (g.double() @ x.double().mT)[:, pairs.lo, pairs.hi]
    found = native.wedge(x.mT, g.mT, pairs, 0.5)
    assert found is not None
    assert torch.allclose(found.double(), 0.5 * (product - other), atol=TOLERANCE[dtype])
    with only_torch():
        assert torch.allclose(wedge_at(x.mT, g.mT, pairs, 0.5), found, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [1e-7, 1e-3, 0.03, 0.2, 2.0])
@pytest.mark.parametrize(("r", "length"), SIZES)
def test_a_turn_is_the_dense_exponential(r: int, length: int, size: float, dtype: torch.dtype) -> None:
    """Of any size: the series is cut where it may be, halved and squared where it must."""
    pairs = groups(r, r + 1)
    x, _ = rows(pairs, length, dtype, r)
    angles = size * torch.randn(3, pairs.size, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = dense(x, pairs, angles)
    moved, columns, plain = x.clone(), x.mT.contiguous(), x.clone()
    assert native.rotate_(moved, pairs, angles, 1.0, rows=True)
    assert native.rotate_(columns, pairs, angles, 1.0)
    with only_torch():
        rotate_(plain, pairs, angles, 1.0, rows=True)
    scale = 1 + size * r  # the angles themselves are rounded
    for found in (moved, columns.mT, plain):
        assert torch.allclose(found.double(), expected, atol=scale * TOLERANCE[dtype])


def test_columns_of_a_part_of_a_matrix_a_few_matrices_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be further apart than they are long, and memory for increments is not that of the batch."""
    pairs = groups(5, 0)
    x, _ = rows(pairs, 70, torch.float64, 0)
    angles = 0.3 * torch.randn(3, pairs.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    around = torch.zeros(3, 70, pairs.nodes + 4, dtype=torch.float64)
    part = around[..., 3:-1]
    part.copy_(x.mT)
    monkeypatch.setattr(clique_tasks, "_INCREMENTS", 3000)  # of two matrices, or of one
    assert native.rotate_(part, pairs, angles, 1.0)
    assert torch.allclose(part.mT, dense(x, pairs, angles), atol=1e-13)
    assert float(around[..., :3].abs().sum()) == 0 == float(around[..., -1].abs().sum())


@pytest.mark.parametrize("columns", [False, True])
def test_nothing_changes_where_nothing_turns(columns: bool) -> None:
    """One group turns; not even the sign of a zero changes in the others."""
    pairs = groups(4, 0)
    x = torch.zeros(1, pairs.nodes, 9)
    x[:, ::2] = -0.0
    before = x.clone()
    angles = torch.zeros(1, pairs.size)
    angles[0, 0] = 0.3
    turned = x.mT.contiguous().mT if columns else x
    assert native.rotate_(turned, pairs, angles, 1.0, rows=True)
    x = turned
    still = torch.tensor([node not in pairs.cliques[0][0] for node in range(pairs.nodes)])
    assert torch.equal(torch.signbit(x[:, still]), torch.signbit(before[:, still]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_slopes_that_are_not_finite_are_counted_and_not_followed(value: float) -> None:
    pairs = groups(5, 3)
    x, g = (one[0] for one in rows(pairs, 12, torch.float64, 3))
    bad = int(pairs.cliques[0][1, 2])
    g[bad, 4] = value
    before, touched = x.clone(), (pairs.lo == bad) | (pairs.hi == bad)
    found = descend_(x, g, pairs, rows=True, scale=1.0, rate=-0.1, check=True)
    assert found is not None
    amounts, count = found
    assert count == int(touched.sum()) == 4
    assert torch.equal(amounts == 0, touched) and torch.equal(x[bad], before[bad])
    assert not torch.equal(x, before) and bool(torch.isfinite(x).all())


@pytest.mark.parametrize("basis", [bases.LeftGivens(), bases.RightGivens()])
def test_results_do_not_depend_on_the_number_of_threads(basis: bases.Basis) -> None:
    before, found = torch.get_num_threads(), []
    start = torch.linalg.qr(torch.randn(190, 190, generator=torch.Generator().manual_seed(1)))[0].contiguous()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            param = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
            opt = SRCD([param], lr=0.3, basis=basis, selection=selections.Partition(19))
            for _ in range(5):
                param.grad = torch.sin(3 * param.detach())
                opt.step()
            found.append(param.detach().clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_coordinates_of_any_integer_type_within_their_range() -> None:
    basis, W = bases.RightGivens(), torch.eye(8)
    covector = basis.covector(W, torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
    chosen = torch.tensor([0, 13, 27])
    assert torch.equal(basis.partials(covector, chosen.int()), basis.partials(covector, chosen))
    for wrong in ([28], [0, 28], [-1, 3]):
        with pytest.raises(IndexError, match=r"must lie in 0, \.\.\., 27"):
            basis.partials(covector, torch.tensor(wrong))
