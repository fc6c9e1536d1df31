"""geoopt's own scenarios for its optimizers, with SRCD in RiemannianSGD's place: one choice for all."""

import warnings

import geoopt
import pytest
import torch
from geoopt.manifolds.siegel.vvd_metrics import SiegelMetricType

from riemcd import SRCD, selections

SELECTION, LR = selections.All(), 0.05


def positive(metric):
    with warnings.catch_warnings():  # geoopt warns that metrics other than AIM are unfinished
        warnings.simplefilter("ignore")
        return geoopt.SymmetricPositiveDefinite(metric)


def siegel(kind):
    return {f"{kind.name} {metric.value}": kind(metric=metric, rank=2) for metric in SiegelMetricType}


STIEFEL = {
    "canonical": geoopt.CanonicalStiefel(),
    "euclidean": geoopt.EuclideanStiefel(),
}
DISTANCES = {
    **{f"positive definite {metric}": positive(metric) for metric in ("AIM", "SM", "LEM")},
    **siegel(geoopt.UpperHalf),
    **siegel(geoopt.BoundedDomain),
}
OPTIONS = [
    {"lr": LR},
    # As in geoopt's scenarios, a tenth of the step where momentum multiplies it by ten.
    {"lr": LR / 10, "momentum": 0.9},
    {"lr": LR / 10, "momentum": 0.9, "nesterov": True},
    {"lr": LR / 10, "momentum": 0.9, "dampening": 0.1},
]


def two_points(manifold, *shape):
    """Return a parameter and a target, both random."""
    torch.manual_seed(42)
    complex_points = isinstance(manifold, geoopt.UpperHalf | geoopt.BoundedDomain)
    dtype = torch.complex128 if complex_points else torch.float64
    start, goal = (manifold.random(*shape, dtype=dtype).as_subclass(torch.Tensor) for _ in range(2))
    return geoopt.ManifoldParameter(start.contiguous(), manifold=manifold), goal


def off(x, goal):
    """Return the largest difference of an entry."""
    return float((x.detach() - goal).abs().max())


def reach(x, goal, loss, options, limit=5000):
    """Minimise until the target is reached; save, load, and take one more step."""
    optimizer = SRCD([x], selection=SELECTION, **options)

    def closure():
        optimizer.zero_grad()
        value = loss(x)
        value.backward()
        return value

    assert off(x, goal) > 1e-2
    for _ in range(limit):
        optimizer.step(closure)
        if off(x, goal) < 5e-6:
            break
    assert x.is_contiguous()
    assert off(x, goal) < 1e-5
    assert x.manifold.check_point_on_manifold(x.detach(), atol=1e-10, rtol=0)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(closure)
    assert off(x, goal) < 1e-3  # with momentum a ball may just have been rolling through
    assert x.manifold.check_point_on_manifold(x.detach(), atol=1e-10, rtol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", STIEFEL)
def test_orthonormal_columns_under_a_penalty(name, options):
    """A penalty on leaving the manifold makes the loss very steep across it, and changes nothing on it."""
    x, goal = two_points(STIEFEL[name], 20, 10)
    eye = torch.eye(10, dtype=torch.float64)
    reach(x, goal, lambda x: (x - goal).square().sum() + 100 * (x.mT @ x - eye).square().sum(), options)


@pytest.mark.parametrize("name", DISTANCES)
def test_the_distance_to_a_point_goes_to_zero(name):
    manifold = DISTANCES[name]
    x, goal = two_points(manifold, 2, 2)
    # The Stein "distance" of geoopt is a divergence: quadratic already.
    power = 1 if name.endswith("SM") else 2
    reach(x, goal, lambda x: manifold.dist(x, goal) ** power, {"lr": LR})


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
@pytest.mark.parametrize("name", ["positive definite LEM", "Upper Half Space riem", "Bounded Domain riem"])
def test_entries_go_to_those_of_a_point_with_momentum(name, options):
    x, goal = two_points(DISTANCES[name], 2, 2)
    reach(x, goal, lambda x: (x - goal).abs().square().sum(), options)


def test_stabilize_without_a_gradient():
    """Zero gradients move nothing, and what has left its manifold is put back by ``stabilize``."""
    torch.manual_seed(42)
    flat = geoopt.ManifoldParameter(torch.randn(10, 10), manifold=geoopt.Euclidean())
    parameters = [
        geoopt.ManifoldParameter(manifold.random(*shape), manifold=manifold)
        for manifold, shape in (
            (geoopt.CanonicalStiefel(), (10, 10)),
            (geoopt.EuclideanStiefel(), (10, 4)),
            (geoopt.Sphere(), (10,)),
        )
    ]
    optimizer = SRCD([*parameters, flat], lr=1.0, stabilize=1, selection=SELECTION)
    with torch.no_grad():
        for x in parameters:
            x.add_(1e-2 * torch.randn(x.shape))
    before = [x.detach().clone() for x in (*parameters, flat)]
    for x in (*parameters, flat):
        x.grad = torch.zeros_like(x)
    optimizer.step()
    for x, old in zip(parameters, before, strict=False):
        assert not torch.allclose(x.detach(), old)
        assert torch.allclose(x.detach(), x.manifold.projx(old), atol=1e-5)
        assert x.is_contiguous() == old.is_contiguous()
    assert torch.equal(flat.detach(), before[-1])
