"""SRCD against independent oracles: geoopt's RiemannianSGD, dense exponentials, torch.optim.SGD."""

import copy
import io
import math
import pickle

import geoopt
import pytest
import scipy.linalg
import torch
from problems_for_tests import orthogonal, parameter, quartic, train, violation

import riemcd
from riemcd import SRCD, bases, selections, stepsizes

GIVENS = [bases.RightGivens(), bases.LeftGivens()]


@pytest.mark.parametrize("basis", GIVENS, ids=repr)
@pytest.mark.parametrize("d", [2, 5, 20])
def test_all_coordinates_are_riemannian_gradient_descent(basis, d):
    # Steps below 3e-4 in norm: above it, up to 5e-2, geoopt's exponential inherits an error of up to
    # 2e-10 from torch.linalg.matrix_exp; there the dense comparison below takes over.
    loss = quartic((d, d))
    ours, theirs = parameter(d, d), parameter(d, d)
    lr = 2e-4 / d
    train(SRCD([ours], lr=lr, selection=selections.All(), basis=basis), ours, loss, 50)
    train(geoopt.optim.RiemannianSGD([theirs], lr=lr), theirs, loss, 50)
    assert (ours - theirs).abs().max() <= 1e-12
    assert (ours.detach() - orthogonal(d, d)).norm() > 1e-3  # it did move


@pytest.mark.parametrize("basis", GIVENS, ids=repr)
@pytest.mark.parametrize("lr", [1e-3, 1e-2, 0.1])
def test_all_coordinates_follow_the_dense_exponential(basis, lr):
    d = 12
    loss = quartic((d, d))
    ours = parameter(d, d)
    train(SRCD([ours], lr=lr, selection=selections.All(), basis=basis), ours, loss, 50)
    W = orthogonal(d, d)
    for _ in range(50):
        leaf = W.clone().requires_grad_()
        (G,) = torch.autograd.grad(loss(leaf), leaf)
        A = W.T @ G
        W = W @ torch.from_numpy(scipy.linalg.expm((-lr * (A - A.T) / 2).numpy()))
    assert (ours - W).abs().max() <= 1e-12


def test_large_steps_equal_riemannian_sgd():
    loss = quartic((9, 9))
    ours, theirs = parameter(9, 9), parameter(9, 9)
    train(SRCD([ours], lr=0.05, selection=selections.All()), ours, loss, 5)
    train(geoopt.optim.RiemannianSGD([theirs], lr=0.05), theirs, loss, 5)
    assert (ours - theirs).abs().max() <= 1e-12


@pytest.mark.parametrize("d", [2, 7, 30])
def test_one_coordinate_is_the_dense_exponential(d):
    W = orthogonal(d, d)
    for i in range(0, d * (d - 1) // 2, max(1, d // 3)):
        j = next(j for j in range(d) if i < (j + 1) * d - (j + 1) * (j + 2) // 2)
        l = i - (j * d - j * (j + 1) // 2) + j + 1
        H = torch.zeros(d, d, dtype=torch.float64)
        H[j, l], H[l, j] = 1 / math.sqrt(2), -1 / math.sqrt(2)
        for t in (1e-9, -0.3, 2.5):
            for basis, dense in (
                (bases.RightGivens(), lambda q: W @ q),
                (bases.LeftGivens(), lambda q: q @ W),
            ):
                moved = W.clone()
                basis.move_(moved, torch.tensor([i]), torch.tensor([t], dtype=torch.float64))
                expected = dense(torch.from_numpy(scipy.linalg.expm((t * H).numpy())))
                assert (moved - expected).abs().max() <= 1e-14


def test_numbering_is_the_papers():
    d = 6
    pairs = [(j, l) for j in range(1, d) for l in range(j + 1, d + 1)]
    lo, hi = riemcd.index.linear_to_pair(torch.arange(d * (d - 1) // 2), d)
    for i, (j, l) in enumerate(pairs, start=1):
        assert i == sum(d - k for k in range(1, j)) + (l - j)
        assert (int(lo[i - 1]), int(hi[i - 1])) == (j - 1, l - 1)


@pytest.mark.parametrize("d", [1, 2, 3, 1000, 65_536])
def test_numbering_there_and_back(d):
    count = d * (d - 1) // 2
    i = torch.unique(torch.linspace(0, max(count - 1, 0), 5000).round().long().clamp(0, max(count - 1, 0)))
    i = i if count else i[:0]
    lo, hi = riemcd.index.linear_to_pair(i, d)
    assert torch.all((lo >= 0) & (lo < hi) & (hi < d))
    assert torch.equal(riemcd.index.pair_to_linear(lo, hi, d), i)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"momentum": 0.8, "dampening": 0.3},
        {"weight_decay": 0.1, "maximize": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("on_euclidean", [False, True])
def test_plain_parameters_get_sgd_bit_for_bit(options, on_euclidean):
    start = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Parameter(start.clone())
    ours = geoopt.ManifoldParameter(start.clone()) if on_euclidean else torch.nn.Parameter(start.clone())
    rotation = parameter(3, 3, dtype=torch.float32)
    groups = [{"params": [ours]}, {"params": [rotation], "weight_decay": 0}]
    opt, reference = SRCD(groups, lr=0.01, **options), torch.optim.SGD([theirs], lr=0.01, **options)
    loss = quartic((5, 4), dtype=torch.float32)
    train(opt, ours, loss, 12)
    train(reference, theirs, loss, 12)
    assert torch.isfinite(ours).all()
    assert torch.equal(ours, theirs)


def test_textual_swap_with_riemannian_sgd():
    for cls in (geoopt.optim.RiemannianSGD, SRCD):
        W, bias = parameter(6, 6), torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
        opt = cls([{"params": [W]}, {"params": [bias], "lr": 1e-2}], 0.1, 0.9, 0, 0, True, 10)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 10, 0.5)
        target = orthogonal(6, 6, seed=3)
        for _ in range(300):
            loss = (W @ target + bias).square().sum() - 4 * (W * target.T).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()
        assert violation(W) < 1e-10
        assert float(loss.detach()) < -12  # from about 6 down to -24 + 6


def test_it_reaches_the_optimum_of_procrustes():
    M = torch.randn(8, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    best = float(torch.linalg.svdvals(M).sum())
    for manifold in (geoopt.EuclideanStiefel(), geoopt.CanonicalStiefel()):
        X = parameter(8, 5, manifold=manifold)
        opt = SRCD([X], lr=0.2)
        train(opt, X, lambda x: -(x * M).sum(), 2000)
        assert best + float((-(X * M).sum()).detach()) < 1e-6 * best


def test_maximize_climbs():
    M = orthogonal(5, 5, seed=4)
    X = parameter(5, 5)
    opt = SRCD([X], lr=0.1, maximize=True)
    before = float((X * M).sum().detach())
    train(opt, X, lambda x: (x * M).sum(), 100)
    assert float((X * M).sum().detach()) > before


def test_closure_runs_once_with_gradients_and_its_value_returns():
    W, calls = parameter(4, 4), []
    opt = SRCD([W], lr=0.1)

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = quartic((4, 4))(W)
        loss.backward()
        return loss

    with torch.no_grad():
        value = opt.step(closure)
    assert calls == [True]
    assert torch.equal(value, quartic((4, 4))(orthogonal(4, 4)))


def test_gradients_are_never_written_and_parameters_stay_themselves():
    base = torch.empty(6, 12, dtype=torch.float64)
    view = base[:, ::2]
    view.copy_(orthogonal(6, 6))
    W = geoopt.ManifoldParameter(view, manifold=geoopt.EuclideanStiefel())
    pointer, stride = W.data_ptr(), W.stride()
    opt = SRCD([W], lr=0.1, momentum=0.9, maximize=True, weight_decay=0)
    for _ in range(3):
        opt.zero_grad()
        quartic((6, 6))(W).backward()
        grad, kept = W.grad, W.grad.clone()
        opt.step()
        assert W.grad is grad and torch.equal(grad, kept)
    assert (W.data_ptr(), W.stride()) == (pointer, stride)
    assert opt.param_groups[0]["params"][0] is W


def test_parameters_without_gradient_are_skipped():
    W, V = parameter(4, 4), parameter(4, 4, seed=1)
    opt = SRCD([W, V], lr=0.1)
    quartic((4, 4))(W).backward()
    opt.step()
    assert torch.equal(V, orthogonal(4, 4, seed=1)) and V not in opt.state
    assert not torch.equal(W, orthogonal(4, 4))


@pytest.mark.parametrize("lr", [torch.tensor(0.1), torch.tensor([0.1]), torch.tensor([[0.1]])])
def test_tensor_lr_of_any_one_element_shape(lr):
    ours, theirs = parameter(5, 5), parameter(5, 5)
    loss = quartic((5, 5))
    train(SRCD([ours], lr=lr), ours, loss, 5)
    train(SRCD([theirs], lr=float(lr)), theirs, loss, 5)
    assert (ours - theirs).abs().max() < 1e-7
    assert (ours - orthogonal(5, 5)).abs().max() > 1e-3


def test_options_may_differ_between_groups():
    W, V = parameter(6, 6), parameter(6, 6, seed=1)
    groups = [
        {"params": [W], "selection": selections.All(), "lr": 0.0},
        {"params": [V], "basis": bases.LeftGivens(), "selection": selections.Uniform(2), "momentum": 0.5},
    ]
    opt = SRCD(groups, lr=0.1)
    (quartic((6, 6))(W) + quartic((6, 6))(V)).backward()
    opt.step()
    assert torch.equal(W, orthogonal(6, 6))
    assert opt.last_step.coordinates["1.0"].numel() == 2
    assert opt.plans[V].basis == bases.LeftGivens(canonical=False)
    apart = parameter(6, 6, seed=1)
    single = SRCD([{"params": [parameter(2, 2)]}, {**groups[1], "params": [apart]}], lr=0.1)
    quartic((6, 6))(apart).backward()
    single.step()
    assert torch.equal(apart, V)


def test_a_plug_in_may_be_changed_between_steps():
    W = parameter(6, 6)
    opt = SRCD([W], lr=0.1)
    train(opt, W, quartic((6, 6)), 1)
    assert opt.last_step.coordinates["0.0"].numel() == 3
    opt.param_groups[0]["selection"] = selections.All()
    train(opt, W, quartic((6, 6)), 1)
    assert opt.last_step.coordinates["0.0"].numel() == 15
    assert opt.param_groups[0]["selection"] == "All()"


def test_plain_parameters_may_get_their_manifold_from_the_group():
    plain = torch.nn.Parameter(orthogonal(5, 5))
    declared = parameter(5, 5)
    loss = quartic((5, 5))
    train(SRCD([{"params": [plain], "manifold": geoopt.EuclideanStiefelExact()}], lr=0.1), plain, loss, 5)
    train(SRCD([declared], lr=0.1), declared, loss, 5)
    assert torch.equal(plain, declared)


def test_stabilize_projects_every_so_many_steps():
    W = parameter(8, 8, dtype=torch.float32)
    with torch.no_grad():
        W.mul_(1 + 4e-6)
    opt = SRCD([W], lr=0.0, stabilize=3)
    off = []
    for _ in range(6):
        W.grad = torch.zeros(8, 8)
        opt.step()
        off.append(violation(W))
    assert off[1] > 1e-5 and off[2] < 3e-6 and off[5] < 3e-6
    with torch.no_grad():
        W.mul_(1 + 4e-6)
    opt.stabilize()
    assert violation(W) < 3e-6


def test_momentum_on_all_coordinates_is_momentum_in_the_frame():
    d, lr, mu = 6, 0.05, 0.9
    ours = parameter(d, d)
    train(SRCD([ours], lr=lr, momentum=mu, selection=selections.All()), ours, quartic((d, d)), 10)
    W, buffer = orthogonal(d, d), torch.zeros(d, d, dtype=torch.float64)
    for _ in range(10):
        leaf = W.clone().requires_grad_()
        (G,) = torch.autograd.grad(quartic((d, d))(leaf), leaf)
        A = (W.T @ G - G.T @ W) / 2
        buffer = mu * buffer + A
        W = W @ torch.from_numpy(scipy.linalg.expm((-lr * buffer).numpy()))
    assert (ours - W).abs().max() < 1e-12


@pytest.mark.parametrize(
    "selection", [selections.Cyclic(4), selections.Uniform(3), selections.RandomMatching()]
)
def test_resume_in_mid_sweep_equals_the_uninterrupted_run(selection, tmp_path):
    def start():
        W = parameter(7, 7, dtype=torch.float32)
        return W, SRCD([W], lr=0.05, momentum=0.9, selection=selection, seed=5)

    loss = quartic((7, 7), dtype=torch.float32)
    whole, opt = start()
    train(opt, whole, loss, 11)
    half, opt = start()
    train(opt, half, loss, 4)
    torch.save({"W": half.detach().as_subclass(torch.Tensor), "opt": opt.state_dict()}, tmp_path / "c.pt")
    resumed, opt = start()
    saved = torch.load(tmp_path / "c.pt", weights_only=True)
    with torch.no_grad():
        resumed.copy_(saved["W"])
    opt.load_state_dict(saved["opt"])
    before = resumed.detach().clone()
    train(opt, resumed, loss, 7)
    assert torch.equal(resumed, whole)
    assert not torch.equal(resumed, before)


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_alike(copier):
    W = parameter(5, 5)
    opt = SRCD([W], lr=0.1, momentum=0.9, selection=selections.Uniform(2))
    train(opt, W, quartic((5, 5)), 3)
    twin = copier(opt)
    V = twin.param_groups[0]["params"][0]
    assert V is not W
    train(opt, W, quartic((5, 5)), 3)
    before = V.detach().clone()
    train(twin, V, quartic((5, 5)), 3)
    assert torch.equal(W, V) and not torch.equal(V, before)
    assert repr(opt) == repr(twin)


def test_an_older_checkpoint_without_the_newer_keys_loads():
    W = parameter(5, 5)
    opt = SRCD([W], lr=0.1)
    train(opt, W, quartic((5, 5)), 2)
    saved = opt.state_dict()
    for name in ("nonfinite", "selection", "seed", "manifold"):
        del saved["param_groups"][0][name]
    opt.load_state_dict(saved)
    before = W.detach().clone()
    train(opt, W, quartic((5, 5)), 2)
    assert not torch.equal(W, before) and opt.param_groups[0]["nonfinite"] == "raise"


def test_states_keep_their_dtype_through_a_checkpoint():
    W = parameter(6, 6, dtype=torch.bfloat16)
    opt = SRCD([W], lr=0.1, momentum=0.9, dampening=0.5)
    W.grad = torch.randn(6, 6).bfloat16()
    opt.step()
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    V = parameter(6, 6, dtype=torch.bfloat16)
    other = SRCD([V], lr=0.1, momentum=0.9, dampening=0.5)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.state[V]["momentum_buffer"].dtype == torch.float32
    assert other.state[V]["momentum_seen"].dtype == torch.bool
    assert torch.equal(other.state[V]["momentum_buffer"], opt.state[W]["momentum_buffer"])


def test_every_scheduler_of_lr_and_momentum_is_obeyed():
    W = parameter(5, 5)
    opt = SRCD([W], lr=0.1, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=10)
    seen = set()
    for _ in range(9):
        train(opt, W, quartic((5, 5)), 1)
        cycle.step()
        seen.add((opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]))
    assert len(seen) == 9 and violation(W) < 1e-12


def test_named_parameters_are_named_in_errors_and_records():
    layer = riemcd.constrain_(torch.nn.Linear(4, 4))
    opt = SRCD(layer.named_parameters(), lr=0.1)
    layer(torch.randn(3, 4)).square().sum().backward()
    opt.step()
    assert set(opt.last_step.coordinates) == {"weight"}
    layer.weight.grad.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"parameter 'weight', shape \(4, 4\)"):
        opt.step()


@pytest.mark.parametrize("d", [2, 5, 9])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_draw_identities_by_enumeration(d, side):
    """E_i[p_i eta_i] = grad / D and E_i[p_i^2] = |grad|^2 / D, with directions written out densely."""
    W, G = (
        orthogonal(d, d),
        torch.randn(d, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64),
    )
    basis = bases.RightGivens() if side == "right" else bases.LeftGivens()
    D = d * (d - 1) // 2
    etas = []
    for j in range(d):
        for l in range(j + 1, d):
            H = torch.zeros(d, d, dtype=torch.float64)
            H[j, l], H[l, j] = 1 / math.sqrt(2), -1 / math.sqrt(2)
            etas.append(W @ H if side == "right" else H @ W)
    partials = torch.stack([basis.partials(basis.covector(W, G), torch.tensor([i]))[0] for i in range(D)])
    gradient = W @ (W.T @ G - G.T @ W) / 2
    assert (
        sum(p * eta for p, eta in zip(partials, etas, strict=True)) / D - gradient / D
    ).abs().max() < 1e-14
    assert float(partials.square().mean()) == pytest.approx(float(gradient.square().sum()) / D, rel=1e-13)


def test_last_step_tells_what_happened():
    W = parameter(6, 6)
    opt = SRCD([W], lr=0.1, selection=selections.Uniform(2))
    assert opt.last_step.coordinates == {} and opt.last_step.largest_angle == 0
    quartic((6, 6))(W).backward()
    slopes = riemcd.diagnostics.partial_derivatives(W)
    opt.step()
    chosen = opt.last_step.coordinates["0.0"]
    assert opt.last_step.largest_angle == pytest.approx(
        float(0.1 * slopes[chosen].abs().max() / math.sqrt(2))
    )
    assert opt.last_step.skipped == 0 and opt.last_step.clipped == 0


def test_batches_with_momentum_leave_points_without_gradient_alone():
    W = parameter(4, 5, 5)
    opt = SRCD([W], lr=0.1, momentum=0.9)
    train(opt, W, quartic((4, 5, 5)), 3)
    before, buffer = W.detach().clone(), opt.state[W]["momentum_buffer"].clone()
    W.grad = torch.randn(4, 5, 5, dtype=torch.float64)
    W.grad[1] = 0
    opt.step()
    assert torch.equal(W[1], before[1]) and not torch.equal(W[0], before[0])
    assert torch.equal(opt.state[W]["momentum_buffer"][1], buffer[1])


def test_nothing_to_do_is_no_error():
    one, none = parameter(1, 1), geoopt.ManifoldParameter(torch.empty(0, 3, 3), geoopt.EuclideanStiefel())
    for selection in (None, selections.Uniform(), selections.GaussSouthwell(), selections.All()):
        opt = SRCD([one, none], lr=0.1, selection=selection)
        one.grad, none.grad = torch.ones(1, 1, dtype=torch.float64), torch.empty(0, 3, 3)
        opt.step()
        assert torch.equal(one, orthogonal(1, 1))


@pytest.mark.parametrize(
    "selection", [selections.Uniform(1), selections.GaussSouthwell(3), selections.Cyclic(7)]
)
def test_canonical_and_frobenius_metrics_differ_by_two_in_the_angle(selection):
    d = 6
    frobenius = parameter(d, d, manifold=geoopt.EuclideanStiefel())
    canonical = parameter(d, d, manifold=geoopt.CanonicalStiefel())
    train(SRCD([frobenius], lr=0.2, selection=selection), frobenius, quartic((d, d)), 5)
    train(SRCD([canonical], lr=0.1, selection=selection), canonical, quartic((d, d)), 5)
    assert (frobenius - canonical).abs().max() < 1e-13
    assert (frobenius - orthogonal(d, d)).abs().max() > 1e-3


def test_a_basis_without_a_metric_takes_that_of_the_manifold():
    default = parameter(6, 6, manifold=geoopt.CanonicalStiefel())
    named = parameter(6, 6, manifold=geoopt.CanonicalStiefel())
    train(SRCD([default], lr=0.1), default, quartic((6, 6)), 3)
    train(SRCD([named], lr=0.1, basis=bases.RightGivens()), named, quartic((6, 6)), 3)
    assert torch.equal(default, named)


def test_parameters_of_the_same_name_in_two_groups_are_told_apart():
    W, V = parameter(4, 4), parameter(4, 4, seed=1)
    opt = SRCD([{"params": [("weight", W)]}, {"params": [("weight", V)]}], lr=0.1)
    (quartic((4, 4))(W) + quartic((4, 4))(V)).backward()
    opt.step()
    assert set(opt.last_step.coordinates) == {"weight", "1.weight"}


def test_a_third_partys_stepsize_serves_plain_parameters_too():
    class Signed(stepsizes.StepSize):
        def amounts(self, slopes, coords, *, lr, basis, state):
            return -lr * slopes.sign()

    W, plain = parameter(4, 4), torch.nn.Parameter(torch.zeros(3, 2))
    opt = SRCD([W, plain], lr=0.1, stepsize=Signed())
    plain.grad = torch.tensor([[1.0, -2.0], [0.0, 3.0], [-1.0, 0.5]])
    opt.step()
    assert torch.allclose(plain, -0.1 * plain.grad.sign())
