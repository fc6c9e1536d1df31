"""Handwritten digits, read pixel by pixel."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..diagnostics import constraint_violation
from ..nn import OrthogonalRNN
from .folder import Row
from .methods import METHODS, Method, Rates, make_optimizer
from .networks import LoopRNN, Readout, parametrized, recurrent_weight
from .runs import Trainee
from .settings import needs

__all__ = ["FOLDS", "PEERS", "PLAIN", "SHOWN", "Digits", "DigitsTrainee", "load_digits"]

#: Networks of torch itself, without a constraint.
PLAIN = ("rnn", "lstm")
#: What other libraries offer for orthogonal weights.
PEERS = ("rsgd", "radam", "geotorch")
#: What is compared by default.
SHOWN = ("matching", "partition", *PEERS, "frozen", *PLAIN)
#: Parts of the images to learn from, one of which is held out in turn where step sizes are looked for.
FOLDS = 5
_LEARNED = 1437


@dataclass(frozen=True, eq=False)
class Digits:
    """Images as sequences of pixels ``(64, images)`` and their classes ``(images,)``."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def load_digits(permuted: bool, device: torch.device | str = "cpu", held_out: int | None = None) -> Digits:
    """Return the digits of scikit-learn: 1437 to learn from and 360 to test, always the same ones.

    Parameters
    ----------
    permuted : bool
        Show the pixels in a fixed random order, in which neighbours are far apart.
    held_out : int, optional
        Leave the 360 out: of the others test on this one of `FOLDS` parts, and learn from the rest.
    """
    datasets = needs("sklearn.datasets", "scikit-learn", "reading digits")
    data = datasets.load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    if permuted:
        x = x[:, torch.randperm(x.shape[1], generator=generator)]
    learned, tested = order[:_LEARNED], order[_LEARNED:]
    if held_out is not None:
        parts = list(learned.tensor_split(FOLDS))
        tested = parts.pop(held_out)
        learned = torch.cat(parts)
    (x, y), (x_test, y_test) = ((x[some].T.contiguous(), y[some]) for some in (learned, tested))
    return Digits(*(part.to(device) for part in (x, y, x_test, y_test)))


class DigitsTrainee(Trainee):
    """A recurrent network that reads digits; an iteration is one pass over them.

    Parameters
    ----------
    method : Method
        One of the optimizers for orthogonal networks, or ``rnn`` or ``lstm``.
    loop : {"usual", "batched", "fused"}
        How the recurrence of other libraries runs.
    epochs : int
        After how many passes the step sizes, which fall as a cosine, are zero; 0 keeps them.
    noise : float
        The standard deviation of what is added to every pixel to learn from, anew each time it is shown.
    """

    def __init__(
        self,
        method: Method,
        seed: int,
        data: Digits,
        *,
        hidden: int,
        batch: int,
        rates: Rates,
        block: int = 16,
        loop: str = "usual",
        epochs: int = 0,
        noise: float = 0.0,
    ) -> None:
        torch.manual_seed(seed)
        device = data.x.device
        network = _network(method, hidden, loop).to(device)
        self.model = network
        if method.name in PLAIN:
            kind = torch.optim.Adam if method.step == "adam" else torch.optim.RMSprop
            self.optimizers = [kind(network.parameters(), lr=rates.others)]
        else:
            self.optimizers = [make_optimizer(method, network, rates, block=block, seed=seed)]
        self.generator = torch.Generator().manual_seed(seed)
        self.data, self.batch, self.epochs, self.epoch = data, batch, epochs, 0
        self.noise = noise
        self._rates = [group["lr"] for group in self.optimizers[0].param_groups]

    def step(self) -> Row:
        """Go through the digits once, and test."""
        order = torch.split(torch.randperm(len(self.data.y), generator=self.generator), self.batch)
        total = 0.0
        for number, chosen in enumerate(order):
            self._set_rates(self.epoch + number / len(order))
            total += self._learn(chosen.to(self.data.y.device)) * len(chosen)
        self.epoch += 1
        begun = time.perf_counter()
        accuracy = self.accuracy()
        untimed = time.perf_counter() - begun
        return {"loss": total / len(self.data.y), "accuracy": accuracy, "untimed": untimed}

    def warm_up(self) -> None:
        """Learn from a few batches, so that kernels are there when it counts."""
        for _ in range(3):
            self._learn(torch.arange(min(self.batch, len(self.data.y)), device=self.data.y.device))

    def _learn(self, chosen: Tensor) -> float:
        """Take a step on the images of these numbers, and return the loss before it."""
        x, y = self.data.x[:, chosen], self.data.y[chosen]
        if self.noise:
            x += self.noise * torch.randn(x.shape, generator=self.generator).to(x.device)
        loss = nn.functional.cross_entropy(self.model(x[..., None]), y)
        self.optimizers[0].zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers[0].step()
        return float(loss.detach())

    def _set_rates(self, epoch: float) -> None:
        if self.epochs:
            share = (1 + math.cos(math.pi * min(1.0, epoch / self.epochs))) / 2
            for group, rate in zip(self.optimizers[0].param_groups, self._rates, strict=True):
                group["lr"] = rate * share

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of test images that are recognised."""
        found = self.model(self.data.x_test[..., None]).argmax(1)
        return float((found == self.data.y_test).float().mean())

    @torch.no_grad()
    def finish(self) -> Row:
        """Tell how far an orthogonal recurrent weight is from orthogonal."""
        import geoopt

        weight = recurrent_weight(self.model.core)
        if weight is None or isinstance(self.model.core, nn.RNN):
            return {"orthogonality": None}
        return {"orthogonality": constraint_violation(weight, geoopt.EuclideanStiefel())}

    def state(self) -> dict[str, object]:
        """Return what a checkpoint holds."""
        return {**super().state(), "epoch": self.epoch}

    def restore(self, state: dict[str, object]) -> None:
        """Take up what a checkpoint holds."""
        super().restore(state)
        self.epoch = int(state["epoch"])  # type: ignore[call-overload]


def _network(method: Method, hidden: int, loop: str) -> Readout:
    """Return a network at its start, which is the same for all orthogonal ones of a seed."""
    if method.name in PLAIN:
        plain = nn.RNN if method.name == "rnn" else nn.LSTM
        return Readout(plain(1, hidden), hidden, 10, last=True)
    assert method.name in METHODS
    core, with_geotorch = OrthogonalRNN(1, hidden), method.name == "geotorch"
    network = Readout(core, hidden, 10, last=True)  # before other libraries draw numbers of their own
    if method.name in PEERS and loop != "fused":
        network.core = LoopRNN(core, with_geotorch, at_once=loop == "batched")
    elif with_geotorch:
        parametrized(core, "weight_hh", core.weight_hh)
    return network
