"""
How sparse is the gradient of an orthogonal RNN?
================================================

A recurrent matrix with :math:`d` columns has :math:`d(d-1)/2` rotations of two columns. Coordinate descent
takes only some of them at a step. That is a good bargain when a few rotations carry most of the gradient,
and a poor one when the gradient is spread evenly. So let us look: at the first iteration of the copying
memory task, and after some training.
"""

# sphinx_gallery_thumbnail_number = 1

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import LogNorm

from riemcd import SRCD, diagnostics, nn, selections, stepsizes

torch.set_num_threads(1)
torch.manual_seed(0)
plt.rcParams.update({"font.size": 12})

# %%
# The task and the network
# ------------------------
# A few letters are shown, then :math:`L` blanks, then a marker; now the letters have to be written down.
# The network is :math:`h_t = \varphi(V x_t + W h_{t-1})` with orthogonal :math:`W` and a linear readout.
# :math:`W` starts as rotations of neighbouring columns, each by an angle of its own.

LETTERS, RECALL, DELAY, HIDDEN, BATCH = 8, 5, 30, 64, 64


def sequences(size, generator):
    """Return inputs and targets, (time, size) integers; 0 is the blank, the last symbol is the marker."""
    letters = torch.randint(1, LETTERS + 1, (RECALL, size), generator=generator)
    inputs = torch.zeros(DELAY + 2 * RECALL, size, dtype=torch.int64)
    targets = torch.zeros_like(inputs)
    inputs[:RECALL], inputs[RECALL + DELAY], targets[-RECALL:] = letters, LETTERS + 1, letters
    return inputs, targets


rnn = nn.OrthogonalRNN(LETTERS + 2, HIDDEN)
readout = torch.nn.Linear(HIDDEN, LETTERS + 1)
W = rnn.weight_hh
first, second = W.detach()[::2, ::2].diagonal(), W.detach()[::2, 1::2].diagonal()
angles = torch.rad2deg(torch.atan2(second, first)).abs()  # by which W turns columns 1 and 2, 3 and 4, ...


def loss(size, generator):
    """Return the mean cross entropy on fresh sequences."""
    inputs, targets = sequences(size, generator)
    states, _ = rnn(torch.nn.functional.one_hot(inputs, LETTERS + 2).float())
    return torch.nn.functional.cross_entropy(readout(states).flatten(0, 1), targets.flatten())


# %%
# Looking at slopes
# -----------------
# After ``backward`` the slopes along all rotations are one call away. They are the coordinates of the
# Riemannian gradient in an orthonormal basis, so that
# :math:`\sum_{j<l} \partial_{jl}^2 = \lVert \mathrm{grad} f \rVert^2`. Sorted by size, how many does it take
# to make up 95 % of the norm? ``gradient_sparsity`` counts them. All looks use the same large batch.

SHARES = (0.95, 0.99)


def look():
    """Return the slopes along all rotations, largest first, as a matrix, and what shares they carry."""
    rnn.zero_grad()
    loss(512, torch.Generator().manual_seed(1)).backward()
    slopes = diagnostics.partial_derivatives(W).abs()
    square = torch.full((HIDDEN, HIDDEN), torch.nan)
    j, l = torch.triu_indices(HIDDEN, HIDDEN, 1)  # the order in which pairs are numbered
    square[j, l] = square[l, j] = slopes
    return slopes.sort(descending=True).values, square, diagnostics.gradient_sparsity(W, SHARES)


# %%
# Training
# --------
# Groups of sixteen columns are turned at a time, with steps of RMSProp.

LOOKS = (0, 200)

params = [*rnn.parameters(), *readout.parameters()]
opt = SRCD(params, lr=2e-3, selection=selections.Partition(16), stepsize=stepsizes.RMSProp())
batches, seen = torch.Generator().manual_seed(2), {}
for iteration in range(LOOKS[-1] + 1):
    if iteration in LOOKS:
        seen[iteration] = look()
    opt.zero_grad()
    value = loss(BATCH, batches)
    value.backward()
    opt.step()

# %%
# What came out
# -------------
# The last column tells how much more the steepest rotation promises than one drawn at random: the largest
# :math:`\partial^2` over the mean one. That is what ``GaussSouthwell`` gains over ``Uniform`` in the first
# order, at the price of looking at all slopes.

print(f"{len(seen[0][0])} rotations, loss {value.item():.3f} after {LOOKS[-1]} iterations")
print(f"{'iterations':>10s} {'95 % of norm in':>16s} {'99 % in':>8s} {'max ∂² / mean ∂²':>17s}")
for iteration, (slopes, _, found) in seen.items():
    ratio = float(slopes[0].square() / slopes.square().mean())
    print(f"{iteration:10d} {found[0.95]:16.1%} {found[0.99]:8.1%} {ratio:17.0f}")

# %%
# Where may the bright bands at the start come from? Nearly every input is a blank, and a pair of columns
# that :math:`W` turns by :math:`\theta` adds the blanks up: :math:`1 + R_\theta + R_\theta^2 + \dots` has
# a size of up to :math:`1 / \sin(|\theta|/2)`. If nothing else mattered, the pairs that turn least would
# have the largest states, and rotations that touch them the largest slopes. Here are the pairs whose columns
# carry most of the squared norm, to compare:

energy = torch.nan_to_num(seen[0][1]).square().sum(1).unflatten(0, (-1, 2)).sum(1)
for block in energy.argsort(descending=True)[:3].tolist():
    rank = int((angles < angles[block]).sum()) + 1
    print(
        f"columns {2 * block + 1} and {2 * block + 2}: {energy[block] / energy.sum():.0%}, "
        f"turn by {angles[block]:.0f}° (number {rank} of {len(angles)}, smallest first)"
    )

figure = plt.figure(figsize=(6.4, 8.2), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(0.85, 1))
axes = top.subplots()
for share in SHARES:
    axes.axhline(100 * share, color="0.75", lw=1, zorder=0)
for (iteration, (slopes, _, found)), colour, line in zip(
    seen.items(), ("#0072B2", "#D55E00"), ("-", "--"), strict=True
):
    energy = slopes.double().square().cumsum(0)
    part = 100 * np.arange(1, len(slopes) + 1) / len(slopes)
    name = f"after {iteration} iterations" if iteration else "at the start"
    name += ": " + " and ".join(f"{found[s]:.0%}" for s in SHARES)
    axes.plot(part, 100 * (energy / energy[-1]).sqrt(), color=colour, ls=line, lw=2, label=name)
    axes.plot([100 * found[s] for s in SHARES], [100 * s for s in SHARES], "o", ms=8, color=colour)
axes.set(
    xscale="log",
    xlim=(part[0], 110),
    ylim=(20, 104),
    yticks=(20, 40, 60, 80, 95, 99),
    xlabel="rotations, steepest first (%)",
    ylabel="norm of the gradient (%)",
    title="How few rotations carry 95 % and 99 %?",
)
axes.tick_params(axis="y", labelsize=10)
axes.legend(loc="lower right", fontsize=10)

panels = bottom.subplots(1, 2)
for axes, iteration in zip(panels, (LOOKS[0], LOOKS[-1]), strict=True):
    square = seen[iteration][1]
    extent = (0.5, HIDDEN + 0.5, HIDDEN + 0.5, 0.5)
    image = axes.imshow(square / np.nanmax(square), norm=LogNorm(1e-4, 1), cmap="cividis", extent=extent)
    axes.set(xlabel="column l", title="at the start" if iteration == 0 else f"after {iteration} iterations")
panels[0].set_ylabel("column j")
bottom.colorbar(image, ax=panels, location="bottom", shrink=0.7, aspect=30, label="|∂| over the largest")
plt.show()
