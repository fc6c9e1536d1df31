"""Many runs at once, for tests of the theorem: one element of a batch per seed, with draws of its own."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from riemcd.draw import Draw
from riemcd.index import Index, linear
from riemcd.partials import Partials
from riemcd.theory import Run


@dataclass(frozen=True, eq=False)
class Coupled:
    """f(X, W) = |X|²/2 - <X, W> - <M, W>: the best X is W, and then W solves Procrustes for M."""

    M: torch.Tensor  # (n, p)

    def value(self, X, W):
        terms = 0.5 * X.square() - X * W - self.M * W
        return terms.sum((-2, -1))

    def gradients(self, X, W):
        return X - W, -X - self.M

    @property
    def infimum(self):
        sigma = torch.linalg.svdvals(self.M)
        return -float(sigma.sum()) - self.M.shape[-1] / 2

    @property
    def quadratic(self):
        n = self.M.numel()
        Q = torch.zeros(2 * n, 2 * n, dtype=torch.float64)
        Q[:n, :n] = torch.eye(n)
        Q[:n, n:] = Q[n:, :n] = -torch.eye(n)
        return Q, torch.cat([torch.zeros(n, dtype=torch.float64), -self.M.flatten()])


@dataclass(frozen=True, eq=False)
class Procrustes:
    """f(W) = -<M, W>, with an X that plays no part."""

    M: torch.Tensor  # (n, p)

    def value(self, X, W):
        return -(self.M * W).sum((-2, -1))

    def gradients(self, X, W):
        return torch.zeros_like(X), (-self.M).expand_as(W)

    @property
    def infimum(self):
        return -float(torch.linalg.svdvals(self.M).sum())


@cache
def own_coordinates(rule, index, seeds, step):
    """Which coordinates the rule takes in this step, for each seed: ones and zeros, ``(seeds, D)``."""
    blind = Partials(lambda _: None, index.count)
    taken = torch.zeros(seeds, index.count, dtype=torch.float64)
    for seed in range(seeds):
        taken[seed, linear(rule.select(index, blind, Draw(seed, step), {})[0])] = 1.0
    return taken


def gradient(W, G):
    """The Riemannian gradient in the Frobenius metric: G less its symmetric part along W."""
    A = W.mT @ G
    return G - W @ (A + A.mT) / 2


def simulate(problem, rule, W0, alphas, *, seeds=24, sigma=0.0, bias=0.0, trace=None):
    """Run SRCD on the columns of W with additive noise, by dense matrix exponentials.

    Nothing of the library takes part but the rule that draws the coordinates. Returns one `Run` for each
    seed, and the largest norm X had; ``trace(X, W, noise)`` sees every step.
    """
    generator = torch.Generator().manual_seed(0)
    W = W0.expand(seeds, *W0.shape).clone()
    X = torch.zeros_like(W)
    p = W0.shape[-1]
    lo, hi = torch.triu_indices(p, p, 1)
    values, squares, largest = [problem.value(X, W)], [], 0.0
    for step, alpha in enumerate(alphas):
        gX, gW = problem.gradients(X, W)
        squares.append(gX.square().sum((-2, -1)) + gradient(W, gW).square().sum((-2, -1)))
        noise = sigma * torch.randn(2, *W.shape, generator=generator, dtype=torch.float64)
        if trace is not None:
            trace(X, W, noise)
        A = W.mT @ (gW + bias + noise[1])
        omega = torch.zeros(seeds, p, p, dtype=torch.float64)
        taken = own_coordinates(rule, Index.of_pairs(p), seeds, step)
        omega[:, lo, hi] = -alpha * taken * (A[:, lo, hi] - A[:, hi, lo]) / 2
        if bool(gX.any()):
            X = X - alpha * (gX + noise[0])
            largest = max(largest, float(X.norm(dim=(-2, -1)).max()))
        W = W @ torch.linalg.matrix_exp(omega - omega.mT)
        values.append(problem.value(X, W))
    table, norms = torch.stack(values).T.numpy(), torch.stack(squares).T.numpy()
    runs = [Run.of(np.array(alphas), f, g) for f, g in zip(table, norms, strict=True)]
    return runs, largest
