"""
Unmixing signals: independent component analysis
================================================

Six signals are recorded by six microphones, each of which hears all of them, :math:`x = M s`. Neither
the signals :math:`s` nor the mixing :math:`M` is known. If the signals are independent and at most one
of them is Gaussian, they can be found again, up to their order, signs and loudness.

Two steps do it. Whitening makes the recordings uncorrelated, :math:`z = V x` with covariance
:math:`I`. What is left to find is then an orthogonal matrix :math:`X`, with :math:`y = X^\\top z`. A
mixture of independent signals looks more Gaussian than the signals do, so :math:`X` should make every
component of :math:`y` as far from Gaussian as it can be:

.. math:: \\max_{X^\\top X = I} \\; \\sum_i \\bigl( \\mathrm{E}\\, \\log\\cosh y_i
   - \\mathrm{E}\\, \\log\\cosh \\nu \\bigr)^2, \\qquad \\nu \\sim N(0, 1).

The square makes it work for spiky signals, whose mean of log cosh is below the Gaussian's, and for flat
ones, whose mean is above.
"""

# sphinx_gallery_thumbnail_number = 1

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.decomposition import FastICA

from riemcd import SRCD, diagnostics, stepsizes
from riemcd.nn.init import haar_

torch.set_num_threads(1)  # the matrices are small
torch.manual_seed(0)
plt.rcParams.update({"font.size": 12, "axes.titlesize": 13})

# %%
# Signals and recordings
# ----------------------
# Six seconds at 1000 samples per second: three waves, a beat, bursts of noise, and noise with heavy tails.

RATE, SECONDS = 1000, 6

t = torch.arange(RATE * SECONDS, dtype=torch.float64) / RATE
beat = (t * 1.3) % 1.0
tails = torch.rand_like(t) - 0.5
SIGNALS = {
    "sine": torch.sin(2 * torch.pi * 1.7 * t),
    "square wave": torch.sign(torch.sin(2 * torch.pi * 1.1 * t + 1)),
    "sawtooth": 2 * ((2.3 * t) % 1.0) - 1,
    "heartbeat": torch.exp(-(((beat - 0.5) / 0.03) ** 2)) - 0.3 * torch.exp(-(((beat - 0.58) / 0.04) ** 2)),
    "bursts": torch.randn_like(t) * torch.sin(2 * torch.pi * 0.45 * t).clamp(min=0) ** 4,
    "Laplace noise": -tails.sign() * torch.log1p(-2 * tails.abs()),
}


def standardised(x):
    """Scale rows to mean 0 and variance 1."""
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


S = standardised(torch.stack(list(SIGNALS.values())))  # (6, samples)
count = len(S)
mixing = torch.randn(count, count, dtype=torch.float64)
recorded = mixing @ S

# %%
# Whitening
# ---------
# From the eigenvectors and eigenvalues of the covariance.

centred = recorded - recorded.mean(1, keepdim=True)
values, vectors = torch.linalg.eigh(centred @ centred.mT / len(t))
V = vectors.mT / values.sqrt()[:, None]
z = V @ centred

# %%
# Unmixing
# --------
# ``SRCD`` turns a random matching of the columns at each step: three pairs, each by its own angle. The
# step sizes are those of Adam, one pair of averages for each rotation, and fall to zero.

STEPS = 400

grid = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
gaussian = (
    torch.trapezoid(torch.log(torch.cosh(grid)) * torch.exp(-(grid**2) / 2), grid) / (2 * torch.pi) ** 0.5
)


def contrast(X):
    """Return how far from Gaussian the components are, summed."""
    return (torch.log(torch.cosh(X.mT @ z)).mean(1) - gaussian).square().sum()


def amari(P):
    """Return how far P is from a scaled permutation: 0 for one, at most 1."""
    size, n = P.abs(), len(P)
    rows = (size / size.amax(1, keepdim=True)).sum() - n
    columns = (size / size.amax(0, keepdim=True)).sum() - n
    return ((rows + columns) / (2 * n * (n - 1))).item()


X = geoopt.ManifoldParameter(
    haar_(torch.empty(count, count, dtype=torch.float64)), manifold=geoopt.EuclideanStiefel()
)
before = X.detach().clone().mT @ V @ mixing
optimizer = SRCD([X], lr=0.1, stepsize=stepsizes.Adam(), maximize=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
distances, contrasts = [amari(before)], []
for _ in range(STEPS):
    optimizer.zero_grad()
    value = contrast(X)
    value.backward()
    optimizer.step()
    schedule.step()
    contrasts.append(value.item())
    distances.append(amari(X.detach().mT @ V @ mixing))
after = X.detach().mT @ V @ mixing

# %%
# Amari's distance says how far :math:`X^\top V M` is from a scaled permutation, which would be a perfect
# answer. It needs to know :math:`M`; the optimizer does not. FastICA of scikit-learn, with the same
# contrast, is there to compare with.

fast = FastICA(whiten="unit-variance", fun="logcosh", random_state=0, max_iter=1000, tol=1e-8)
fast.fit(recorded.mT.numpy())
peer = amari(torch.from_numpy(fast.components_) @ mixing)
print(f"Amari distance: start {distances[0]:.3f}, SRCD {distances[-1]:.4f}, FastICA {peer:.4f}")
print(f"|XᵀX − I| after {STEPS} steps: {diagnostics.constraint_violation(X):.1e}")

# %%
# Sources, recordings, recovered signals
# --------------------------------------
# For the picture each recovered component is given the place and the sign of the source it resembles most.

y = X.detach().mT @ z
likeness = (y @ S.mT / len(t)).numpy()  # (recovered, sources)
place = np.abs(likeness).argmax(0)
sign = np.sign(likeness[place, np.arange(count)])
recovered = y.numpy()[place] * sign[:, None]
for name, of, value in zip(SIGNALS, place, np.abs(likeness[place, np.arange(count)]), strict=True):
    print(f"{name:14s} is component {of}, correlation {value:.4f}")

shown = slice(0, 2 * RATE)
columns = {"sources": S.numpy(), "recordings": standardised(recorded).numpy(), "recovered": recovered}
figure, axes = plt.subplots(count, 3, figsize=(6.8, 7.6), sharex=True, layout="constrained")
for column, ((title, signals), colour) in enumerate(
    zip(columns.items(), ("#0072B2", "0.35", "#D55E00"), strict=True)
):
    axes[0, column].set_title(title)
    axes[-1, column].set_xlabel("seconds")
    for row, signal in enumerate(signals):
        axes[row, column].plot(t[shown], signal[shown], color=colour, linewidth=0.8)
        axes[row, column].set(yticks=[], xticks=[0, 1, 2])
for row, name in enumerate(SIGNALS):
    axes[row, 0].set_ylabel(name.replace(" ", "\n"), rotation=0, ha="right", va="center", fontsize=11)
plt.show()

# %%
# What the optimizer saw, and what it did
# ---------------------------------------
# The contrast is all that the optimizer sees. While it rises, the distance falls. Afterwards each
# recovered component holds one source.

figure = plt.figure(figsize=(6.8, 8.4), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(1.5, 1))
seen, distance = top.subplots(2, 1, sharex=True)
seen.plot(contrasts, color="#0072B2")
seen.set(ylabel="contrast", title="What is maximised")
distance.plot(distances, color="#0072B2", label="SRCD")
distance.axhline(peer, color="#D55E00", linestyle="--", label="FastICA, in the end")
distance.set(xlabel="step", ylabel="Amari distance", title="Distance from a perfect unmixing", ylim=(0, None))
distance.legend()
for axes in (seen, distance):
    axes.grid(alpha=0.3)
for axes, (title, P) in zip(
    bottom.subplots(1, 2),
    {"$|X^\\top V M|$ at the start": before, "in the end": after[place]}.items(),
    strict=True,
):
    picture = axes.imshow(P.abs().numpy(), cmap="cividis", vmin=0, vmax=1)
    axes.set(title=title, xticks=range(count), yticks=range(count), xlabel="source", ylabel="component")
    axes.set_xticklabels(range(1, count + 1))
    axes.set_yticklabels(range(1, count + 1))
bottom.colorbar(picture, ax=bottom.axes, label="weight", shrink=0.8)
plt.show()
