r"""A recurrence and its backpropagation through time, as one node of the graph.

With :math:`z_t = V x_t + W h_{t-1}` and :math:`h_t = \varphi(z_t)`, the derivative of the loss is carried by

.. math:: \delta_t = \varphi'(z_t) \odot (g_t + W^\top \delta_{t+1}),

:math:`g_t` being what comes from outside. Only the states :math:`h_t` are saved: the derivative of each
:math:`\varphi` here can be told from its value. For rotations of columns the slopes come from
:math:`dx_t = W^\top \delta_t` and :math:`h_{t-1}`, stacked over time, for rotations of rows from
:math:`\delta_t` and :math:`W h_{t-1}`, which is computed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import mailbox
from ..kernels import recurrence
from .demand import Demand, demand, refuse_double_backward
from .nonlinearities import Nonlinearity

__all__ = ["Recurrence"]

#: How many rows (time steps times batch) the backward pass works on before products over them are taken.
_ROWS = 2048
_ROWS_AHEAD = 1024  # and the forward pass, on products with the input


class Recurrence(torch.autograd.Function):
    """All states of a recurrence, and a copy of the last one."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor | None,
        inward: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        phi: Nonlinearity,
        node: Any,
    ) -> tuple[Tensor, Tensor]:
        """Run through time.

        Parameters
        ----------
        x : Tensor
            ``(T, B, i)``
        h0 : Tensor or None
            ``(B, d)``
        inward, weight : Tensor
            ``(d, i)`` and ``(d, d)``
        bias : Tensor or None
            ``(d,)``, added or part of the nonlinearity
        phi : Nonlinearity
        node : autograd node
            What adds to the gradient of the weight.

        Returns
        -------
        Tensor, Tensor
            ``(T, B, d)`` and ``(B, d)``
        """
        x, v, w, b = _cast(x, inward, weight, bias)
        states = x.new_empty((x.shape[0] + 1, x.shape[1], weight.shape[0]))
        if h0 is None:
            states[0].zero_()
        else:
            states[0].copy_(h0)
        _forward(x, states, v, w, b, phi, from_zero=h0 is None)
        ctx.save_for_backward(x, states, inward, weight)
        ctx.set_materialize_grads(False)
        ctx.weight, ctx.node, ctx.phi = weight, node, phi
        ctx.from_zero = h0 is None
        ctx.dtypes = [None if p is None else p.dtype for p in (h0, bias)]
        return states[1:], states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Run back through time."""
        refuse_double_backward("OrthogonalRNN")
        x, states, inward, weight = ctx.saved_tensors
        if grads[0] is None and grads[1] is None:
            return (None,) * 7
        needs_x, needs_h0, needs_inward, _, needs_bias, *_ = ctx.needs_input_grad
        wanted, slot = demand(ctx.weight, ctx.node)
        run = _Backward(
            x, states, inward.to(x.dtype), weight.to(x.dtype), ctx.phi, ctx.from_zero, wanted, slot
        )
        run.allocate(needs_x, needs_inward, needs_bias)
        dh0 = run.through_time(grads[0], grads[1], needs_h0)
        dtypes = (None, ctx.dtypes[0], inward.dtype, weight.dtype, ctx.dtypes[1])
        d_inward = None if run.d_inward is None else run.d_inward.mT
        found = (run.dx, dh0, d_inward, run.d_weight, run.d_bias)
        given = [g if g is None or t is None else g.to(t) for g, t in zip(found, dtypes, strict=True)]
        return (*given, None, None)


def _forward(
    x: Tensor, states: Tensor, v: Tensor, w: Tensor, b: Tensor | None, phi: Nonlinearity, from_zero: bool
) -> None:
    """Fill ``states[1:]``; all are as in `Recurrence.forward`, ``states`` is ``(T + 1, B, d)``."""
    if phi.number is not None and recurrence.forward_(
        states, x, v, w, b, code=phi.number, owns_bias=phi.owns_bias, from_zero=from_zero
    ):
        return
    steps, batch, d = x.shape[0], x.shape[1], states.shape[-1]
    # Products with the input are taken just ahead of their use, while the cache still has them.
    ahead = max(1, _ROWS_AHEAD // max(1, batch))
    inward, across, scratch = v.mT.contiguous(), w.mT.contiguous(), torch.empty_like(states[0])
    held = states.unbind(0)
    for t in range(steps):
        now = held[t + 1]
        if t % ahead == 0:
            piece = x[t : t + ahead]
            torch.mm(piece.reshape(-1, x.shape[-1]), inward, out=states[t + 1 : t + 1 + ahead].view(-1, d))
        if b is not None and not phi.owns_bias:
            now.add_(b)
        if t > 0 or not from_zero:
            now.addmm_(held[t], across)
        phi.apply_(now, b, scratch)


def _cast(
    x: Tensor, inward: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Bring everything to the type in which autocast computes, where it is on."""
    kind = x.device.type
    dtype = weight.dtype
    if torch.is_autocast_enabled(kind) and dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        x = x.to(dtype)
    return x, inward.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


@dataclass(eq=False)
class _Backward:
    """One backward pass; gradients are summed over pieces of the sequence, so that none is held whole."""

    x: Tensor  # (T, B, i)
    states: Tensor  # (T + 1, B, d)
    inward: Tensor  # (d, i)
    weight: Tensor  # (d, d)
    phi: Nonlinearity
    from_zero: bool  # the first state is zero, and nobody asks for its gradient
    wanted: Demand
    slot: mailbox.Slot | None
    dx: Tensor | None = None  # (T, B, i)
    d_inward: Tensor | None = None  # (i, d): products with few rows are faster than those with few columns
    d_weight: Tensor | None = None  # (d, d)
    d_bias: Tensor | None = None  # (d,)

    def allocate(self, needs_x: bool, needs_inward: bool, needs_bias: bool) -> None:
        """Make room for the gradients that are wanted."""
        wide = torch.promote_types(self.x.dtype, torch.float32)  # sums over time
        self.dx = self.x.new_empty(self.x.shape) if needs_x else None  # contiguous, which x need not be
        d, i = self.inward.shape
        self.d_inward = self.inward.new_zeros((i, d), dtype=wide) if needs_inward else None
        self.d_bias = self.inward.new_zeros(d, dtype=wide) if needs_bias else None
        self.d_weight = torch.zeros_like(self.weight, dtype=wide) if self.wanted == "gradient" else None

    def through_time(self, outer: Tensor | None, last: Tensor | None, needs_h0: bool) -> Tensor | None:
        """Go back from the last step to the first, and return the gradient of the first state.

        Parameters
        ----------
        outer : Tensor or None
            ``(T, B, d)``, the gradient of all states
        last : Tensor or None
            ``(B, d)``, another one of the last state
        needs_h0 : bool
        """
        steps, batch, d = self.states.shape[0] - 1, *self.states.shape[1:]
        few = None if self.slot is None else self.slot.columns()
        piece = max(1, min(steps, _ROWS // max(1, batch)))
        deltas, spares = self.states.new_empty((2, piece, batch, d))
        # dx is kept only where all of its columns are read.
        keeps = self.slot is not None and self.slot.turns == "columns" and few is None
        dh = self.states.new_zeros((batch, d)) if last is None else last.to(self.states.dtype, copy=True)
        dh = dh.contiguous()
        if outer is not None:
            dh += outer[-1]
            outer = outer if outer.stride(-1) == 1 else outer.contiguous()
        panels = None if self.phi.number is None else recurrence.panels_for(self.states, self.weight, outer)
        goes = not self.from_zero or needs_h0  # back to the state before the first
        for stop in range(steps, 0, -piece):
            start = max(0, stop - piece)
            delta, spare = deltas[: stop - start], spares[: stop - start]
            kept, last_step = spare if keeps else None, start if goes else max(start, 1)
            if panels is None:
                self._by_steps(delta, dh, outer, kept, start, last_step)
            else:
                self._at_once(delta, dh, outer, kept, start, last_step, panels)
            self._post(start, stop, delta, spare, few)
            self._sum_up(start, stop, delta)
            if panels is None and self.d_bias is not None:
                self.d_bias += self.phi.bias_gradient(self.states[start + 1 : stop + 1], delta, spare)
        return dh if needs_h0 else None

    def _at_once(
        self,
        delta: Tensor,
        dh: Tensor,
        outer: Tensor | None,
        kept: Tensor | None,
        start: int,
        last: int,
        panels: recurrence.Panels,
    ) -> None:
        """Go back through a piece in one call; arguments are those of `recurrence.backward_`."""
        sums = None
        if self.d_bias is not None:
            sums = delta.new_zeros((-(-delta.shape[1] // 4), delta.shape[2]))
        assert self.phi.number is not None
        number = self.phi.number
        recurrence.backward_(
            delta, dh, self.states, panels, outer, kept, sums, start=start, last=last, code=number
        )
        if self.d_bias is not None and sums is not None:
            self.d_bias += sums.sum(0)

    def _by_steps(
        self, delta: Tensor, dh: Tensor, outer: Tensor | None, kept: Tensor | None, start: int, last: int
    ) -> None:
        """Go back through a piece step by step; arguments are those of `recurrence.backward_`."""
        stop = start + delta.shape[0]
        self.phi.slope(self.states[start + 1 : stop + 1], delta)
        each, copies = delta.unbind(0), None if kept is None else kept.unbind(0)
        for t in range(stop - 1, start - 1, -1):
            now = each[t - start].mul_(dh)
            if t < last:
                break
            before = None if outer is None or t == 0 else outer[t - 1]
            self._step_back(now, before, dh, None if copies is None else copies[t - start])

    def _step_back(self, delta: Tensor, outer: Tensor | None, dh: Tensor, kept: Tensor | None) -> None:
        """Take the gradient of a state to the state before, ``dh``, all ``(B, d)``."""
        if kept is not None:
            torch.mm(delta, self.weight, out=kept)
            if outer is None:
                dh.copy_(kept)
            else:
                torch.add(kept, outer, out=dh)
        elif outer is None:
            torch.mm(delta, self.weight, out=dh)
        else:
            torch.addmm(outer, delta, self.weight, out=dh)

    def _sum_up(self, start: int, stop: int, delta: Tensor) -> None:
        """Add what a piece of the sequence contributes to the gradients."""
        flat = delta.view(-1, delta.shape[-1])
        if self.d_inward is not None:
            x = self.x[start:stop].reshape(flat.shape[0], self.x.shape[-1])
            _add_product(self.d_inward, x, flat)
        if self.dx is not None:
            torch.mm(flat, self.inward, out=self.dx[start:stop].view(flat.shape[0], self.x.shape[-1]))
        if self.d_weight is not None:
            _add_product(self.d_weight, flat, self.states[start:stop].view(flat.shape))

    def _post(self, start: int, stop: int, delta: Tensor, dx: Tensor, few: Tensor | None) -> None:
        """Leave the factors of a piece in the mailbox."""
        first = max(start, int(self.from_zero))  # a zero state adds nothing
        if self.slot is None or first >= stop:
            return
        d = delta.shape[-1]
        h, delta = self.states[first:stop].view(-1, d), delta[first - start :].reshape(-1, d)
        if self.slot.turns == "rows":
            if few is None:
                self.slot.post(delta, h @ self.weight.mT)
            else:
                y = h @ self.weight.index_select(0, few).mT
                self.slot.post(delta.index_select(1, few), y, few=True)
        elif few is None:
            self.slot.post(dx[first - start :].reshape(-1, d), h)
        else:
            columns = self.weight.mT.index_select(0, few).mT  # each of them contiguous
            self.slot.post(delta @ columns, h.index_select(1, few), few=True)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add aᵀb to ``total`` in place; a is (rows, m), b is (rows, n)."""
    if total.dtype == a.dtype:
        total.addmm_(a.mT, b)
    else:
        total += a.mT @ b
