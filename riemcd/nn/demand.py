"""What a backward pass wants of a weight: slopes for its optimizer, the gradient itself, or nothing."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import mailbox

__all__ = ["Demand", "demand", "gradient_node", "refuse_double_backward"]

Demand = Literal["slopes", "gradient", "nothing"]


def gradient_node(weight: Tensor) -> Any:
    """Return the node that adds to ``weight.grad``, or None where no gradient is wanted."""
    return get_gradient_edge(weight).node if torch.is_grad_enabled() and weight.requires_grad else None


def demand(weight: Tensor, node: Any) -> tuple[Demand, mailbox.Slot | None]:
    """Return what the backward pass that is running wants of ``weight``.

    Parameters
    ----------
    weight : Tensor
    node : autograd node or None
        What `gradient_node` has returned in the forward pass.

    Notes
    -----
    ``loss.backward()`` gives slopes where the weight has a slot in the mailbox, and the ordinary gradient
    where it has none. ``torch.autograd.grad(loss, x)`` has nothing to do with the weight and must leave
    nothing behind; ``torch.autograd.grad(loss, weight)`` asks for the gradient by name and gets it.
    """
    if node is None:
        return "nothing", None
    try:
        wanted = torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch's answer where the weight is one of the inputs of autograd.grad
        return "gradient", None
    if not wanted:
        return "nothing", None
    slot = mailbox.find(weight)
    return ("gradient", None) if slot is None else ("slopes", slot)


def refuse_double_backward(layer: str) -> None:
    """Raise when a backward pass is to be differentiated itself."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{layer} cannot be differentiated twice: its backward is written by hand. "
            "Call backward without create_graph=True, or use torch.nn.functional.linear with this weight "
            "and an optimizer without skip_weight_grad."
        )
