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
    GreedyMatching,
    Growing,
    Importance,
    Partition,
    RandomMatching,
    RoundRobin,
    Selection,
    Uniform,
)
from riemcd.testing import BasisCase, subclasses
from riemcd.theory import directions, expected_step, rule_moments, second_moment
from riemcd.theory.rules import at_slopes, blind

few = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))


def shipped(base):
    return [kind for kind in subclasses(base) if kind.__module__.startswith("riemcd.")]


EXAMPLES = [
    pytest.param(example, id=f"{kind.__name__}-{number}")
    for kind in shipped(Basis)
    for number, example in enumerate(kind.examples())
    if example.basis.for_shape(example.shape).frame != "spanning"
    and example.basis.for_shape(example.shape).spans
]
RULES = [rule for kind in shipped(Selection) for rule in kind.examples()]
BLIND = [rule for rule in RULES if not rule.looks_at_slopes and rule.inclusion(Index.of_pairs(4)) is not None]


def random_gradient(draw, point):
    parts = 2 if point.is_complex() else 1
    # Squares are compared to relative precision, which subnormal numbers do not have.
    entries = st.floats(-4, 4).map(lambda entry: entry if abs(entry) > 1e-140 else 0.0)
    grad = torch.from_numpy(draw(arrays(np.float64, (*point.shape, parts), elements=entries)))
    return torch.view_as_complex(grad) if parts == 2 else grad[..., 0]


def somewhere(example, seed):
    """A random point of an example; some draw normal coordinates, now and then outside of a ball."""
    case = BasisCase(example, seed=seed)
    assume(example.manifold.check_point_on_manifold(case.point, atol=1e-6, rtol=1e-6))
    return case


@st.composite
def places(draw, example):
    """A random point of an example, with a random gradient there."""
    case = somewhere(example, draw(st.integers(0, 10_000)))
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
    for rule in RULES:
        if rule.pairs and not basis.pairs:
            continue
        try:
            rule.check(index)
            p = rule.inclusion(index)
            if p is None:
                found = rule_moments(rule, index)
                p = found.least if found.even else None
        except ValueError:  # more coordinates wanted than there are, or the slopes decide
            continue
        if p is not None:  # single coordinates make some rules uneven, see test_uneven_rules
            yield rule, p


@pytest.mark.parametrize("example", EXAMPLES)
def test_mean_step_and_second_moment(example):
    basis = example.basis.for_shape(example.shape)
    index = basis.index(example.shape)
    rules = list(even_rules(basis, index))
    assert rules

    @few
    @given(places(example))
    def check(place):
        for rule, p in rules:
            if not rule.looks_at_slopes:
                check_identities(basis, rule, *place, p, p)

    check()
    case = BasisCase(example)
    for rule, p in rules:
        # Rules that remember slopes are gone through again at every point: a small one is enough.
        if rule.looks_at_slopes and index.count <= 6:
            check_identities(basis, rule, case, case.grad, p, p)


@pytest.mark.parametrize("example", EXAMPLES)
def test_directions_are_those_of_moves(example):
    case = BasisCase(example)
    found = directions(case.basis, case.point)
    assert (found - case.directions).abs().max() < 1e-7 * (1 + found.abs().max())


def fits(rule, d):
    """Whether there are enough pairs of d columns for a rule."""
    try:
        rule.check(Index.of_pairs(d))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("rule", "d"), [(r, d) for r in BLIND if not r.sweeps for d in (2, 3, 4, 5, 6) if fits(r, d)]
)
def test_inclusion_is_what_enumeration_counts(rule, d):
    index = Index.of_pairs(d)
    p = rule.inclusion(index)
    found = enumerated(rule, index)
    assert torch.allclose(found.first, torch.full_like(found.first, p), rtol=1e-12)
    assert torch.allclose(found.second, torch.full_like(found.second, p), rtol=1e-12)


def enumerated(rule, index):
    """The moments by going through all outcomes, whatever formula the rule has."""
    return blind(rule, index, None, 100_000)


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


def compare(rule, index, step=0, state=None):
    """The formula of a rule against going through all its outcomes."""
    found = rule_moments(rule, index, step=step, state=state)
    slopes = torch.arange(1.0, index.count + 1, dtype=torch.float64)
    counted = at_slopes(rule, index, slopes, step=step, state=state)
    assert torch.allclose(found.first, counted.first, rtol=1e-9)
    assert torch.allclose(found.second, counted.second, rtol=1e-9)
    return found


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("nodes", [1, 3, 4])
@pytest.mark.parametrize("rule", [RandomMatching(), Partition(2), Partition(3)], ids=repr)
def test_formulas_with_single_coordinates(rule, nodes, layers):
    compare(rule, Index.of_pairs(nodes, singles=True, layers=layers))


@settings(max_examples=3, deadline=None)
@given(st.data())
def test_importance(data):
    """Whatever it remembers: E[step] = (k/D) gradient, and the noise is that of its weights."""
    case = BasisCase(RightGivens.examples()[0], seed=data.draw(st.integers(0, 10_000)))
    grad = random_gradient(data.draw, case.point)
    rule = Importance(data.draw(st.integers(1, 4)), explore=data.draw(st.floats(0.1, 1.0)))
    average = data.draw(st.lists(st.floats(0, 10), min_size=10, max_size=10))
    state = {"importance": torch.tensor(average, dtype=torch.float64)}
    index, p = case.basis.index(case.shape), rule.k / 10
    gradient = case.example.manifold.egrad2rgrad(case.point, grad)
    step = expected_step(case.basis, rule, case.point, grad, state=state)
    assert (step - p * gradient).abs().max() < 1e-7 * (1 + gradient.abs().max())
    found = compare(rule, index, state=state)
    assert found.even
    assert found.least == pytest.approx(p)
    slopes = case.basis.partials(case.basis.covector(case.point, grad))
    moment = second_moment(case.basis, rule, case.point, grad, state=state)
    assert moment == pytest.approx(float((found.second * slopes.square()).sum()), rel=1e-6, abs=1e-9)
    assert found.most <= p / rule.explore * (1 + 1e-9)  # what exploring costs at most


@pytest.mark.parametrize("step", [0, 2, 9])
def test_growing_rules_are_what_they_have_grown_to(step):
    rule = Growing(Uniform(), start=1, stop=4, steps=4)
    found = compare(rule, Index.of_pairs(4), step=step)
    assert found.least == pytest.approx(rule.at(step).k / 6)


def test_rules_that_follow_the_slopes_are_refused():
    for rule in (GaussSouthwell(2), GreedyMatching(), Growing(GaussSouthwell(), start=1, stop=3, steps=5)):
        with pytest.raises(ValueError, match="follows the slopes"):
            rule_moments(rule, Index.of_pairs(5))


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
    with pytest.raises(ValueError, match="follows the slopes"):
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


# ---------------------------------------------------------------- weights


@dataclass(frozen=True)
class Systematic(Selection):
    """Take k coordinates, the i-th with probability pi_i, by one uniform number; slopes times p/pi_i."""

    pi: tuple[float, ...]
    corrected: bool = True

    def select(self, index, partials, draw, state):
        pi = torch.tensor(self.pi, dtype=torch.float64)
        marks = draw.uniform(1) + torch.arange(round(float(pi.sum())), dtype=torch.float64)
        coords = torch.searchsorted(pi.cumsum(0), marks, right=True).clamp_(max=len(pi) - 1)
        weights = pi.sum() / len(pi) / pi[coords] if self.corrected else None
        return coords, weights

    @classmethod
    def examples(cls):
        return ()


def inclusion_probabilities(weights, k):
    """Positive numbers turned into probabilities that add up to k, none above 1."""
    pi = np.array(weights) / sum(weights) * k
    while pi.max() > 1:
        free = pi < 1
        pi = np.where(free, pi * (k - (~free).sum()) / pi[free].sum(), 1.0)
    return tuple(float(x) for x in pi)


@few
@given(st.data())
def test_weights_correct_unequal_probabilities(data):
    """E[step] = (k/D) gradient, and the second moment is that of the weights: sum (k/D)² d_i² / pi_i."""
    case = BasisCase(RightGivens.examples()[0], seed=data.draw(st.integers(0, 10_000)))
    grad = random_gradient(data.draw, case.point)
    k = data.draw(st.integers(1, 4))
    raw = data.draw(st.lists(st.floats(0.05, 1.0), min_size=10, max_size=10))
    rule = Systematic(inclusion_probabilities(raw, k))
    p, pi = k / 10, torch.tensor(rule.pi, dtype=torch.float64)
    gradient = case.example.manifold.egrad2rgrad(case.point, grad)
    step = expected_step(case.basis, rule, case.point, grad)
    assert (step - p * gradient).abs().max() < 1e-9 * (1 + gradient.abs().max())
    slopes = case.basis.partials(case.basis.covector(case.point, grad))
    moment = second_moment(case.basis, rule, case.point, grad)
    assert moment == pytest.approx(float((p**2 / pi * slopes.square()).sum()), rel=1e-9, abs=1e-12)
    found = rule_moments(rule, case.basis.index(case.shape))
    assert found.even
    assert (found.least, found.most) == pytest.approx((p, float(p**2 / pi.min())), rel=1e-9)


def test_without_its_weights_unequal_sampling_is_biased():
    case, grad = fixed_place()
    rule = Systematic(inclusion_probabilities(range(1, 11), 2), corrected=False)
    assert not rule_moments(rule, case.basis.index(case.shape)).even
    with pytest.raises(AssertionError):
        check_identities(case.basis, rule, case, grad, 0.2, 0.2)


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
        case = somewhere(example, seed)
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
