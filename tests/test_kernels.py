"""The compiled kernels: the same results as torch, on the threads and in the memory they promise."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import geoopt
import pytest
import scipy.linalg
import torch
from torch import Tensor

from riemcd import SRCD, bases, kernels, selections
from riemcd.index import Index, PairSet
from riemcd.kernels import native, only_torch, team
from riemcd.kernels.pointwise import modrelu_

pytestmark = pytest.mark.skipif(not team.available(), reason="numba is not installed")

SHAPES = [(2, 2), (33, 33), (64, 31), (2, 3, 9, 20), (300, 200), (5, 2100)]
LAYOUTS = ["rows", "columns", "mixed", "strided"]
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-13}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A test may set the number of threads; the next one finds it as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """Return ``x`` stored by rows, by columns, or with gaps."""
    if layout == "columns":
        return x.mT.contiguous().mT
    if layout == "strided":
        wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
        wide[..., ::2] = x
        return wide[..., ::2]
    return x.contiguous()


def factors(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    u, v = (torch.randn(shape, generator=generator, dtype=dtype) / shape[-2] ** 0.5 for _ in range(2))
    if layout == "mixed":
        return laid_out(u, "columns"), laid_out(v, "rows")
    return laid_out(u, layout), laid_out(v, layout)


def some_pairs(shape: tuple[int, ...], how: str) -> PairSet:
    d = shape[-1]
    generator = torch.Generator().manual_seed(d)
    if how == "permutation":
        return PairSet.matching(torch.randperm(d, generator=generator), d)
    if how == "few":
        return PairSet(torch.tensor([0]), torch.tensor([d - 1]), d, disjoint=True)
    order = torch.rand(*shape[:-2], d, generator=generator).argsort(-1)  # of each element its own
    a, b = order[..., : d // 2], order[..., d // 2 : d // 2 * 2]
    return PairSet(torch.minimum(a, b), torch.maximum(a, b), d, disjoint=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", ["permutation", "few", "own"])
def test_compiled_and_torch_agree(how: str, shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    """Slopes, rotations and both at once give the same to rounding, whatever the memory looks like."""
    u, v = factors(shape, layout, dtype)
    pairs, close = some_pairs(shape, how), {"rtol": 0, "atol": TOLERANCE[dtype]}
    slopes = native.wedge(u, v, pairs, 0.7)
    with kernels.only_torch():
        oracle = kernels.wedge_at(u, v, pairs, 0.7)
    assert slopes is not None
    torch.testing.assert_close(slopes, oracle, **close)

    moved, expected = u.clone(), u.clone()
    assert native.rotate_(moved, pairs, slopes, 0.5)
    with kernels.only_torch():
        kernels.rotate_(expected, pairs, slopes, 0.5)
    torch.testing.assert_close(moved, expected, **close)

    at_once = u.clone()
    done = kernels.descend_(at_once, v, pairs, rows=False, scale=0.7, rate=0.5 / 0.7, check=True)
    assert done is not None and done[1] == 0
    torch.testing.assert_close(at_once, expected, **close)
    torch.testing.assert_close(done[0], oracle * (0.5 / 0.7), **close)


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (2, 12, 5)], ids=str)
def test_rows_are_the_columns_of_the_transposed(shape: tuple[int, ...]) -> None:
    """Rows turn like columns of the transposed, where (G', W') are the factors and angles are negative."""
    x, grad = factors(shape, "rows", torch.float64)
    pairs = some_pairs((*shape[:-2], shape[-1], shape[-2]), "permutation")
    expected = x.clone()
    slopes = kernels.wedge_at(grad.mT, x.mT, pairs, 0.7)
    kernels.rotate_(expected.mT, pairs, slopes * 0.3, -0.7)
    done = kernels.descend_(x, grad, pairs, rows=True, scale=0.7, rate=0.3, check=False)
    assert done is not None
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_cliques_move_by_the_dense_exponential(batch: tuple[int, ...], layout: str, size: int) -> None:
    """A partition moves by the exponential of all its rotations together."""
    d, rows = 20, 7
    u, v = factors((*batch, rows, d), layout, torch.float64)
    index = bases.RightGivens().index((rows, d))
    order = torch.randperm(d, generator=torch.Generator().manual_seed(1))
    full = d // size * size
    pairs = index.partition((order[:full].view(-1, size), order[full:].view(1, -1)))
    assert isinstance(pairs, PairSet)
    slopes = kernels.wedge_at(u, v, pairs)
    product = u.mT @ v
    torch.testing.assert_close(slopes, (product - product.mT)[..., pairs.lo, pairs.hi])
    moved = laid_out(u.clone(), layout)
    kernels.rotate_(moved, pairs, slopes, 0.5)
    for e in range(max(1, len(batch) and batch[0])):
        omega = torch.zeros(d, d, dtype=torch.float64)
        omega[pairs.lo, pairs.hi] = 0.5 * (slopes[e] if batch else slopes)
        q = torch.from_numpy(scipy.linalg.expm((omega - omega.T).numpy()))
        torch.testing.assert_close(moved[e] if batch else moved, (u[e] if batch else u) @ q)


@pytest.mark.parametrize("d", [2, 7, 64, 130])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("compiled", [True, False])
def test_the_steepest_pair(batch: tuple[int, ...], d: int, compiled: bool) -> None:
    """The largest wedge is found without writing all down; ties go to the lowest, NaN is largest."""
    u, v = factors((*batch, 5, d), "rows", torch.float64)
    lo, hi = torch.triu_indices(d, d, 1)
    with kernels.only_torch() if not compiled else torch.no_grad():
        product = u.mT @ v
        every = (product[..., lo, hi] - product[..., hi, lo]).abs()
        assert torch.equal(kernels.wedge_steepest(u, v), every.argmax(-1, keepdim=True))
        torch.testing.assert_close(kernels.wedge_all(u, v).abs(), every)
        tied = torch.ones(*batch, 1, d, dtype=torch.float64)
        ramp = torch.arange(d, dtype=torch.float64).expand(*batch, 1, d) % 2
        assert torch.equal(kernels.wedge_steepest(tied, ramp), torch.zeros(*batch, 1, dtype=torch.int64))
        assert torch.equal(kernels.wedge_steepest(tied, tied), torch.zeros(*batch, 1, dtype=torch.int64))
        if d > 2:
            v[..., 0, -1] = torch.nan  # in the last column: the first pair that has it is (0, d - 1)
            assert torch.equal(kernels.wedge_steepest(u, v).flatten()[:1], torch.tensor([d - 2]))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_pairs_that_are_not_finite_are_left_alone(layout: str, rows: bool) -> None:
    """With ``check`` they are counted, and their columns keep every bit; the others move."""
    x, grad = factors((10, 10), layout, torch.float32)
    (grad[3] if rows else grad[:, 3])[:] = torch.inf
    pairs, before = some_pairs((10, 10), "permutation"), x.clone()
    done = kernels.descend_(x, grad, pairs, rows=rows, scale=1.0, rate=-0.1, check=True)
    assert done is not None and done[1] == 1
    where = int(((pairs.lo == 3) | (pairs.hi == 3)).nonzero())
    both = [int(pairs.lo[where]), int(pairs.hi[where])]
    still = (x == before).all(1 if rows else 0)
    assert sorted(both) == still.nonzero().flatten().tolist()
    assert float(done[0][where]) == 0.0


def test_angle_zero_changes_no_bit() -> None:
    """Not even the sign of a zero."""
    for dtype in TOLERANCE:
        for layout in LAYOUTS[:2]:
            x = laid_out(torch.tensor([[-0.0, 0.0, 1.0], [0.0, -0.0, -1.0]], dtype=dtype), layout)
            before = x.clone()
            pairs = PairSet(torch.tensor([0]), torch.tensor([1]), 3, disjoint=True)
            native.rotate_(x, pairs, torch.zeros(1, dtype=dtype), 1.0)
            assert torch.equal(torch.signbit(x), torch.signbit(before)) and torch.equal(x, before)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """Bit for bit, whatever the layout: chunks are a matter of shapes alone."""
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found = []
            for layout in LAYOUTS[:3]:
                x, grad = factors((300, 300), layout, torch.float32)
                kernels.descend_(
                    x,
                    grad,
                    some_pairs((300, 300), "permutation"),
                    rows=False,
                    scale=1.0,
                    rate=-0.1,
                    check=False,
                )
                found.append(x)
            results.append(found)
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_autograd_is_told() -> None:
    """A tensor that a graph has saved may not change unseen, and nothing is done behind a graph's back."""
    x, grad = factors((12, 12), "rows", torch.float32)
    version = x._version
    pairs = some_pairs((12, 12), "permutation")
    kernels.descend_(x, grad, pairs, rows=False, scale=1.0, rate=-0.1, check=False)
    native.rotate_(x, pairs, torch.ones(6), 1.0)
    assert x._version > version + 1
    u = x.clone().requires_grad_()
    slopes = kernels.wedge_at(u, grad, pairs)
    slopes.sum().backward()
    assert u.grad is not None and float(u.grad.abs().sum()) > 0


def _ten_steps(seed: int) -> Tensor:
    start = torch.linalg.qr(torch.randn(256, 256, generator=torch.Generator().manual_seed(seed)))[0]
    param = geoopt.ManifoldParameter(start, manifold=geoopt.EuclideanStiefel())
    opt = SRCD([param], lr=0.1)
    for _ in range(10):
        param.grad = torch.sin(param.detach() * (1 + seed))
        opt.step()
    return param.detach()


def test_threads_do_not_disturb_each_other() -> None:
    """Eight optimizers in eight threads do what they do alone."""
    torch.set_num_threads(2)
    alone = [_ten_steps(seed) for seed in range(8)]
    results: dict[int, Tensor] = {}

    def work(seed: int) -> None:
        results[seed] = _ten_steps(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[seed], alone[seed]) for seed in range(8))


def _in_a_child(queue: multiprocessing.Queue[list[float]]) -> None:
    torch.set_num_threads(1)  # as a DataLoader's worker does; torch's own loops would wait for ever
    queue.put(_ten_steps(0).flatten()[:4].tolist())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_step() -> None:
    """The threads of the parent are not there: the child works alone instead of waiting for them."""
    torch.set_num_threads(2)
    expected = _ten_steps(0).flatten()[:4].tolist()  # the parent's team exists now
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[list[float]] = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == pytest.approx(expected, abs=1e-5)
    finally:
        child.join(timeout=10)
        child.kill()
    assert child.exitcode == 0


_WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None  # any import of it fails
import geoopt, torch, riemcd
from riemcd import selections
from riemcd.kernels import team
W = geoopt.ManifoldParameter(torch.eye(12), manifold=geoopt.EuclideanStiefel())
for rule in (selections.Uniform(3), selections.RandomMatching(), selections.Partition(4),
             selections.GaussSouthwell(1), selections.GreedyMatching(), selections.All()):
    for nonfinite in ("raise", "skip"):
        opt = riemcd.SRCD([W], lr=0.1, selection=rule, nonfinite=nonfinite)
        W.grad = torch.arange(144.0).view(12, 12).sin()
        opt.step()
assert not team.available()
assert (W.T @ W - torch.eye(12)).abs().max() < 1e-5
"""

_FRESH_CACHE = """
import sys, torch
from riemcd.kernels import team
assert "numba" not in sys.modules, "numba is imported before a kernel is wanted"
assert team.available()
from riemcd.kernels import compiled, compiled_columns
wanted = sorted([*compiled.ENTRIES, *compiled_columns.ENTRIES])
for name, size in wanted[int(sys.argv[1])::2] + wanted:
    team._load(name, size)
import geoopt, riemcd
from riemcd import bases
for basis in (bases.LeftGivens(), bases.RightGivens()):
    for dtype in (torch.float32, torch.float64):
        W = geoopt.ManifoldParameter(torch.eye(40, dtype=dtype), manifold=geoopt.EuclideanStiefel())
        W.grad = torch.arange(1600.0, dtype=dtype).view(40, 40).sin()
        riemcd.SRCD([W], lr=0.1, basis=basis).step()
        assert (W.T @ W - torch.eye(40, dtype=dtype)).abs().max() < 1e-5
print(sum(kernel[2].cache_hits for kernel in team._kernels.values()))
"""


def _run(program: str, *arguments: str, **environment: str) -> str:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_works_without_numba() -> None:
    """The package imports and steps where numba is not installed."""
    _run(_WITHOUT_NUMBA)


@pytest.mark.long
def test_kernels_compiled_in_different_processes_live_together(tmp_path: Path) -> None:
    """What two processes have cached, in different order, a third loads without compiling."""
    for part in ("0", "1"):
        _run(_FRESH_CACHE, part, NUMBA_CACHE_DIR=str(tmp_path))
    assert int(_run(_FRESH_CACHE, "0", NUMBA_CACHE_DIR=str(tmp_path))) >= 12


def test_without_openmp_python_threads_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's OpenMP is not found, slices run on Python threads, with the same result."""
    x, grad = factors((300, 300), "rows", torch.float32)
    pairs = some_pairs((300, 300), "permutation")
    expected = x.clone()
    options = {"rows": True, "scale": 1.0, "rate": -0.1, "check": False}
    kernels.descend_(expected, grad, pairs, **options)
    monkeypatch.setattr(team, "_openmp", lambda: None)
    torch.set_num_threads(2)
    kernels.descend_(x, grad, pairs, **options)
    assert torch.equal(x, expected)


class _Memory:
    """Counts what torch allocates: the highest sum of live bytes made since the start."""

    def __enter__(self) -> _Memory:
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._profiler.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profiler.__exit__(None, None, None)
        live = peak = 0
        events = self._profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        # The clock can stand still between taking and giving back: then taking comes first.
        memory = [(event.start_ns(), -event.nbytes()) for event in events if event.name() == "[memory]"]
        for _, less in sorted(memory):
            live = max(0, live - less)  # what was there before may be given back
            peak = max(peak, live)
        self.peak = peak


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("basis", [bases.LeftGivens(), bases.RightGivens()], ids=["left", "right"])
@pytest.mark.parametrize("rule", [selections.Uniform(1), selections.RandomMatching()], ids=repr)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_takes_memory_for_columns_not_for_matrices(
    threads: int, compiled: bool, rule: selections.Selection, basis: bases.Basis, nonfinite: str
) -> None:
    """Peak extra memory is a number of bytes for each column and thread, at every size.

    Without the compiled kernels a buffer of fixed size comes on top.
    """
    torch.set_num_threads(threads)
    for d in (256, 1024, 2048):
        param = geoopt.ManifoldParameter(torch.eye(d), manifold=geoopt.EuclideanStiefel())
        param.grad = torch.randn(d, d)
        opt = SRCD([param], lr=1e-3, basis=basis, selection=rule, nonfinite=nonfinite)
        with torch.no_grad() if compiled else kernels.only_torch():
            opt.step()
            with _Memory() as memory:
                opt.step()
        assert 0 < memory.peak < 150 * threads * d + (0 if compiled else 1 << 21)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modrelu_is_the_same_compiled_and_not(dtype):
    torch.manual_seed(0)
    z, bias = torch.randn(7, 33, dtype=dtype), 0.5 * torch.randn(33, dtype=dtype)
    z[0, :3], z[1, 5], z[2, 6] = 0.0, torch.nan, -torch.inf
    found = []
    for context in (nullcontext(), only_torch()):
        with context:
            copy = z.clone()
            modrelu_(copy, bias, torch.empty_like(copy))
            found.append(copy)
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
    expected = torch.sign(z) * torch.relu(z.abs() + bias)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("batch, n, d, r", [(1, 300, 64, 16), (3, 130, 37, 5), (1, 5, 40, 8)])
def test_groups_of_columns_are_the_same_compiled_and_not(dtype, layout, batch, n, d, r):
    torch.manual_seed(d)
    x, v = (laid_out(torch.randn(batch, n, d, dtype=dtype), layout) for _ in range(2))
    order = torch.randperm(d)
    groups = (order[: d // r * r].view(-1, r), order[d // r * r :].view(1, -1))
    pairs = Index.of_pairs(d).partition(groups)
    angles = 0.3 * torch.randn(batch, pairs.lo.shape[-1], dtype=dtype)
    found = []
    for context in (nullcontext(), only_torch()):
        with context:
            turned = laid_out(x.clone(), layout)
            kernels.rotate_(turned, pairs, angles)
            found.append((kernels.wedge_at(x, v, pairs, 0.7), turned))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("rule", [selections.RandomMatching(), selections.Partition(16)], ids=repr)
@pytest.mark.parametrize("basis", [bases.LeftGivens(), bases.RightGivens()], ids=["left", "right"])
def test_all_or_nothing_moves(
    basis: bases.Basis, rule: selections.Selection, layout: str, threads: int
) -> None:
    """Alone or beside another parameter the step is the same; with one NaN nothing moves at all."""
    torch.set_num_threads(threads)
    start = torch.linalg.qr(torch.randn(300, 300, generator=torch.Generator().manual_seed(0))).Q
    moved = []
    for others in (0, 1):
        params = [
            geoopt.ManifoldParameter(laid_out(start.clone(), layout), manifold=geoopt.EuclideanStiefel())
            for _ in range(1 + others)
        ]
        for param in params:
            param.grad = laid_out(torch.sin(3 * start), layout)
        opt = SRCD(params, lr=0.1, basis=basis, selection=rule)
        opt.step()
        moved.append(params[0].detach().clone())
        params[0].grad[7, 11] = torch.nan
        before = [param.detach().clone() for param in params]
        with pytest.raises(ValueError, match="nothing was changed"):
            opt.step()
        assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))
    assert torch.equal(*moved) and not torch.equal(moved[0], start)
