"""Plain parameters under a rule that torch does not have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..coordstate import CoordinateState
from .base import StepSize

__all__ = ["plain_step_"]


def plain_step_(
    rule: StepSize, param: Tensor, grad: Tensor, entries: dict[str, Any], group: dict[str, Any]
) -> None:
    """Update one plain parameter in place: every entry is a coordinate of slope ``grad``."""
    slopes = grad.to_dense() if grad.is_sparse else grad
    slopes = -slopes if group["maximize"] else slopes
    if group["weight_decay"] != 0:
        slopes = slopes.add(param, alpha=group["weight_decay"])
    flat = slopes.reshape(-1)
    coords = torch.arange(flat.numel(), device=flat.device)
    state = CoordinateState(entries, coords, torch.Size(()), flat.numel(), flat)
    moved = rule.amounts(flat, coords, lr=group["lr"], basis=None, state=state)
    param.add_(moved.view_as(slopes))
