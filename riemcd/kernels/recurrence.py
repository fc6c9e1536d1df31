"""The door to the compiled recurrence; every function says whether it could serve the tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from . import native, team
from .panels import tile

__all__ = ["Panels", "backward_", "forward_", "panels_for"]

_SPAN = 8  # panels, as in the compiled module, which is imported only where numba is
_GROUP = 64  # rows whose states stay in the cache beside a panel
_FEW, _LARGE = 16, 1 << 18  # with fewer rows for a thread, products with a larger matrix are torch's
_NONE = (0.0, 0.0, 0.0)


class Panels:
    """A matrix as the kernels read it.

    Parameters
    ----------
    matrix : Tensor
        ``(depth, n)``, which multiplies rows from the right.
    """

    __slots__ = ("address", "keep")

    def __init__(self, matrix: Tensor) -> None:
        (depth, n), size = matrix.shape, matrix.element_size()
        width = tile().panel // size
        self.keep = torch.empty(-(-n // width) * depth * width, dtype=matrix.dtype)
        self.address = self.keep.data_ptr()
        if matrix.numel() > 0:
            at = (matrix.data_ptr(), *matrix.stride(), depth, n, self.address, width)
            team.run("pack", size, (*at, *(0,) * 13), _NONE, matrix.numel())


def _group(batch: int) -> int:
    """Return how many rows are taken through time together: whole tiles, and a like share for each thread."""
    share = -(-batch // max(1, torch.get_num_threads()))
    share = -(-share // -(-share // _GROUP))
    return -(-share // tile().rows) * tile().rows


def _serves(states: Tensor, *others: Tensor | None) -> bool:
    """Return whether the kernels read these tensors, and are the faster way."""
    if not (native.serves(states) and states.is_contiguous()):
        return False
    if any(x is not None and not (native.serves(x) and x.dtype is states.dtype) for x in others):
        return False
    batch, d = states.shape[1:]
    return d * d <= _LARGE or batch >= _FEW * torch.get_num_threads()


def _rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows are contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward_(
    states: Tensor,
    x: Tensor,
    inward: Tensor,
    across: Tensor,
    bias: Tensor | None,
    *,
    code: int,
    owns_bias: bool,
    from_zero: bool,
) -> bool:
    """Run a recurrence from ``states[0]``; return False where that is torch's.

    Parameters
    ----------
    states : Tensor
        ``(T + 1, B, d)``
    x : Tensor
        ``(T, B, i)``
    inward, across : Tensor
        ``(d, i)`` and ``(d, d)``
    bias : Tensor or None
        ``(d,)``
    code : int
        The number of a function, as in the compiled module.
    owns_bias : bool
        The bias belongs to the function.
    from_zero : bool
        The first state is zero.
    """
    if not _serves(states, x, inward, across, bias):
        return False
    x, (_, batch, d), size = _rows(x), states.shape, states.element_size()
    inner, outer = Panels(across.mT), Panels(inward.mT)
    each, width = _group(batch), tile().panel // size
    room = torch.empty((batch + each) * _SPAN * width, dtype=states.dtype)
    b = None if bias is None else bias.contiguous()
    own, added = (0, 0) if b is None else (b.data_ptr(), 0) if owns_bias else (0, b.data_ptr())
    if owns_bias and b is None:
        code = 0
    numbers = (
        *(x.data_ptr(), x.stride(0), x.stride(1), states.data_ptr(), inner.address, outer.address),
        *(added, own, room.data_ptr(), x.shape[0], batch, d, x.shape[2], code, int(from_zero)),
        *(each, width, size, 0, 0),
    )
    team.run("recurrence", size, numbers, _NONE, states.numel() * d)
    return True


def panels_for(states: Tensor, weight: Tensor, outer: Tensor | None) -> Panels | None:
    """Return the weight, ``(d, d)``, for `backward_` with these tensors; None where going back is torch's."""
    return Panels(weight) if _serves(states, weight, outer) else None


def backward_(
    delta: Tensor,
    dh: Tensor,
    states: Tensor,
    across: Panels,
    outer: Tensor | None,
    kept: Tensor | None,
    sums: Tensor | None,
    *,
    start: int,
    last: int,
    code: int,
) -> None:
    """Run back through some steps of a recurrence.

    Parameters
    ----------
    delta : Tensor
        ``(steps, B, d)``, where derivatives of the arguments of the function go.
    dh : Tensor
        ``(B, d)``, the derivative of the last of these states; becomes that of the state before the first.
    states : Tensor
        ``(T + 1, B, d)``, of the whole sequence
    across : Panels
        What `panels_for` has returned.
    outer : Tensor or None
        ``(T, B, d)``, derivatives of all states from outside, which ``dh`` has already; rows are contiguous
    kept : Tensor or None
        ``(steps, B, d)``, where products with the weight go.
    sums : Tensor or None
        ``(ceil(B / 4), d)``, to which the gradient of the bias is added, in parts.
    start : int
        The first of these steps.
    last : int
        The first of which the product with the weight is wanted.
    code : int
    """
    (steps, batch, d), size = delta.shape, delta.element_size()
    each, width = _group(batch), tile().panel // size
    room = torch.empty((batch + each) * _SPAN * width, dtype=delta.dtype)
    above = (0, 0, 0) if outer is None else (outer.data_ptr(), outer.stride(0), outer.stride(1))
    at_kept, at_sums = (0 if x is None else x.data_ptr() for x in (kept, sums))
    numbers = (
        *(states.data_ptr(), delta.data_ptr(), at_kept, *above, dh.data_ptr(), across.address),
        *(at_sums, room.data_ptr(), start, start + steps, batch, d, code, each, width, last, size, 0),
    )
    team.run("recurrence_back", size, numbers, _NONE, delta.numel() * d)
