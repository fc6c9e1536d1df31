"""Whatever is asked of them, rotations keep a matrix orthogonal and its determinant's sign."""

import geoopt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems_for_tests import orthogonal, violation

from riemcd import SRCD, bases, selections

RULES = st.one_of(
    st.integers(1, 6).map(selections.Uniform),
    st.integers(1, 6).map(selections.Cyclic),
    st.integers(1, 6).map(selections.GaussSouthwell),
    st.floats(0.01, 1.0).map(lambda f: selections.GaussSouthwell(fraction=f)),
    st.just(selections.RandomMatching()),
    st.just(selections.All()),
)
SHAPES = st.tuples(st.integers(2, 40), st.integers(2, 40)).map(lambda s: (max(s), min(s)))
SQUARE = st.integers(2, 40).map(lambda d: (d, d))


def laid_out(point, layout):
    """The same point in other strides."""
    if layout == "column-major":
        return point.mT.contiguous().mT
    if layout == "gapped":
        wide = torch.zeros(*point.shape[:-1], 2 * point.shape[-1], dtype=point.dtype)
        wide[..., ::2] = point
        return wide[..., ::2]
    return point


def fits(rule, basis, shape):
    try:
        rule.check(basis.index(shape))
    except ValueError:
        return False
    return True


def run(shape, batch, dtype, layout, basis, rule, sizes, seed, steps):
    """Take random steps of random sizes from random gradients and return both ends."""
    start = orthogonal(*batch, *shape, seed=seed, dtype=dtype)
    W = torch.nn.Parameter(laid_out(start.clone(), layout))
    if not fits(rule, basis, W.shape):
        rule = selections.Uniform(1)
    group = {"params": [W], "manifold": geoopt.EuclideanStiefel()}
    opt = SRCD([group], lr=1.0, basis=basis, selection=rule, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        opt.param_groups[0]["lr"] = sizes[step % len(sizes)]
        W.grad = torch.randn(W.shape, generator=generator, dtype=dtype)
        opt.step()
    if start.numel() and basis.count(W.shape) and max(sizes) > 1e-5:
        assert not torch.equal(W, start)
    return start, W.detach()


def same_sign(start, end):
    return torch.equal(torch.linalg.det(start.double()).sign(), torch.linalg.det(end.double()).sign())


@settings(deadline=None, max_examples=12)
@given(
    shape=st.one_of(SHAPES, SQUARE),
    batch=st.sampled_from([(), (2,), (2, 2)]),
    layout=st.sampled_from(["contiguous", "column-major", "gapped"]),
    basis=st.sampled_from([bases.RightGivens(), bases.LeftGivens(), bases.LeftGivens(canonical=True)]),
    rule=RULES,
    sizes=st.lists(st.floats(1e-6, 3.0), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_double_precision_after_1000_steps(shape, batch, layout, basis, rule, sizes, seed):
    start, end = run(shape, batch, torch.float64, layout, basis, rule, sizes, seed, 1000)
    assert violation(end) <= 1e-12
    if shape[0] == shape[1]:
        assert same_sign(start, end)


@settings(deadline=None, max_examples=4)
@given(
    shape=st.one_of(SHAPES, SQUARE),
    batch=st.sampled_from([(), (), (2,)]),
    layout=st.sampled_from(["contiguous", "column-major", "gapped"]),
    basis=st.sampled_from([bases.RightGivens(), bases.LeftGivens()]),
    rule=RULES,
    sizes=st.lists(st.floats(1e-4, 3.0), min_size=1, max_size=5),
    seed=st.integers(0, 2**31),
)
def test_single_precision_after_10000_steps(shape, batch, layout, basis, rule, sizes, seed):
    start, end = run(shape, batch, torch.float32, layout, basis, rule, sizes, seed, 10_000)
    assert violation(end) <= 1e-4
    if shape[0] == shape[1]:
        assert same_sign(start, end)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize(
    "rule", [selections.RandomMatching(), selections.All(), selections.GaussSouthwell(6)]
)
def test_single_precision_at_the_largest_size(rule, size, seed):
    start, end = run(
        (40, 40), (), torch.float32, "contiguous", bases.RightGivens(), rule, [size], seed, 10_000
    )
    print(f"\n{rule!r} lr={size} seed={seed}: violation {violation(end):.2e}")
    assert violation(end) <= 1e-4
    assert same_sign(start, end)


def test_plain_cosines_drift_where_increments_do_not():
    """Why rotations are applied as increments: the same 3,000 rotations, written with cosines, drift more."""
    generator = torch.Generator().manual_seed(0)
    ours = orthogonal(40, 40, dtype=torch.float32)
    theirs, basis = ours.clone(), bases.RightGivens()
    for _ in range(3000):
        order = torch.randperm(40, generator=generator)
        lo, hi = torch.minimum(order[:20], order[20:]), torch.maximum(order[:20], order[20:])
        angle = 0.1 * torch.randn(20, generator=generator)
        coords = lo * (2 * 40 - 3 - lo) // 2 + hi - 1
        basis.move_(ours, coords, angle * 2**0.5)
        c, s = angle.cos(), angle.sin()
        a, b = theirs[:, lo], theirs[:, hi]
        theirs[:, lo], theirs[:, hi] = c * a - s * b, s * a + c * b
    assert (ours - theirs).abs().max() < 1e-2
    assert violation(ours) < 0.4 * violation(theirs)
