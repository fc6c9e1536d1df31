"""
Copying memory: learning to remember
====================================

Five letters are shown to a recurrent network, then nothing for a while, then a marker asks for them. To
answer, the network has to carry the letters through all the steps between. An orthogonal recurrent matrix
is made for this: :math:`\\lVert W h \\rVert = \\lVert h \\rVert`, so that what is in the state neither fades
nor explodes, and neither does its gradient on the way back.

All runs begin at the same start and see the same sequences: ``riemcd.SRCD`` with steps of RMSProp; the
same with :math:`W` frozen, which shows what training :math:`W` brings; and ``torch.optim.RMSprop``, which
does not know that :math:`W` should stay orthogonal. The network is small and the delay long on purpose: in a
wider one with a shorter delay the frozen :math:`W` comes close, since the other parameters are enough there.
"""

import math
import time

import geoopt
import matplotlib.pyplot as plt
import numpy as np
import torch

from riemcd import SRCD, diagnostics, nn, selections, stepsizes

torch.set_num_threads(1)
plt.rcParams.update({"font.size": 12})

# %%
# The task
# --------
# An alphabet of eight letters, a blank and a marker. Whoever writes blanks until the marker comes and
# guesses afterwards has the loss
#
# .. math::
#
#    \frac{K \ln 8}{L + 2K}
#
# with :math:`K` letters and a delay of :math:`L`. It takes no memory to get there; below it, something is
# remembered.

LETTERS, RECALL, DELAY, HIDDEN, BATCH, ITERATIONS = 8, 5, 50, 32, 32, 150

memoryless = RECALL * math.log(LETTERS) / (DELAY + 2 * RECALL)


def sequences(size, generator):
    """Return inputs and targets, (time, size) integers; 0 is the blank, the last symbol is the marker."""
    letters = torch.randint(1, LETTERS + 1, (RECALL, size), generator=generator)
    inputs = torch.zeros(DELAY + 2 * RECALL, size, dtype=torch.int64)
    targets = torch.zeros_like(inputs)
    inputs[:RECALL], inputs[RECALL + DELAY], targets[-RECALL:] = letters, LETTERS + 1, letters
    return inputs, targets


class Copier(torch.nn.Module):
    """An orthogonal RNN and a linear readout."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.OrthogonalRNN(LETTERS + 2, HIDDEN)
        self.readout = torch.nn.Linear(HIDDEN, LETTERS + 1)

    def forward(self, inputs):
        """Return logits, (time, batch, symbols)."""
        states, _ = self.rnn(torch.nn.functional.one_hot(inputs, LETTERS + 2).float())
        return self.readout(states)


# %%
# Ways to train it
# ----------------
# ``Partition(8)`` puts the columns into random groups of eight and turns each group as a whole.
# RMSProp keeps the mean square of the slope along every rotation. The directions move along with
# :math:`W`, so that these numbers need no transport. With ``skip_weight_grad`` the layer hands slopes to the
# optimizer and the gradient of :math:`W` is never formed. The plain optimizer gets a smaller step as well:
# once :math:`W` stretches some states, every time step stretches them again, and large steps cost dearly.


def srcd(model, lr):
    """All parameters, W by rotations."""
    return SRCD(
        model.parameters(),
        lr=lr,
        selection=selections.Partition(8),
        stepsize=stepsizes.RMSProp(),
        skip_weight_grad=True,
    )


def frozen(model, lr):
    """All parameters but W."""
    model.rnn.weight_hh.requires_grad_(False)
    return torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=lr)


def plain(model, lr):
    """All parameters, W as if it were any matrix."""
    return torch.optim.RMSprop(model.parameters(), lr=lr)


METHODS = {  # optimizer, step size, colour and line
    "SRCD": (srcd, 3e-3, "#0072B2", "-"),
    "W frozen": (frozen, 3e-3, "#7F7F7F", "--"),
    "RMSprop, lr 0.003": (plain, 3e-3, "#D55E00", ":"),
    "RMSprop, lr 0.001": (plain, 1e-3, "#E69F00", "-."),
}


def train(make, lr):
    """Return the model, its losses, its errors of orthogonality and the seconds it took."""
    torch.manual_seed(0)
    model = Copier()
    optimizer, batches = make(model, lr), torch.Generator().manual_seed(0)
    losses, errors, begun = [], [], time.perf_counter()
    for _ in range(ITERATIONS):
        inputs, targets = sequences(BATCH, batches)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        errors.append(diagnostics.constraint_violation(model.rnn.weight_hh, geoopt.EuclideanStiefel()))
    return model, losses, errors, time.perf_counter() - begun


runs = {name: train(make, lr) for name, (make, lr, _, _) in METHODS.items()}

# %%
# What came out
# -------------
# The share of letters that are written down rightly is taken on sequences nobody has seen. Guessing would
# give one in eight.

inputs, targets = sequences(1000, torch.Generator().manual_seed(1))
print(f"memoryless loss {memoryless:.4f}")
print(f"{'':20s} {'loss':>8s} {'/ memoryless':>12s} {'letters':>8s} {'|WᵀW − I|':>10s} {'seconds':>8s}")
written = {}
for name, (model, losses, errors, seconds) in runs.items():
    with torch.no_grad():
        written[name] = model(inputs)[-RECALL:].softmax(-1)
    right = float((written[name].argmax(-1) == targets[-RECALL:]).float().mean())
    last = float(np.mean(losses[-20:]))
    print(f"{name:20s} {last:8.4f} {last / memoryless:12.2f} {right:8.1%} {errors[-1]:10.1e} {seconds:8.1f}")

# %%
# Above the loss, below what each network writes for one new sequence, the first in which all letters
# differ: the darker, the surer; a ring marks the letter that was shown.

one = next(n for n in range(inputs.shape[1]) if len(set(inputs[:RECALL, n].tolist())) == RECALL)

figure = plt.figure(figsize=(6.4, 9.2), layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=(2, 1))
curves, orthogonality = top.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
for name, (_, losses, errors, _) in runs.items():
    _, _, colour, line = METHODS[name]
    style = {"color": colour, "ls": line, "lw": 2}
    curves.semilogy(
        range(10, ITERATIONS + 1), np.convolve(losses, np.ones(10) / 10, "valid"), label=name, **style
    )
    orthogonality.semilogy(errors, **style)
curves.axhline(memoryless, color="k", lw=1.2, ls=":", label="memoryless, K ln 8 / (L + 2K)")
curves.set(ylabel="loss, mean of 10", title=f"Copying {RECALL} letters over a delay of {DELAY}")
curves.legend(fontsize=10)
orthogonality.set(
    xlabel="iterations", ylabel="|WᵀW − I|", title="Error of orthogonality", xlim=(0, ITERATIONS)
)
for axes in (curves, orthogonality):
    axes.grid(color="0.9")

panels = bottom.subplots(1, 4, sharey=True)
for axes, (name, sure) in zip(panels, written.items(), strict=True):
    image = axes.imshow(sure[:, one, 1:].T, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.plot(range(RECALL), targets[-RECALL:, one] - 1, "o", ms=11, mfc="none", mec=METHODS[name][2], mew=2)
    axes.set_title(name.replace(", ", "\n"), fontsize=11)
    axes.set(xlabel="place", xticks=range(RECALL), xticklabels=range(1, RECALL + 1))
panels[0].set(ylabel="letter", yticks=range(LETTERS), yticklabels="ABCDEFGH")
bottom.colorbar(image, ax=panels, label="probability")
plt.show()
