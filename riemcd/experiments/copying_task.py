"""The copying memory task: remember letters over a long delay, and write them down when asked."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import stepsizes
from ..diagnostics import constraint_violation
from ..nn import OrthogonalRNN
from .folder import Row
from .methods import Method, Rates, make_optimizer
from .networks import LoopRNN, Readout, recurrent_weight
from .runs import Trainee

__all__ = ["LETTERS", "CopyingTrainee", "copying_batch", "memoryless_loss"]

#: The letters; 0 is the blank and LETTERS + 1 the marker that asks for them.
LETTERS = 8


def copying_batch(size: int, delay: int, recall: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a batch of inputs and targets, both ``(delay + 2 recall, size)`` of integers.

    The input is ``recall`` letters, ``delay`` blanks, the marker and ``recall - 1`` blanks; the target is
    blanks, and the letters at the end.

    Examples
    --------
    >>> x, y = copying_batch(1, 4, 2, torch.Generator().manual_seed(0))
    >>> x[:, 0].tolist(), y[:, 0].tolist()
    ([5, 8, 0, 0, 0, 0, 9, 0], [0, 0, 0, 0, 0, 0, 5, 8])
    """
    letters = torch.randint(1, LETTERS + 1, (recall, size), generator=generator)
    x = torch.zeros(delay + 2 * recall, size, dtype=torch.int64)
    x[:recall] = letters
    x[recall + delay] = LETTERS + 1
    y = torch.zeros_like(x)
    y[-recall:] = letters
    return x, y


def memoryless_loss(delay: int, recall: int) -> float:
    """Return the loss of the best guess without memory: certain of the blanks, uniform on the letters.

    Examples
    --------
    >>> round(memoryless_loss(1000, 10), 4)
    0.0204
    """
    return recall * math.log(LETTERS) / (delay + 2 * recall)


class CopyingTrainee(Trainee):
    """The network of the paper and an optimizer on the copying task.

    Parameters
    ----------
    method : Method
    seed : int
        Of the start and of the batches: methods of one seed start from the same network and see the same
        batches.
    draw : int, optional
        Of random coordinates; by default the same.
    falling : float, optional
        After how many iterations the step sizes have fallen to 0.59 of what they were; by default they stay.
    """

    def __init__(
        self,
        method: Method,
        seed: int,
        *,
        hidden: int,
        delay: int,
        recall: int,
        batch: int,
        rates: Rates,
        draw: int | None = None,
        block: int = 19,
        loop: str = "usual",
        falling: float | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        torch.manual_seed(seed)
        core: nn.Module = OrthogonalRNN(LETTERS + 2, hidden)
        network = Readout(core, hidden, LETTERS + 1)
        if method.recurrence == "loop":
            assert isinstance(core, OrthogonalRNN)
            network.core = LoopRNN(core, with_geotorch=method.name == "geotorch", at_once=loop == "batched")
        self.model = network.to(device)
        self.optimizers = [
            make_optimizer(method, network, rates, block=block, seed=seed if draw is None else draw)
        ]
        if falling is not None:
            self.schedulers = [stepsizes.RobbinsMonroLR(opt, delay=falling) for opt in self.optimizers]
        self.generator = torch.Generator().manual_seed(seed)
        self.hidden, self.delay, self.recall, self.batch = hidden, delay, recall, batch
        self.device = torch.device(device)

    def loss(self) -> Tensor:
        """Return the mean cross entropy of a fresh batch."""
        x, y = copying_batch(self.batch, self.delay, self.recall, self.generator)
        x, y = x.to(self.device), y.to(self.device)
        logits = self.model(nn.functional.one_hot(x, LETTERS + 2).to(torch.float32))
        return nn.functional.cross_entropy(logits.mT, y)

    def step(self) -> Row:
        """Train on one batch."""
        loss = self.loss()
        for opt in self.optimizers:
            opt.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for opt in self.optimizers:
            opt.step()
        for scheduler in self.schedulers:
            scheduler.step()
        return {"loss": float(loss.detach())}

    @torch.no_grad()
    def finish(self) -> Row:
        """Tell how far the recurrent weight is from the orthogonal matrices."""
        import geoopt

        weight = recurrent_weight(self.model.core)
        assert weight is not None
        return {"orthogonality": constraint_violation(weight, geoopt.EuclideanStiefel())}
