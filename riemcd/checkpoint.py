"""Optimizer checkpoints: plain data, the dtypes they were saved with, and the configuration they fit."""

from __future__ import annotations

from typing import Any

import torch

from .options import PLUGINS

__all__ = ["check_same_configuration", "restore_dtypes_"]


def check_same_configuration(saved_dict: Any, groups: list[dict[str, Any]]) -> None:
    """Refuse a checkpoint that was written with other plug-ins or for other shapes, naming both."""
    if not isinstance(saved_dict, dict) or not {"state", "param_groups"} <= set(saved_dict):
        raise ValueError("an optimizer's checkpoint is a dict with 'state' and 'param_groups'.")
    saved_groups, saved_state = saved_dict["param_groups"], saved_dict["state"]
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"the checkpoint has {len(saved_groups)} parameter groups, the optimizer {len(groups)}."
        )
    for number, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
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
        for key, param in zip(saved["params"], group["params"], strict=True):
            shape = saved_state.get(key, {}).get("shape")
            if shape is not None and shape.tolist() != list(param.shape):
                raise ValueError(
                    f"the checkpoint is for a parameter of shape {tuple(shape.tolist())} in group {number}, "
                    f"the optimizer has one of shape {tuple(param.shape)}."
                )


def restore_dtypes_(
    state: dict[Any, dict[str, Any]], groups: list[dict[str, Any]], saved: dict[str, Any]
) -> None:
    """Give every loaded state tensor the dtype it was saved with.

    ``Optimizer.load_state_dict`` casts them to the dtype of the parameter: integers would become
    floats, and float32 averages of bfloat16 weights would lose their bits.
    """
    for saved_group, group in zip(saved["param_groups"], groups, strict=True):
        for key, param in zip(saved_group["params"], group["params"], strict=True):
            for name, value in saved["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor):
                    state[param][name] = value.to(device=param.device).clone()
