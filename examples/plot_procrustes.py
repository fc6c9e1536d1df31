"""
Orthogonal Procrustes: swapping the optimizer
=============================================

Which orthogonal matrix is nearest to a given one? The answer is known, :math:`U V^\\top` from the
singular value decomposition, so that every optimizer can be measured by its distance from the best
value. Geoopt's ``RiemannianSGD`` takes the whole gradient and a QR decomposition at every iteration;
``riemcd.SRCD`` turns a few pairs of columns. All of them take the same step, one over the largest
singular value, which is the curvature of the problem.
"""

import time
from pathlib import Path

import geoopt
import matplotlib.pyplot as plt
import torch

from riemcd import SRCD, diagnostics, selections

torch.manual_seed(0)
torch.set_num_threads(2)

# %%
# The problem
# -----------
# Maximise :math:`\mathrm{tr}(X^\top M)` over orthogonal :math:`X`. The start is a random orthogonal
# matrix with the determinant of the answer: rotations never change its sign.

D, SECONDS, GOAL = 100, 4.0, 1e-6

M = torch.randn(D, D, dtype=torch.float64)
U, sigma, Vh = torch.linalg.svd(M)
best = float(sigma.sum())
start = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64)).Q
if torch.linalg.det(start) * torch.linalg.det(U @ Vh) < 0:
    start[:, 0] *= -1
lr = 1.0 / float(sigma[0])

OPTIMIZERS = {
    "geoopt RiemannianSGD": lambda p: geoopt.optim.RiemannianSGD(p, lr=lr),
    "SRCD Uniform(1)": lambda p: SRCD(p, lr=lr, selection=selections.Uniform(1)),
    "SRCD GaussSouthwell(1)": lambda p: SRCD(p, lr=lr, selection=selections.GaussSouthwell(1)),
    "SRCD GaussSouthwell(0.5 %)": lambda p: SRCD(
        p, lr=lr, selection=selections.GaussSouthwell(fraction=0.005)
    ),
    "SRCD RandomMatching": lambda p: SRCD(p, lr=lr, selection=selections.RandomMatching()),
}


# %%
# Running them
# ------------
# Everything but the optimizer's name stays the same. Each runs until the relative gap is below the
# goal, or its time is up.


def run(make):
    """Train until the goal or the time is reached; return the curve of (seconds, gap) and the matrix."""
    warm = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
    warm.grad = -M
    make([warm]).step()  # whatever is compiled or loaded on first use is not on the clock
    X = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
    opt = make([X])
    iterations, gap, used = 0, 1.0 - float((start * M).sum()) / best, 0.0
    curve = [(used, gap)]
    while gap > GOAL and used < SECONDS:
        begun = time.perf_counter()
        for _ in range(10):
            opt.zero_grad()
            loss = -(X * M).sum()
            loss.backward()
            opt.step()
        used += time.perf_counter() - begun
        iterations += 10
        gap = max(1.0 + float(-(X * M).sum().detach()) / best, 1e-16)
        curve.append((used, gap))
    return curve, iterations, diagnostics.constraint_violation(X)


results = {name: run(make) for name, make in OPTIMIZERS.items()}

# %%
# What came out
# -------------
# A single coordinate is nearly free but moves little; a matching turns all columns at once for about
# the price of reading the matrix.

print(f"\n{'optimizer':28s} {'iterations':>10s} {'seconds':>8s} {'gap':>8s} {'|XᵀX − I|':>10s}")
for name, (curve, iterations, off) in results.items():
    print(f"{name:28s} {iterations:10d} {curve[-1][0]:8.2f} {curve[-1][1]:8.1e} {off:10.1e}")

figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
for (name, (curve, _, _)), style in zip(results.items(), ("k--", "C0", "C1", "C2", "C3"), strict=True):
    axes.plot(*zip(*curve, strict=True), style, label=name)
axes.axhline(GOAL, color="0.7", linewidth=0.8)
axes.set(
    xlabel="seconds",
    ylabel="relative gap to the best value",
    yscale="log",
    title=f"Orthogonal Procrustes, {D} × {D}: the same step for everyone",
)
axes.legend()

output = Path("runs")
output.mkdir(exist_ok=True)
figure.savefig(output / "procrustes.png", dpi=150)
print(f"\nThe curves are in {output / 'procrustes.png'}.")
plt.show()
