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

    VIEWS = ("view", "alias", "detach", "transpose", "t.", "unsqueeze", "expand", "as_strided", "select.int")
    SPARSE_READERS = ("index_select", "index_copy", "gather", "scatter")

    def __init__(self):
        super().__init__()
        self.made = 0
        self.touched = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if any(word in name for word in self.VIEWS):
            return out
        made = [
            t.numel()
            for t in (out if isinstance(out, tuple | list) else [out])
            if isinstance(t, torch.Tensor)
        ]
        in_place = name.endswith("_")
        if not in_place:
            self.made = max(self.made, *made, 0)
        if any(word in name for word in self.SPARSE_READERS):
            # These touch what their index names: as much as the smallest of what goes in and out.
            sizes = [t.numel() for t in args if isinstance(t, torch.Tensor)] + made
            self.touched += min(size for size in sizes if size > 1) if max(sizes) > 1 else 1
        else:
            self.touched += max([*made, *(t.numel() for t in args if isinstance(t, torch.Tensor))], default=0)
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
        W.T @ G
    assert watch.made == D * D


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
