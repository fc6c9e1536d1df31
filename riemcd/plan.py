"""What the optimizer will do with one parameter: resolved once, from its manifold and its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import geoopt
from torch import Tensor

from .bases import Basis, basis_for
from .errors import at_parameter
from .index import Index
from .options import check_on_manifold, check_tensor
from .selections import All, RandomMatching, Selection, Uniform
from .stepsizes import Constant, Momentum, StepSize

__all__ = ["Plan", "active_points", "gradient", "make_plan", "make_rule", "project_"]


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
    manifold = _manifold_of(param, plugins["manifold"])
    if manifold is None or isinstance(manifold, geoopt.Euclidean):
        return Plan(name, where, ordinal, manifold, None, Uniform(), Index(0))
    basis: Basis | None = plugins["basis"]
    try:
        basis = basis_for(manifold, param.shape) if basis is None else basis.for_shape(param.shape)
    except ValueError as error:
        raise ValueError(f"SRCD ({where}): {error}") from None
    check_tensor(where, param, basis)
    check_on_manifold(where, param, manifold)
    index = basis.index(param.shape)
    selection = plugins["selection"] or basis.default_selection
    if selection is None:
        # Where one coordinate costs what all of them cost, all of them are taken.
        selection = RandomMatching() if basis.pairs else Uniform() if basis.cheap else All()
    _check_together(where, basis, selection, index, group, plugins["stepsize"])
    return Plan(name, where, ordinal, manifold, basis, selection, index)


def _check_together(
    where: str, basis: Basis, selection: Selection, index: Index, group: dict[str, Any], stepsize: Any
) -> None:
    if selection.pairs and not basis.pairs:
        raise ValueError(
            f"{selection!r} chooses pairs, but the coordinates of {type(basis).__name__} "
            f"are not pairs ({where})."
        )
    try:
        selection.check(index)
    except ValueError as error:
        raise ValueError(f"{error} ({where})") from None
    rule = make_rule(group, stepsize)
    if rule.stateful and not basis.consistent:
        raise ValueError(
            f"{type(rule).__name__} keeps a number per coordinate, but the directions of "
            f"{type(basis).__name__} do not keep their meaning from point to point ({where}). "
            "Use the Constant step without momentum here."
        )


def gradient(plan: Plan, param: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the Euclidean gradient of what is minimised; ``param.grad`` itself is never written."""
    grad = param.grad
    assert grad is not None and plan.basis is not None
    if grad.is_sparse:
        raise ValueError(
            f"SRCD cannot read a sparse gradient of one point ({plan.where}): "
            "that is for tables of points. Make the gradient dense."
        )
    grad = -grad if group["maximize"] else grad
    if group["weight_decay"] != 0 and not plan.basis.fixed_norm:
        grad = grad.add(param, alpha=group["weight_decay"])
    return grad


def active_points(plan: Plan, grad: Tensor) -> Tensor | None:
    """Return which points of a batch have a gradient, ``(*batch, 1)``; None for a single point."""
    assert plan.basis is not None
    dims = plan.basis.point_dims
    if grad.dim() == dims:
        return None
    return grad.ne(0).flatten(-dims).any(-1, keepdim=True)


def project_(param: Tensor, manifold: Any) -> None:
    """Project a point onto its manifold in place, in float32 at least."""
    wide = param.float() if param.dtype.itemsize < 4 else param
    param.copy_(manifold.projx(wide))
