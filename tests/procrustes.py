"""Procrustes problems with known least values, and geoopt's optimizer on them."""

import time

import geoopt
import torch

GAP = 1e-5


def make(n, p, seed):
    """M = B Aᵀ / p with standard normal A (p, p) and B (n, p), a start, and the least value from there."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(p, p, dtype=torch.float64, generator=generator)
    B = torch.randn(n, p, dtype=torch.float64, generator=generator)
    x0 = torch.linalg.qr(torch.randn(n, p, dtype=torch.float64, generator=generator)).Q
    M = B @ A.T / p
    sigma = torch.linalg.svdvals(M)
    best = -sigma.sum()
    if n == p and torch.linalg.slogdet(M).sign != torch.linalg.slogdet(x0).sign:
        best = best + 2 * sigma[-1]  # what rotations can reach
    return M, x0, float(best)


def gap(value, best):
    return (value - best) / abs(best)


def geoopt_seconds(M, x0, best, lr, limit):
    """Time of RiemannianSGD to the gap, or infinity after ``limit`` seconds; gradients are given to it."""
    X = geoopt.ManifoldParameter(x0.clone(), manifold=geoopt.EuclideanStiefel())
    opt = geoopt.optim.RiemannianSGD([X], lr=lr)
    X.grad = -M
    start = time.perf_counter()
    for iteration in range(10**6):
        opt.step()
        if iteration % 10 == 0:
            with torch.no_grad():
                now = gap(-float((X * M).sum()), best)
            spent = time.perf_counter() - start
            if now < GAP:
                return spent
            if spent > limit or not now < 10:
                return float("inf")
    return float("inf")
