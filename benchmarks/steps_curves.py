"""Draw the curves of docs/steps.rst: gaps of Procrustes by sweep, and the end of a joint diagonalisation."""

import math
from pathlib import Path

import matplotlib
import torch

import riemcd
from riemcd.problems import JointDiagonalization, LinearTrace
from riemcd.selections import RoundRobin
from riemcd.stepsizes import Exact

matplotlib.use("svg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parent.parent / "docs" / "_static" / "steps.svg"


def procrustes(n, seed):
    """M = B Aᵀ / n, a start, and the least value that rotations can reach from there."""
    generator = torch.Generator().manual_seed(seed)
    A, B, S = (torch.randn(n, n, dtype=torch.float64, generator=generator) for _ in range(3))
    M, x0 = B @ A.T / n, torch.linalg.qr(S).Q
    sigma = torch.linalg.svdvals(M)
    differ = torch.linalg.slogdet(M).sign != torch.linalg.slogdet(x0).sign
    return M, x0, float(-sigma.sum() + (2 * sigma[-1] if differ else 0))


def draw_procrustes(ax, n=200, seed=3, sweeps=100):
    """Plain, over-relaxed and extrapolated sweeps, and those whose frame turns along."""
    M, x0, best = procrustes(n, seed)
    variants = {
        "RoundRobin(), remember=0": (RoundRobin(), Exact(), 0),
        "RoundRobin(), relax=1.8, remember=0": (RoundRobin(), Exact(1.8), 0),
        "RoundRobin()": (RoundRobin(), Exact(), None),
        "the default": (None, Exact(), None),
    }
    for label, (selection, rule, remember) in variants.items():
        options = {"selection": selection, "stepsize": rule, "remember": remember}
        found = riemcd.minimize(LinearTrace(M), x0, tol=0, max_sweeps=sweeps, **options)
        gaps = [(sweep.value - best) / abs(best) for sweep in found.history]
        ax.semilogy([max(gap, 1e-16) for gap in gaps], label=label)
    ax.axhline(1e-5, color="0.7", lw=0.8)
    ax.set(xlabel="sweep", ylabel="relative gap", title=f"Procrustes, {n} × {n}")
    ax.legend(fontsize=8)


def draw_joint(ax, n=50, count=10):
    """What is left beside the diagonals, without and with noise."""
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q
    diagonals = torch.randn(count, n, dtype=torch.float64, generator=generator)
    clean = Q @ torch.diag_embed(diagonals) @ Q.mT
    noise = torch.randn(count, n, n, dtype=torch.float64, generator=generator)
    for label, A in (("commuting", clean), ("noise 1e-3", clean + 1e-3 * (noise + noise.mT) / math.sqrt(2))):
        start = torch.eye(n, dtype=torch.float64)
        found = riemcd.minimize(JointDiagonalization(A), start, tol=1e-14, max_sweeps=20)
        total = float(A.square().sum())
        ax.semilogy([math.sqrt(sweep.value / total) for sweep in found.history], "o-", ms=3, label=label)
    ax.set(xlabel="sweep", ylabel="off-diagonal norm, relative", title=f"{count} matrices, {n} × {n}")
    ax.legend(fontsize=8)


def main() -> None:
    """Write the figure."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    draw_procrustes(axes[0])
    draw_joint(axes[1])
    figure.savefig(OUT)


if __name__ == "__main__":
    main()
