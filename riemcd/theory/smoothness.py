r"""The constant L of Assumption 1, from below by sampling and from above by proof.

.. math::

   \Bigl| f(X + \nu, \mathrm{Exp}_W(\mu)) - f(X, W)
   - \langle g_X, \nu \rangle - \langle g_W, \mu \rangle \Bigr|
   \le \tfrac L2 \bigl( \|\nu\|^2 + \|\mu\|^2 \bigr)

Both sides are taken along the basis's own curve: :math:`\mu = \sum_i t_i \eta_i` is moved by the basis, and
:math:`\|\mu\|^2` is :math:`\sum_i t_i^2`, which in a Parseval frame is at least the squared length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..bases import Basis
from ..problems import Problem
from ..selections import Selection
from .closed_forms import JointQuadratic, upper_bound
from .search import Search, Witness
from .variables import Loss, variables

__all__ = ["Smoothness", "smoothness"]


@dataclass(frozen=True, eq=False)
class Smoothness:
    """What is known about L: a sampled lower bound, and an upper bound only where one is proved.

    Attributes
    ----------
    lower : float
        The largest ratio that was seen: no smaller L will do.
    where : Witness
        Where it was seen.
    samples : int
        How many moves were tried.
    certified : float or None
        The upper bound where one is proved; `upper` is the way to ask for it.
    proof : str
        What the upper bound rests on; empty where there is none.
    """

    lower: float
    where: Witness
    samples: int
    certified: float | None = None
    proof: str = ""

    @property
    def upper(self) -> float:
        """An L for which Assumption 1 holds; a sample never is one, and asking raises a ValueError."""
        if self.certified is None:
            raise ValueError(
                f"{self.samples} samples show that L >= {self.lower:.6g}, and no sample can show more: there "
                "is no upper bound in closed form for this loss. Pass your own number as L, or use .lower as "
                "a guess."
            )
        return self.certified


def constant(L: float | Smoothness) -> float:
    """Return L as a number, refusing one that only samples speak for."""
    value = L.upper if isinstance(L, Smoothness) else float(L)
    if not 0 < value < math.inf:
        raise ValueError(f"L must be a positive number, got {value}.")
    return value


def smoothness(
    f: Loss | Problem,
    point: Tensor | Sequence[Tensor],
    *,
    basis: Basis | Sequence[Basis | None] | None = None,
    selection: Selection | None = None,
    samples: int = 200,
    refine: int = 100,
    spread: float = 3.0,
    lengths: tuple[float, float] = (0.01, 1.0),
    inside: Callable[..., bool] | None = None,
    seed: int = 0,
) -> Smoothness:
    """Bound the L of Assumption 1 for a loss: by samples from below, in closed form from above.

    Starts are the given point and random moves away from it; from each start random directions are tried,
    and the best find is then improved by a random search. The closed form exists for the linear and
    quadratic problems of :mod:`riemcd.problems` under rotations, and for `JointQuadratic` on a ball; for
    every other loss the result has no upper bound and says so when asked.

    Parameters
    ----------
    f : callable or Problem
        The loss, called with the tensors of ``point``; or one of :mod:`riemcd.problems`.
    point : Tensor or sequence of Tensor
        Manifold tensors of geoopt move on their manifold, others freely.
    basis : Basis or sequence, optional
        Along which coordinates to move, where the default of the manifold is not meant.
    selection : Selection, optional
        Try only sets of coordinates that this rule takes, which is all that a run with it needs.
    samples, refine : int
        How many moves to try, and how many improvements of the best of them.
    spread : float
        How far from ``point`` the other starts may lie.
    lengths : tuple of float
        Shortest and longest move.
    inside : callable, optional
        ``inside(*tensors)`` says whether a point belongs to the region where L is asked for.
    seed : int

    Returns
    -------
    Smoothness

    Examples
    --------
    >>> import torch
    >>> from riemcd.bases import RightGivens
    >>> M = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    >>> found = smoothness(lambda W: -(M * W).sum(), torch.eye(3, dtype=torch.float64), basis=RightGivens())
    >>> bool(2.0 < found.lower <= 2.5)  # L is (3 + 2) / 2
    True
    >>> found.upper
    Traceback (most recent call last):
        ...
    ValueError: 300 samples show that L >= 2.49...
    """
    start = variables(point, basis)
    if inside is None and isinstance(f, JointQuadratic):
        inside = f.inside
    loss = f.value if isinstance(f, Problem) else f
    search = Search(loss, start, selection, lengths, inside, seed)
    best = search.sample(samples, spread)
    best = search.refine(best, refine)
    certified = upper_bound(f, start)
    if certified is None:
        return Smoothness(best.ratio, best, samples + refine)
    return Smoothness(best.ratio, best, samples + refine, certified.value, certified.proof)
