"""A recurrent network with an orthogonal recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import geoopt
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .demand import gradient_node
from .init import cayley_
from .linear import orthonormal_parameter
from .nonlinearities import NONLINEARITIES
from .rnn_function import Recurrence

__all__ = ["OrthogonalRNN"]


class OrthogonalRNN(nn.Module):
    r"""A recurrent network :math:`h_t = \varphi(V x_t + W h_{t-1})` with orthogonal :math:`W`.

    Call and shapes are those of ``torch.nn.RNN`` with one layer. The recurrence is one node of the graph,
    which saves the states and nothing else. Any optimizer that knows geoopt's parameters trains it; with
    ``SRCD(skip_weight_grad=True)`` the gradient of :math:`W` is never formed.

    Parameters
    ----------
    input_size, hidden_size : int
    nonlinearity : {"modrelu", "tanh", "relu", "identity"}
        ``modrelu`` takes z to :math:`\mathrm{sign}(z)\max(|z| + b, 0)`.
    bias : bool
        Learn a bias: the :math:`b` of ``modrelu``, drawn from :math:`[-0.01, 0.01]`; for the others it is
        added to :math:`V x_t` and starts at zero.
    batch_first : bool
        Input and output are ``(batch, time, features)``.
    init : callable
        Fills :math:`W` in place; the paper's ``nn.init.cayley_`` by default.
    manifold : geoopt.Stiefel, optional
        ``geoopt.EuclideanStiefel()`` by default.
    checkpoint_every : int, optional
        Keep one state in so many for backward and compute the others again: less memory, half as much
        time again.

    Attributes
    ----------
    weight_ih : Parameter
        :math:`V`, ``(hidden_size, input_size)``
    weight_hh : geoopt.ManifoldParameter
        :math:`W`, ``(hidden_size, hidden_size)``
    bias : Parameter or None
        ``(hidden_size,)``

    Examples
    --------
    >>> rnn = OrthogonalRNN(3, 5)
    >>> output, h_n = rnn(torch.zeros(7, 2, 3))
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: str = "modrelu",
        bias: bool = True,
        batch_first: bool = False,
        *,
        init: Callable[[Tensor], Any] = cayley_,
        manifold: geoopt.Manifold | None = None,
        checkpoint_every: int | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if nonlinearity not in NONLINEARITIES:
            known = ", ".join(NONLINEARITIES)
            raise ValueError(f"nonlinearity must be one of {known}, got {nonlinearity!r}.")
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be None or at least 1 step, got {checkpoint_every!r}.")
        self.input_size, self.hidden_size, self.batch_first = input_size, hidden_size, batch_first
        self.nonlinearity, self.checkpoint_every = nonlinearity, checkpoint_every
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = orthonormal_parameter((hidden_size,) * 2, manifold, init, device, dtype)
        empty = torch.empty(hidden_size, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(empty) if bias else None)
        self._start_inputs()

    def _start_inputs(self) -> None:
        nn.init.kaiming_normal_(self.weight_ih, nonlinearity="relu")
        if self.bias is not None:
            width = 0.01 if NONLINEARITIES[self.nonlinearity].owns_bias else 0.0
            nn.init.uniform_(self.bias, -width, width)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run through a sequence.

        Parameters
        ----------
        input : Tensor
            ``(time, batch, input_size)``, ``(batch, time, input_size)`` where ``batch_first``, or
            ``(time, input_size)``
        hx : Tensor, optional
            The state to start from, ``(1, batch, hidden_size)`` or ``(1, hidden_size)``; zero by default.

        Returns
        -------
        output : Tensor
            All states, shaped like the input.
        h_n : Tensor
            The last state, shaped like ``hx``.
        """
        self._check(input, hx)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        x = x.transpose(0, 1) if batched and self.batch_first else x
        h0 = None if hx is None else hx[0] if batched else hx
        output, last = self._run(x, h0)
        if not batched:
            return output.squeeze(1), last
        return output.transpose(0, 1) if self.batch_first else output, last.unsqueeze(0)

    def _run(self, x: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return all states, (T, B, d), and the last, (B, d)."""
        every = self.checkpoint_every
        if every is None or every >= x.shape[0] or not torch.is_grad_enabled():
            return self._piece(x, h0)
        outputs, h = [], h0
        for piece in torch.split(x, every):
            output, h = checkpoint(self._piece, piece, h, use_reentrant=False, preserve_rng_state=False)
            outputs.append(output)
        assert h is not None
        return torch.cat(outputs), h

    def _piece(self, x: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor]:
        phi = NONLINEARITIES[self.nonlinearity]
        weight = self.weight_hh  # asked for once: a parametrization would make another one each time
        states: tuple[Tensor, Tensor] = Recurrence.apply(  # type: ignore[no-untyped-call]
            x, h0, self.weight_ih, weight, self.bias, phi, gradient_node(weight)
        )
        return states

    def _check(self, input: Tensor, hx: Tensor | None) -> None:
        if isinstance(input, nn.utils.rnn.PackedSequence):
            raise TypeError("OrthogonalRNN takes padded sequences; unpack with pad_packed_sequence.")
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"input must be (time, batch, {self.input_size}) or (time, {self.input_size}), "
                f"got {tuple(input.shape)}."
            )
        if input.shape[1 if input.dim() == 3 and self.batch_first else 0] == 0:
            raise ValueError(f"input must have at least one time step, got shape {tuple(input.shape)}.")
        batch = () if input.dim() == 2 else (input.shape[0 if self.batch_first else 1],)
        must = (1, *batch, self.hidden_size)
        if hx is not None and tuple(hx.shape) != must:
            raise ValueError(f"hx must have shape {must}, got {tuple(hx.shape)}.")

    def extra_repr(self) -> str:
        """Return what is shown between the brackets."""
        return f"{self.input_size}, {self.hidden_size}, nonlinearity={self.nonlinearity!r}"
