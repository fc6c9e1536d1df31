"""Recurrent networks with a linear readout: ours, the usual loop under autograd, and torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrize

from ..nn import OrthogonalRNN
from ..nn.functional import modrelu
from .settings import needs

__all__ = ["LoopRNN", "Readout", "parametrized", "recurrent_weight"]


def parametrized(module: nn.Module, name: str, weight: Tensor) -> None:
    """Let geotorch parametrize a weight of a module, ``(d, d)``, beginning with the value given."""
    geotorch = needs("geotorch", "geotorch", "the optimizer geotorch")
    start = weight.detach().as_subclass(Tensor).clone()
    setattr(module, name, nn.Parameter(start.clone()))
    geotorch.orthogonal(module, name)
    setattr(module, name, start)


class LoopRNN(nn.Module):
    """The recurrence of ``OrthogonalRNN`` as a loop that autograd records: the usual way.

    As published examples do it, products with the input are taken step by step (and so is the readout, by
    `Readout`), the nonlinearity is a few operations, and a parametrized weight is built once per pass.

    Parameters
    ----------
    core : OrthogonalRNN
        Whose parameters are used, with their values.
    with_geotorch : bool
        Let geotorch parametrize the recurrent weight instead.
    at_once : bool
        Take the products with the input, and the readout, for the whole sequence at once.
    """

    def __init__(self, core: OrthogonalRNN, with_geotorch: bool = False, at_once: bool = False) -> None:
        super().__init__()
        self.at_once = at_once
        d, manifold_weight = core.hidden_size, core.weight_hh
        assert core.bias is not None
        self.weight_ih, self.bias = core.weight_ih, core.bias
        self.recurrent = nn.Linear(d, d, bias=False, device=manifold_weight.device)
        if with_geotorch:
            parametrized(self.recurrent, "weight", manifold_weight)
        else:
            self.recurrent.weight = manifold_weight

    def states(self, x: Tensor) -> list[Tensor]:
        """Return all states, each ``(batch, d)``, from ``(time, batch, features)``."""
        linear = nn.functional.linear
        with parametrize.cached():
            h = x.new_zeros(x.shape[1], self.recurrent.out_features)
            inward = linear(x, self.weight_ih).unbind(0) if self.at_once else None
            found = []
            for t, now in enumerate(x.unbind(0)):
                driven = linear(now, self.weight_ih) if inward is None else inward[t]
                h = modrelu(driven + self.recurrent(h), self.bias)
                found.append(h)
        return found

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states ``(time, batch, d)`` and the last, from ``(time, batch, features)``."""
        found = self.states(x)
        return torch.stack(found), found[-1].unsqueeze(0)


class _StepByStep(torch.autograd.Function):
    """A linear map to few classes, and its derivatives, as one small product per step.

    As products of all steps at once, as tall as time and batch and as wide as the classes, they take twice as
    long, a tenth of an iteration on a thousand steps.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return ``(T, B, classes)`` from ``(T, B, d)``, ``(classes, d)`` and ``(classes,)``."""
        ctx.save_for_backward(states, weight)
        return torch.baddbmm(bias, states, weight.mT.expand(len(states), -1, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives by all three."""
        states, weight = ctx.saved_tensors
        grad = grad.contiguous()
        by_states = torch.bmm(grad, weight.expand(len(states), -1, -1))
        return by_states, torch.bmm(grad.mT, states).sum(0), grad.sum((0, 1))


class Readout(nn.Module):
    """A recurrent network and a linear map of its states, started as He et al. say.

    Parameters
    ----------
    core : Module
        Called as ``torch.nn.RNN`` is.
    hidden, classes : int
    last : bool
        Read the last state only.
    """

    def __init__(self, core: nn.Module, hidden: int, classes: int, last: bool = False) -> None:
        super().__init__()
        self.core, self.last = core, last
        self.head = nn.Linear(hidden, classes)
        nn.init.kaiming_normal_(self.head.weight, nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, ``(time, batch, classes)`` or the last of them, from ``(time, batch, features)``."""
        if self.last:
            return self._read_out(self._end(x))
        if isinstance(self.core, LoopRNN) and not self.core.at_once:
            return torch.stack([self._read_out(h) for h in self.core.states(x)])
        return self._read_out(self.core(x)[0])

    def _read_out(self, states: Tensor) -> Tensor:
        if states.dim() < 3:
            one: Tensor = self.head(states)
            return one
        logits: Tensor = _StepByStep.apply(  # type: ignore[no-untyped-call]
            states, self.head.weight, self.head.bias
        )
        return logits

    def _end(self, x: Tensor) -> Tensor:
        """Return the last state, ``(batch, d)``; the others get no gradient, not even zeros."""
        if isinstance(self.core, LoopRNN):
            return self.core.states(x)[-1]
        end = self.core(x)[1]
        last: Tensor = end[0] if isinstance(end, tuple) else end  # beside the cells of an LSTM
        return last[-1]


def recurrent_weight(core: Any) -> Tensor | None:
    """Return the recurrent weight of a network, ``(d, d)``, or None where it has no single one."""
    if isinstance(core, LoopRNN):
        weight: Tensor = core.recurrent.weight
        return weight
    if isinstance(core, OrthogonalRNN):
        weight = core.weight_hh
        return weight
    if isinstance(core, nn.RNN):
        weight = core.get_parameter("weight_hh_l0")
        return weight
    return None
