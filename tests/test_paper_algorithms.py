"""SRCD-U and SRCD-GS against a dense implementation of the paper's algorithms, step for step, on an RNN.

The reference forms the full product, builds H_jl as a matrix and calls a dense exponential: nothing of
the library is in it. The paper's missing 1/sqrt(2) and minus sign are corrected.
"""

import math

import geoopt
import numpy as np
import pytest
import scipy.linalg
import torch
from problems_for_tests import orthogonal

from riemcd import SRCD, selections

D_IN, D, D_OUT, T, BATCH, LR = 3, 8, 2, 6, 5, 0.05


class SmallRNN(torch.nn.Module):
    """h <- tanh(W_in x + W h), y = W_out h + b."""

    def __init__(self, declare):
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.W = declare(orthogonal(D, D, seed=7))
        self.W_in = torch.nn.Parameter(torch.randn(D, D_IN, generator=generator, dtype=torch.float64) / 2)
        self.W_out = torch.nn.Parameter(torch.randn(D_OUT, D, generator=generator, dtype=torch.float64) / 2)
        self.b = torch.nn.Parameter(torch.zeros(D_OUT, dtype=torch.float64))

    def forward(self, x):
        h = x.new_zeros(x.shape[0], D)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ self.W_in.T + h @ self.W.T)
        return h @ self.W_out.T + self.b


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(BATCH, T, D_IN, generator=generator, dtype=torch.float64)
    return x, torch.stack([x[:, 0].sum(-1), x[:, 2].prod(-1)], -1)


def dense_H(i):
    """H_{jl} of the paper for its one-based coordinate i."""
    j, l = next(
        (j, l)
        for j in range(1, D)
        for l in range(j + 1, D + 1)
        if i == sum(D - k for k in range(1, j)) + (l - j)
    )
    H = np.zeros((D, D))
    H[j - 1, l - 1], H[l - 1, j - 1] = 1 / math.sqrt(2), -1 / math.sqrt(2)
    return H


def dense_partials(W, G):
    """Every Riemannian partial derivative, from the projected gradient and the metric."""
    rgrad = W @ (W.T @ G - G.T @ W) / 2
    count = D * (D - 1) // 2
    return np.array([np.trace(rgrad.T @ (W @ dense_H(i))) for i in range(1, count + 1)])


def reference_step(model, block):
    """One step of the paper's algorithm on the coordinates that ``block`` chooses (zero-based)."""
    W, G = model.W.detach().numpy(), model.W.grad.numpy()
    partials = dense_partials(W, G)
    chosen = block(partials)
    tangent = sum(-LR * partials[i] * dense_H(i + 1) for i in chosen)
    with torch.no_grad():
        model.W.copy_(torch.from_numpy(W @ scipy.linalg.expm(tangent)))
        for param in (model.W_in, model.W_out, model.b):
            param -= LR * param.grad


def compare(selection, choose, steps=25):
    ours = SmallRNN(lambda w: geoopt.ManifoldParameter(w, manifold=geoopt.EuclideanStiefel()))
    theirs = SmallRNN(torch.nn.Parameter)
    opt = SRCD(ours.parameters(), lr=LR, selection=selection)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        for model in (ours, theirs):
            model.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            losses.append(float(loss.detach()))
        opt.step()
        reference_step(theirs, lambda partials: choose(partials, opt))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert (a - b).abs().max() < 1e-12, f"step {step}"
    return losses


def test_gauss_southwell():
    compare(selections.GaussSouthwell(), lambda partials, opt: [int(np.argmax(np.abs(partials)))])


def test_block_gauss_southwell():
    size = max(1, round(0.2 * D * (D - 1) // 2))
    compare(
        selections.GaussSouthwell(k=size),
        lambda partials, opt: np.argsort(-np.abs(partials), kind="stable")[:size].tolist(),
    )


def test_uniform_given_the_same_draws():
    seen = []

    def drawn(partials, opt):
        (coordinate,) = opt.last_step.coordinates["0.0"].tolist()
        seen.append(coordinate)
        return [coordinate]

    compare(selections.Uniform(1), drawn, steps=40)
    assert len(set(seen)) > 15  # 28 coordinates, 40 draws


def test_all_is_srgd():
    compare(selections.All(), lambda partials, opt: range(len(partials)))


@pytest.mark.parametrize("nodes", [4, 5])
def test_uniform_draws_are_uniform(nodes):
    from riemcd.draw import Draw
    from riemcd.index import Index
    from riemcd.partials import Partials

    index, partials = Index.of_pairs(nodes), Partials(lambda coords: torch.zeros(0), 0)
    counts = torch.zeros(index.count)
    for step in range(6000):
        (coords, weights) = selections.Uniform(2).select(index, partials, Draw(11, step), {})
        counts[coords] += 1
        assert weights is None
    expected = 6000 * 2 / index.count
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 30  # 6 to 10 degrees of freedom: the 0.1 % quantile of the upper tail
