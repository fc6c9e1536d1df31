"""SRCD inside other people's training loops does what it does in a plain one."""

import copy

import geoopt
import pytest
import torch
from problems_for_tests import violation
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import riemcd
from riemcd import SRCD, selections, stepsizes

lightning = pytest.importorskip("lightning")
accelerate = pytest.importorskip("accelerate")

pytestmark = [
    # How Lightning walks through batches is deprecated in torch.
    pytest.mark.filterwarnings(r"ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # Without a GPU, accelerate's loader is told to pin memory all the same.
    pytest.mark.filterwarnings("ignore:.*pin_memory. argument is set as true"),
]

BATCHES, SIZE, EPOCHS = 6, 8, 2


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES * SIZE, 8, generator=generator)
    return DataLoader(TensorDataset(x, x[:, 0] * x[:, 1]), batch_size=SIZE)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(riemcd.nn.OrthogonalLinear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(net, batch):
    x, y = batch
    return (net(x)[:, 0] - y).square().mean()


RULES = {
    "momentum": lambda p: SRCD(p, lr=0.1, momentum=0.9),
    "cyclic": lambda p: SRCD(p, lr=0.1, momentum=0.9, selection=selections.Cyclic(5)),
    "adam": lambda p: SRCD(p, lr=0.01, stepsize=stepsizes.Adam(), selection=selections.Uniform(3)),
}


def cycle(opt, steps):
    """The lr, and the momentum with it where there is one, through one cycle."""
    return OneCycleLR(opt, 0.2, total_steps=steps, cycle_momentum=opt.defaults["momentum"] > 0)


def plain_loop(make, clip=None, every=1, epochs=EPOCHS):
    """The loop a trainer stands for."""
    net = network()
    opt = make(net.parameters())
    schedule = cycle(opt, 1 + epochs * BATCHES // every)
    for _ in range(epochs):
        for number, batch in enumerate(data()):
            (loss_of(net, batch) / every).backward()
            if (number + 1) % every:
                continue
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            opt.step()
            opt.zero_grad()
            schedule.step()
    return net


def assert_same(net, other):
    for (name, there), here in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(there, here), name


class Task(lightning.LightningModule):
    def __init__(self, make, steps):
        super().__init__()
        self.net, self.make, self.steps = network(), make, steps
        self.losses = []

    def training_step(self, batch, number):
        loss = loss_of(self.net, batch)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        opt = self.make(self.parameters())
        schedule = {"scheduler": cycle(opt, self.steps), "interval": "step"}
        return {"optimizer": opt, "lr_scheduler": schedule}


def trainer(epochs=EPOCHS, **options):
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("clip", "every"), [(None, 1), (0.1, 1), (None, 3), (0.1, 3)])
def test_lightning_is_the_plain_loop(rule, clip, every):
    """Lightning steps through a closure, with OneCycleLR, clipping and accumulation."""
    make = RULES[rule]
    task = Task(make, 1 + EPOCHS * BATCHES // every)
    trainer(gradient_clip_val=clip, accumulate_grad_batches=every).fit(task, data())
    assert_same(task.net, plain_loop(make, clip, every))
    assert violation(task.net[0].weight) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_lightning_resumes_in_the_middle_of_a_sweep(rule, tmp_path):
    """After one epoch a sweep of 28 coordinates, five at a time, is not at its end."""
    make, steps = RULES[rule], 1 + EPOCHS * BATCHES
    first = Task(make, steps)
    run = trainer(1)
    run.fit(first, data())
    run.save_checkpoint(tmp_path / "run.ckpt")
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert saved["optimizer_states"][0]["state"][0]["step"] == BATCHES
    second = Task(make, steps)
    with torch.no_grad():
        riemcd.nn.init.haar_(second.net[0].weight)  # what is loaded must not depend on what was there
    trainer(2).fit(second, data(), ckpt_path=tmp_path / "run.ckpt")
    assert len(second.losses) == BATCHES
    assert_same(second.net, plain_loop(make))


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lightning_trains_in_bfloat16(precision):
    """As well as in float32: the last epoch's loss is the same to the few digits that bfloat16 has."""
    exact = Task(lambda p: SRCD(p, lr=0.1, momentum=0.9, stabilize=10), 1 + 20 * BATCHES)
    trainer(20).fit(exact, data())
    task = Task(lambda p: SRCD(p, lr=0.1, momentum=0.9, stabilize=10), 1 + 20 * BATCHES)
    trainer(20, precision=precision).fit(task, data())
    W = task.net[0].weight
    assert isinstance(W, geoopt.ManifoldParameter)
    assert W.dtype is (torch.bfloat16 if precision == "bf16-true" else torch.float32)
    assert violation(W) < (0.05 if precision == "bf16-true" else 1e-5)
    last, first = sum(task.losses[-BATCHES:]), sum(task.losses[:BATCHES])
    assert last < first and last == pytest.approx(sum(exact.losses[-BATCHES:]), rel=0.1)


def test_lightning_cannot_train_geoopts_optimizer_in_bfloat16():
    """RiemannianSGD retracts by a QR decomposition in the parameter's own type, which torch does not have."""
    task = Task(lambda p: geoopt.optim.RiemannianSGD(p, lr=0.1, momentum=0.9), 1 + BATCHES)
    with pytest.raises(NotImplementedError, match="not implemented for 'BFloat16'"):
        trainer(1, precision="bf16-true").fit(task, data())


@pytest.mark.parametrize("every", [1, 3])
def test_lightning_without_the_weight_gradient(every):
    """Slopes left by the layer survive Lightning's closures, and its accumulation."""
    seen = []

    def make(params):
        opt = SRCD(params, lr=0.1, momentum=0.9, skip_weight_grad=True)
        opt.register_step_pre_hook(lambda opt, *_: seen.append(opt.param_groups[0]["params"][0].grad))
        return opt

    task = Task(make, 1 + EPOCHS * BATCHES // every)
    trainer(accumulate_grad_batches=every).fit(task, data())
    expected = plain_loop(RULES["momentum"], every=every)
    for here, there in zip(task.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    assert len(seen) == EPOCHS * BATCHES // every and set(seen) == {None}


@pytest.fixture
def accelerator():
    """Make accelerators; their settings are global, so they are forgotten before and after."""
    from accelerate.state import AcceleratorState, GradientState

    def forget():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    forget()
    yield lambda **options: accelerate.Accelerator(cpu=True, **options)
    forget()


def accelerated(accelerator, make, clip=None, epochs=EPOCHS, steps=None, before=None):
    """The same loop as accelerate's manual writes it; return the accelerator and the bare network."""
    net = network()
    opt = make(net.parameters())
    every = accelerator.gradient_accumulation_steps
    schedule = cycle(opt, steps or 1 + epochs * BATCHES // every)
    wrapped, opt, loader, schedule = accelerator.prepare(net, opt, data(), schedule)
    if before is not None:
        before()
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(wrapped):
                accelerator.backward(loss_of(wrapped, batch))
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), clip)
                opt.step()
                schedule.step()
                opt.zero_grad()
    return accelerator.unwrap_model(wrapped)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("clip", "every"), [(None, 1), (0.1, 3)])
def test_accelerate_is_the_plain_loop(accelerator, rule, clip, every):
    net = accelerated(accelerator(gradient_accumulation_steps=every), RULES[rule], clip)
    assert_same(net, plain_loop(RULES[rule], clip, every))


@pytest.mark.parametrize("rule", RULES)
def test_accelerate_saves_and_loads(accelerator, rule, tmp_path):
    steps = 1 + EPOCHS * BATCHES
    first = accelerator()
    accelerated(first, RULES[rule], epochs=1, steps=steps)
    first.save_state(str(tmp_path))
    second = accelerator()
    net = accelerated(
        second, RULES[rule], epochs=1, steps=steps, before=lambda: second.load_state(str(tmp_path))
    )
    assert isinstance(net[0].weight, geoopt.ManifoldParameter)
    assert_same(net, plain_loop(RULES[rule]))


def test_accelerate_in_bfloat16(accelerator):
    net = accelerated(accelerator(mixed_precision="bf16"), RULES["momentum"], epochs=20)
    exact = plain_loop(RULES["momentum"], epochs=20)
    before, after, other = (
        sum(float(loss_of(n, b).detach()) for b in data()) for n in (network(), net.float(), exact)
    )
    assert violation(net[0].weight) < 1e-5 and after < before and after == pytest.approx(other, rel=0.1)


def test_what_a_trainer_copies_is_the_same_model():
    """Trainers copy modules (for averages, for the best one so far): points stay points."""
    net = copy.deepcopy(network())
    assert isinstance(net[0].weight, geoopt.ManifoldParameter)
    assert_same(net, network())
