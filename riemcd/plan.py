"""What the optimizer will do with one parameter: resolved once, from its manifold and its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geoopt
import torch
from torch import Tensor

from .amp import NOT_SCALED, Scaling, unscaled
from .bases import Basis, basis_for
from .coordstate import Rows
from .errors import at_parameter
from .index import Index
from .options import check_on_manifold, check_tensor
from .selections import All, RandomMatching, Selection, Uniform
from .stepsizes import Constant, Momentum, StepSize

__all__ = [
    "Gradient",
    "Plan",
    "active_points",
    "check_gradient",
    "check_plain",
    "gradient",
    "is_direct",
    "make_plan",
    "make_rule",
    "project_",
]


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything a step needs to know of one parameter; ``basis`` is None for plain ones."""

    name: str
    where: str  # how a sentence names the parameter
    ordinal: int
    manifold: Any
    basis: Basis | None
    selection: Selection
    index: Index

    def describe(self, param: Tensor) -> str:
        """Return the manifold, the coordinates and the shape of the parameter, as a checkpoint keeps them."""
        shape = f"shape {tuple(param.shape)}"
        if self.basis is None:
            return f"no manifold, {shape}"
        return f"{type(self.manifold).__name__}, {self.basis!r}, {shape}"

    def check_rule(self, group: dict[str, Any], stepsize: StepSize | None) -> None:
        """Refuse a rule that remembers slopes where these do not keep their meaning."""
        rule = make_rule(group, stepsize)
        if self.basis is not None and rule.stateful and not self.basis.consistent:
            raise ValueError(
                f"{type(rule).__name__} keeps a number per coordinate, but the directions of "
                f"{type(self.basis).__name__} do not keep their meaning from point to point ({self.where}). "
                "Use the Constant step without momentum here."
            )


def make_rule(group: dict[str, Any], stepsize: StepSize | None) -> StepSize:
    """Return the step size of a group with its momentum around it."""
    stepsize = stepsize or Constant()
    momentum, dampening, nesterov = group["momentum"], group["dampening"], group["nesterov"]
    if momentum == 0:
        return stepsize
    return stepsize.wrapped_by(lambda inner: Momentum(inner, momentum, dampening, nesterov))


def _manifold_of(param: Tensor, group_manifold: Any) -> Any:
    if isinstance(param, geoopt.ManifoldParameter | geoopt.ManifoldTensor):
        return param.manifold
    return group_manifold


def make_plan(name: str, ordinal: int, param: Tensor, group: dict[str, Any], plugins: dict[str, Any]) -> Plan:
    """Resolve basis and selection of one parameter, or say in a sentence why that cannot be."""
    where = at_parameter(name, param.shape)
    check_tensor(where, param, None)
    stepsize = plugins["stepsize"]
    if stepsize is not None and stepsize.needs_problem:
        raise ValueError(
            f"{stepsize!r} needs to know the loss along a rotation and not its slope only ({where}). "
            "Use riemcd.minimize with one of riemcd.problems, or another step size."
        )
    manifold = _manifold_of(param, plugins["manifold"])
    if manifold is None or isinstance(manifold, geoopt.Euclidean):
        return Plan(name, where, ordinal, manifold, None, Uniform(), Index(0))
    if param.dim() < manifold.ndim:
        raise ValueError(
            f"a point of {type(manifold).__name__} has at least {manifold.ndim} dimensions, "
            f"got {param.dim()} ({where}). If FSDP has flattened it, leave it out of FSDP (ignored_states)."
        )
    basis: Basis | None = plugins["basis"]
    try:
        given = basis_for(manifold, param.shape) if basis is None else basis.for_manifold(manifold)
        basis = given.for_shape(param.shape)
        basis.check(manifold)
    except ValueError as error:
        raise ValueError(f"SRCD ({where}): {error}") from None
    check_tensor(where, param, basis)
    check_on_manifold(where, param, manifold)
    index = basis.index(param.shape)
    selection = plugins["selection"] or basis.default_selection
    if selection is None:
        # Where one coordinate costs what all of them cost, all of them are taken.
        selection = RandomMatching() if basis.pairs else Uniform() if basis.cheap else All()
    _check_together(where, basis, selection, index)
    if group["skip_weight_grad"]:
        _check_factors(where, basis, param)
    plan = Plan(name, where, ordinal, manifold, basis, selection, index)
    plan.check_rule(group, stepsize)
    return plan


def _check_factors(where: str, basis: Basis, param: Tensor) -> None:
    """Refuse a parameter whose slopes cannot be read from the input and the output of a linear layer."""
    if basis.turns is None:
        raise ValueError(
            "skip_weight_grad=True reads slopes from the input and the output of a linear layer, which "
            f"serves rotations of columns or rows (RightGivens, LeftGivens), not {type(basis).__name__} "
            f"({where}). Put this parameter into a group with skip_weight_grad=False."
        )
    if param.dim() != 2:
        raise ValueError(
            f"skip_weight_grad=True serves the weight of a linear layer, one matrix ({where}). "
            "Put this parameter into a group with skip_weight_grad=False."
        )


def _check_together(where: str, basis: Basis, selection: Selection, index: Index) -> None:
    if selection.pairs and not basis.pairs:
        raise ValueError(
            f"{selection!r} chooses pairs, but the coordinates of {type(basis).__name__} "
            f"are not pairs ({where}). Put this parameter into a group with a selection of its own, "
            "such as selections.All()."
        )
    try:
        selection.check(index)
    except ValueError as error:
        raise ValueError(f"{error} ({where})") from None


@dataclass(frozen=True, eq=False)
class Gradient:
    """What backward left for the points of one parameter, or for some rows of a table of points."""

    points: Tensor  # (*batch, *point_shape)
    values: Tensor  # same shape
    active: Tensor | None  # (*batch, 1), false where a point has no gradient; None where nobody asks
    rows: Rows | None = None  # which points of the table, where it is not all of them
    climb: bool = False  # the slopes are to be negated: they may be far fewer than the entries


def gradient(
    plan: Plan, param: Tensor, group: dict[str, Any], stateful: bool, by: Scaling = NOT_SCALED
) -> Gradient:
    """Return the Euclidean gradient of what is minimised; ``param.grad`` itself is never written.

    A point of a batch whose gradient is zero takes no part in the step: weight decay does not move it
    either. Without state and weight decay its slopes say so themselves.
    """
    assert param.grad is not None and plan.basis is not None
    points, values, rows = _dense_rows(plan, param)
    values = unscaled(values, by)
    decay = 0 if plan.basis.fixed_norm else group["weight_decay"]
    active = active_points(plan, values) if stateful or decay != 0 else None
    if decay != 0:
        values = values.add(points, alpha=-decay if group["maximize"] else decay)
    return Gradient(points, values, active, rows, group["maximize"])


def _dense_rows(plan: Plan, param: Tensor) -> tuple[Tensor, Tensor, Rows | None]:
    """Return points and their gradients; of a table with a sparse gradient the rows it names only."""
    grad = param.grad
    assert grad is not None and plan.basis is not None
    if grad.layout == torch.strided:
        return param, grad, None
    if grad.layout != torch.sparse_coo or grad.sparse_dim() > param.dim() - plan.basis.point_dims:
        raise ValueError(
            f"SRCD reads sparse gradients of whole points in a table, as embeddings have them "
            f"({plan.where}), got one that is sparse inside a point: make the gradient dense."
        )
    grad = grad.coalesce()
    rows = tuple(grad.indices())
    return param.detach().as_subclass(Tensor)[rows], grad.values(), rows


def check_plain(
    plan: Plan, grad: Tensor, group: dict[str, Any], stepsize: StepSize | None, state: dict[str, Any]
) -> None:
    """Refuse a gradient of a plain parameter on which torch's own code would stop halfway."""
    buffer = state.get("momentum_buffer")
    sparse = grad.layout != torch.strided
    if not sparse and not (isinstance(buffer, Tensor) and buffer.is_sparse):
        return
    rule = stepsize or Constant()
    if isinstance(rule, Constant) and sparse and group["weight_decay"] == 0:
        return
    raise ValueError(
        f"a sparse gradient of a plain parameter ({plan.where}) is served by the Constant step without "
        "weight_decay, and not in turn with dense ones: make the gradient dense."
    )


def active_points(plan: Plan, grad: Tensor) -> Tensor | None:
    """Return which points of a batch have a gradient, ``(*batch, 1)``; None for a single point."""
    assert plan.basis is not None
    dims = plan.basis.point_dims
    if grad.dim() == dims:
        return None
    # A sum of moduli is three times faster than any(), and as exact; NaN counts as a gradient.
    return grad.abs().flatten(-dims).sum(-1, keepdim=True) != 0


def project_(param: Tensor, manifold: Any) -> None:
    """Project a point onto its manifold in place, in float32 at least; nothing is near a NaN."""
    wide = param.float() if param.dtype.itemsize < 4 else param
    if not torch.isfinite(wide).all():
        return
    param.copy_(manifold.projx(wide))


def check_gradient(plan: Plan, param: Tensor, grad: Tensor) -> None:
    """Refuse a gradient that was put there by hand and does not fit."""
    if grad.shape != param.shape or grad.is_complex() != param.is_complex():
        raise ValueError(
            f"the gradient has shape {tuple(grad.shape)} and type {grad.dtype}, the parameter "
            f"{tuple(param.shape)} and {param.dtype} ({plan.where}); nothing was changed."
        )


def is_direct(plan: Plan, grad: Tensor, group: dict[str, Any]) -> bool:
    """Return whether nobody else has to see the slopes of this parameter."""
    assert plan.basis is not None
    lr = group["lr"]
    return (
        plan.basis.one_pass
        and plan.basis.fixed_norm  # no weight decay is to be added
        and not plan.selection.looks_at_slopes
        and grad.layout is torch.strided
        and not (isinstance(lr, Tensor) and not lr.is_cpu)
    )
