"""Overlapping sets are moved exactly, and never by an exponential larger than their largest component."""

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems_for_tests import orthogonal

import riemcd.kernels.rotations as rotations
from riemcd import bases
from riemcd.index import PairSet, linear_to_pair


def dense(W, coords, amounts):
    d = W.shape[-1]
    j, l = linear_to_pair(coords, d)
    omega = torch.zeros(d, d, dtype=torch.float64)
    omega[j, l] = amounts / 2**0.5
    return W @ torch.from_numpy(scipy.linalg.expm((omega - omega.T).numpy()))


@settings(deadline=None, max_examples=60)
@given(d=st.integers(2, 12), seed=st.integers(0, 10**6), share=st.floats(0.05, 1.0))
def test_any_set_is_the_dense_exponential(d, seed, share):
    count = d * (d - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    coords = torch.randperm(count, generator=generator)[: max(1, round(share * count))]
    amounts = torch.randn(coords.numel(), generator=generator, dtype=torch.float64)
    W = orthogonal(d, d, seed=seed)
    expected = dense(W, coords, amounts)
    bases.RightGivens().move_(W, coords, amounts)
    assert (W - expected).abs().max() < 1e-12


def test_sets_of_their_own_for_every_element_of_a_batch():
    W = orthogonal(2, 3, 8, 8)
    coords = torch.stack([torch.randperm(28)[:6] for _ in range(6)]).view(2, 3, 6)
    amounts = torch.randn(2, 3, 6, dtype=torch.float64)
    expected = torch.stack([dense(W[i, j], coords[i, j], amounts[i, j]) for i in range(2) for j in range(3)])
    bases.RightGivens().move_(W, coords, amounts)
    assert (W.view(6, 8, 8) - expected).abs().max() < 1e-12


def test_no_exponential_exceeds_the_largest_component(monkeypatch):
    sizes = []
    original = rotations.skew_exponential
    monkeypatch.setattr(rotations, "skew_exponential", lambda s: (sizes.append(s.shape[-1]), original(s))[1])
    d = 30
    edges = [(0, 1), (1, 2), (2, 3), (10, 11), (20, 25), (25, 29)]
    lo, hi = torch.tensor(edges).unbind(1)
    coords = PairSet(lo, hi, d).linear
    W = orthogonal(d, d)
    expected = dense(W, coords, torch.ones(6, dtype=torch.float64))
    bases.RightGivens().move_(W, coords, torch.ones(6, dtype=torch.float64))
    assert (W - expected).abs().max() < 1e-12
    assert sorted(sizes) == [3, 4]  # the single pair needs none


@pytest.mark.parametrize("norm", [1e-4, 1e-3, 1e-2, 0.03, 0.049, 0.1, 1.0, 30.0])
def test_small_exponentials_are_exact_where_torchs_are_not(norm):
    S = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    S = S - S.T
    S = S / S.abs().sum(0).max() * norm
    Q = rotations.skew_exponential(S) + torch.eye(4, dtype=torch.float64)
    assert (Q - torch.from_numpy(scipy.linalg.expm(S.numpy()))).abs().max() < 1e-13
    assert (Q.T @ Q - torch.eye(4, dtype=torch.float64)).norm() < 2e-15
