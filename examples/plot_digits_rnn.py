"""
Reading digits pixel by pixel
=============================

A recurrent network sees an image of a digit one pixel at a time, 64 in a row, and says at the end which
digit it was. Whatever it saw first has to get through all the later steps,

.. math:: h_t = \\varphi(v x_t + W h_{t-1}), \\qquad \\varphi(z) = \\mathrm{sign}(z) \\max(|z| + b, 0),

and so has the gradient on its way back. An orthogonal :math:`W` neither shrinks nor stretches it.
``riemcd.nn.OrthogonalRNN`` is used like ``torch.nn.RNN``; ``SRCD`` keeps its :math:`W` orthogonal by
nothing but rotations of columns.
"""

# sphinx_gallery_thumbnail_number = 3

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from riemcd import SRCD, diagnostics, selections, stepsizes
from riemcd.nn import OrthogonalRNN

torch.set_num_threads(1)
plt.rcParams.update({"font.size": 12, "axes.titlesize": 12})

# %%
# Images as sequences
# -------------------
# Scikit-learn's digits have 8 × 8 pixels. A fifth of them is kept for the test.

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
pixels = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
labels = torch.tensor(digits.target)[order]
sequences = pixels.T.unsqueeze(-1)  # (time, images, 1), as torch.nn.RNN wants them
held_out = len(labels) // 5
x, y = sequences[:, held_out:], labels[held_out:]
x_test, y_test = sequences[:, :held_out], labels[:held_out]
print(f"{len(y)} images to learn from, {held_out} to test")

# %%
# The network and its optimizer
# -----------------------------
# The recurrent matrix and the other parameters are two groups of one optimizer. The orthogonal matrix is
# turned within random groups of 8 columns; the others get what ``torch.optim.RMSprop`` would do. With
# ``skip_weight_grad`` backward leaves the slopes of those rotations and never forms the gradient of
# :math:`W`.

HIDDEN, BATCH, EPOCHS = 16, 32, 8
LR, LR_TURNS = 1e-2, 3e-3


class Reader(nn.Module):
    """Reads a sequence and says what it was."""

    def __init__(self):
        super().__init__()
        self.rnn = OrthogonalRNN(1, HIDDEN)
        self.readout = nn.Linear(HIDDEN, 10)

    def forward(self, x):
        """Return the scores of the classes, (batch, 10), from the last state."""
        _, last = self.rnn(x)
        return self.readout(last[0])


def make(turning):
    """Return a network and its optimizer; without turning, W stays as it was drawn."""
    torch.manual_seed(1)
    net = Reader()
    W = net.rnn.weight_hh
    others = [p for p in net.parameters() if p is not W]
    if not turning:
        W.requires_grad_(False)
        return net, torch.optim.RMSprop(others, lr=LR)
    groups = [{"params": [W], "lr": LR_TURNS}, {"params": others, "lr": LR}]
    rules = {"selection": selections.Partition(8), "stepsize": stepsizes.RMSProp()}
    return net, SRCD(groups, **rules, skip_weight_grad=True)


# %%
# Training
# --------
# How much of what is learned is due to :math:`W`? A twin whose :math:`W` never moves is trained in the
# same way: its input weights and its readout learn, the matrix between them does not. A random orthogonal
# matrix is a good memory already, and in a wide network the twin is as good; this one is narrow.


@torch.no_grad()
def accuracy(net, x, y):
    """Return the share of images that are recognised, in per cent."""
    return 100 * (net(x).argmax(1) == y).float().mean().item()


def train(net, optimizer):
    """Go through the images several times, and return the accuracies on the way."""
    torch.manual_seed(2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    curve = [(accuracy(net, x, y), accuracy(net, x_test, y_test))]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(y)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[:, chosen]), y[chosen]).backward()
            optimizer.step()
        schedule.step()
        curve.append((accuracy(net, x, y), accuracy(net, x_test, y_test)))
    return curve


untrained, _ = make(turning=True)
net, optimizer = make(turning=True)
frozen, frozen_optimizer = make(turning=False)
curves = {"W turned": train(net, optimizer), "W frozen": train(frozen, frozen_optimizer)}
for name, curve in curves.items():
    print(f"{name:18s} accuracy on the test images {curve[-1][1]:.1f} %")
W = net.rnn.weight_hh
print(f"W.grad is {W.grad}; |WᵀW − I| is {diagnostics.constraint_violation(W):.1e}")

figure, axes = plt.subplots(figsize=(6.6, 4.2), layout="constrained")
for (name, curve), colour in zip(curves.items(), ("#0072B2", "#D55E00"), strict=True):
    learned, tested = zip(*curve, strict=True)
    axes.plot(tested, color=colour, marker="o", label=f"{name}: test")
    axes.plot(learned, color=colour, linestyle="--", label=f"{name}: training")
axes.set(xlabel="epoch", ylabel="recognised, in %", title="Digits read pixel by pixel", ylim=(50, 101))
axes.grid(alpha=0.3)
axes.legend()
plt.show()

# %%
# What flows through it
# ---------------------
# Forwards, the states grow while pixels come in. Backwards, the gradient of the loss with respect to
# :math:`h_t` says how much the network can still learn from what it saw at time :math:`t`: start from
# the state at that time, read the rest, and differentiate. Only :math:`\varphi` makes it smaller, where
# it is zero; that happens at the first pixels, which are blank. In ``torch.nn.RNN``, as it is
# initialised, each step back shrinks the gradient, and the early pixels hardly count.

TIMES = range(0, len(x) - 1, 3)


def gradient_sizes(rnn, readout):
    """Return the mean norm of the loss's gradient by the states at some times."""
    with torch.no_grad():
        states, _ = rnn(x_test)
    sizes = []
    for time in TIMES:
        h = states[time].clone().requires_grad_()
        _, last = rnn(x_test[time + 1 :], h.unsqueeze(0))
        loss = nn.functional.cross_entropy(readout(last[0]), y_test, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, h)
        sizes.append(gradient.norm(dim=1).mean().item())
    return sizes


with torch.no_grad():
    norms = net.rnn(x_test)[0].norm(dim=-1)  # (time, images)
torch.manual_seed(3)
plain, plain_readout = nn.RNN(1, HIDDEN), nn.Linear(HIDDEN, 10)

figure, (forwards, backwards) = plt.subplots(2, 1, figsize=(6.6, 7), sharex=True, layout="constrained")
time = range(1, len(norms) + 1)
low, middle, high = norms.quantile(torch.tensor([0.05, 0.5, 0.95]), dim=1).numpy()
forwards.fill_between(time, low, high, color="#0072B2", alpha=0.25, label="90 % of the images")
forwards.plot(time, middle, color="#0072B2", label="median")
forwards.set(ylabel=r"$\|h_t\|$", title="Forwards: size of the state, after training", ylim=(0, None))
forwards.legend()
for name, rnn, readout, style in (
    ("OrthogonalRNN, trained", net.rnn, net.readout, {"color": "#0072B2"}),
    ("OrthogonalRNN, at the start", untrained.rnn, untrained.readout, {"color": "#56B4E9", "ls": "--"}),
    ("torch.nn.RNN, at the start", plain, plain_readout, {"color": "#D55E00", "ls": ":"}),
):
    sizes = gradient_sizes(rnn, readout)
    backwards.semilogy([time + 1 for time in TIMES], sizes, label=name, linewidth=2, **style)
    print(f"{name:28s} gradient by h_{TIMES[0] + 1} / by h_{TIMES[-1] + 1}: {sizes[0] / sizes[-1]:.1e}")
backwards.set(
    xlabel="pixel $t$",
    ylabel=r"$\|\partial\,\mathrm{loss} / \partial h_t\|$, mean",
    title="Backwards: size of the gradient",
)
backwards.legend()
for axes in (forwards, backwards):
    axes.grid(alpha=0.3)
plt.show()

# %%
# What it says
# ------------
# The test images it was most wrong about come first, then some of those that it read correctly. The number
# in brackets is how sure it was.

with torch.no_grad():
    chances = net(x_test).softmax(1)
sure, said = chances.max(1)
wrong = (said != y_test).nonzero()[:, 0]
wrong = wrong[sure[wrong].argsort(descending=True)][:6]
right = (said == y_test).nonzero()[: 18 - len(wrong), 0]

figure, axes = plt.subplots(3, 6, figsize=(6.8, 4.6), layout="constrained")
for one, image in zip(axes.flat, torch.cat([wrong, right]).tolist(), strict=True):
    one.imshow(x_test[:, image, 0].view(8, 8).numpy(), cmap="gray_r")
    one.set(xticks=[], yticks=[])
    answer, truth = said[image].item(), y_test[image].item()
    missed = answer != truth
    one.set_title(f"{answer} ({sure[image]:.0%})", color="#B34700" if missed else "black", weight="bold")
    one.set_xlabel(f"is {truth}" if missed else "", fontsize=11, color="#B34700")
    for side in one.spines.values():
        side.set(color="#D55E00" if missed else "0.6", linewidth=3 if missed else 1)
missed = (said != y_test).sum().item()
figure.suptitle(f"{missed} of {held_out} test images are misread (orange: some of them)", fontsize=13)
plt.show()
