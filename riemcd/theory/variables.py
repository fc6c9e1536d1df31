"""The arguments of a loss: tensors that move freely (X) and points that move along their basis (W)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import geoopt
import torch
from torch import Tensor

from ..bases import Basis, basis_for

__all__ = ["Loss", "Variable", "variables"]

#: A loss of one or several tensors.
Loss = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Variable:
    """One argument of a loss, with the coordinates along which it moves.

    Parameters
    ----------
    value : Tensor
        ``(*batch, *point_shape)``
    basis : Basis, optional
        None for a tensor that moves freely, every entry a coordinate.
    """

    value: Tensor
    basis: Basis | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading dimensions of a point on a manifold."""
        if self.basis is None:
            return ()
        return tuple(self.value.shape[: self.value.dim() - self.basis.point_dims])

    @property
    def count(self) -> int:
        """How many coordinates there are, over the whole batch."""
        if self.basis is None:
            return self.value.numel()
        return self.basis.count(self.value.shape) * torch.Size(self.batch).numel()

    def slopes(self, grad: Tensor) -> Tensor:
        """Return the slopes along all coordinates, ``(count,)``, given the Euclidean gradient."""
        if self.basis is None:
            return grad.reshape(-1)
        return self.basis.partials(self.basis.covector(self.value, grad)).reshape(-1)

    def moved(self, amounts: Tensor) -> Tensor:
        """Return where moving by ``amounts``, ``(count,)``, leads; nothing is changed in place."""
        if self.basis is None:
            return self.value + amounts.view_as(self.value)
        point = self.value.clone()
        coords = self.basis.index(point.shape).everything(point.device)
        self.basis.move_(point, coords, amounts.reshape(*self.batch, -1))
        return point

    def at(self, value: Tensor) -> Variable:
        """Return this variable at another value."""
        return Variable(value, self.basis)


def variables(
    point: Tensor | Sequence[Tensor], basis: Basis | Sequence[Basis | None] | None = None
) -> tuple[Variable, ...]:
    """Read tensors as variables: manifold tensors of geoopt move on their manifold, the others freely.

    Parameters
    ----------
    point : Tensor or sequence of Tensor
    basis : Basis or sequence, optional
        The basis of a single tensor, or one (or None) for each; by default the one of its manifold.
    """
    values = (point,) if isinstance(point, Tensor) else tuple(point)
    if basis is None or isinstance(basis, Basis):
        given = [_basis_of(value, basis, alone=len(values) == 1) for value in values]
    else:
        if len(basis) != len(values):
            raise ValueError(f"there must be one basis for each tensor, got {len(basis)} for {len(values)}.")
        given = [
            None if own is None else own.for_shape(value.shape)
            for value, own in zip(values, basis, strict=True)
        ]
    return tuple(
        Variable(value.detach().as_subclass(Tensor), own) for value, own in zip(values, given, strict=True)
    )


def _basis_of(value: Tensor, basis: Basis | None, alone: bool) -> Basis | None:
    manifold: Any = None
    if isinstance(value, geoopt.ManifoldTensor | geoopt.ManifoldParameter):
        manifold = cast(Any, value).manifold
    free = manifold is None or isinstance(manifold, geoopt.Euclidean)
    if basis is not None and (alone or not free):
        return basis.for_shape(value.shape)
    return None if free else basis_for(manifold, value.shape)


def gradients(loss: Loss, values: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
    """Return the loss and its Euclidean gradients; no ``.grad`` is written."""
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in values]
        result = loss(*leaves)
        grads = torch.autograd.grad(result, leaves, allow_unused=True, materialize_grads=True)
    return float(result.detach()), list(grads)
