"""Putting a weight of an existing module on a manifold, and taking it off again."""

from __future__ import annotations

from typing import Any, Literal

import geoopt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["constrain_", "unconstrain_"]

Init = Literal["nearest", "haar", "identity"]


class _Stacked(nn.Module):
    """Show a stack of ``(blocks, rows, columns)`` points as the module's own weight.

    Geoopt's Stiefel matrices are never wider than tall, so wide blocks are stored transposed.
    """

    def __init__(self, transposed: bool, shape: torch.Size) -> None:
        super().__init__()
        self.transposed = transposed
        self.shape = shape

    def forward(self, points: Tensor) -> Tensor:
        return (points.mT if self.transposed else points).reshape(self.shape)


def constrain_(
    module: nn.Module,
    name: str = "weight",
    manifold: geoopt.Manifold | None = None,
    init: Init = "nearest",
    blocks: int = 1,
) -> nn.Module:
    """Put a weight of a module on a manifold, in place.

    A square or tall weight becomes a ``geoopt.ManifoldParameter`` under the same name. A wide one is
    stored transposed, and one of several blocks as a stack, behind a parametrization that shows the
    module the weight it knows.

    Parameters
    ----------
    module : nn.Module
    name : str
        The attribute to constrain.
    manifold : geoopt.Manifold, optional
        ``geoopt.EuclideanStiefel()`` by default.
    init : {"nearest", "haar", "identity"}
        Start from the nearest point, from a uniformly random one, or from the identity.
    blocks : int
        How many matrices are stacked in the weight (3 for a GRU, 4 for an LSTM).

    Returns
    -------
    nn.Module
        The same module.

    Examples
    --------
    >>> layer = constrain_(nn.Linear(3, 3), "weight", init="identity")
    >>> bool((layer.weight == torch.eye(3)).all())
    True
    """
    weight = _parameter(module, name)
    manifold = manifold if manifold is not None else geoopt.EuclideanStiefel()
    if not isinstance(manifold, geoopt.Manifold):
        raise TypeError(f"manifold must be an instance of a geoopt manifold, got {manifold!r}.")
    if type(blocks) is not int or blocks < 1 or weight.shape[0] % blocks:
        raise ValueError(f"blocks must divide the {weight.shape[0]} rows of '{name}', got {blocks!r}.")
    stiefel = isinstance(manifold, geoopt.Stiefel)
    points = weight.detach().reshape(blocks, weight.shape[0] // blocks, -1) if stiefel else weight.detach()
    transposed = stiefel and points.shape[-1] > points.shape[-2]
    start = _start(points.mT if transposed else points, manifold, init)
    if not stiefel or (blocks == 1 and not transposed and weight.dim() == 2):
        start = start.reshape(weight.shape)
        _replace(module, name, geoopt.ManifoldParameter(start, manifold, weight.requires_grad))
        return module
    start = start if blocks > 1 else start[0]
    parametrize.register_parametrization(module, name, _Stacked(transposed, weight.shape), unsafe=True)
    held: Any = module.parametrizations
    held[name].original = geoopt.ManifoldParameter(start, manifold, weight.requires_grad)
    return module


def unconstrain_(module: nn.Module, name: str = "weight") -> nn.Module:
    """Take a weight off its manifold: a plain parameter of the same value and shape, in place.

    Parameters
    ----------
    module : nn.Module
    name : str

    Returns
    -------
    nn.Module
        The same module.
    """
    if parametrize.is_parametrized(module, name):
        value = getattr(module, name).detach().clone()
        held: Any = module.parametrizations
        requires_grad = held[name].original.requires_grad
        held[name].original = nn.Parameter(held[name].original.detach().as_subclass(Tensor), requires_grad)
        parametrize.remove_parametrizations(module, name, leave_parametrized=True)
        _replace(module, name, nn.Parameter(value, requires_grad))
        return module
    weight = _parameter(module, name)
    if not isinstance(weight, geoopt.ManifoldParameter):
        raise ValueError(f"'{name}' of {type(module).__name__} is not on a manifold.")
    plain = nn.Parameter(weight.detach().as_subclass(Tensor).clone(), weight.requires_grad)
    _replace(module, name, plain)
    return module


def _replace(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a parameter where the old one was, so that the order of ``parameters()`` stays the same."""
    module._parameters[name] = parameter
    if hasattr(module, "flatten_parameters"):  # torch's RNNs keep a list of their own
        names: Any = module._flat_weights_names
        module.__dict__["_flat_weights"] = [getattr(module, n) for n in names]


def _parameter(module: nn.Module, name: str) -> nn.Parameter:
    if parametrize.is_parametrized(module, name):
        kind = type(module).__name__
        raise ValueError(f"'{name}' of {kind} is parametrized already; unconstrain_ it first.")
    found = module._parameters.get(name)
    if found is None:
        known = ", ".join(repr(n) for n, p in module._parameters.items() if p is not None) or "none"
        raise ValueError(f"{type(module).__name__} has no parameter '{name}'; it has {known}.")
    return found


@torch.no_grad()
def _start(points: Tensor, manifold: geoopt.Manifold, init: Init) -> Tensor:
    wide = points.float() if points.dtype.itemsize < 4 else points
    if init == "nearest":
        start = manifold.projx(wide)
    elif init == "haar":
        q, r = torch.linalg.qr(torch.randn_like(wide))
        start = q * torch.diagonal(r, dim1=-2, dim2=-1).sign().unsqueeze(-2)
    elif init == "identity":
        start = torch.eye(*wide.shape[-2:], dtype=wide.dtype, device=wide.device).expand_as(wide).clone()
    else:
        raise ValueError(f"init must be 'nearest', 'haar' or 'identity', got {init!r}.")
    result: Tensor = start.to(points.dtype)
    return result
