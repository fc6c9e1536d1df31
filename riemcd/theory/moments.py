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

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..bases import Basis
from ..draw import Draw
from ..index import Index
from ..partials import Partials
from ..selections import Selection
from .outcomes import outcomes

__all__ = ["RuleMoments", "directions", "expected_step", "rule_moments", "second_moment"]


@dataclass(frozen=True, eq=False)
class RuleMoments:
    """How often a rule takes each coordinate.

    Attributes
    ----------
    first : Tensor
        ``(D,)``, the mean of the weight of each coordinate, zero where it is not taken: its inclusion
        probability where a rule has no weights.
    second : Tensor
        ``(D,)``, the mean of the squared weight.
    """

    first: Tensor  # (D,)
    second: Tensor  # (D,)

    @property
    def least(self) -> float:
        """The smallest entry of ``first``: how much of the descent of a full step is kept at least."""
        return float(self.first.min()) if self.first.numel() else 1.0

    @property
    def most(self) -> float:
        """The largest entry of ``second``: how much of the noise of a full step remains at most."""
        return float(self.second.max()) if self.second.numel() else 1.0

    @property
    def even(self) -> bool:
        """Whether all coordinates are alike, so that the mean step points along the gradient."""
        first = self.first
        return first.numel() == 0 or bool((first - first[0]).abs().max() <= 1e-9 * first[0].abs())


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
    if selection.looks_at_slopes or state:
        partials = Partials(lambda _: slopes, index.count)
        partials.all()
        rule = _enumerated(selection, index, partials, step, state, limit)
    else:
        rule = _blind(selection, index, step, limit)
    return slopes, RuleMoments(rule.first.to(slopes), rule.second.to(slopes))


@lru_cache(maxsize=256)
def _blind(selection: Selection, index: Index, step: int | None, limit: int) -> RuleMoments:
    """Go through a rule that looks at no slopes and keeps nothing: once for all points."""
    return _enumerated(selection, index, _no_partials(selection, index), step, None, limit)


def _enumerated(
    selection: Selection,
    index: Index,
    partials: Partials,
    step: int | None,
    state: dict[str, Any] | None,
    limit: int,
) -> RuleMoments:
    """Go through the outcomes of one step, or of a step taken at random from a sweep."""
    steps = [step or 0]
    if step is None and selection.sweeps:
        steps = list(range(selection.steps_per_sweep(index)))
    first = torch.zeros(index.count, dtype=torch.float64)
    second = torch.zeros(index.count, dtype=torch.float64)
    for number in steps:
        for chance, coords, weights in outcomes(
            selection, index, partials, step=number, state=state, limit=limit
        ):
            weight = torch.ones(coords.shape, dtype=torch.float64) if weights is None else weights.double()
            first.index_add_(0, coords, weight * (chance / len(steps)))
            second.index_add_(0, coords, weight.square() * (chance / len(steps)))
    return RuleMoments(first, second)


def _no_partials(selection: Selection, index: Index) -> Partials:
    def refuse(_: Any) -> Tensor:
        raise ValueError(f"{selection!r} reads slopes without declaring looks_at_slopes.")

    return Partials(refuse, index.count)


def rule_moments(
    selection: Selection,
    index: Index,
    *,
    state: dict[str, Any] | None = None,
    limit: int = 100_000,
) -> RuleMoments:
    """Return how often a rule takes each coordinate: by its own formula, else by enumeration.

    Parameters
    ----------
    selection : Selection
        A rule that draws; the theorem is silent about rules whose choice follows the slopes, or a
        fixed order, and so is this function.
    index : Index
    state : dict, optional
        What the rule has noted down in earlier steps.
    limit : int
        Refuse to go through more outcomes than this.

    Examples
    --------
    >>> from riemcd import selections
    >>> rule_moments(selections.RandomMatching(), Index.of_pairs(5)).least  # 1/d for odd d
    0.2
    """
    selection.check(index)
    if selection.looks_at_slopes:
        raise ValueError(
            f"{selection!r} looks at the slopes, so its mean step is not a multiple of the gradient and the "
            "theorem says nothing about it. Use Uniform, RandomMatching, Partition or Importance."
        )
    if selection.sweeps and selection.steps_per_sweep(index) > 1:
        raise ValueError(
            f"{selection!r} follows a fixed order, so nothing is drawn that could be averaged and the "
            "theorem says nothing about it. Use Uniform, RandomMatching, Partition or Importance."
        )
    even = selection.inclusion(index)
    if even is not None:
        partials = _no_partials(selection, index)
        if selection.select(index, partials, Draw(0, 0), dict(state or {}))[1] is None:
            return RuleMoments(*torch.full((2, index.count), even, dtype=torch.float64))
    if state:
        return _enumerated(selection, index, _no_partials(selection, index), None, state, limit)
    return _blind(selection, index, None, limit)
