"""Optimizer checkpoints: plain data, the dtypes they were saved with, and the configuration they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .options import PLUGINS, check_options
from .plan import Plan

__all__ = ["COUNTS", "check_same_configuration", "joined", "restore_dtypes_"]

#: What the optimizer itself notes about a parameter.
COUNTS = ("step", "shape")

#: What the step sizes keep: one number per coordinate, or per entry of a plain parameter.
_PER_COORDINATE = frozenset(
    ("momentum_buffer", "momentum_seen", "square_avg", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "visits")
)
#: What rules of selection keep: one number per coordinate, whatever the batch.
_SHARED = frozenset(("importance",))
#: What the bases keep of a point: of its shape.
_PER_ENTRY = frozenset(("factor", "written"))


def check_same_configuration(
    saved_dict: Any, groups: list[dict[str, Any]], plans: dict[Tensor, Plan]
) -> None:
    """Refuse what is no checkpoint, or one with other plug-ins or for other shapes, naming both."""
    if not isinstance(saved_dict, dict) or not {"state", "param_groups"} <= set(saved_dict):
        raise ValueError("an optimizer's checkpoint is a dict with 'state' and 'param_groups'.")
    saved_groups, saved_state = saved_dict["param_groups"], saved_dict["state"]
    if not isinstance(saved_groups, list | tuple) or not isinstance(saved_state, dict):
        raise ValueError("a checkpoint's 'param_groups' is a list and its 'state' a dict.")
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"the checkpoint has {len(saved_groups)} parameter groups, the optimizer {len(groups)}."
        )
    for number, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        if not isinstance(saved, dict) or not isinstance(saved.get("params"), list | tuple):
            raise ValueError(f"group {number} of the checkpoint is not a dict with a list of 'params'.")
        _check_group(number, saved, group)
        for key, param in zip(saved["params"], group["params"], strict=True):
            if not isinstance(key, int | str):
                raise ValueError(f"the checkpoint names a parameter {key!r} in group {number}.")
            _check_state(number, saved_state.get(key, {}), param, plans[param])


def _check_group(number: int, saved: dict[str, Any], group: dict[str, Any]) -> None:
    for name in PLUGINS:
        if name in saved and saved[name] != group[name]:
            raise ValueError(
                f"the checkpoint was written with {name}={saved[name]} in group {number}, "
                f"the optimizer has {name}={group[name]}. Make the optimizer as it was, or start afresh."
            )
    if len(saved["params"]) != len(group["params"]):
        raise ValueError(
            f"the checkpoint has {len(saved['params'])} parameters in group {number}, "
            f"the optimizer {len(group['params'])}."
        )
    points = saved.get("points", group["points"])  # older checkpoints have none
    if not isinstance(points, list) or len(points) != len(group["points"]):
        raise ValueError(f"the checkpoint does not say what each parameter of group {number} is.")
    for there, here in zip(points, group["points"], strict=True):
        if there != here:
            raise ValueError(
                f"the checkpoint is for a parameter with {there} in group {number}, the optimizer has one "
                f"with {here}."
            )
    check_options({**group, **saved, **dict.fromkeys(PLUGINS)})


def _check_state(number: int, saved: Any, param: Tensor, plan: Plan) -> None:
    if not isinstance(saved, dict):
        raise ValueError(f"the state of a parameter in group {number} of the checkpoint is not a dict.")
    shape = saved.get("shape", ())
    found = shape.tolist() if isinstance(shape, Tensor) else list(shape) if isinstance(shape, tuple) else None
    if "shape" in saved and found != list(param.shape):
        raise ValueError(
            f"the checkpoint is for a parameter of shape {tuple(found or ())} in group {number}, "
            f"the optimizer has one of shape {tuple(param.shape)}."
        )
    step = saved.get("step", 0)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"the checkpoint counts {step!r} steps in group {number}: it is not one of SRCD's.")
    fitting = _shapes(param, plan)
    for name in saved.keys() & (_PER_COORDINATE | _PER_ENTRY | _SHARED):
        value = saved[name]
        fits = [param.shape] if name in _PER_ENTRY else fitting
        if name in _SHARED:
            fits = [(plan.index.count,)]
        if value is None and name == "momentum_buffer" and plan.basis is None:
            continue  # as torch.optim.SGD has it before its first step
        if isinstance(value, Tensor) and tuple(value.shape) in map(tuple, fits):
            if plan.basis is not None and value.isnan().any():
                raise ValueError(f"{name} of the checkpoint is not a number somewhere ({plan.where}).")
            continue
        came = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{name} of the checkpoint must have shape {tuple(fits[0])}, got {came} ({plan.where})."
        )


def _shapes(param: Tensor, plan: Plan) -> Sequence[Sequence[int]]:
    """Return what buffers may look like; plain parameters are flat to rules that torch does not have."""
    if plan.basis is None:
        return [param.shape, (param.numel(),)]
    return [(*param.shape[: param.dim() - plan.basis.point_dims], plan.index.count)]


def joined(saved: Any) -> Any:
    """Return a checkpoint with the numbers of its parameters as keys.

    ``torch.distributed.checkpoint`` puts what is no tensor under ``"0"`` and leaves the tensors under 0.
    """
    state = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(state, dict):
        return saved
    twins = {key: str(key) for key in state if isinstance(key, int) and isinstance(state.get(str(key)), dict)}
    if not twins or not all(isinstance(state[key], dict) for key in twins):
        return saved
    rest = {key: value for key, value in state.items() if key not in set(twins.values())}
    return {**saved, "state": {**rest, **{key: {**state[key], **state[twins[key]]} for key in twins}}}


def restore_dtypes_(
    state: dict[Any, dict[str, Any]],
    groups: list[dict[str, Any]],
    saved: dict[str, Any],
    plans: dict[Tensor, Plan],
) -> None:
    """Give every loaded state tensor the dtype it was saved with.

    ``Optimizer.load_state_dict`` casts them to the dtype of the parameter: integers would become
    floats, and float32 averages of bfloat16 weights would lose their bits. Averages of plain parameters
    do have the dtype of the parameter.
    """
    for saved_group, group in zip(saved["param_groups"], groups, strict=True):
        for key, param in zip(saved_group["params"], group["params"], strict=True):
            for name, value in saved["state"].get(key, {}).items():
                if not isinstance(value, Tensor) or (
                    plans[param].basis is None and value.is_floating_point()
                ):
                    continue
                state[param][name] = value.to(device=param.device).clone()
