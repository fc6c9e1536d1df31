"""The copying-memory task of ``riemcd copying``, trained with one step size or another."""

import torch

import riemcd
from riemcd.experiments.copying_task import LETTERS, copying_batch
from riemcd.experiments.networks import Readout
from riemcd.nn import OrthogonalRNN
from riemcd.nn.init import henaff_


def train(
    seed: int, *, selection=None, lr=None, momentum=0.0, stepsize=None, hidden=190, delay=100, iterations=300
) -> list[float]:
    """Return the loss of every iteration; ``lr=None`` leaves W where it was."""
    torch.manual_seed(seed)
    network = Readout(OrthogonalRNN(LETTERS + 2, hidden, init=henaff_), hidden, LETTERS + 1)
    W = network.core.weight_hh
    opts = [torch.optim.RMSprop([p for p in network.parameters() if p is not W], lr=1e-3)]
    if lr is None:
        W.requires_grad_(False)
    else:
        stepsize = riemcd.stepsizes.RMSProp() if stepsize is None else stepsize
        opts.append(
            riemcd.SRCD([W], lr=lr, momentum=momentum, selection=selection, stepsize=stepsize, seed=seed)
        )
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(iterations):
        x, y = copying_batch(128, delay, 10, generator)
        logits = network(torch.nn.functional.one_hot(x, LETTERS + 2).float())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts:
            opt.step()
        losses.append(loss.item())
    return losses
