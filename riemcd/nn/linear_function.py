r"""The derivative of a linear layer without its weight gradient.

For :math:`y = xW^\top`, :math:`\delta = \partial L/\partial y` and :math:`dx = \delta W`,

.. math:: W^\top G = dx^\top x, \qquad G W^\top = \delta^\top y,

and for a weight stored transposed, :math:`y = xP`, :math:`G P^\top = x^\top dx` and
:math:`P^\top G = y^\top \delta`. The factors on the right are there anyway.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import mailbox
from .demand import demand, refuse_double_backward

__all__ = ["PostingLinear"]


class PostingLinear(torch.autograd.Function):
    """A linear map that leaves the factors of its weight's derivative in the mailbox."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, node: Any
    ) -> Tensor:
        """Return the output, ``(*batch, out)``.

        Parameters
        ----------
        x : Tensor
            ``(*batch, in)``
        weight : Tensor
            ``(out, in)``, or ``(in, out)`` where ``transposed``
        bias : Tensor or None
            ``(out,)``
        transposed : bool
        node : autograd node
            What adds to the gradient of the weight.
        """
        x, y = _product(x, weight, transposed)
        slot = mailbox.find(weight)
        # Rotations on the side of the output are read from it; a bias is kept out of it.
        keeps_output = slot is not None and _on_output(slot, transposed)
        ctx.save_for_backward(x, weight, y if keeps_output else None)
        ctx.weight, ctx.node, ctx.transposed = weight, node, transposed
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y if bias is None else y + bias.to(y.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the input and of the bias, and of the weight where it was asked for."""
        refuse_double_backward("a linear layer whose weight has skip_weight_grad=True")
        x, weight, y = ctx.saved_tensors
        delta = grads[0].reshape(-1, grads[0].shape[-1])  # (rows, out)
        rows = x.reshape(-1, x.shape[-1])  # (rows, in)
        matrix = weight.mT if ctx.transposed else weight  # (out, in)
        matrix = matrix.to(delta.dtype)
        dx = delta @ matrix if ctx.needs_input_grad[0] else None  # (rows, in)
        wanted, slot = demand(ctx.weight, ctx.node)
        grad_weight = None
        if wanted == "gradient":
            grad_weight = (rows.mT @ delta if ctx.transposed else delta.mT @ rows).to(weight.dtype)
        elif slot is not None:
            if _on_output(slot, ctx.transposed):
                y = rows @ matrix.mT if y is None else y.reshape(delta.shape)
                _post(slot, delta, y, ctx.transposed)
            elif dx is not None:
                _post(slot, dx, rows, ctx.transposed)
            else:
                _post_frozen(slot, delta, matrix, rows, ctx.transposed)
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = delta.sum(0, dtype=torch.promote_types(delta.dtype, torch.float32)).to(ctx.bias_dtype)
        return None if dx is None else dx.view(x.shape), grad_weight, grad_bias, None, None


def _product(x: Tensor, weight: Tensor, transposed: bool) -> tuple[Tensor, Tensor]:
    """Return the input, in the type in which autocast computes, and its product with the weight."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype is not torch.float64:
        x = x.to(torch.get_autocast_dtype(kind))
        weight = weight.to(x.dtype)
    with torch.autocast(kind, enabled=False):
        return x, functional.linear(x, weight.mT if transposed else weight)


def _on_output(slot: mailbox.Slot, transposed: bool) -> bool:
    """Return whether rotations act on the side of the layer's output."""
    return (slot.turns == "columns") == transposed


def _post(slot: mailbox.Slot, gradient: Tensor, value: Tensor, swapped: bool, few: bool = False) -> None:
    """Leave the gradient of the layer's input or output, and the value of it, ``(rows, d)`` both."""
    value = value.to(gradient.dtype)
    slot.post(*((value, gradient) if swapped else (gradient, value)), few=few)


def _post_frozen(slot: mailbox.Slot, delta: Tensor, matrix: Tensor, x: Tensor, swapped: bool) -> None:
    """Compute as much of an input gradient that nobody else wants as the slopes need."""
    few = slot.columns()
    if few is None:
        _post(slot, delta @ matrix, x, swapped)
    else:
        _post(slot, delta @ matrix.index_select(1, few), x.index_select(1, few), swapped, few=True)
