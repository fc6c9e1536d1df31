"""A linear layer with an orthonormal weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import geoopt
import torch
from torch import Tensor, nn

from .functional import linear
from .init import haar_

__all__ = ["OrthogonalLinear", "orthonormal_parameter"]


def orthonormal_parameter(
    shape: tuple[int, int],
    manifold: geoopt.Manifold | None,
    init: Callable[[Tensor], Any],
    device: Any,
    dtype: torch.dtype | None,
) -> geoopt.ManifoldParameter:
    """Return a parameter on a Stiefel manifold, ``(n, p)`` with ``n >= p``, filled by ``init``."""
    manifold = geoopt.EuclideanStiefel() if manifold is None else manifold
    if not isinstance(manifold, geoopt.Stiefel):
        raise TypeError(f"manifold must be an instance of a geoopt Stiefel manifold, got {manifold!r}.")
    if not callable(init):
        raise TypeError(f"init must be a function that fills a tensor, like nn.init.haar_, got {init!r}.")
    start = torch.empty(shape, device=device, dtype=dtype)
    init(start)
    return geoopt.ManifoldParameter(start, manifold=manifold)


class OrthogonalLinear(nn.Module):
    r"""``torch.nn.Linear`` whose weight has orthonormal columns (rows where it is wide).

    Any optimizer that knows geoopt's parameters trains it; with ``SRCD(skip_weight_grad=True)`` the
    weight gradient is never formed.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    manifold : geoopt.Stiefel, optional
        ``geoopt.EuclideanStiefel()`` by default.
    init : callable
        Fills the weight in place; ``nn.init.haar_`` by default.

    Attributes
    ----------
    weight : geoopt.ManifoldParameter
        ``(out_features, in_features)``; where there are fewer outputs than inputs it is stored transposed,
        ``(in_features, out_features)``, since geoopt's Stiefel matrices are never wider than tall.
    transposed : bool
        Whether it is.

    Examples
    --------
    >>> layer = OrthogonalLinear(4, 2)
    >>> layer(torch.zeros(3, 4)).shape, layer.weight.shape, layer.matrix.shape
    (torch.Size([3, 2]), torch.Size([4, 2]), torch.Size([2, 4]))
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        manifold: geoopt.Manifold | None = None,
        init: Callable[[Tensor], Any] = haar_,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.transposed = out_features < in_features
        shape = (in_features, out_features) if self.transposed else (out_features, in_features)
        self.weight = orthonormal_parameter(shape, manifold, init, device, dtype)
        zero = torch.zeros(out_features, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(zero) if bias else None)

    @property
    def matrix(self) -> Tensor:
        """The weight as ``torch.nn.Linear`` has it, ``(out_features, in_features)``."""
        weight: Tensor = self.weight.mT if self.transposed else self.weight
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(*batch, out_features)`` for an input ``(*batch, in_features)``."""
        return linear(x, self.weight, self.bias, transposed=self.transposed)

    def extra_repr(self) -> str:
        """Return what is shown between the brackets."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )
