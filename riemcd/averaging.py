"""Averages of points are not points: putting averaged models back onto their manifolds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import geoopt
import torch
from torch import Tensor, nn

from .plan import project_ as project_point_

__all__ = ["project_"]

Target = TypeVar("Target", bound="nn.Module | Mapping[str, Any]")


@torch.no_grad()
def project_(target: Target, like: nn.Module | None = None) -> Target:
    """Project the parameters of a model, or of a state dict, onto their manifolds, in place.

    Call it after the last update of a ``torch.optim.swa_utils.AveragedModel``, or whenever weights
    were changed by something that knows nothing of manifolds.

    Parameters
    ----------
    target : nn.Module or dict
        What to project. Parameters without a manifold are left as they are.
    like : nn.Module, optional
        A model whose manifolds are meant, by the names of its parameters, where ``target`` is a state
        dict or a model that has lost its own.

    Returns
    -------
    nn.Module or dict
        The same object.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> layer.weight = geoopt.ManifoldParameter(torch.eye(2), manifold=geoopt.EuclideanStiefel())
    >>> with torch.no_grad():
    ...     _ = layer.weight.mul_(3)
    >>> project_(layer).weight.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if like is None and not isinstance(target, nn.Module):
        raise TypeError("a state dict does not know its manifolds: say like=model.")
    own = dict(target.named_parameters()) if isinstance(target, nn.Module) else dict(target)
    manifolds = _manifolds(like if like is not None else target)
    missing = sorted(manifolds.keys() - own.keys())
    if missing:
        raise ValueError(f"there is no '{missing[0]}' in what is to be projected, but like= has one.")
    for name, manifold in manifolds.items():
        project_point_(own[name], manifold)
    return target


def _manifolds(model: Any) -> dict[str, geoopt.Manifold]:
    points: dict[str, Tensor] = dict(model.named_parameters())
    return {name: p.manifold for name, p in points.items() if isinstance(p, geoopt.ManifoldParameter)}
