"""One step on one orthogonal d x d matrix in single precision, as a user takes it, by everyone who can.

Gradients are given: a step is ``opt.step()``. A parametrised weight is different, since its price is paid
while the weight is built and in its backward: there a step is to build it, to go back through it from the
given gradient, and ``torch.optim.SGD`` on what lies beneath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import geoopt
import geotorch
import torch
from pogo import POGO, base
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from riemcd import SRCD, bases, selections

__all__ = ["OURS", "SGD", "THEIRS", "contestants"]

LR = 1e-6
SGD = "torch.optim.SGD"
Step = Callable[[], Any]
Maker = Callable[[Tensor, Tensor], Step]


def _parameter(W: Tensor, G: Tensor, manifold: Any = None) -> Tensor:
    if manifold is None:
        param: Tensor = nn.Parameter(W.clone())
    else:
        param = geoopt.ManifoldParameter(W.clone(), manifold=manifold)
    param.grad = G.clone()
    return param


def _sgd(W: Tensor, G: Tensor) -> Step:
    return torch.optim.SGD([_parameter(W, G)], lr=LR).step


def _srcd(**options: Any) -> Maker:
    def make(W: Tensor, G: Tensor) -> Step:
        return SRCD([_parameter(W, G, geoopt.EuclideanStiefel())], lr=LR, **options).step

    return make


def _geoopt(kind: Any, manifold: Any) -> Maker:
    return lambda W, G: kind([_parameter(W, G, manifold())], lr=LR).step


def _pogo(W: Tensor, G: Tensor) -> Step:
    param = nn.Parameter(W[None].clone())
    param.grad = G[None].clone()
    return POGO([param], base.SGD(), lr=LR).step


def _parametrized(register: Callable[[nn.Module], Any]) -> Maker:
    def make(W: Tensor, G: Tensor) -> Step:
        layer = nn.Linear(*W.shape, bias=False)
        register(layer)
        opt = torch.optim.SGD(layer.parameters(), lr=LR)

        def step() -> None:
            opt.zero_grad()
            layer.weight.backward(G)
            opt.step()

        return step

    return make


LEFT, RIGHT = bases.LeftGivens(), bases.RightGivens()
MATCHING = selections.RandomMatching()

OURS: dict[str, Maker] = {
    "SRCD Uniform(1)": _srcd(selection=selections.Uniform(1)),
    "SRCD RandomMatching, LeftGivens": _srcd(basis=LEFT, selection=MATCHING),
    "SRCD RandomMatching, LeftGivens, skip": _srcd(basis=LEFT, selection=MATCHING, nonfinite="skip"),
    "SRCD RandomMatching, RightGivens": _srcd(basis=RIGHT, selection=MATCHING),
    "SRCD RandomMatching, RightGivens, skip": _srcd(basis=RIGHT, selection=MATCHING, nonfinite="skip"),
    "SRCD RoundRobin, LeftGivens": _srcd(basis=LEFT, selection=selections.RoundRobin()),
    "SRCD Partition(16), LeftGivens": _srcd(basis=LEFT, selection=selections.Partition(16)),
    "SRCD Partition(16), RightGivens": _srcd(basis=RIGHT, selection=selections.Partition(16)),
    "SRCD GaussSouthwell(candidates=64)": _srcd(selection=selections.GaussSouthwell(candidates=64)),
    "SRCD Importance(16)": _srcd(selection=selections.Importance(16)),
    "SRCD GaussSouthwell(1)": _srcd(selection=selections.GaussSouthwell(1)),
    "SRCD GreedyMatching": _srcd(selection=selections.GreedyMatching()),
    "SRCD All": _srcd(selection=selections.All()),
}
THEIRS: dict[str, Maker] = {
    "W.T @ G": lambda W, G: lambda: W.T @ G,
    "POGO": _pogo,
    "geoopt RiemannianSGD, EuclideanStiefel": _geoopt(geoopt.optim.RiemannianSGD, geoopt.EuclideanStiefel),
    "geoopt RiemannianSGD, CanonicalStiefel": _geoopt(geoopt.optim.RiemannianSGD, geoopt.CanonicalStiefel),
    "geoopt RiemannianSGD, EuclideanStiefelExact": _geoopt(
        geoopt.optim.RiemannianSGD, geoopt.EuclideanStiefelExact
    ),
    "geoopt RiemannianAdam, EuclideanStiefel": _geoopt(geoopt.optim.RiemannianAdam, geoopt.EuclideanStiefel),
    "geotorch.orthogonal": _parametrized(lambda layer: geotorch.orthogonal(layer, "weight")),
    "parametrizations.orthogonal": _parametrized(parametrizations.orthogonal),
}


def contestants(d: int, names: list[str]) -> dict[str, Step]:
    """Return the steps of ``names`` on a random orthogonal matrix, each on a copy of its own."""
    torch.manual_seed(d)
    W = torch.linalg.qr(torch.randn(d, d)).Q.contiguous()
    G = torch.randn(d, d) / d
    makers = {SGD: _sgd, **OURS, **THEIRS}
    return {name: makers[name](W, G) for name in names}
