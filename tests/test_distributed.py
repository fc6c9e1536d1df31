"""Several ranks on gloo: the same weights everywhere, and few bytes between them."""

import copy
import os
import pickle
import signal
import time
from datetime import timedelta
from pathlib import Path

import geoopt
import pytest
import torch
import torch.distributed as dist
from problems_for_tests import violation
from processes import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import riemcd
from riemcd import SRCD, selections, stepsizes
from riemcd.distributed import exclude_
from riemcd.files import save_atomically

D = 12


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        riemcd.nn.OrthogonalLinear(D, D),
        nn.Tanh(),
        riemcd.nn.OrthogonalLinear(D, 5),
        nn.Tanh(),
        nn.Linear(5, 1),
    )


ORTHOGONAL = ["0.weight", "2.weight"]

RULES = {
    "matching": lambda: dict(momentum=0.9),
    "cyclic": lambda: dict(selection=selections.Cyclic(4)),
    "adam": lambda: dict(selection=selections.Uniform(3), stepsize=stepsizes.Adam()),
    "greedy": lambda: dict(selection=selections.GaussSouthwell(3)),
}


def batch(step, ranks, rank=None, rows=4):
    """The whole batch of a step, or the share of a rank."""
    x = torch.randn(ranks * rows, D, generator=torch.Generator().manual_seed(step))
    return x if rank is None else x[rank * rows : (rank + 1) * rows]


def loss_of(net, x):
    return (net(x)[:, 0] - x[:, 0] * x[:, 1]).square().mean()


def weights(net):
    return [param.detach().as_subclass(torch.Tensor).clone() for param in net.parameters()]


def train(rank, ranks, rule, skips, steps):
    """Train a replica that began elsewhere, on a share of the data; return its weights and what was sent."""
    net = network(seed=rank)
    if skips:
        exclude_(net, ORTHOGONAL)
    wrapped = DistributedDataParallel(net)
    opt = SRCD(
        net.named_parameters(),
        lr=0.05,
        skip_weight_grad=skips,
        process_group=dist.group.WORLD,
        **RULES[rule](),
    )
    start, sent, gradients = weights(net), [], set()
    reduce = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent.append(tensor.numel())
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted
    torch.manual_seed(1000 + rank)  # whoever draws from here draws something else on every rank
    for step in range(steps):
        opt.zero_grad()
        loss_of(wrapped, batch(step, ranks, rank)).backward()
        gradients |= {net[0].weight.grad is None}
        opt.step()
    dist.all_reduce = reduce
    return start, weights(net), sent, gradients


def alone(rule, ranks, steps):
    """One process with the whole batch, from the weights of rank 0."""
    net = network(seed=0)
    opt = SRCD(net.named_parameters(), lr=0.05, **RULES[rule]())
    for step in range(steps):
        opt.zero_grad()
        loss_of(net, batch(step, ranks)).backward()
        opt.step()
    return weights(net)


def check_replicas(results, rule, skips, ranks, steps):
    starts, ends, sent, gradients = zip(*results, strict=True)
    for start, end in zip(starts, ends, strict=True):
        assert all(map(torch.equal, start, weights(network(seed=0))))
        assert all(map(torch.equal, end, ends[0]))
    assert violation(ends[0][0]) < 1e-5 and violation(ends[0][2]) < 1e-5
    if not skips:
        assert sent == ([],) * ranks  # DDP has done everything
        return
    assert set().union(*gradients) == {True}
    assert all(len(one) == steps for one in sent)
    count = {"matching": 6 + 6, "cyclic": 4 + 4, "adam": 3 + 3, "greedy": 2 * D * D}[rule]
    assert all(numbers <= count + 2 for one in sent for numbers in one)


CASES = [("matching", True), ("matching", False), ("cyclic", True), ("adam", True), ("greedy", True)]


def train_all(rank, ranks):
    return [train(rank, ranks, rule, skips, 20) for rule, skips in CASES]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What two ranks have found in all of the tests that let them finish: starting them takes longer."""
    return run_ranks(tmp_path_factory.mktemp("ranks"), 2, everything)


def everything(rank, ranks):
    parts = (train_all, irregular, refusals, sharded, zero, payloads)
    return {part.__name__: part(rank, ranks) for part in parts}


def payloads(rank, ranks, d=1024):
    """Bytes handed to collectives for a d x d weight: in DDP's buckets, and by SRCD with a matching."""
    sent = [0, 0]
    wrapped = DistributedDataParallel(nn.Linear(d, d, bias=False))

    def hook(state, bucket):
        sent[0] += bucket.buffer().nbytes
        return allreduce_hook(state, bucket)

    wrapped.register_comm_hook(None, hook)
    wrapped(torch.ones(1, d)).sum().backward()
    net = riemcd.nn.OrthogonalLinear(d, d, bias=False, init=riemcd.nn.init.identity_)
    opt = SRCD(net.parameters(), lr=0.1, skip_weight_grad=True, process_group=dist.group.WORLD)
    reduce = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent[1] += tensor.nbytes
        return reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted
    net(torch.ones(1, d)).pow(3).sum().backward()
    opt.step()
    dist.all_reduce = reduce
    return sent


def test_a_thousand_times_fewer_bytes(two_ranks):
    for dense, few in (one["payloads"] for one in two_ranks):
        assert dense == 4 * 1024**2 and few == 4 * (512 + 1)
        assert dense >= 1000 * few


def test_two_ranks_are_one(two_ranks):
    """Replicas are equal bit for bit, and what one process with all the data would have got."""
    by_rank = [one["train_all"] for one in two_ranks]
    for (rule, skips), *results in zip(CASES, *by_rank, strict=True):
        check_replicas(results, rule, skips, 2, 20)
        for here, there in zip(results[0][1], alone(rule, 2, 20), strict=True):
            torch.testing.assert_close(here, there, rtol=2e-4, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("skips", [False, True])
def test_a_thousand_steps(skips, ranks, tmp_path):
    check_replicas(
        run_ranks(tmp_path, ranks, train, "matching", skips, 1000, timeout=600),
        "matching",
        skips,
        ranks,
        1000,
    )


def layer(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return riemcd.nn.OrthogonalLinear(D, D, bias=False, dtype=dtype)


def optimizer(net, **options):
    return SRCD(net.parameters(), lr=0.1, skip_weight_grad=True, process_group=dist.group.WORLD, **options)


def irregular(rank, ranks):
    """Backward passes that do not come to every rank alike; returns the weight after each of the steps."""
    found = []
    x = torch.randn(8, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    net = layer(rank)
    opt = optimizer(net, momentum=0.9)

    def note():
        opt.step()
        opt.zero_grad()
        found.append(net.weight.detach().as_subclass(torch.Tensor).clone())

    if rank == 0:  # nothing comes to rank 1
        net(x).pow(3).sum().backward()
    note()
    note()  # nothing comes to anybody: no step, no momentum
    for part in x.view(2, 2, 2, D)[rank]:  # two backward passes, one step
        net(part).pow(3).sum().backward()
    note()
    # The weight is also used outside of its layer: an ordinary gradient on one of the ranks.
    net(x[:4]).pow(3).sum().backward()
    if rank == 1:
        net.weight.pow(4).sum().backward()
    note()
    note_of_steps = opt.state[net.weight]["step"]
    return found, note_of_steps


def irregular_alone():
    """The same by hand: averages over two ranks of what each of them has."""
    found = []
    x = torch.randn(8, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    net = layer(0)
    opt = SRCD(net.parameters(), lr=0.1, momentum=0.9)

    def step(loss):
        opt.zero_grad()
        if loss is not None:
            loss.div(2).backward()
            opt.step()
        found.append(net.weight.detach().as_subclass(torch.Tensor).clone())

    step(net(x).pow(3).sum())
    step(None)
    step(net(x).pow(3).sum())
    step(2 * net(x[:4]).pow(3).sum() + net.weight.pow(4).sum())
    return found


def test_ranks_to_which_nothing_comes(two_ranks):
    results = [one["irregular"] for one in two_ranks]
    for found, steps in results:
        assert steps == 3
        assert all(map(torch.equal, found, results[0][0]))
        for here, there in zip(found, irregular_alone(), strict=True):
            torch.testing.assert_close(here, there, rtol=1e-10, atol=1e-12)


def refused(make):
    """The sentence, and whether the weight is what it was."""
    net = layer()
    try:
        opt = make(net)
        net(torch.ones(1, D, dtype=torch.float64)).sum().backward()
        opt.step()
    except (ValueError, RuntimeError) as error:
        return str(error), torch.equal(net.weight, layer().weight)
    return "nothing", False


def refusals(rank, ranks):
    def other_steps(net):
        opt = optimizer(net)
        if rank == 1:
            opt.state[net.weight]["step"] = 3
        return opt

    return [
        refused(lambda net: SRCD(net.parameters(), skip_weight_grad=True)),
        refused(lambda net: optimizer(net, seed=rank)),
        refused(lambda net: optimizer(net, selection=selections.Uniform(1 + rank))),
        refused(other_steps),
    ]


def test_ranks_that_do_not_fit_together_are_refused(two_ranks):
    """On all ranks, before anything has moved."""
    words = [
        "needs process_group=",
        "seed of rank 1",
        "selection of rank 1",
        "number of steps taken of rank 1",
    ]
    for one in two_ranks:
        for (sentence, unchanged), word in zip(one["refusals"], words, strict=True):
            assert word in sentence and unchanged


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_a_skipped_parameter_that_ddp_manages_is_an_error(group):
    net = nn.Sequential(layer(), nn.Linear(D, 1, dtype=torch.float64))
    wrapped = DistributedDataParallel(net)
    opt, before = optimizer(net), weights(net)
    wrapped(torch.ones(2, D, dtype=torch.float64)).sum().backward()
    with pytest.raises(ValueError, match=r"DDP manages .*exclude_\(model, names\) before wrapping"):
        opt.step()
    assert all(map(torch.equal, before, weights(net)))
    # The remedy in the sentence is one.
    del wrapped
    exclude_(net, "0.weight")
    wrapped = DistributedDataParallel(net)
    wrapped(torch.ones(2, D, dtype=torch.float64)).sum().backward()
    opt.step()
    assert not torch.equal(before[0], net[0].weight)


def test_an_excluded_parameter_that_nobody_averages_is_an_error(group):
    net = exclude_(nn.Sequential(layer(), nn.Linear(D, 1, dtype=torch.float64)), ["0.weight"])
    for options in ({}, {"process_group": group}):
        with pytest.raises(ValueError, match="nobody averages its gradient"):
            SRCD(net.parameters(), **options)
    opt = optimizer(net)
    opt.param_groups[0]["skip_weight_grad"] = False
    with pytest.raises(ValueError, match="nobody averages its gradient"):
        opt.step()


def test_all_names_of_a_parameter_are_excluded(group):
    """Parameters of the outermost module, tied ones, and what was to be ignored already."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = layer(), layer(), nn.Linear(D, 1, dtype=torch.float64)
            self.second.weight = self.first.weight
            self.weight = self.first.weight
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
            self._ddp_params_and_buffers_to_ignore = ["scale", ".scale"]

        def forward(self, x):
            return self.head(self.second(self.first(x)))

    net = exclude_(Tied(), "second.weight")
    wrapped = DistributedDataParallel(net)
    managed = {id(param) for param in wrapped._module_parameters}
    assert managed == {id(param) for param in net.head.parameters()}
    opt = optimizer(nn.ModuleList([net.first, net.head]))
    wrapped(torch.ones(2, D, dtype=torch.float64)).sum().backward()
    assert net.first.weight.grad is None
    opt.step()


def test_exclude_says_what_is_wrong(group):
    net = nn.Sequential(layer(), nn.Linear(D, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"no parameter 'weight'; it has 0\.weight, 1\.weight, 1\.bias"):
        exclude_(net, ["weight"])
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got list"):
        exclude_([net], ["weight"])
    with pytest.raises(ValueError, match="before DistributedDataParallel"):
        exclude_(DistributedDataParallel(net), ["module.0.weight"])
    assert not hasattr(net, "_ddp_params_and_buffers_to_ignore")


def test_the_group_must_be_one(group):
    for wrong in ("gloo", True, dist.GroupMember.NON_GROUP_MEMBER):
        with pytest.raises(TypeError, match=r"process_group must be a torch\.distributed\.ProcessGroup"):
            SRCD(layer().parameters(), process_group=wrong)


def test_copies_keep_the_group(group):
    opt = copy.deepcopy(optimizer(layer()))
    net = layer()
    opt = optimizer(net)
    twin_net, twin = copy.deepcopy((net, opt))
    for model, one in ((net, opt), (twin_net, twin)):
        model(torch.ones(2, D, dtype=torch.float64)).pow(3).sum().backward()
        one.step()
    assert torch.equal(net.weight, twin_net.weight)
    with pytest.raises(TypeError, match=r"save the optimizer's state_dict\(\) instead"):
        pickle.dumps(opt)


def test_a_gradient_scaler_over_ranks(group):
    """The scale is divided out of what was averaged."""
    found = []
    torch.manual_seed(0)
    for scaler in (torch.amp.GradScaler("cpu", init_scale=64.0), torch.amp.GradScaler("cpu", enabled=False)):
        net = nn.Sequential(layer(), nn.Linear(D, 1, dtype=torch.float64))
        opt = optimizer(net)
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(net(torch.ones(2, D, dtype=torch.float64)).pow(3).sum()).backward()
            scaler.step(opt)
            scaler.update()
        found.append(net[0].weight.detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("climbs", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_slopes_and_an_ordinary_gradient_are_added_uphill_and_downhill(rule, climbs):
    """A weight that is used in its layer and outside of it."""
    found = []
    for skips in (False, True):
        net = layer()
        opt = SRCD(net.parameters(), lr=0.1, maximize=climbs, skip_weight_grad=skips, **RULES[rule]())
        for step in range(3):
            opt.zero_grad()
            (net(batch(step, 1).double()).pow(3).sum() + net.weight.pow(4).sum()).backward()
            opt.step()
        found.append(net.weight.detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


def sharded(rank, ranks):
    """FSDP cuts parameters into pieces; returns the refusal, and weights trained as the page says."""
    from torch.distributed.fsdp import fully_shard

    sentences = []
    for only_manifold in (True, False):
        net = nn.Sequential(layer(rank), nn.Linear(D, 1, dtype=torch.float64))
        fully_shard(net)
        options = {"manifold": geoopt.EuclideanStiefel()} if only_manifold else {}
        params = [net[0].weight] if only_manifold else net.parameters()
        try:
            SRCD([{"params": params, **options}])
        except TypeError as error:
            sentences.append(str(error))
    net = nn.Sequential(layer(rank), nn.Linear(D, 1, dtype=torch.float64))
    fully_shard(net, ignored_params={net[0].weight})
    opt, rest = optimizer(net[0]), torch.optim.SGD(net[1].parameters(), lr=0.1)
    for step in range(5):
        net(batch(step, ranks, rank).double()).square().mean().backward()
        for one in (opt, rest):
            one.step()
            one.zero_grad()
    return sentences, net[0].weight.detach().as_subclass(torch.Tensor).clone()


def zero(rank, ranks):
    """Each rank keeps the state of some parameters only, steps them, and hands them to the others."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = network(seed=rank)
    wrapped = DistributedDataParallel(net)
    opt = ZeroRedundancyOptimizer(
        wrapped.parameters(), optimizer_class=SRCD, lr=0.05, momentum=0.9, selection=selections.Cyclic(4)
    )
    for step in range(20):
        opt.zero_grad()
        loss_of(wrapped, batch(step, ranks, rank)).backward()
        opt.step()
    kept = sum(param in opt.optim.state for param in net.parameters())
    places = {id(param): place for place, param in enumerate(net.parameters())}
    shares = [[places[id(p)] for g in share for p in g["params"]] for share in opt._partition_parameters()]
    opt.consolidate_state_dict(to=0)
    steps = [one["step"] for one in opt.state_dict()["state"].values()] if rank == 0 else []
    return weights(net), kept, shares, steps


def zero_alone(shares):
    """One process with one optimizer for each share of the parameters."""
    net = network(seed=0)
    params = list(net.parameters())
    options = dict(lr=0.05, momentum=0.9, selection=selections.Cyclic(4))
    opts = [SRCD([params[place] for place in share], **options) for share in shares]
    for step in range(20):
        net.zero_grad()
        loss_of(net, batch(step, 2)).backward()
        for opt in opts:
            opt.step()
    return weights(net)


def test_sharded_parameters_are_refused(two_ranks):
    for sentences, found in (one["sharded"] for one in two_ranks):
        assert len(sentences) == 2
        assert all("cannot move a DTensor" in one and "ignored_params" in one for one in sentences)
        assert torch.equal(found, two_ranks[0]["sharded"][1]) and violation(found) < 1e-12


@pytest.mark.filterwarnings("ignore:no parameter handed to SRCD has a manifold")
def test_sharded_state_works(two_ranks):
    for end, kept, shares, _ in (one["zero"] for one in two_ranks):
        assert kept == len(shares[0]) or kept == len(shares[1])
        assert all(map(torch.equal, end, two_ranks[0]["zero"][0]))
        for here, there in zip(end, zero_alone(shares), strict=True):
            torch.testing.assert_close(here, there, rtol=2e-4, atol=2e-5)
    assert two_ranks[0]["zero"][3] == [20] * 6


STEPS, DIES, EVERY = 12, 7, 3


def run(rank, ranks, path, dies):
    """Go on from the checkpoint, saving every third step; rank 1 may be killed in the middle."""
    net = exclude_(network(seed=rank), ORTHOGONAL)
    wrapped = DistributedDataParallel(net)
    opt = SRCD(
        net.named_parameters(), lr=0.05, momentum=0.9, skip_weight_grad=True, process_group=dist.group.WORLD
    )
    begin = 0
    if os.path.exists(path):
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        opt.load_state_dict(saved["opt"])
        begin = saved["step"]
    for step in range(begin, STEPS):
        opt.zero_grad()
        loss_of(wrapped, batch(step, ranks, rank)).backward()
        if dies and rank == 1 and step == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        before, begin = weights(net), time.monotonic()
        try:
            opt.step()
        except RuntimeError as error:
            return str(error), all(map(torch.equal, before, weights(net))), time.monotonic() - begin
        if rank == 0 and (step + 1) % EVERY == 0:
            save_atomically({"net": net.state_dict(), "opt": opt.state_dict(), "step": step + 1}, path)
        dist.barrier()
    return weights(net)


def run_both(rank, ranks, path, other):
    return run(rank, ranks, path, False), run(rank, ranks, other, False)


def test_a_rank_that_dies(tmp_path):
    """The other fails at once and says so; all start again from the checkpoint, and nothing else is lost."""
    path = str(tmp_path / "run.pt")
    survivor, dead = run_ranks(tmp_path, 2, run, path, True)
    assert dead == f"exit code {-signal.SIGKILL}"
    sentence, unchanged, seconds = survivor
    assert seconds < 20  # a third of the group's time limit, which is not what ended it
    assert "one of which has died or does not answer; nothing was changed" in sentence and unchanged
    assert torch.load(path, weights_only=True)["step"] == DIES // EVERY * EVERY
    for resumed, whole in run_ranks(tmp_path, 2, run_both, path, str(tmp_path / "other.pt")):
        assert all(map(torch.equal, resumed, whole))


def silent(rank, ranks, path):
    """A rank that lives but does not answer; returns how long the other waited."""
    hasty = dist.new_group(timeout=timedelta(seconds=3))
    net = layer()
    opt = SRCD(net.parameters(), lr=0.1, skip_weight_grad=True, process_group=hasty)
    for step in range(2):
        dist.barrier()
        net(torch.ones(1, D, dtype=torch.float64)).sum().backward()
        begin = time.monotonic()
        if rank == 1 and step == 1:
            while not os.path.exists(path) and time.monotonic() < begin + 40:
                time.sleep(0.05)
            return "late"
        try:
            opt.step()
        except RuntimeError as error:
            waited = time.monotonic() - begin
            Path(path).touch()
            return str(error), waited
    return "nothing"


def test_a_rank_that_does_not_answer(tmp_path):
    """The time limit of the process group is ours."""
    (sentence, seconds), _ = run_ranks(tmp_path, 2, silent, str(tmp_path / "done"))
    assert "does not answer; nothing was changed" in sentence and 2 < seconds < 30
