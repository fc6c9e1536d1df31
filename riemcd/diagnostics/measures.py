"""Slopes, sparsity and distance from the manifold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import geoopt
import torch
from torch import Tensor

from ..bases import Basis, basis_for

__all__ = ["constraint_violation", "gradient_sparsity", "partial_derivatives", "slope_check"]


def _manifold(param: Tensor) -> Any:
    manifold = getattr(param, "manifold", None)
    if manifold is None:
        raise ValueError(
            f"the tensor of shape {tuple(param.shape)} has no manifold: pass a geoopt.ManifoldParameter."
        )
    return manifold


@torch.no_grad()
def partial_derivatives(param: Tensor, basis: Basis | None = None) -> Tensor:
    """Return the slope of the loss along every coordinate, ``(*batch, count)``, from ``param.grad``.

    Parameters
    ----------
    param : geoopt.ManifoldParameter
        After ``backward``.
    basis : Basis, optional
        ``basis_for`` its manifold by default.
    """
    if param.grad is None:
        raise ValueError("the parameter has no gradient: call backward() first.")
    if basis is None:
        basis = basis_for(_manifold(param), param.shape)
    return basis.partials(basis.covector(param.detach(), param.grad))


def gradient_sparsity(
    param: Tensor,
    shares: Sequence[float] = (0.95, 0.99),
    *,
    squared: bool = False,
    basis: Basis | None = None,
) -> dict[float, float]:
    r"""Return which part of the coordinates carries a given share of the gradient's norm.

    For a share ``s``: the smallest fraction of coordinates, largest first, whose norm is at least
    ``s`` times the whole norm.

    Parameters
    ----------
    param : geoopt.ManifoldParameter
        After ``backward``.
    shares : sequence of float
    squared : bool
        Share of the squared norm instead of the norm.
    basis : Basis, optional

    Returns
    -------
    dict
        From share to fraction of coordinates; nan where the gradient is not finite.
    """
    slopes = partial_derivatives(param, basis).flatten().double()
    energy = slopes.square().sort(descending=True).values.cumsum(0)
    if not energy.numel() or energy[-1] == 0:
        return dict.fromkeys(shares, 0.0)
    if not energy[-1].isfinite():
        return dict.fromkeys(shares, float("nan"))
    wanted = torch.tensor([s if squared else s * s for s in shares], dtype=torch.float64)
    found = torch.searchsorted(energy / energy[-1], wanted.to(energy.device) - 1e-15) + 1
    return {s: min(int(n), slopes.numel()) / slopes.numel() for s, n in zip(shares, found, strict=True)}


@torch.no_grad()
def constraint_violation(param: Tensor, manifold: Any = None) -> float:
    r"""Return how far a point is from its manifold.

    The Frobenius norm of :math:`X^\top X - I` on Stiefel manifolds (the largest over a batch),
    elsewhere the largest entry by which the projection would move the point.

    Parameters
    ----------
    param : Tensor
    manifold : geoopt.Manifold, optional
        That of the parameter by default.
    """
    manifold = _manifold(param) if manifold is None else manifold
    point = param.detach()
    if not point.numel():
        return 0.0
    point = point.double() if point.is_floating_point() else point
    if isinstance(manifold, geoopt.Stiefel):
        gram = point.mT @ point
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return float(torch.linalg.matrix_norm(gram - eye).max())
    return float((point - manifold.projx(point)).abs().max())


@torch.no_grad()
def slope_check(basis: Basis, point: Tensor, loss: Any = None, *, h: float = 1e-3) -> float:
    """Return the largest error of a basis's partials against finite differences along its own moves.

    Parameters
    ----------
    basis : Basis
    point : Tensor
        ``(*point_shape,)``, float64, on the manifold.
    loss : callable, optional
        A smooth function of a point; a fixed random quadratic by default.
    h : float
        Step of the five-point difference, whose error is of order ``h**4``.
    """
    point = point.detach().as_subclass(Tensor)
    if loss is None:
        weights = torch.randn(2, *point.shape, dtype=point.dtype, generator=torch.Generator().manual_seed(0))
        weights = weights.to(point.device)

        def loss(x: Tensor) -> Tensor:
            return (weights[0] * x + (weights[1] * x).abs().square()).sum().real

    with torch.enable_grad():
        leaf = point.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(leaf), leaf)
    slopes = basis.partials(basis.covector(point, grad))
    worst = 0.0
    for i in range(slopes.shape[-1]):
        measured = 0.0
        for n, weight in ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12)):
            moved = point.clone()
            basis.move_(moved, torch.tensor([i]), slopes.new_full((1,), n * h))
            measured += weight / h * float(loss(moved))
        worst = max(worst, abs(measured - float(slopes[i])))
    return worst
