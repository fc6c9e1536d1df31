"""The price of a coordinate: what is read, written and allocated for it."""

import geoopt
import pytest
import torch
from problems_for_tests import orthogonal
from torch.utils._python_dispatch import TorchDispatchMode

from riemcd import SRCD, bases, selections
from riemcd.kernels.native import only_torch

D = 512


class LargestTensor(TorchDispatchMode):
    """Watch every operation and remember the largest tensor that one of them made or read in full."""

    #: These touch what their index names. Without the underscore, the last two copy everything else, too.
    SPARSE = ("aten::index_select", "aten::gather", "aten::index_copy_", "aten::scatter_")

    def __init__(self):
        super().__init__()
        self.made = 0
        self.touched = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        name = func._schema.name
        made = [
            t.numel()
            for t in (out if isinstance(out, tuple | list) else [out])
            if isinstance(t, torch.Tensor)
        ]
        in_place = name.endswith("_")
        if not in_place:
            self.made = max(self.made, *made, 0)
        # An index that names columns is smaller than they are: it does not count.
        read = [
            t.numel()
            for argument, t in zip(func._schema.arguments, args, strict=False)
            if isinstance(t, torch.Tensor) and argument.name != "index"
        ]
        if name in self.SPARSE:  # as much as the smallest of what goes in and out
            self.touched += min([*made, *read])
        else:
            self.touched += max([*made, *read], default=0)
        return out


def step_watched(selection, basis, d, **options):
    W = geoopt.ManifoldParameter(orthogonal(d, d, dtype=torch.float32), geoopt.EuclideanStiefel())
    opt = SRCD([W], lr=0.1, selection=selection, basis=basis, **options)
    W.grad = torch.randn(d, d, generator=torch.Generator().manual_seed(0))
    opt.step()
    # What the compiled kernels read cannot be watched here: their torch twins do the same work.
    with only_torch(), LargestTensor() as watch:
        opt.step()
    return watch


@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
@pytest.mark.parametrize("selection", [selections.Uniform(1), selections.Cyclic(1)], ids=repr)
def test_one_coordinate_makes_nothing_larger_than_a_few_columns(basis, selection):
    assert step_watched(selection, basis, D).made <= 4 * D
    assert step_watched(selection, basis, D, maximize=True).made <= 4 * D


@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
def test_one_coordinate_touches_a_number_of_elements_linear_in_d(basis):
    small, large = (step_watched(selections.Uniform(1), basis, d).touched for d in (D, 2 * D))
    assert large <= 2.2 * small
    assert large <= 40 * 2 * D


def test_the_watch_sees_a_full_product():
    W, G = torch.randn(D, D), torch.randn(D, D)
    with LargestTensor() as watch:
        transposed = W.T
    assert watch.made == watch.touched == 0
    with LargestTensor() as watch:
        transposed @ G
    assert watch.made == D * D


@pytest.mark.parametrize("k", [1, 2, D])
def test_the_watch_counts_every_element_of_the_columns_that_an_index_names(k):
    W, columns, index = torch.randn(D, D), torch.randn(D, k), torch.arange(k)
    for look in (
        lambda: W.index_select(1, index),
        lambda: W.gather(1, index.expand(D, k)),
        lambda: W.index_copy_(1, index, columns),
        lambda: W.scatter_(1, index.expand(D, k), columns),
    ):
        with LargestTensor() as watch:
            look()
        assert watch.touched == k * D
    with LargestTensor() as watch:
        W.index_copy(1, index, columns)
    assert watch.made == watch.touched == D * D


@pytest.mark.parametrize("basis", [bases.RightGivens(), bases.LeftGivens()], ids=repr)
def test_partial_and_move_each_read_only_their_columns(basis):
    """Everything outside the two columns may be NaN and nobody notices."""
    d, coords = 64, torch.tensor([5])  # the pair (0, 6)
    W, G = (
        torch.full((d, d), float("nan"), dtype=torch.float64),
        torch.full((d, d), float("nan"), dtype=torch.float64),
    )
    rows = isinstance(basis, bases.LeftGivens)
    for x in (W, G):
        y = x.mT if rows else x
        y[:, [0, 6]] = torch.randn(d, 2, dtype=torch.float64)
    assert torch.isfinite(basis.partials(basis.covector(W, G), coords)).all()
    before = W.clone()
    basis.move_(W, coords, torch.tensor([0.3], dtype=torch.float64))
    moved, kept = (W.mT, before.mT) if rows else (W, before)
    assert torch.isfinite(moved[:, [0, 6]]).all()
    others = [j for j in range(d) if j not in (0, 6)]
    assert torch.equal(moved[:, others].isnan(), kept[:, others].isnan())
