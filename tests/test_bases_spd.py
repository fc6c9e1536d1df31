"""Positive definite matrices: the kept factor is always the Cholesky factor, and the mean is found."""

import contextlib
import math

import geoopt
import pytest
import scipy.linalg
import torch

import riemcd
from riemcd.bases import GenericBasis, SPDBasis, basis_for
from riemcd.kernels import only_torch
from riemcd.selections import All, Cyclic, GaussSouthwell, RandomMatching, Uniform

BASIS = SPDBasis()
MANIFOLD = geoopt.SymmetricPositiveDefinite()


def matrices(*shape, seed=0, dtype=torch.float64):
    """Return random matrices; the last number of the shape is both n."""
    a = normal(*shape, shape[-1], seed=seed)
    return (a @ a.mT / shape[-1] + 0.3 * torch.eye(shape[-1], dtype=torch.float64)).to(dtype)


def normal(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def direction(coords, amounts, n):
    names = [(i, j) for i in range(n) for j in range(i + 1, n)] + [(i, i) for i in range(n)]
    s = torch.zeros(n, n, dtype=torch.float64)
    for at, t in zip(coords.tolist(), amounts.tolist(), strict=True):
        i, j = names[at]
        s[i, j] = s[j, i] = t if i == j else t / math.sqrt(2)
    return s


def dense_move(x, coords, amounts):
    lower = torch.linalg.cholesky(x)
    s = direction(coords, amounts, x.shape[-1])
    return lower @ torch.from_numpy(scipy.linalg.expm(s.numpy())) @ lower.mT


def lower_of(state):
    return state["factor"].mT


@pytest.mark.parametrize("k", [1, 2, 7, 30, 78])
def test_sets_of_any_size_follow_the_dense_exponential(k):
    n = 12
    x = matrices(n)
    coords = torch.randperm(78, generator=torch.Generator().manual_seed(k))[:k]
    amounts = 0.4 * normal(k)
    expected = dense_move(x, coords, amounts)
    moved, state = x.clone(), {}
    BASIS.move_(moved, coords, amounts, state)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
    torch.testing.assert_close(lower_of(state), torch.linalg.cholesky(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("k", [1, 11, 12, 24, 25, 78])
def test_slopes_come_out_the_same_whichever_way_they_are_computed(k):
    n = 12
    x, g = matrices(n), normal(n, n)
    lower = torch.linalg.cholesky(x)
    coords = torch.randperm(78, generator=torch.Generator().manual_seed(k))[:k]
    one = torch.ones(1, dtype=torch.float64)
    expected = [(g * (lower @ direction(i[None], one, n) @ lower.mT)).sum() for i in coords]
    for shape in ((), (1,), (2, 1)):
        covector = BASIS.covector(x.expand(*shape, n, n), g.expand(*shape, n, n))
        found = BASIS.partials(covector, coords)
        assert found.shape == (*shape, k)
        torch.testing.assert_close(found, torch.stack(expected).expand(found.shape), rtol=1e-11, atol=1e-11)


def test_one_matrix_moves_like_a_batch_of_one():
    for at in range(10):
        x, t = matrices(4, seed=at), 0.7 * normal(1, seed=at)
        single, batch, kept, kept_batch = x.clone(), x[None].clone(), {}, {}
        BASIS.move_(single, torch.tensor([at]), t, kept)
        BASIS.move_(batch, torch.tensor([at]), t[None], kept_batch)
        torch.testing.assert_close(single, batch[0], rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(kept["factor"], kept_batch["factor"][0], rtol=1e-14, atol=1e-14)


def test_compiled_loops_do_what_torch_does():
    pytest.importorskip("numba")
    n, runs = 9, []
    for context in (contextlib.nullcontext(), only_torch()):
        x, state, slopes = matrices(n), {}, []
        with context:
            for at in range(45):
                covector = BASIS.covector(x, normal(n, n, seed=at))
                slopes.append(BASIS.partials(covector, torch.tensor([at]), state))
                version = x._version
                BASIS.move_(x, torch.tensor([at]), 0.5 * normal(1, seed=at), state)
                assert x._version > version  # autograd must hear of it
        assert torch.equal(x, x.mT)
        runs.append((x, state["factor"], torch.cat(slopes)))
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_huge_steps_stay_positive_definite():
    """e^S with eigenvalues e^±20 has no Cholesky factor in double precision; half of it is enough."""
    x = torch.eye(3, dtype=torch.float64)
    state = {}
    BASIS.move_(x, torch.tensor([0, 1, 5]), torch.tensor([28.0, 0.0, 1.0], dtype=torch.float64), state)
    lower = lower_of(state)
    assert (lower.diagonal() > 0).all()
    # The product of e^{±14√2/...} is one: the determinant of the exponential is e^{trace}.
    assert lower.diagonal().log().sum().item() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("selection", [Uniform(1), Uniform(3), RandomMatching(), GaussSouthwell(2)], ids=repr)
def test_the_kept_factor_is_the_cholesky_factor_after_many_steps(dtype, selection):
    n = 8
    x = geoopt.ManifoldParameter(matrices(n, dtype=dtype), manifold=MANIFOLD)
    target = matrices(n, seed=5, dtype=dtype)
    optimizer = riemcd.SRCD([x], lr=0.05, selection=selection)
    for _ in range(200):
        x.grad = target - torch.linalg.inv(x.detach())
        optimizer.step()
    lower, eps = lower_of(optimizer.state[x]), torch.finfo(dtype).eps
    assert lower.dtype == torch.float64
    assert torch.equal(lower, lower.tril())
    assert (lower.diagonal() > 0).all()
    scale = float(x.detach().abs().max())
    # The stored matrix is the rounding of LLᵀ, however many steps there were.
    assert float((lower @ lower.mT - x.detach().double()).abs().max()) <= (2 * eps + 1e-13) * scale


def test_a_matrix_that_shrinks_by_twelve_orders_keeps_its_digits():
    """Increments alone would leave the rounding of the large matrix in the small one."""
    n = 5
    x, state = 1e6 * matrices(n), {}
    for step in range(40 * n):
        BASIS.move_(x, torch.tensor([10 + step % n]), torch.tensor([-0.7], dtype=torch.float64), state)
    lower = lower_of(state)
    assert x.abs().max() < 1e-5
    torch.testing.assert_close(x, lower @ lower.mT, rtol=1e-9, atol=1e-12 * float(x.abs().max()))


def counting(monkeypatch):
    calls = []
    original = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda *a, **k: calls.append(1) or original(*a, **k))
    return calls


def test_nothing_is_factorised_twice(monkeypatch):
    calls = counting(monkeypatch)
    x = geoopt.ManifoldParameter(matrices(6), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.01, selection=Uniform(1))
    for _ in range(50):
        x.grad = normal(6, 6)
        optimizer.step()
    assert len(calls) == 1


def write(x, how):
    with torch.no_grad():
        if how == "in place":
            x.mul_(2)
        elif how == "data":
            x.data[0, 0] += 1.0
        elif how == "one bit":
            x[1, 1] = torch.nextafter(x[1, 1], x.new_tensor(torch.inf))
        elif how == "projection":
            x.add_(0.1 * normal(*x.shape))
            x.proj_()


@pytest.mark.parametrize("how", ["in place", "data", "one bit", "projection"])
def test_a_parameter_changed_behind_our_back_is_noticed(monkeypatch, how):
    calls = counting(monkeypatch)
    x = geoopt.ManifoldParameter(matrices(6), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.01, selection=Uniform(1))
    for _ in range(3):
        x.grad = normal(6, 6)
        optimizer.step()
    write(x, how)
    fresh = geoopt.ManifoldParameter(x.detach().clone(), manifold=MANIFOLD)
    coords = torch.tensor([4])
    slopes = BASIS.partials(BASIS.covector(x.detach(), x.grad), coords, dict(optimizer.state[x]))
    again = BASIS.partials(BASIS.covector(fresh.detach(), x.grad), coords)
    assert torch.equal(slopes, again)
    optimizer.step()
    assert len(calls) == 4  # the first step, the two above and this step
    torch.testing.assert_close(
        lower_of(optimizer.state[x]), torch.linalg.cholesky(x.detach()), rtol=1e-12, atol=1e-12
    )


def test_in_a_batch_only_what_was_changed_is_factorised_anew():
    x = geoopt.ManifoldParameter(matrices(3, 4), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.01, selection=Uniform(1))
    for _ in range(5):
        x.grad = normal(3, 4, 4)
        optimizer.step()
    kept = optimizer.state[x]["factor"].clone()
    with torch.no_grad():
        x[1].mul_(3)
    state = dict(optimizer.state[x])
    BASIS.partials(BASIS.covector(x.detach(), x.grad), torch.tensor([0]), state)
    assert torch.equal(optimizer.state[x]["factor"], kept)  # what is staged is not what is kept
    assert torch.equal(state["factor"][[0, 2]], kept[[0, 2]])
    torch.testing.assert_close(state["factor"][1].mT, torch.linalg.cholesky(x.detach()[1]))


def test_points_without_a_gradient_keep_every_bit():
    for selection in (Uniform(1), RandomMatching(), GaussSouthwell(1), GaussSouthwell(3)):
        x = geoopt.ManifoldParameter(matrices(3, 4, dtype=torch.float32), manifold=MANIFOLD)
        before = x.detach().clone()
        optimizer = riemcd.SRCD([x], lr=0.01, momentum=0.9, selection=selection)
        for _ in range(9):
            x.grad = normal(3, 4, 4, dtype=torch.float32)
            x.grad[1] = 0
            optimizer.step()
        assert torch.equal(x.detach()[1], before[1])
        assert not torch.equal(x.detach()[0], before[0])


def test_no_bit_changes_for_no_amount_even_when_the_product_is_written_anew():
    x, state = matrices(4, dtype=torch.float32), {}
    for at in range(7):
        BASIS.move_(x, torch.tensor([at]), torch.tensor([0.1]), state)
    before, kept = x.clone(), state["written"].clone()
    for _ in range(9):
        BASIS.move_(x, torch.tensor([2]), torch.zeros(1), state)
        BASIS.move_(x, torch.tensor([2, 5, 9]), torch.zeros(3), state)
    assert torch.equal(x, before)
    assert torch.equal(state["written"], kept)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_run_resumes_from_a_checkpoint_bit_for_bit(dtype):
    def start():
        x = geoopt.ManifoldParameter(matrices(2, 5, dtype=dtype), manifold=MANIFOLD)
        return x, riemcd.SRCD([x], lr=0.02, momentum=0.5, selection=Cyclic(2))

    def run(x, optimizer, steps):
        for step in steps:
            x.grad = normal(2, 5, 5, seed=step, dtype=dtype)
            optimizer.step()

    x, optimizer = start()
    run(x, optimizer, range(13))
    y, resumed = start()
    with torch.no_grad():
        y.copy_(x)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[y]["factor"].dtype == torch.float64
    run(x, optimizer, range(13, 30))
    run(y, resumed, range(13, 30))
    assert torch.equal(x, y)
    assert torch.equal(optimizer.state[x]["factor"], resumed.state[y]["factor"])


def test_a_step_that_is_refused_changes_nothing():
    x = geoopt.ManifoldParameter(matrices(4), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.02, selection=Uniform(1))
    x.grad = normal(4, 4)
    optimizer.step()
    before = {name: torch.as_tensor(value).clone() for name, value in optimizer.state[x].items()}
    x.grad = torch.full((4, 4), torch.nan, dtype=torch.float64)
    point = x.detach().clone()
    with pytest.raises(ValueError, match="NaN or infinite"):
        optimizer.step()
    assert torch.equal(x.detach(), point)
    assert before.keys() == optimizer.state[x].keys()
    assert all(torch.equal(torch.as_tensor(optimizer.state[x][name]), before[name]) for name in before)


def test_a_matrix_that_is_not_positive_definite_is_refused_in_a_sentence():
    x = geoopt.ManifoldParameter(matrices(2, 3), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.02)
    with torch.no_grad():
        x[1] = torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
    x.grad = normal(2, 3, 3)
    before = x.detach().clone()
    with pytest.raises(ValueError, match=r"SPDBasis needs a positive definite matrix, but 1 of 2 .*proj_"):
        optimizer.step()
    assert torch.equal(x.detach(), before)


def test_every_metric_has_a_basis():
    assert basis_for(MANIFOLD, (3, 3)) == SPDBasis()
    for metric in ("SM", "LEM"):
        with pytest.warns(UserWarning, match="not fully implemented"):
            other = geoopt.SymmetricPositiveDefinite(metric)
        assert isinstance(basis_for(other, (3, 3)), GenericBasis)


def test_the_default_takes_a_matching_and_the_whole_diagonal():
    x = geoopt.ManifoldParameter(matrices(5), manifold=MANIFOLD)
    optimizer = riemcd.SRCD([x], lr=0.01)
    x.grad = normal(5, 5)
    optimizer.step()
    (coords,) = optimizer.last_step.coordinates.values()
    assert coords.numel() == 2 + 5
    assert set(range(10, 15)) <= set(coords.tolist())


def frechet_mean(x, points):
    return 0.5 * MANIFOLD.dist(x, points).square().mean()


def minimise(make, point, points, steps):
    x = geoopt.ManifoldParameter(point.clone(), manifold=MANIFOLD)
    optimizer = make([x])
    for _ in range(steps):
        optimizer.zero_grad()
        frechet_mean(x, points).backward()
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize(
    ("selection", "steps"),
    [(None, 150), (All(), 60), (Uniform(1), 900), (GaussSouthwell(1), 250)],
    ids=["default", "all", "one", "greedy"],
)
def test_the_frechet_mean_is_the_one_riemannian_sgd_finds(selection, steps):
    points, start = matrices(7, 4, seed=3), matrices(4, seed=9)
    reference = minimise(lambda p: geoopt.optim.RiemannianSGD(p, lr=0.7), start, points, 60)
    # At the mean the logarithms of the points add up to nothing.
    assert MANIFOLD.logmap(reference.expand(7, 4, 4), points).mean(0).norm() < 1e-9
    found = minimise(lambda p: riemcd.SRCD(p, lr=0.7, selection=selection), start, points, steps)
    assert MANIFOLD.dist(found, reference) < 1e-5


def test_the_mean_of_two_is_their_geometric_mean():
    a, b = matrices(2, 3, seed=8)
    root, inverse_root = (torch.linalg.matrix_power(geoopt.linalg.sym_sqrtm(a), p) for p in (1, -1))
    expected = root @ geoopt.linalg.sym_sqrtm(inverse_root @ b @ inverse_root) @ root
    found = minimise(lambda p: riemcd.SRCD(p, lr=0.8, momentum=0.1), a, torch.stack([a, b]), 150)
    assert MANIFOLD.dist(found, expected) < 1e-5
