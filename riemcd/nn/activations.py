"""The nonlinearity of orthogonal recurrent networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .functional import modrelu

__all__ = ["ModReLU"]


class ModReLU(nn.Module):
    r"""Shrink or stretch without changing signs, :math:`\mathrm{sign}(z)\,\max(|z| + b, 0)`.

    Parameters
    ----------
    features : int
        Size of the last dimension; each feature has its own :math:`b`, drawn from
        :math:`[-0.01, 0.01]`.

    Examples
    --------
    >>> ModReLU(3)(torch.zeros(2, 3))
    tensor([[0., 0., 0.],
            [0., 0., 0.]], grad_fn=<MulBackward0>)
    """

    def __init__(self, features: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.features = features
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the bias anew."""
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def forward(self, z: Tensor) -> Tensor:
        """Return the activations, the shape of ``z``, ``(*batch, features)``."""
        return modrelu(z, self.bias)

    def extra_repr(self) -> str:
        """Return what is shown between the brackets."""
        return str(self.features)
