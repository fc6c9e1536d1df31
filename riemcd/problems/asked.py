"""What `riemcd.minimize` may be asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..selections import Selection
from ..stepsizes import Exact, StepSize
from .base import Problem

__all__ = ["check_call"]


def check_call(
    problem: Any, x0: Any, selection: Any, rule: Any, tol: float, max_sweeps: int, remember: Any
) -> None:
    """Raise where `riemcd.minimize` is given what it cannot take."""
    if not isinstance(problem, Problem):
        raise TypeError(f"minimize takes a riemcd.problems.Problem, got the {type(problem).__name__}.")
    if selection is not None and not isinstance(selection, Selection):
        raise TypeError(f"selection must be a riemcd.selections.Selection, got {selection!r}.")
    if not isinstance(rule, StepSize):
        raise TypeError(f"stepsize must be a riemcd.stepsizes.StepSize, got {rule!r}.")
    if rule.needs_problem and not isinstance(rule, Exact):
        raise ValueError(f"minimize: exact angles are taken whole, got {rule!r}. Use Exact() itself.")
    if remember is not None and (not isinstance(remember, int) or remember < 0):
        raise ValueError(f"minimize: remember must be a whole number from 0 on, got {remember!r}.")
    if not isinstance(x0, Tensor) or x0.dim() != 2 or x0.dtype not in (torch.float32, torch.float64):
        raise ValueError("minimize: x0 must be one float32 or float64 matrix, of shape (n, p).")
    if x0.shape[0] < x0.shape[1]:
        raise ValueError(f"minimize: x0 must have at least as many rows as columns, got {tuple(x0.shape)}.")
    problem.check(x0)
    x = x0.detach()
    off = float(torch.linalg.norm(x.mT @ x - torch.eye(x.shape[1], dtype=x.dtype, device=x.device)))
    if not off <= 1e3 * torch.finfo(x.dtype).eps * x.shape[0]:
        raise ValueError(f"minimize: the columns of x0 must be orthonormal, they are off by {off:.3g}.")
    if not tol >= 0 or max_sweeps < 0:
        raise ValueError(f"minimize: tol and max_sweeps must not be negative, got {tol} and {max_sweeps}.")
