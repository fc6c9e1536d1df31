"""Functions of single entries that take several passes in torch, and one here."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from . import native, team

__all__ = ["modrelu_"]

_REST = (0,) * 16


def modrelu_(z: Tensor, bias: Tensor, scratch: Tensor) -> None:
    r"""Replace z by :math:`\mathrm{sign}(z)\max(|z| + b, 0)`.

    Parameters
    ----------
    z, scratch : Tensor
        ``(rows, d)``; what is in ``scratch`` is lost.
    bias : Tensor
        ``(d,)``
    """
    if native.serves(z) and z.is_contiguous() and bias.is_contiguous() and bias.dtype is z.dtype:
        rows, d = z.shape
        numbers = (z.data_ptr(), bias.data_ptr(), rows, d, *_REST)
        team.run("modrelu", z.element_size(), numbers, (0.0, 0.0, 0.0), 2 * z.numel())
        increment_version(z)
        return
    torch.sign(z, out=scratch)
    z.abs_().add_(bias).relu_().mul_(scratch)
