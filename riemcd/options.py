"""What an optimizer may be told: checks of hyper-parameters and of plug-ins, before anything changes."""

from __future__ import annotations

from numbers import Real
from operator import itemgetter
from typing import Any

import geoopt
import torch
from torch import Tensor

from .bases import Basis
from .errors import wrong_kind
from .selections import Selection
from .stepsizes import StepSize

__all__ = ["GROUP_KEYS", "PLUGINS", "check_keys", "check_options", "check_rate", "fixed_values"]

#: Options that hold an object; a group stores their ``repr`` so that checkpoints are plain data.
PLUGINS: dict[str, tuple[type, str]] = {
    "basis": (Basis, "a riemcd.bases.Basis"),
    "selection": (Selection, "a riemcd.selections.Selection"),
    "stepsize": (StepSize, "a riemcd.stepsizes.StepSize"),
    "manifold": (geoopt.Manifold, "a geoopt.Manifold"),
}

#: What torch itself and its lr schedulers put into groups.
_TORCH_KEYS = frozenset(
    ("params", "param_names", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
)
_SRCD_KEYS = (
    *("lr", "momentum", "dampening", "weight_decay", "nesterov", "stabilize", "maximize"),
    *("seed", "nonfinite", "strict", "skip_weight_grad"),
)
#: What a parameter group may say.
GROUP_KEYS = frozenset(_SRCD_KEYS) | frozenset(PLUGINS)

#: Numbers as large as this leave single precision as soon as they are multiplied with anything.
LARGEST = 1e30

NONFINITE = ("raise", "skip", "ignore")


def check_keys(group: dict[str, Any]) -> None:
    """Refuse a group with a key that nothing reads."""
    unknown = sorted(set(group) - GROUP_KEYS - _TORCH_KEYS)
    if unknown:
        raise ValueError(
            f"unknown key {unknown[0]!r} in a parameter group; SRCD reads {', '.join(sorted(GROUP_KEYS))}."
        )


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element")
        if value.is_meta:
            raise ValueError(f"Tensor {name} must have a value, got one on the meta device.")
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{name} must be a real number, got a tensor of {value.dtype}.")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an integer of {len(str(value))} digits.") from None


def check_rate(lr: Any) -> None:
    """Refuse a learning rate that is none; schedulers change it between any two steps."""
    if not 0.0 <= _number("lr", lr) < LARGEST:
        raise ValueError(f"Invalid learning rate: {lr}")


#: Returns the options that rarely change, to see whether one of them did.
fixed_values = itemgetter(*(name for name in _SRCD_KEYS if name != "lr"), *PLUGINS)


def check_options(group: dict[str, Any]) -> None:
    """Refuse values that cannot work, in torch's words where torch has them."""
    check_rate(group["lr"])
    for name in ("momentum", "dampening", "weight_decay"):
        if isinstance(group[name], Tensor):
            raise TypeError(f"{name} must be a number, got a tensor; only lr may be one.")
        value = _number(name, group[name])
        if not 0.0 <= value < LARGEST:
            raise ValueError(f"Invalid {name} value: {group[name]}")
    for name in ("nesterov", "maximize", "strict", "skip_weight_grad"):
        if not isinstance(group[name], bool):
            raise TypeError(f"{name} must be True or False, got {group[name]!r}.")
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    every = group["stabilize"]
    if every is not None and (isinstance(every, bool) or not isinstance(every, int)):
        raise TypeError(f"stabilize must be None or a number of steps, got {every!r}.")
    if every is not None and every < 1:
        raise ValueError(f"stabilize must be at least 1 step, got {every}.")
    if isinstance(group["seed"], bool) or not isinstance(group["seed"], int):
        raise TypeError(f"seed must be an integer, got {group['seed']!r}.")
    if group["nonfinite"] not in NONFINITE:
        raise ValueError(f"nonfinite must be one of {', '.join(NONFINITE)}, got {group['nonfinite']!r}.")
    for name, (kind, must_be) in PLUGINS.items():
        if group[name] is not None and not isinstance(group[name], kind):
            raise wrong_kind(name, must_be, group[name])


def check_tensor(where: str, param: Tensor, basis: Basis | None) -> None:
    """Refuse parameters that no basis can move."""
    if not isinstance(param, Tensor):
        raise TypeError(f"optimizer can only optimize Tensors, got {type(param).__name__} ({where}).")
    if type(param).__name__ == "DTensor" or hasattr(param, "placements"):
        raise TypeError(
            f"SRCD cannot move a DTensor ({where}): a rotation needs whole columns on one device. "
            "Leave this parameter out of FSDP (ignored_params), or train it with DDP."
        )
    if basis is None:
        return
    if not (param.is_floating_point() or param.is_complex()):
        raise TypeError(f"a point must be floating point, got {param.dtype} ({where}).")
    if param.is_complex() and not basis.complex_points:
        raise TypeError(f"{type(basis).__name__} moves real points only, got {param.dtype} ({where}).")
    if param.dim() < basis.point_dims:
        raise ValueError(
            f"{type(basis).__name__} needs at least {basis.point_dims} dimensions, "
            f"got {param.dim()} ({where})."
        )


def check_on_manifold(where: str, param: Tensor, manifold: geoopt.Manifold) -> None:
    """Refuse a point that is not on its manifold, and say by how much."""
    if param.is_meta or param.numel() == 0:
        return
    point = param.detach()
    tolerance = max(1e-5, 8 * torch.finfo(point.dtype).eps)
    wide = point.float() if point.dtype.itemsize < 4 else point
    if not torch.isfinite(wide).all():
        raise ValueError(f"the point has NaN or infinite entries ({where}); initialise it afresh.")
    try:
        ok, reason = manifold.check_point_on_manifold(wide, explain=True, atol=tolerance, rtol=tolerance)
    except RuntimeError:  # some of geoopt's manifolds compute with a wrong shape before they look at it
        ok, reason = False, f"shape {tuple(point.shape)}"
    if ok:
        return
    if "shape" in str(reason):
        raise ValueError(f"the shape does not fit {type(manifold).__name__} ({where}): {reason}.")
    off = float((wide - manifold.projx(wide)).detach().abs().max())
    if off <= 8 * torch.finfo(wide.dtype).eps * float(wide.abs().max()):
        return  # far out on a hyperboloid the check itself is all rounding
    raise ValueError(
        f"the point is off its manifold {type(manifold).__name__} by {off:.3g} ({where}). "
        f"{_remedy(param)} before handing it to SRCD."
    )


def _remedy(param: Tensor) -> str:
    if hasattr(param, "proj_"):
        return "Call .proj_() on the parameter"
    return "Project it, param.data = manifold.projx(param.data),"
