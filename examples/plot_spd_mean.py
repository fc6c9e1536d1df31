"""
Means of positive definite matrices: smoothing a field of ellipses
==================================================================

A diffusion tensor says how far things spread in each direction: a positive definite matrix, drawn as an
ellipse. Measured tensors are noisy, and one would like to replace each by a mean of its neighbours. The
mean of the entries will not do: two thin ellipses that cross have a fat round one between them. The mean
of the affine-invariant geometry, the point with the smallest sum of squared distances, stays thin.

Here every tensor of the field is one element of one parameter, and ``SRCD`` moves each along coordinates
of its own.
"""

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.collections import EllipseCollection

from riemcd import SRCD, selections

torch.manual_seed(0)
torch.set_num_threads(1)  # the matrices are small

# %%
# A noisy field
# -------------
# The true tensors follow the streamlines of two vortices. Noise is added to their logarithms.

SIZE, REACH = 16, 2

axis = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
y, x = torch.meshgrid(axis, axis, indexing="ij")
flow = torch.zeros(SIZE, SIZE, 2, dtype=torch.float64)
for centre, sense in ((0.5, 1.0), (-0.5, -1.0)):
    strength = sense / ((x - centre) ** 2 + y**2 + 0.1)
    flow += strength.unsqueeze(-1) * torch.stack([-y, x - centre], -1)
along = flow / flow.norm(dim=-1, keepdim=True)
across = torch.stack([-along[..., 1], along[..., 0]], -1)
logarithm = 1.6 * (
    along.unsqueeze(-1) * along.unsqueeze(-2) - across.unsqueeze(-1) * across.unsqueeze(-2)
)  # (SIZE, SIZE, 2, 2)
noise = 0.9 * torch.randn(SIZE, SIZE, 2, 2, dtype=torch.float64)
measured = torch.linalg.matrix_exp(logarithm + (noise + noise.mT) / 2)

# %%
# The problem
# -----------
# Each tensor looks at its neighbours within two steps, the near ones with more weight. With
# :math:`X = LL^\top` the squared distance to :math:`A` is the sum of the squared logarithms of the
# eigenvalues of :math:`L^{-1} A L^{-\top}`.

offsets = torch.arange(-REACH, REACH + 1)
rows = (torch.arange(SIZE)[:, None] + offsets).clamp(0, SIZE - 1)  # (SIZE, 5)
neighbours = measured[rows[:, None, :, None], rows[None, :, None, :]].flatten(2, 3)  # (SIZE, SIZE, 25, 2, 2)
weights = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / 2.0).flatten().double()
weights = weights / weights.sum()


def loss(tensors):
    """Half the weighted sum of squared distances, of each tensor to its neighbours."""
    inverse = torch.linalg.inv(torch.linalg.cholesky(tensors)).unsqueeze(2)
    values = torch.linalg.eigvalsh(inverse @ neighbours @ inverse.mT)
    return 0.5 * (weights * values.log().square().sum(-1)).sum()


start = (weights[:, None, None] * neighbours).sum(2)  # the mean of the entries

# %%
# Four optimizers
# ---------------
# A tensor has three coordinates: both columns of its Cholesky factor, and their pair. One random
# coordinate, the steepest one of each tensor, or all three (which is what a matching takes here), against
# the whole gradient and geoopt's retraction.

STEPS = 40
OPTIMIZERS = {
    "geoopt RiemannianSGD": lambda p: geoopt.optim.RiemannianSGD(p, lr=0.7),
    "SRCD, one random coordinate": lambda p: SRCD(p, lr=0.7, selection=selections.Uniform(1)),
    "SRCD, the steepest of each": lambda p: SRCD(p, lr=0.7, selection=selections.GaussSouthwell(1)),
    "SRCD, matching": lambda p: SRCD(p, lr=0.7),
}


def run(make):
    """Return the losses and the field."""
    field = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.SymmetricPositiveDefinite())
    optimizer = make([field])
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(field)
        value.backward()
        losses.append(value.item())
        optimizer.step()
    return np.array(losses), field.detach()


results = {name: run(make) for name, make in OPTIMIZERS.items()}
mean = results["SRCD, the steepest of each"][1]
best = min(losses.min() for losses, _ in results.values())
for name, (losses, field) in results.items():
    apart = geoopt.SymmetricPositiveDefinite().dist(field, results["geoopt RiemannianSGD"][1]).max()
    print(f"{name:30s} loss {losses[-1]:.9f}   farthest from RiemannianSGD's field {float(apart):.1e}")

# %%
# The picture
# -----------
# Hue is the direction of the long axis. The mean of the entries is swollen: its determinants are too
# large by far. Those of the Riemannian mean are right, and the vortices are back.


def draw(axes, field, title):
    """Draw every tensor as an ellipse."""
    values, vectors = np.linalg.eigh(field.reshape(-1, 2, 2).numpy())
    angles = np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1])
    lengths = 0.6 / (SIZE - 1) * np.minimum(np.sqrt(values), 3.2)  # the longest just touch each other
    ellipses = EllipseCollection(
        lengths[:, 1],
        lengths[:, 0],
        np.degrees(angles),
        units="xy",
        offsets=np.stack([x.numpy().ravel(), y.numpy().ravel()], -1),
        offset_transform=axes.transData,
        array=(angles % np.pi) / np.pi,
        cmap="hsv",
        clim=(0, 1),
        edgecolors="none",
    )
    axes.add_collection(ellipses)
    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", xticks=[], yticks=[], facecolor="#f4f2ee")
    axes.set_title(title, fontsize=10)


figure = plt.figure(figsize=(12, 8.2), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(1.35, 1))
for axes, (title, field) in zip(
    top.subplots(1, 3),
    {"measured": measured, "mean of the entries": start, "Riemannian mean (SRCD)": mean}.items(),
    strict=True,
):
    draw(axes, field, title)

curves, swelling = bottom.subplots(1, 2)
for name, (losses, _) in results.items():
    curves.semilogy(losses - best + 1e-12, label=name)
curves.set(xlabel="step", ylabel="loss above the best", title="all of them find the same field")
curves.legend(fontsize=8)
bins = np.linspace(-3, 5, 49)
for name, field in {"mean of the entries": start, "Riemannian mean": mean}.items():
    swelling.hist(torch.logdet(field).flatten().numpy(), bins, alpha=0.65, label=name)
swelling.axvline(0.0, color="k", lw=1, label="truth")
swelling.set(xlabel="log det", ylabel="tensors", title="swelling")
swelling.legend(fontsize=8)
plt.show()
