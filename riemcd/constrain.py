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
        The parameter to constrain; ``"encoder.weight"`` is one of a submodule. Wherever else ``module``
        holds the same parameter, the constrained one takes its place, so that tied weights stay tied.
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
    holders = _holders(module, name)
    weight = _parameter(*holders[0])
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
        point = geoopt.ManifoldParameter(start.reshape(weight.shape), manifold, weight.requires_grad)
        for holder, attribute in holders:
            _replace(holder, attribute, point)
        return module
    point = geoopt.ManifoldParameter(start if blocks > 1 else start[0], manifold, weight.requires_grad)
    for holder, attribute in holders:
        shown = _Stacked(transposed, weight.shape)
        parametrize.register_parametrization(holder, attribute, shown, unsafe=True)
        _parametrization(holder, attribute).original = point
        _forget_flat_weights_in_copies(holder)
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
    holders = _holders(module, name)
    held = _held(*holders[0])
    if not isinstance(held, geoopt.ManifoldParameter):
        raise ValueError(f"'{name}' of {type(module).__name__} is not on a manifold.")
    owner, attribute = holders[0]
    value = getattr(owner, attribute).detach().as_subclass(Tensor).clone()
    plain = nn.Parameter(value, held.requires_grad)
    for holder, attribute in holders:
        if parametrize.is_parametrized(holder, attribute):
            stand_in = nn.Parameter(held.detach().as_subclass(Tensor), held.requires_grad)
            _parametrization(holder, attribute).original = stand_in
            parametrize.remove_parametrizations(holder, attribute, leave_parametrized=True)
        _replace(holder, attribute, plain)
    return module


def _forget_flat_weights_in_copies(module: nn.Module) -> None:
    """Make a parametrized RNN fit for ``copy.deepcopy`` after a forward pass.

    Torch's RNNs keep a list of the weights they last computed with, in which what a parametrization
    showed is not a leaf and cannot be copied; the list is made anew in every forward pass.
    """
    kind: Any = type(module)  # parametrized modules have a class of their own
    copied = kind.__dict__.get("__deepcopy__")
    if "_flat_weights" not in module.__dict__ or copied is None or hasattr(copied, "forgets"):
        return

    def deepcopied(self: Any, memo: dict[int, Any]) -> Any:
        flat, self.__dict__["_flat_weights"] = self.__dict__["_flat_weights"], []
        try:
            return copied(self, memo)
        finally:
            self.__dict__["_flat_weights"] = flat

    deepcopied.forgets = True  # type: ignore[attr-defined]
    kind.__deepcopy__ = deepcopied


def _parametrization(module: nn.Module, name: str) -> Any:
    held: Any = module.parametrizations
    return held[name]


def _held(module: nn.Module, name: str) -> nn.Parameter | None:
    """Return the parameter that is stored for the attribute ``name``."""
    if parametrize.is_parametrized(module, name):
        found: nn.Parameter | None = getattr(_parametrization(module, name), "original", None)
        return found
    return module._parameters.get(name)


def _holders(module: nn.Module, name: str) -> list[tuple[nn.Module, str]]:
    """Return who holds the parameter ``name``: the owner by that name first, then what is tied to it."""
    path, _, attribute = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        raise ValueError(f"{type(module).__name__} has no submodule '{path}'.") from None
    held = _held(owner, attribute)
    if held is None:
        _parameter(owner, attribute)  # says what there is
    tied = [
        (other, key)
        for other in module.modules()
        if not isinstance(other, parametrize.ParametrizationList)
        for key in (*other._parameters, *getattr(other, "parametrizations", ()))
        if _held(other, key) is held and (other is not owner or key != attribute)
    ]
    return [(owner, attribute), *tied]


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
    if init in ("haar", "identity") and not isinstance(manifold, geoopt.Stiefel):
        raise ValueError(
            f"init={init!r} is for Stiefel manifolds; "
            f"on {type(manifold).__name__} start from the nearest point."
        )
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
