"""
A rotation for quantisation
===========================

To store numbers in four bits, a group of neighbours shares a scale, its largest entry over 7, and each
is rounded to one of the 15 multiples :math:`-7, \\dots, 7` of it. One large entry then spoils its group:
the others are rounded to zero. Activations of language models are like that; a few channels are much
larger than the rest.

A rotation costs nothing in exact arithmetic, :math:`x = (xR)R^\\top`, but the entries of :math:`xR` can
be easier to round than those of :math:`x`. A Hadamard matrix spreads every large entry evenly over all
channels without looking at the data. Here ``SRCD`` starts from there and learns a better one.
"""

# sphinx_gallery_thumbnail_number = 1

import math

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import LogNorm
from scipy.linalg import hadamard

from riemcd import SRCD, bases, diagnostics, selections, stepsizes
from riemcd.nn.functional import linear
from riemcd.nn.init import haar_

torch.set_num_threads(1)
torch.manual_seed(0)
plt.rcParams.update({"font.size": 12, "axes.titlesize": 12})

# %%
# Vectors with outliers
# ---------------------
# Correlated channels with heavy tails (Student's t with four degrees of freedom), some of which are
# twenty times as large as the others. What is learned from one part is judged on the other.

CHANNELS, GROUP, ROWS, HELD_OUT, OUTLIERS = 256, 32, 4096, 1024, 4

spectrum = torch.logspace(0, -1.5, CHANNELS)
tails = (torch.randn(ROWS + HELD_OUT, 4).square().mean(1, keepdim=True)).rsqrt()
vectors = (torch.randn(ROWS + HELD_OUT, CHANNELS) * spectrum * tails) @ haar_(torch.empty(CHANNELS, CHANNELS))
vectors[:, torch.randperm(CHANNELS)[:OUTLIERS]] *= 20
vectors /= vectors.square().mean().sqrt()
x, test = vectors[:ROWS], vectors[ROWS:]

# %%
# Rounding, and what to expect of it
# ----------------------------------
# Rounding has no useful slope: it is flat nearly everywhere. Its expected error has one. An entry that is
# rounded to multiples of :math:`\Delta` is wrong by :math:`\Delta^2/12` in the mean of squares. With
# :math:`\Delta = \max_{i \in g} |y_i| / 7` in each group :math:`g`, the loss is
#
# .. math:: f(R) = \frac{1}{\|y\|^2} \sum_g \frac{|g|}{12} \Bigl(\frac{\max_{i \in g} |y_i|}{7}\Bigr)^2,
#           \qquad y = xR .


def steps_of(y):
    """Return how far apart the levels of each group are, (rows, groups, 1)."""
    return y.reshape(len(y), -1, GROUP).abs().amax(-1, keepdim=True) / 7


def rounded(y):
    """Round to four bits, each group with its own scale."""
    steps = steps_of(y).clamp_min(1e-30)
    return (torch.round(y.reshape(len(y), -1, GROUP) / steps) * steps).view_as(y)


def expected(y):
    """Return the expected error of rounding, relative to the squares."""
    return GROUP / 12 * steps_of(y).square().sum() / y.detach().square().sum()


def error(R):
    """Return the squared error of rounding the held-out rows, relative to their squares."""
    return ((rounded(test @ R) @ R.mT - test).square().sum() / test.square().sum()).item()


# %%
# Learning
# --------
# The rows of :math:`W = R^\top` are the new axes. A step deals them into groups of 32 at random and turns
# each group within itself. The layer leaves the slopes of these rotations during backward, so that the
# gradient of :math:`W` is never formed: ``W.grad`` stays None.

STEPS, BATCH = 400, 256

spread = torch.sign(torch.randn(CHANNELS, 1)) * torch.from_numpy(hadamard(CHANNELS)) / math.sqrt(CHANNELS)
W = geoopt.ManifoldParameter(spread.mT.contiguous().float(), manifold=geoopt.EuclideanStiefel())
optimizer = SRCD(
    [W],
    lr=0.05,
    basis=bases.LeftGivens(),
    selection=selections.Partition(32),
    stepsize=stepsizes.Adam((0.0, 0.99)),
    skip_weight_grad=True,
)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
for _ in range(STEPS):
    batch = x[torch.randint(ROWS, (BATCH,))]
    optimizer.zero_grad()
    expected(linear(batch, W)).backward()
    optimizer.step()
    schedule.step()

rotations = {
    "no rotation": torch.eye(CHANNELS),
    "Hadamard": spread.float(),
    "learned": W.detach().mT,
}
errors = {name: error(R) for name, R in rotations.items()}
print("relative squared error on held-out rows, and what the loss expects")
for name, R in rotations.items():
    print(f"{name:12s} {errors[name]:8.4%} {expected(test @ R).item():8.4%}")
print(f"|WᵀW − I| after {STEPS} steps: {diagnostics.constraint_violation(W):.1e}")

# %%
# The loss is a good guide where entries are spread over many levels. Where an outlier sets the scale it
# expects too much: entries that are rounded to zero err by no more than themselves.

# %%
# The entries
# -----------
# Without a rotation a few columns stand out. The Hadamard matrix evens out everything. The learned
# rotation evens out the entries within a group and keeps groups apart: what is large shares a scale with
# what is large.

LOOKS = dict(zip(rotations, ("#D55E00", "#0072B2", "#009E73"), strict=True))

figure, axes = plt.subplots(
    3, 2, figsize=(6.8, 7.2), width_ratios=(1.5, 1), sharex="col", layout="constrained"
)
widest = math.ceil(test.abs().max().item())
bins = np.linspace(-widest, widest, 81)
for (picture, histogram), (name, R) in zip(axes, rotations.items(), strict=True):
    y = test @ R
    image = picture.imshow(
        y[:96].abs().clamp_min(1e-3).numpy(),
        cmap="cividis",
        norm=LogNorm(0.02, 10),
        aspect="auto",
        interpolation="none",
    )
    for edge in range(GROUP, CHANNELS, GROUP):
        picture.axvline(edge - 0.5, color="white", linewidth=0.7)
    picture.set(title=f"{name}: error {errors[name]:.2%}", ylabel="vector", xticks=range(0, CHANNELS + 1, 64))
    histogram.hist(y.flatten().numpy(), bins, color=LOOKS[name], log=True)
    histogram.set(title=f"largest {y.abs().max():.0f}", ylabel="entries")
axes[-1, 0].set_xlabel(f"channel (lines: groups of {GROUP})")
axes[-1, 1].set_xlabel("entry / root mean square")
figure.colorbar(image, ax=axes[:, 0], location="bottom", label="size of the entry", extend="both", aspect=30)
plt.show()

# %%
# Where the error comes from
# --------------------------
# An outlier widens the steps of its whole group; groups without one have narrow steps. The Hadamard matrix
# gives all groups the same middling step. The learned rotation has groups with steps nearly as narrow as
# those of groups without outliers, and none that is wider than the Hadamard matrix's.

figure, (bars, groups) = plt.subplots(2, 1, figsize=(6.6, 6.8), height_ratios=(1, 1.5), layout="constrained")
shown = bars.barh(list(errors), [100 * value for value in errors.values()], color=list(LOOKS.values()))
bars.bar_label(shown, fmt="%.2f %%", padding=4)
bars.invert_yaxis()
bars.set(xlabel="squared error in % of the squares", title="Rounding to four bits, held-out vectors")
bars.margins(x=0.2)
for (name, R), marker in zip(rotations.items(), "D^o", strict=True):
    width = steps_of(test @ R).square().mean((0, 2)).sqrt().sort(descending=True).values.numpy()
    groups.plot(range(1, len(width) + 1), width, marker=marker, color=LOOKS[name], label=name)
groups.set(
    xlabel="group, from the widest step to the narrowest",
    ylabel=r"step $\Delta_g$, root mean square",
    title="How far apart the levels of each group are",
    ylim=(0, None),
)
groups.grid(alpha=0.3)
groups.legend()
plt.show()
