"""Recurrent networks with a linear readout: ours, the usual loop under autograd, and torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..nn import OrthogonalRNN
from ..nn.functional import modrelu
from .settings import needs

__all__ = ["LoopRNN", "Readout", "recurrent_weight"]


class LoopRNN(nn.Module):
    """The recurrence of ``OrthogonalRNN`` as a loop that autograd records: the usual way.

    Products with the input are taken for the whole sequence at once, and a parametrized weight is built
    once per pass.

    Parameters
    ----------
    core : OrthogonalRNN
        Whose parameters are used, with their values.
    with_geotorch : bool
        Let geotorch parametrize the recurrent weight instead.
    """

    def __init__(self, core: OrthogonalRNN, with_geotorch: bool = False) -> None:
        super().__init__()
        d, manifold_weight = core.hidden_size, core.weight_hh
        assert core.bias is not None
        self.weight_ih, self.bias = core.weight_ih, core.bias
        self.recurrent = nn.Linear(d, d, bias=False, device=manifold_weight.device)
        if with_geotorch:
            geotorch = needs("geotorch", "geotorch", "the optimizer geotorch")
            geotorch.orthogonal(self.recurrent, "weight")
            self.recurrent.weight = manifold_weight.detach().as_subclass(Tensor).clone()
        else:
            self.recurrent.weight = manifold_weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states ``(time, batch, d)`` and the last, from ``(time, batch, features)``."""
        with parametrize.cached():
            weight = self.recurrent.weight
            inward = nn.functional.linear(x, self.weight_ih)
            across, bias = weight.mT, self.bias
            h = x.new_zeros(x.shape[1], weight.shape[0])
            states = []
            for now in inward.unbind(0):
                h = modrelu(torch.addmm(now, h, across), bias)
                states.append(h)
        return torch.stack(states), h.unsqueeze(0)


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
        states = self.core(x)[0]
        logits: Tensor = self.head(states[-1] if self.last else states)
        return logits


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
