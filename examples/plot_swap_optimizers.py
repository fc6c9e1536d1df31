"""
One model, several optimizers
=============================

A network with two orthogonal layers reads handwritten digits. The model, the data and the loop stay the
same; one line names the optimizer. Geoopt's optimizers take the whole gradient and factorise a matrix at
every step. ``SRCD`` turns pairs, or groups, of columns. Which of them is ahead depends on what is counted:
iterations, or seconds.
"""

import time

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

import riemcd
from riemcd import SRCD, diagnostics, selections, stepsizes

torch.set_num_threads(1)  # the matrices are small
plt.rcParams.update({"font.size": 12})

# %%
# The model
# ---------
# The pictures have :math:`8 \times 8` pixels, so that an orthogonal layer on them is
# :math:`64 \times 64` and has :math:`64 \cdot 63 / 2` rotations. ``riemcd.constrain_`` makes the weight of
# a stock ``nn.Linear`` a ``geoopt.ManifoldParameter``: from there on every Riemannian optimizer keeps it
# orthogonal.

digits = load_digits()
pixels = torch.tensor(digits.data, dtype=torch.float32)
pixels = (pixels - pixels.mean(0)) / 8  # (1797, 64)
labels = torch.tensor(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, test = order[:1400], order[1400:]


def make_model():
    """Return the network, the same at every call."""
    torch.manual_seed(0)
    layers = [riemcd.constrain_(torch.nn.Linear(64, 64), init="haar") for _ in range(2)]
    return torch.nn.Sequential(
        layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )


# %%
# The line that changes
# ---------------------
# A selection says which rotations are taken, a step size says how far. ``SRCD`` gives the biases and the
# last layer what ``torch.optim`` would: SGD, RMSprop or Adam, whichever name the step size has.

OPTIMIZERS = {
    "geoopt RiemannianSGD": lambda p, lr: geoopt.optim.RiemannianSGD(p, lr=lr),
    "geoopt RiemannianAdam": lambda p, lr: geoopt.optim.RiemannianAdam(p, lr=lr),
    "SRCD": lambda p, lr: SRCD(p, lr=lr),
    "SRCD, Adam": lambda p, lr: SRCD(p, lr=lr, stepsize=stepsizes.Adam()),
    "SRCD, steepest 0.5 %, RMSProp": lambda p, lr: SRCD(
        p, lr=lr, selection=selections.GaussSouthwell(fraction=0.005), stepsize=stepsizes.RMSProp()
    ),
    "SRCD, groups of 16, Adam": lambda p, lr: SRCD(
        p, lr=lr, selection=selections.Partition(16), stepsize=stepsizes.Adam()
    ),
}
RATES = {False: (0.3, 1.0), True: (1e-2, 3e-2)}  # for plain and for adaptive steps

# %%
# The loop that stays
# -------------------
# Each optimizer runs with two step sizes, and the one with the lower loss at the end is shown: enough for a
# first look, not for a verdict. The clock counts the processor's time of forward, backward and step, so that
# a busy machine does not disturb it; measuring is not on it.

STEPS, BATCH, EVERY = 100, 64, 10


def run(make, lr, steps=STEPS):
    """Train; return rows of (iteration, seconds, loss, error of orthogonality) and the test accuracy."""
    model = make_model()
    optimizer = make(model.parameters(), lr)
    orthogonal = [p for p in model.parameters() if isinstance(p, geoopt.ManifoldParameter)]
    draw, rows, seconds = torch.Generator().manual_seed(1), [], 0.0
    for step in range(steps + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                loss = float(torch.nn.functional.cross_entropy(model(pixels[train]), labels[train]))
            rows.append((step, seconds, loss, max(diagnostics.constraint_violation(p) for p in orthogonal)))
        batch = train[torch.randint(len(train), (BATCH,), generator=draw)]
        begun = time.process_time()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pixels[batch]), labels[batch]).backward()
        optimizer.step()
        seconds += time.process_time() - begun
    with torch.no_grad():
        accuracy = float((model(pixels[test]).argmax(-1) == labels[test]).float().mean())
    return np.array(rows), accuracy


results = {}
for name, make in OPTIMIZERS.items():
    run(make, 1e-6, steps=2)  # whatever is compiled or loaded on first use is not on the clock
    adaptive = any(kind in name for kind in ("Adam", "RMSProp"))
    tried = {lr: run(make, lr) for lr in RATES[adaptive]}
    best = min(tried, key=lambda lr: tried[lr][0][-1, 2])
    results[name] = (best, *tried[best])

# %%
# What came out
# -------------
# Compare the two upper panels. A step on groups of columns takes every rotation inside of them, a step on the
# steepest ones has to look for them, and matrices of this size are cheap to factorise: what is ahead by
# iterations need not be ahead by seconds.
#
# The rotations of a step need no factorisation; their rounding adds up slowly. A factorisation at every
# step starts afresh each time. ``SRCD(..., stabilize=n)`` does so once in :math:`n` steps, for those who
# train very long in single precision.

print(f"{'optimizer':30s} {'lr':>6s} {'loss':>8s} {'ms/step':>8s} {'test':>7s} {'|WᵀW − I|':>10s}")
for name, (lr, rows, accuracy) in results.items():
    _, seconds, loss, error = rows[-1]
    print(f"{name:30s} {lr:6g} {loss:8.4f} {1e3 * seconds / STEPS:8.2f} {accuracy:7.1%} {error:10.1e}")

COLOURS = ("#000000", "#7F7F7F", "#56B4E9", "#0072B2", "#E69F00", "#D55E00")
figure, (upper, middle, lower) = plt.subplots(
    3, 1, figsize=(6.4, 9.5), height_ratios=(1, 1, 0.7), layout="constrained"
)
for (name, (_, rows, _)), colour in zip(results.items(), COLOURS, strict=True):
    style = {"color": colour, "ls": "--" if name.startswith("geoopt") else "-", "lw": 2}
    upper.semilogy(rows[:, 0], rows[:, 2], label=name, **style)
    middle.loglog(rows[1:, 1], rows[1:, 2], **style)  # the start is at no seconds
    lower.semilogy(rows[:, 0], rows[:, 3], **style)
upper.set(xlabel="iterations", ylabel="training loss", title="The same iterations …")
middle.set(xlabel="seconds of one processor", ylabel="training loss", title="… and the seconds they take")
lower.set(xlabel="iterations", ylabel="|WᵀW − I|", ylim=(1e-7, 1e-4), title="Error of orthogonality, float32")
for axes in (upper, middle, lower):
    axes.grid(color="0.9")
figure.legend(loc="outside lower center", ncols=2, fontsize=10)
plt.show()
