"""Layers as functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .. import mailbox
from .demand import gradient_node
from .linear_function import PostingLinear

__all__ = ["linear", "modrelu"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Tensor:
    r"""Apply a linear map, :math:`y = xW^\top + b`, as ``torch.nn.functional.linear`` does.

    Where the weight belongs to an ``SRCD`` with ``skip_weight_grad=True``, backward leaves slopes for
    the optimizer and ``weight.grad`` stays None; everywhere else the two functions are the same.

    Parameters
    ----------
    x : Tensor
        ``(*batch, in)``
    weight : Tensor
        ``(out, in)``, or ``(in, out)`` where ``transposed``: geoopt's Stiefel matrices are never wider than
        tall.
    bias : Tensor, optional
        ``(out,)``
    transposed : bool
        The weight is stored transposed, :math:`y = xP + b`.

    Returns
    -------
    Tensor
        ``(*batch, out)``

    Examples
    --------
    >>> import geoopt, riemcd
    >>> W = geoopt.ManifoldParameter(torch.eye(3), manifold=geoopt.EuclideanStiefel())
    >>> opt = riemcd.SRCD([W], lr=0.1, skip_weight_grad=True)
    >>> linear(torch.ones(2, 3), W)[:, 0].sum().backward()
    >>> W.grad is None
    True
    >>> opt.step()
    """
    node = None if mailbox.find(weight) is None else gradient_node(weight)
    if node is None:
        return functional.linear(x, weight.mT if transposed else weight, bias)
    result: Tensor = PostingLinear.apply(x, weight, bias, transposed, node)  # type: ignore[no-untyped-call]
    return result


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{sign}(z)\,\max(|z| + b, 0)`.

    Parameters
    ----------
    z : Tensor
        ``(*batch, d)``
    bias : Tensor
        ``(d,)``
    """
    return torch.sign(z) * torch.relu(z.abs() + bias)
