"""Adaptive steps per coordinate against torch's dense optimizers run on the coefficients themselves."""

import dataclasses

import geoopt
import pytest
import torch
from copying_task import train

import riemcd
from riemcd.bases import LeftGivens, RightGivens
from riemcd.coordstate import CoordinateState
from riemcd.selections import All, Cyclic, Partition, RandomMatching
from riemcd.stepsizes import Adam, Clipped, Constant, Exact, Momentum, RMSProp, RobbinsMonroLR, TheoremLR

RULES = [RMSProp(), RMSProp(0.9, 1e-6), Adam(), Adam((0.8, 0.9), 1e-6), Adam(amsgrad=True)]
EACH_RULE = pytest.mark.parametrize("rule", RULES, ids=repr)


def orthogonal(d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator)).Q


def on_manifold(d, seed=0):
    return geoopt.ManifoldParameter(orthogonal(d, seed), manifold=geoopt.EuclideanStiefel())


def gradient(d, step):
    return torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


@EACH_RULE
def test_all_coordinates_follow_the_dense_algorithm_in_the_frame(rule):
    d = 6
    W = on_manifold(d)
    opt = riemcd.SRCD([W], lr=0.02, stepsize=rule, selection=All())
    coefficients = torch.nn.Parameter(torch.zeros(15, dtype=torch.float64))
    dense = rule.torch_optimizer([coefficients], lr=0.02)
    V = orthogonal(d)
    lo, hi = torch.triu_indices(d, d, 1)
    for step in range(12):
        W.grad = gradient(d, step)
        A = V.T @ W.grad
        coefficients.grad = (A - A.T)[lo, hi] / 2**0.5
        before = coefficients.detach().clone()
        dense.step()
        opt.step()
        omega = torch.zeros(d, d, dtype=torch.float64)
        omega[lo, hi] = (coefficients.detach() - before) / 2**0.5
        V = V @ torch.linalg.matrix_exp(omega - omega.T)
        torch.testing.assert_close(W.detach().as_subclass(torch.Tensor), V, atol=1e-9, rtol=0)


@EACH_RULE
@pytest.mark.parametrize("k", [1, 4])
def test_a_coordinate_sees_torch_run_on_its_own_visits(rule, k):
    """However rare: a coordinate first visited late is treated as one visited first."""
    count, entries = 7, {}
    own = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(count)]
    dense = [rule.torch_optimizer([p], lr=0.1) for p in own]
    generator = torch.Generator().manual_seed(k)
    for step in range(40):
        within = count if step > 20 else 4  # the last three coordinates are not visited before step 21
        coords = torch.randperm(within, generator=generator)[:k]
        slopes = torch.randn(k, dtype=torch.float64, generator=generator)
        state = CoordinateState(entries, coords, torch.Size(()), count, slopes)
        amounts = rule.amounts(slopes, coords, lr=0.1, basis=RightGivens(), state=state)
        for i, slope, amount in zip(coords.tolist(), slopes, amounts, strict=True):
            before = own[i].detach().clone()
            own[i].grad = slope[None]
            dense[i].step()
            torch.testing.assert_close(amount, (own[i].detach() - before)[0], atol=1e-14, rtol=1e-12)


def test_only_touched_coordinates_are_remembered():
    W = on_manifold(6)
    for rule in (RMSProp(), Adam()):
        opt = riemcd.SRCD([W], lr=0.01, stepsize=rule, selection=Cyclic(4))
        W.grad = gradient(6, 0)
        opt.step()
        for name, value in opt.state[W].items():
            if name in ("square_avg", "exp_avg", "exp_avg_sq", "visits"):
                assert bool(value[:4].all()) and not value[4:].any()


OPTIONS = [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}]


@pytest.mark.parametrize(
    ("rule", "options"),
    # Adam refuses a momentum beside its own.
    [(r, o) for r in RULES for o in OPTIONS if not ("momentum" in o and isinstance(r, Adam))],
)
def test_plain_parameters_get_torch_bit_for_bit(rule, options):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(5, 3, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    opt = riemcd.SRCD([{"params": [ours]}, {"params": [on_manifold(2)], "weight_decay": 0}], lr=0.03,
                      stepsize=rule, **options)  # fmt: skip
    reference = rule.torch_optimizer([theirs], lr=0.03, **options)
    for _ in range(6):
        ours.grad = torch.randn(5, 3, generator=generator)
        theirs.grad = ours.grad.clone()
        opt.step()
        reference.step()
        assert torch.equal(ours, theirs)


def test_dampening_that_torch_does_not_know_is_still_served():
    for options in ({"dampening": 0.5}, {"nesterov": True}):
        p = torch.nn.Parameter(torch.ones(4))
        opt = riemcd.SRCD([{"params": [p]}, {"params": [on_manifold(2)]}], lr=0.01, momentum=0.9,
                          stepsize=RMSProp(), **options)  # fmt: skip
        p.grad = torch.tensor([1.0, -1.0, 2.0, 0.0])
        opt.step()
        assert bool(((p.detach() - 1) * p.grad <= 0).all()) and p[3] == 1


def test_clipping_bounds_the_angle_and_counts():
    for manifold, shape in ((geoopt.EuclideanStiefel(), (6, 6)), (geoopt.CanonicalStiefel(), (6, 6)),
                            (geoopt.EuclideanStiefel(), (6, 3))):  # fmt: skip
        W = geoopt.ManifoldParameter(torch.eye(6, dtype=torch.float64)[:, : shape[1]], manifold=manifold)
        opt = riemcd.SRCD([W], lr=1e4, stepsize=Clipped(Constant(), 0.1))
        W.grad = gradient(6, 0)[:, : shape[1]].contiguous()
        opt.step()
        assert opt.last_step.largest_angle == pytest.approx(0.1)
        assert opt.last_step.clipped == 3
        opt.param_groups[0]["lr"] = 1e-4
        W.grad = gradient(6, 1)[:, : shape[1]].contiguous()
        opt.step()
        assert opt.last_step.clipped == 0 and opt.last_step.largest_angle < 0.1


def test_momentum_goes_inside_a_clip():
    rule = Clipped(Constant(), 0.1).wrapped_by(lambda inner: Momentum(inner, 0.9))
    assert rule == Clipped(Momentum(Constant(), 0.9), 0.1)
    assert rule.stateful and not Clipped(Constant(), 0.1).stateful
    W = on_manifold(4)
    opt = riemcd.SRCD([W], lr=1.0, momentum=0.9, stepsize=Clipped(Constant(), 1e-3), selection=All())
    for step in range(2):
        W.grad = gradient(4, 0) if step == 0 else torch.zeros(4, 4, dtype=torch.float64)
        opt.step()
    # The buffer kept what was wanted, not what was allowed: the ball rolls on.
    assert opt.last_step.largest_angle == pytest.approx(1e-3)


def test_a_clip_leaves_plain_parameters_alone():
    p = torch.nn.Parameter(torch.zeros(3))
    opt = riemcd.SRCD(
        [{"params": [p]}, {"params": [on_manifold(2)]}], lr=1.0, stepsize=Clipped(Constant(), 0.1)
    )
    p.grad = torch.ones(3)
    opt.step()
    assert torch.equal(p.detach(), -torch.ones(3))


def test_refusals():
    W = on_manifold(4)
    with pytest.raises(ValueError, match=r"riemcd\.minimize"):
        riemcd.SRCD([W], stepsize=Exact())
    with pytest.raises(ValueError, match=r"riemcd\.minimize"):
        riemcd.SRCD([{"params": [torch.nn.Parameter(torch.zeros(2))]}, {"params": [W]}], stepsize=Exact(1.8))
    with pytest.raises(ValueError, match=r"riemcd\.minimize"):
        riemcd.SRCD([W], stepsize=Clipped(Exact(), 0.1))
    with pytest.raises(ValueError, match="momentum= must be 0"):
        riemcd.SRCD([W], momentum=0.9, stepsize=Adam())
    with pytest.raises(ValueError, match="momentum= must be 0"):
        riemcd.SRCD([W], momentum=0.9, stepsize=Clipped(Adam(), 0.1))
    with pytest.raises(TypeError, match="StepSize"):
        Clipped(0.1, 0.1)
    for make in (
        lambda: RMSProp(alpha=1.0),
        lambda: RMSProp(eps=-1.0),
        lambda: Adam((0.9, 1.0)),
        lambda: Clipped(Constant(), 0.0),
        lambda: Exact(relax=2.0),
        lambda: Exact(relax=0.0),
    ):
        with pytest.raises(ValueError, match="must lie in"):
            make()
    for make in (
        lambda: RMSProp(alpha="a"),
        lambda: Adam(0.9),
        lambda: Adam(amsgrad=1),
        lambda: Exact(reflections=1),
    ):
        with pytest.raises(TypeError):
            make()
    for rule in RULES:
        assert dataclasses.replace(rule) == rule


def test_robbins_monro_rates():
    p = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD(
        [{"params": [p], "lr": 0.5}, {"params": [torch.zeros(1, requires_grad=True)], "lr": 2.0}]
    )
    scheduler = RobbinsMonroLR(opt, power=0.75, delay=10)
    for k in range(50):
        assert scheduler.get_last_lr() == pytest.approx([lr * (1 + k / 10) ** -0.75 for lr in (0.5, 2.0)])
        opt.step()
        scheduler.step()
    saved = scheduler.state_dict()
    again = RobbinsMonroLR(opt, power=0.6)
    again.load_state_dict(saved)
    assert again.power == 0.75
    for power in (0.5, 1.01):
        with pytest.raises(ValueError, match="power"):
            RobbinsMonroLR(opt, power=power)


def test_the_rule_of_the_theorem_keeps_its_condition():
    W = on_manifold(4)
    opt = riemcd.SRCD([W], lr=123.0)
    L, mu, M = 5.0, 0.3, 2.0
    scheduler = TheoremLR(opt, L, mu, M, power=1.0)
    rates = []
    for _ in range(20):
        rates += scheduler.get_last_lr()
        W.grad = gradient(4, 0)
        opt.step()
        scheduler.step()
    assert rates[0] == pytest.approx(mu / (L * M))
    assert all(rate * L * M <= mu * (1 + 1e-12) for rate in rates)
    assert rates == pytest.approx([rates[0] / (1 + k) for k in range(20)])
    with pytest.raises(ValueError, match="smoothness"):
        TheoremLR(opt, 0.0)


@dataclasses.dataclass(frozen=True)
class _Decaying(riemcd.stepsizes.StepSize):
    """The other momentum: an untouched buffer decays by the steps it missed."""

    stateful = True

    @classmethod
    def examples(cls):
        return [cls()]

    def amounts(self, slopes, coords, *, lr, basis, state):
        now = state.entries["clock"] = state.entries.get("clock", 0) + 1
        last = state.read("last", torch.int64)
        ball = 0.9 ** (now - last).double() * state.read("ball") - slopes
        state.write("ball", ball)
        state.write("last", torch.full_like(last, now))
        return ball * lr


def _distance_after(rule, lr, steps=1100, d=12):
    target, C = orthogonal(d, 5), torch.diag(torch.logspace(-1, 0.5, d, dtype=torch.float64))
    skew = gradient(d, 6) * 0.6 / d**0.5
    start = target @ torch.linalg.matrix_exp(skew - skew.T)
    W = geoopt.ManifoldParameter(start, manifold=geoopt.EuclideanStiefel())
    opt = riemcd.SRCD([W], lr=lr, stepsize=rule, selection=RandomMatching())
    for _ in range(steps):
        W.grad = ((W.detach() - target) @ C @ C).as_subclass(torch.Tensor)
        opt.step()
    return float(((W.detach() - target) @ C).square().sum())


def test_momentum_that_waits_beats_momentum_that_decays():
    """Each with its best rate; about a hundred visits of every coordinate."""
    rules = (Momentum(Constant(), 0.9), _Decaying())
    rates = (0.03, 0.1, 0.3)
    waits, decays = (min(_distance_after(rule, lr) for lr in rates) for rule in rules)
    assert waits < decays / 5


def test_left_rotations_keep_moments_too():
    W = geoopt.ManifoldParameter(orthogonal(6)[:, :3].contiguous(), manifold=geoopt.EuclideanStiefel())
    opt = riemcd.SRCD([W], lr=0.05, stepsize=Adam(), basis=LeftGivens())
    target = orthogonal(6, 9)[:, :3]
    losses = []
    for _ in range(300):
        losses.append(float((W.detach() - target).square().sum()))
        W.grad = 2 * (W.detach() - target).as_subclass(torch.Tensor)
        opt.step()
    assert losses[-1] < 1e-2 * losses[0]


@pytest.mark.long
def test_copying_memory():
    """Hidden size 190, delay 100, batch 128: the mean loss of three seeds over iterations 280 to 300.

    All parameters, the recurrent matrix under every rule included, have a learning rate of 1e-3.
    """
    rules = {"frozen": None, "full": All(), "partition": Partition(19), "matching": RandomMatching()}
    mean = {}
    for name, selection in rules.items():
        lr = None if selection is None else 1e-3
        losses = [recent(train(seed, selection=selection, lr=lr), 20) for seed in range(3)]
        mean[name] = sum(losses) / 3
        print(name, " ".join(f"{loss:.5f}" for loss in losses))
    assert mean["partition"] <= mean["full"]
    assert mean["matching"] <= 5 * mean["full"]
    assert max(mean["full"], mean["partition"], mean["matching"]) <= mean["frozen"] / 3


def recent(losses, count):
    return sum(losses[-count:]) / count


def test_copying_memory_scaled_down():
    options = {"hidden": 48, "delay": 20, "iterations": 80}
    frozen = recent(train(0, **options), 20)
    full = recent(train(0, selection=All(), lr=1e-3, **options), 20)
    partition = recent(train(0, selection=Partition(12), lr=1e-3, **options), 20)
    matching = recent(train(0, selection=RandomMatching(), lr=1e-3, **options), 20)
    assert max(full, partition, matching) < frozen
    assert matching <= 5 * full
