"""Rotations that make vectors easy to quantise: the data, the loss, and the ways to find one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import geoopt
import torch
from torch import Tensor, nn

from .. import selections, stepsizes
from ..bases import LeftGivens
from ..diagnostics import constraint_violation
from ..nn.functional import linear
from ..optim import SRCD
from .folder import Row
from .runs import Trainee

#: How often to look at the error on the way, and on how many rows.
_LOOK_EVERY, _LOOK_ROWS = 5, 1024

__all__ = ["CLOSED_FORMS", "CayleySGD", "RotateTrainee", "hadamard", "quantise", "reconstruction_error"]


def quantise(y: Tensor, group: int) -> Tensor:
    """Round to int4: each group of so many neighbours has its own scale, its largest entry over 7.

    Parameters
    ----------
    y : Tensor
        ``(rows, d)``, with d a multiple of ``group``.
    group : int

    Examples
    --------
    >>> quantise(torch.tensor([[7.0, 2.4, -3.6, 0.2]]), 4)
    tensor([[ 7.,  2., -4.,  0.]])
    """
    parts = y.reshape(len(y), -1, group)
    scale = parts.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 7
    return (torch.round(parts / scale) * scale).view_as(y)


def reconstruction_error(x: Tensor, rotation: Tensor, group: int) -> float:
    r"""Return :math:`\|Q(xR)R^\top - x\|^2 / \|x\|^2`.

    Parameters
    ----------
    x : Tensor
        ``(rows, d)``
    rotation : Tensor
        ``(d, d)``, orthogonal.
    group : int
    """
    back = quantise(x @ rotation, group) @ rotation.mT
    return float((back - x).square().sum() / x.square().sum())


def rounding_loss(y: Tensor, group: int) -> Tensor:
    """Return the error to expect of rounding, relative: every entry of a group errs by a step over √12.

    Steps are as wide as the largest entry of the group over 7. Unlike the error itself, whose slope
    changes with every rounding, this has a slope worth following.

    Parameters
    ----------
    y : Tensor
        ``(rows, d)``
    group : int
    """
    largest = y.reshape(len(y), -1, group).abs().amax(-1)
    return largest.square().sum() * (group / (12 * 49)) / y.detach().square().sum()


def hadamard(d: int, generator: torch.Generator) -> Tensor:
    """Return Sylvester's Hadamard matrix with random signs, ``(d, d)``, orthogonal; d is a power of two."""
    if d & (d - 1):
        raise ValueError(f"a Hadamard rotation needs a power of two, got d = {d}.")
    found = torch.ones(1, 1)
    while found.shape[0] < d:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    signs = 2.0 * torch.randint(0, 2, (d, 1), generator=generator) - 1
    return signs * found / math.sqrt(d)


def _eigenbasis(x: Tensor) -> Tensor:
    vectors: Tensor = torch.linalg.eigh((x.mT @ x).double()).eigenvectors
    return vectors.flip(1).to(x.dtype)


def _eigenbasis_and_hadamard(x: Tensor, group: int, generator: torch.Generator) -> Tensor:
    """The eigenbasis, mixed within every group."""
    blocks = [hadamard(group, generator) for _ in range(x.shape[1] // group)]
    mixing: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return _eigenbasis(x) @ mixing.to(x)


#: Rotations that need no training: from calibration rows, the size of a group and random signs.
CLOSED_FORMS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "none": lambda x, group, generator: torch.eye(x.shape[1]).to(x),
    "hadamard": lambda x, group, generator: hadamard(x.shape[1], generator).to(x),
    "eigenbasis": lambda x, group, generator: _eigenbasis(x),
    "eigenbasis+hadamard": _eigenbasis_and_hadamard,
}


class CayleySGD(torch.optim.Optimizer):
    r"""Gradient descent along Cayley transforms with momentum (Li, Fuxin and Todorovic, 2020).

    What quantisation toolkits use. With the momentum :math:`M \leftarrow \beta M - G` and the skew
    :math:`W = \hat W - \hat W^\top`, :math:`\hat W = M X^\top - \tfrac12 X (X^\top M X^\top)`, the point
    moves to the fixed point of :math:`Y = X + \tfrac\alpha2 W (X + Y)`, by a few iterations.

    Parameters
    ----------
    params : iterable of Parameter
        Square orthogonal matrices, ``(d, d)``.
    lr : float
        The longest step; it is cut where the iteration would not contract.
    momentum : float
    iterations : int
        Of the fixed point.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, iterations: int = 5) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "iterations": iterations})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._move_(param, group)

    def _move_(self, param: Tensor, group: dict[str, Any]) -> None:
        X, state = param.detach().as_subclass(Tensor), self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(X)
        assert param.grad is not None
        M = state["momentum"].mul_(group["momentum"]).sub_(param.grad)
        product = M @ X.mT
        half = product - 0.5 * X @ (X.mT @ product)
        W = half - half.mT
        contracts = 1.0 / (W.abs().sum(0).max() + 1e-8)
        rate = torch.minimum(contracts, torch.full_like(contracts, group["lr"]))
        torch.mm(W, X, out=M)
        Y = X + rate * M
        for _ in range(group["iterations"]):
            Y = X + (rate / 2) * (W @ (X + Y))
        X.copy_(Y)


class _Rotation(nn.Module):
    """``y = x Wᵀ``, with W the transposed rotation: its rows are the new coordinates."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = geoopt.ManifoldParameter(start.mT.contiguous(), manifold=geoopt.EuclideanStiefel())

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class RotateTrainee(Trainee):
    """A rotation that is trained on calibration rows; step sizes fall linearly to zero.

    Parameters
    ----------
    name : {"srcd", "cayley", "qr"}
    x, test : Tensor
        ``(rows, d)``, to calibrate with, and ``(rows', d)``, to see how well that went on the way.
    start : Tensor
        ``(d, d)``
    lr : float
    block : int
        How many coordinates ``srcd`` puts in a group: all rotations within groups are taken at once.
    """

    def __init__(
        self, name: str, seed: int, x: Tensor, test: Tensor, start: Tensor, *, lr: float, iterations: int,
        batch: int, group: int, block: int,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)  # a checkpoint holds the state of the global generator, too
        self.model = _Rotation(start)
        weight = self.model.weight
        self.optimizers = [_OPTIMIZERS[name](weight, lr, block, seed)]
        self.generator = torch.Generator().manual_seed(seed)
        self.x, self.test = x, test[:_LOOK_ROWS]
        self.lr, self.iterations, self.batch, self.group = lr, iterations, batch, group
        self.done = 0

    def step(self) -> Row:
        """Follow the loss on a random batch."""
        (opt,) = self.optimizers
        opt.param_groups[0]["lr"] = self.lr * max(0.0, 1 - self.done / self.iterations)
        chosen = torch.randint(len(self.x), (self.batch,), generator=self.generator).to(self.x.device)
        opt.zero_grad()
        loss = rounding_loss(self.model(self.x[chosen]), self.group)
        loss.backward()  # type: ignore[no-untyped-call]
        opt.step()
        self.done += 1
        row: Row = {"loss": float(loss.detach())}
        if self.done % _LOOK_EVERY == 0 or self.done == self.iterations:
            begun = time.perf_counter()
            row["error"] = reconstruction_error(self.test, self.rotation, self.group)
            row["untimed"] = time.perf_counter() - begun
        return row

    @property
    def rotation(self) -> Tensor:
        """R, ``(d, d)``."""
        weight: Any = self.model.weight
        return weight.detach().as_subclass(Tensor).mT  # type: ignore[no-any-return]

    def finish(self) -> Row:
        """Tell how far the rotation is from orthogonal."""
        return {"orthogonality": constraint_violation(self.rotation, geoopt.EuclideanStiefel())}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {**super().state(), "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint holds."""
        super().restore(state)
        self.done = int(state["done"])


def _srcd(weight: Any, lr: float, block: int, seed: int) -> torch.optim.Optimizer:
    # Without a first moment: Adam's correction keeps the first steps as short as the others.
    return SRCD([weight], lr=lr, basis=LeftGivens(), selection=selections.Partition(block), seed=seed,
                stepsize=stepsizes.Adam((0.0, 0.99)), nonfinite="ignore", skip_weight_grad=True)  # fmt: skip


_OPTIMIZERS: dict[str, Callable[[Any, float, int, int], torch.optim.Optimizer]] = {
    "srcd": _srcd,
    "cayley": lambda weight, lr, block, seed: CayleySGD([weight], lr=lr),
    "qr": lambda weight, lr, block, seed: geoopt.optim.RiemannianSGD([weight], lr=lr),
}
