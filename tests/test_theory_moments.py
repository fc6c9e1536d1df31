"""The two facts about the coordinate draw that carry the theorem, for every frame and every rule we ship."""

import math
from dataclasses import dataclass, replace

import geoopt
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from riemcd.bases import Basis, LeftGivens, RightGivens
from riemcd.index import Index
from riemcd.selections import (
    All,
    Cyclic,
    GaussSouthwell,
    Partition,
    RandomMatching,
    RoundRobin,
    Selection,
    Uniform,
)
from riemcd.testing import BasisCase, subclasses
from riemcd.theory import directions, expected_step, rule_moments, second_moment

few = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))


def shipped(base):
    return [kind for kind in subclasses(base) if kind.__module__.startswith("riemcd.")]


EXAMPLES = [
    pytest.param(example, id=f"{kind.__name__}-{number}")
    for kind in shipped(Basis)
    for number, example in enumerate(kind.examples())
    if example.basis.for_shape(example.shape).frame != "spanning"
    and example.basis.for_shape(example.shape).spans
]
BLIND = [rule for kind in shipped(Selection) for rule in kind.examples() if not rule.looks_at_slopes]


def random_gradient(draw, point):
    parts = 2 if point.is_complex() else 1
    entries = st.floats(-4, 4, allow_subnormal=False)
    grad = torch.from_numpy(draw(arrays(np.float64, (*point.shape, parts), elements=entries)))
    return torch.view_as_complex(grad) if parts == 2 else grad[..., 0]


@st.composite
def places(draw, example):
    """A random point of an example, with a random gradient there."""
    case = BasisCase(example, seed=draw(st.integers(0, 10_000)))
    # Some examples draw normal coordinates, which now and then lie outside of a ball.
    assume(example.manifold.check_point_on_manifold(case.point, atol=1e-6, rtol=1e-6))
    return case, random_gradient(draw, case.point)


def tangents(case, count=2):
    generator = torch.Generator().manual_seed(case.seed)
    for _ in range(count):
        real = torch.randn(*case.point.shape, 2, generator=generator, dtype=torch.float64)
        ambient = torch.view_as_complex(real) if case.point.is_complex() else real[..., 0]
        yield case.example.manifold.proju(case.point, ambient)


def euclidean(u, v):
    return float((u.conj() * v).real.sum())


def check_identities(basis, rule, case, grad, p, q):
    """E[step] is p times the gradient, as a gradient is defined; the second moment q times its square."""
    step = expected_step(basis, rule, case.point, grad)
    gradient = step / p
    square = float(case.inner(gradient, gradient))
    for v in tangents(case):
        # Rounding is relative to the terms that are added up, and to lengths in the metric.
        size = euclidean(grad.abs(), v.abs()) + math.sqrt(square * float(case.inner(v, v)))
        assert abs(float(case.inner(gradient, v)) - euclidean(grad, v)) <= 1e-9 * size
    assert abs(second_moment(basis, rule, case.point, grad) - q * square) <= 1e-9 * q * square


def even_rules(basis, index):
    """Every rule we ship that takes all these coordinates equally often, with the probability."""
    for rule in BLIND:
        if rule.pairs and not basis.pairs:
            continue
        try:
            rule.check(index)
        except ValueError:  # more coordinates wanted than there are
            continue
        p = rule.inclusion(index)
        if p is not None:  # single coordinates make some rules uneven, see test_uneven_rules
            yield rule, p


@pytest.mark.parametrize("example", EXAMPLES)
def test_mean_step_and_second_moment(example):
    basis = example.basis.for_shape(example.shape)
    rules = list(even_rules(basis, basis.index(example.shape)))
    assert rules

    @few
    @given(places(example))
    def check(place):
        for rule, p in rules:
            check_identities(basis, rule, *place, p, p)

    check()


@pytest.mark.parametrize("example", EXAMPLES)
def test_directions_are_those_of_moves(example):
    case = BasisCase(example)
    found = directions(case.basis, case.point)
    assert (found - case.directions).abs().max() < 1e-7 * (1 + found.abs().max())


@pytest.mark.parametrize("d", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("rule", [r for r in BLIND if not r.sweeps], ids=repr)
def test_inclusion_is_what_enumeration_counts(rule, d):
    index = Index.of_pairs(d)
    try:
        rule.check(index)
    except ValueError:
        pytest.skip("too few coordinates")
    p = rule.inclusion(index)
    found = enumerated(rule, index)
    assert torch.allclose(found.first, torch.full_like(found.first, p), rtol=1e-12)
    assert torch.allclose(found.second, torch.full_like(found.second, p), rtol=1e-12)


def enumerated(rule, index):
    """The moments by going through all outcomes, whatever formula the rule has."""
    from riemcd.theory.moments import _blind

    return _blind(rule, index, None, 100_000)


def test_inclusion_formulas():
    assert RandomMatching().inclusion(Index.of_pairs(6)) == pytest.approx(1 / 5)  # even: 1/(d-1)
    assert RandomMatching().inclusion(Index.of_pairs(7)) == pytest.approx(1 / 7)  # odd: 1/d
    assert Uniform(2).inclusion(Index.of_pairs(6)) == pytest.approx(2 / 15)
    assert Partition(3).inclusion(Index.of_pairs(8)) == pytest.approx((6 + 6 + 2) / 56)  # sum r(r-1) / d(d-1)


@pytest.mark.parametrize("rule", [RandomMatching(), Partition(2)], ids=repr)
def test_uneven_rules(rule):
    """Matchings on SPD matrices take every diagonal coordinate: descent keeps the least, noise the most."""
    index = Index.of_pairs(4, singles=True)
    found = rule_moments(rule, index)
    assert not found.even
    assert found.first[:6].tolist() == pytest.approx([1 / 3] * 6)
    assert found.first[6:].tolist() == pytest.approx([1.0] * 4)
    assert (found.least, found.most) == pytest.approx((1 / 3, 1.0))


@few
@given(st.data())
def test_gauss_southwell_is_biased(data):
    """The mean step of the greedy rule is no multiple of the gradient: the theorem does not cover it."""
    case = BasisCase(RightGivens.examples()[0], seed=data.draw(st.integers(0, 10_000)))
    G = random_gradient(data.draw, case.point)
    slopes = case.basis.partials(case.basis.covector(case.point, G)).abs().sort().values
    step = expected_step(case.basis, GaussSouthwell(), case.point, G)
    moment = second_moment(case.basis, GaussSouthwell(), case.point, G)
    gradient = case.example.manifold.egrad2rgrad(case.point, G)
    # It keeps the largest slope alone: more of the second moment than 1/D unless all slopes are equal,
    assert moment == pytest.approx(float(slopes[-1] ** 2), rel=1e-9, abs=1e-12)
    # and what it leaves out is never made up for.
    rest = float((gradient - step).square().sum())
    assert rest == pytest.approx(float(slopes[:-1].square().sum()), rel=1e-6, abs=1e-9)
    with pytest.raises(ValueError, match="looks at the slopes"):
        rule_moments(GaussSouthwell(), case.basis.index(case.shape))


def test_gauss_southwell_is_biased_on_a_concrete_gradient():
    W, G = torch.eye(3, dtype=torch.float64), torch.tensor([[0, 2.0, 1], [0, 0, 1], [0, 0, 0]]).double()
    step = expected_step(RightGivens(), GaussSouthwell(), W, G)
    gradient = (G - G.T) / 2
    cosine = float((step * gradient).sum() / step.norm() / gradient.norm())
    assert cosine == pytest.approx(2 / math.sqrt(6))  # 1 for every unbiased rule


def test_sweeps_are_unbiased_on_average_and_not_in_one_step():
    W, G = torch.eye(4, dtype=torch.float64), torch.arange(16.0).double().view(4, 4) ** 2
    gradient = (G - G.T) / 2
    for rule in (Cyclic(), RoundRobin()):
        steps = rule.steps_per_sweep(Index.of_pairs(4))
        assert torch.allclose(expected_step(RightGivens(), rule, W, G), gradient / steps)
        assert not torch.allclose(expected_step(RightGivens(), rule, W, G, step=0), gradient / steps)
        with pytest.raises(ValueError, match="fixed order"):
            rule_moments(rule, Index.of_pairs(4))
    assert rule_moments(All(), Index.of_pairs(4)).least == 1.0


# ---------------------------------------------------------------- mutations: a wrong constant is seen


@dataclass(frozen=True)
class Rescaled(Basis):
    """A basis whose slopes and moves are off by constant factors."""

    inner: Basis
    slopes: float = 1.0
    moves: float = 1.0

    frame = "orthonormal"
    pairs = True

    def count(self, shape):
        return self.inner.count(shape)

    def index(self, shape):
        return self.inner.index(shape)

    def covector(self, point, grad):
        return self.inner.covector(point, grad)

    def partials(self, covector, coords=None, state=None):
        return self.slopes * self.inner.partials(covector, coords, state)

    def move_(self, point, coords, amounts, state=None):
        self.inner.move_(point, coords, self.moves * amounts, state)

    @classmethod
    def examples(cls):
        return ()


def fixed_place():
    case = BasisCase(RightGivens.examples()[0])
    return case, torch.arange(25.0, dtype=torch.float64).view(5, 5).sin()


@pytest.mark.parametrize("kind", [RightGivens, LeftGivens])
def test_removing_the_root_of_two_breaks_the_identities(kind):
    case, grad = fixed_place()
    check_identities(kind(), Uniform(), case, grad, 0.1, 0.1)
    for wrong in (math.sqrt(2), 1 / math.sqrt(2)):
        with pytest.raises(AssertionError):
            check_identities(Rescaled(kind(), slopes=wrong), Uniform(), case, grad, 0.1, 0.1)


def test_removing_the_root_of_two_from_the_source_is_seen(monkeypatch):
    """The same, with the constant changed where it stands."""
    case, grad = fixed_place()
    monkeypatch.setattr("riemcd.bases.givens._FROBENIUS", 1.0)
    with pytest.raises(AssertionError):
        check_identities(RightGivens(), Uniform(), case, grad, 0.1, 0.1)


def test_a_wrong_probability_is_seen():
    case, grad = fixed_place()
    for p in (1 / 9, 1 / 11):
        with pytest.raises(AssertionError):
            check_identities(RightGivens(), Uniform(), case, grad, p, p)


def test_a_basis_that_does_not_span_is_seen():
    """Rotating columns of a tall matrix leaves out the directions normal to its span."""
    example = next(e for e in RightGivens.examples() if e.shape == (6, 3))
    case = BasisCase(example)
    assert not case.basis.spans
    p = 1 / 3
    with pytest.raises(AssertionError):
        check_identities(case.basis, Uniform(), case, case.grad, p, p)
    tall = next(e for e in LeftGivens.examples() if e.shape == (6, 3))
    spanning = BasisCase(tall)
    check_identities(spanning.basis, Uniform(), spanning, spanning.grad, 1 / 15, 1 / 15)


# ---------------------------------------------------------------- geodesics and orthogonality


GEODESIC = [param for param in EXAMPLES if param.values[0].basis.for_shape(param.values[0].shape).geodesic]


@pytest.mark.parametrize("example", GEODESIC)
def test_geodesic_claims_by_distance(example):
    """A move by t along coordinate i is |t| times the length of the direction away."""

    @few
    @given(st.integers(0, 10_000), st.floats(-0.5, 0.5), st.integers(0, 10_000))
    def check(seed, t, i):
        case = BasisCase(example, seed=seed)
        i %= case.count
        length = float(case.inner(*2 * (directions(case.basis, case.point)[i],)).clamp(min=0).sqrt())
        moved = case.moved(torch.tensor([i]), torch.tensor([t], dtype=torch.float64))
        # Distances through arccos lose half of the digits.
        assert abs(float(case.distance(case.point, moved)) - abs(t) * length) < 2e-7

    check()


def test_a_wrong_angle_is_seen_by_distance():
    case = BasisCase(RightGivens.examples()[0])
    t = torch.tensor([0.4], dtype=torch.float64)
    point = case.point.clone()
    Rescaled(RightGivens(), moves=math.sqrt(2)).move_(point, torch.tensor([3]), t)
    assert float(case.distance(case.point, point)) == pytest.approx(0.4 * math.sqrt(2))
    assert float(case.distance(case.point, case.moved(torch.tensor([3]), t))) == pytest.approx(0.4)


STEPS = st.lists(
    st.tuples(st.integers(0, 1_000_000), st.floats(-1e3, 1e3), st.booleans()), min_size=1, max_size=40
)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 1000), STEPS, st.sampled_from([RightGivens(), LeftGivens()]))
def test_givens_keep_determinant_and_orthogonality(d, seed, steps, basis):
    """Whatever is done, in whatever order: one rotation, or all coordinates at once."""
    case = BasisCase(replace(RightGivens.examples()[0], shape=(d, d)), seed=seed)
    W, start = case.point.clone(), case.point
    count = basis.count(W.shape)
    for where, amount, everything in steps:
        coords = torch.arange(count) if everything else torch.tensor([where % count])
        amounts = amount * torch.sin(1.0 + where + torch.arange(len(coords), dtype=torch.float64))
        basis.move_(W, coords, amounts)
    assert (W.T @ W - torch.eye(d)).abs().max() < 1e-13 * (d + 4 * len(steps))
    assert float(torch.linalg.det(W)) == pytest.approx(float(torch.linalg.det(start)), abs=1e-11)


# ---------------------------------------------------------------- refusals


def test_too_many_outcomes_are_refused():
    W = torch.eye(9, dtype=torch.float64)
    with pytest.raises(ValueError, match="limit=1000"):
        expected_step(RightGivens(), RandomMatching(), W, W, limit=1000)


def test_a_batch_is_refused():
    W = torch.eye(3).expand(2, 3, 3)
    with pytest.raises(ValueError, match="one point"):
        expected_step(RightGivens(), Uniform(), W, W)


@dataclass(frozen=True)
class Peeking(Selection):
    """Reads slopes and does not say so."""

    def select(self, index, partials, draw, state):
        return partials.all().argmax(-1, keepdim=True), None

    @classmethod
    def examples(cls):
        return ()


@dataclass(frozen=True)
class OwnNumbers(Selection):
    """Draws from the generator itself."""

    def select(self, index, partials, draw, state):
        return torch.randint(index.count, (1,), generator=draw.generator), None

    @classmethod
    def examples(cls):
        return ()


def test_rules_that_cannot_be_enumerated_are_refused():
    W = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="without declaring"):
        expected_step(RightGivens(), Peeking(), W, W)
    with pytest.raises(ValueError, match="cannot be enumerated"):
        expected_step(RightGivens(), OwnNumbers(), W, W)


def test_manifolds_are_geoopts():
    assert all(isinstance(param.values[0].manifold, geoopt.Manifold) for param in EXAMPLES)
