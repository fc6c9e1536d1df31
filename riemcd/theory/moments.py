r"""What a step does on average: the two facts about the coordinate draw that carry the theorem.

A rule draws a set :math:`S` and weights :math:`w_i`; a step at learning rate one is
:math:`-\sum_{i \in S} w_i \partial_i \eta_i`. With :math:`p_i = \mathbb E[1_{i \in S} w_i]` and
:math:`q_i = \mathbb E[1_{i \in S} w_i^2]`,

.. math::

   \mathbb E \sum_{i \in S} w_i \partial_i \eta_i = \sum_i p_i \partial_i \eta_i, \qquad
   \mathbb E \sum_{i \in S} (w_i \partial_i)^2 = \sum_i q_i \partial_i^2 .

In an orthonormal basis, and in a Parseval frame, these are :math:`p\,\mathrm{grad} f` and
:math:`q\,\|\mathrm{grad} f\|^2` where :math:`p_i = p` and :math:`q_i = q` for all coordinates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..bases import Basis
from ..selections import Selection
from .rules import RuleMoments, at_slopes

__all__ = ["directions", "expected_step", "second_moment"]


def directions(basis: Basis, point: Tensor) -> Tensor:
    r"""Return every :math:`\eta_i` at a point as a dense tensor, ``(D, *point_shape)``.

    A partial is linear in the gradient, :math:`\partial_i = \langle G, \eta_i \rangle`: reading the
    partials of every unit gradient gives the entries of :math:`\eta_i`.

    Parameters
    ----------
    basis : Basis
    point : Tensor
        ``(*point_shape)``, one point.

    Examples
    --------
    >>> from riemcd.bases import RightGivens
    >>> directions(RightGivens(canonical=True), torch.eye(2))[0]
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """
    n = point.numel()
    points = point.expand(n, *point.shape).contiguous()
    units = torch.eye(n, dtype=point.dtype, device=point.device).view(n, *point.shape)
    entries = basis.partials(basis.covector(points, units))  # (n, D)
    if point.is_complex():
        entries = torch.complex(entries, basis.partials(basis.covector(points, 1j * units)))
    return entries.mT.reshape(-1, *point.shape)


def expected_step(
    basis: Basis,
    selection: Selection,
    point: Tensor,
    grad: Tensor,
    *,
    step: int | None = None,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> Tensor:
    r"""Return :math:`\mathbb E \sum_{i \in S} w_i \partial_i \eta_i`, exactly, by going through all outcomes.

    Parameters
    ----------
    basis : Basis
    selection : Selection
    point : Tensor
        ``(*point_shape)``, one point on the manifold.
    grad : Tensor
        ``(*point_shape)``, the Euclidean gradient of the loss there.
    step : int, optional
        How many updates the parameter has had. None means the first one, and for rules that go through
        the coordinates in sweeps the mean over a sweep at this point.
    state : dict, optional
        What the rule has noted down in earlier steps.
    limit : int
        Refuse rules with more outcomes than this.

    Returns
    -------
    Tensor
        ``(*point_shape)``, a tangent vector; times the learning rate it is what a step subtracts.

    Examples
    --------
    >>> from riemcd import bases, selections
    >>> W, G = torch.eye(3), torch.arange(9.0).view(3, 3)
    >>> expected_step(bases.RightGivens(), selections.Uniform(), W, G)  # skew(WᵀG) / 3
    tensor([[ 0.0000, -0.3333, -0.6667],
            [ 0.3333,  0.0000, -0.3333],
            [ 0.6667,  0.3333,  0.0000]])
    """
    slopes, rule = _at(basis, selection, point, grad, step, state, limit)
    mean: Tensor = torch.tensordot((rule.first * slopes).to(point.dtype), directions(basis, point), 1)
    return mean


def second_moment(
    basis: Basis,
    selection: Selection,
    point: Tensor,
    grad: Tensor,
    *,
    step: int | None = None,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> float:
    r"""Return :math:`\mathbb E \sum_{i \in S} (w_i \partial_i)^2`, exactly, by going through all outcomes.

    In an orthonormal basis this is :math:`\mathbb E \|\sum_{i \in S} w_i \partial_i \eta_i\|^2`; in a
    Parseval frame it is an upper bound of that. Parameters are those of `expected_step`.
    """
    slopes, rule = _at(basis, selection, point, grad, step, state, limit)
    return float((rule.second * slopes.square()).sum())


def _at(
    basis: Basis,
    selection: Selection,
    point: Tensor,
    grad: Tensor,
    step: int | None,
    state: dict[str, Any] | None,
    limit: int,
) -> tuple[Tensor, RuleMoments]:
    """Return the slopes at one point, ``(D,)``, and how often the rule takes each of them there."""
    if point.dim() != basis.point_dims:
        raise ValueError(
            f"expectations are taken at one point, of {basis.point_dims} dimensions for "
            f"{type(basis).__name__}, got shape {tuple(point.shape)}."
        )
    index = basis.index(point.shape)
    selection.check(index)
    slopes = basis.partials(basis.covector(point, grad))
    rule = at_slopes(selection, index, slopes, step=step, state=state, limit=limit)
    return slopes, RuleMoments(rule.first.to(slopes), rule.second.to(slopes))
