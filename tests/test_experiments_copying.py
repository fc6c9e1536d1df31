"""``riemcd copying`` in a small configuration: what it computes, what it leaves and what it refuses."""

import json
import math
from itertools import pairwise

import pytest
import torch
from copying_command import checkpoint, copying, losses
from torch import nn

from riemcd.cli import main
from riemcd.experiments.copying import GRIDS
from riemcd.experiments.copying_task import LETTERS, CopyingTrainee, copying_batch, memoryless_loss
from riemcd.experiments.methods import METHODS, Method, Rates, parse_methods
from riemcd.experiments.networks import LoopRNN, Readout
from riemcd.nn import OrthogonalRNN


def test_batches_are_as_the_paper_says():
    L, K = 7, 3
    x, y = copying_batch(50, L, K, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (L + 2 * K, 50)
    assert set(x[:K].unique().tolist()) == set(range(1, 9))
    assert (x[K : K + L] == 0).all() and (x[K + L] == 9).all() and (x[K + L + 1 :] == 0).all()
    assert (y[: L + K] == 0).all() and torch.equal(y[L + K :], x[:K])


def test_the_memoryless_loss_is_that_of_the_best_guess():
    L, K = 40, 5
    _, y = copying_batch(20_000, L, K, torch.Generator().manual_seed(0))
    logits = torch.full((L + 2 * K, LETTERS + 1), -100.0)
    logits[: L + K, 0] = 100.0
    logits[L + K :, 1:] = 0.0
    found = nn.functional.cross_entropy(logits[:, None].expand(-1, y.shape[1], -1).flatten(0, 1), y.flatten())
    assert float(found) == pytest.approx(memoryless_loss(L, K), rel=1e-5)
    assert memoryless_loss(1000, 10) == pytest.approx(10 * math.log(8) / 1020)


@pytest.mark.parametrize("with_geotorch", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_the_loop_computes_what_the_fused_recurrence_does(with_geotorch, at_once):
    if with_geotorch:
        pytest.importorskip("geotorch")
    torch.manual_seed(0)
    fused = OrthogonalRNN(3, 8)
    x = torch.randn(6, 5, 3)
    expected = fused(x)[0]
    expected.square().sum().backward()
    inward = fused.weight_ih.grad.clone()
    fused.weight_ih.grad = None
    loop = LoopRNN(fused, with_geotorch, at_once)
    output, last = loop(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(last[0], expected[-1])
    output.square().sum().backward()
    torch.testing.assert_close(loop.weight_ih.grad, inward, rtol=1e-4, atol=1e-4)


def test_the_readout_of_all_steps_is_a_linear_map():
    torch.manual_seed(0)
    network = Readout(nn.RNN(3, 6), 6, 4).double()
    states = torch.randn(5, 7, 6, dtype=torch.float64, requires_grad=True)
    given = [states, *network.head.parameters()]
    y = torch.randint(4, (5, 7))
    found, expected = network._read_out(states), network.head(states)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    losses = [nn.functional.cross_entropy(found.mT, y),
              nn.functional.cross_entropy(expected.flatten(0, 1), y.flatten())]  # fmt: skip
    for ours, torchs in zip(*(torch.autograd.grad(loss, given) for loss in losses), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-14)
    assert torch.equal(network._read_out(states[-1]), network.head(states[-1]))


def test_every_optimizer_starts_from_the_same_network_and_batches(tmp_path):
    pytest.importorskip("geotorch")
    names = [name for name in METHODS if name != "frozen"]
    wanted = [*names, "partition:rmsprop", "srcd-u:adam", "geotorch:rmsprop"]
    assert copying(tmp_path / "all", "--iterations", "3", "--optimizers", *wanted) == 0
    summary = json.loads((tmp_path / "all" / "summary.json").read_text())
    labels = [row["optimizer"] for row in summary["table"]]
    assert labels == ["frozen", "frozen:rmsprop", "frozen:adam", *wanted]
    firsts = {losses(tmp_path / "all", run["name"])[0] for run in summary["runs"]}
    assert max(firsts) - min(firsts) < 1e-5
    for row in summary["table"]:
        assert row["iterations"] == 3 and row["s/iteration"] > 0
        assert row["optimizer"] == "sgd" or row["|WᵀW − I|"] < 1e-4
    # The frozen weight did not move; everything else did.
    a, b = (checkpoint(tmp_path / "all", f"{name}-seed0")["trainee"]["model"] for name in ("frozen", "srgd"))
    assert not torch.equal(a["core.weight_hh"], b["core.weight_hh"])
    torch.manual_seed(0)
    assert torch.equal(a["core.weight_hh"], OrthogonalRNN(LETTERS + 2, 12).weight_hh)
    assert not torch.equal(a["head.weight"], b["head.weight"])


def test_srcd_with_all_coordinates_is_the_riemannian_gradient_descent_of_the_paper():
    """One constant step of srgd, against the dense exponential of the projected gradient."""
    size = {"hidden": 12, "delay": 6, "recall": 3, "batch": 4, "rates": Rates(0.1, 0.1)}
    reference = CopyingTrainee(Method("frozen", "constant"), 5, **size)
    W = reference.model.core.weight_hh.requires_grad_()
    reference.loss().backward()
    skew = W.detach().double().T @ W.grad.double()
    expected = W.detach().double() @ torch.linalg.matrix_exp(-0.1 * (skew - skew.T) / 2)
    trainee = CopyingTrainee(Method("srgd", "constant"), 5, **size)
    trainee.step()
    found = trainee.model.core.weight_hh.detach().double()
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor),
                               rtol=0, atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("name", ["partition", "geotorch", "radam"])
def test_steps_fall_by_the_power_that_the_help_tells_where_they_are_asked_to(name):
    """As many iterations later they are 0.59 of what they were, after three times as many 0.35."""
    if name == "geotorch":
        pytest.importorskip("geotorch")
    size = {"hidden": 12, "delay": 6, "recall": 3, "batch": 4, "rates": Rates(1e-3, 1e-2)}
    method = Method(name, "adam" if name == "radam" else "rmsprop")
    for falling, factors in ((2.0, {2: 0.59, 6: 0.35}), (None, {2: 1.0, 6: 1.0})):
        trainee = CopyingTrainee(method, 5, falling=falling, **size)
        for iteration in range(1, 7):
            trainee.step()
            if iteration in factors:
                rates = [group["lr"] for group in trainee.optimizers[0].param_groups]
                told = [round(rate / start, 2) for rate, start in zip(rates, (1e-3, 1e-2), strict=True)]
                assert told == [factors[iteration]] * 2


def test_what_a_run_leaves(tmp_path, capsys):
    folder = tmp_path / "run"
    assert copying(folder, "--iterations", "5", "--optimizers", "srcd-u", "--uniform-seeds", "2") == 0
    names = {path.name for path in folder.iterdir()}
    runs = ["frozen-seed0", "srcd-u-seed0", "srcd-u-seed0-draw1"]
    assert names == {"settings.json", "summary.json", "copying.png", "table.txt",
                     *(f"{run}.{kind}" for run in runs for kind in ("json", "jsonl", "pt"))}  # fmt: skip
    assert (folder / "copying.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    table = (folder / "table.txt").read_text()
    assert "srcd-u" in table and "memoryless" in table and table.strip() in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "srcd-u-seed0-draw1.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(rows))
    assert json.loads((folder / "settings.json").read_text())["hidden"] == 12
    end = json.loads((folder / "srcd-u-seed0-draw1.json").read_text())
    assert (
        end["complete"]
        and end["end"]["iterations"] == 5
        and end["what"]["seed"] == 0
        and end["what"]["draw"] == 1000
    )


def test_tuning_tries_a_grid_with_seeds_of_its_own(tmp_path):
    folder = tmp_path / "run"
    assert copying(folder, "--iterations", "2", "--tuning", "--optimizers", "partition:rmsprop", "radam") == 0
    summary = json.loads((folder / "summary.json").read_text())
    tried = [(row["optimizer"], row["lr of W"] or 0.0, row["lr"]) for row in summary["table"]]
    names = ("frozen:rmsprop", "partition:rmsprop", "radam")
    assert tried == [(name, rates.orthogonal, rates.others) for name in names for rates in GRIDS[name]]
    assert {run["seed"] for run in summary["runs"]} == {100}


def test_runs_of_one_random_rotation_differ_by_the_rotations_alone(tmp_path):
    folder = tmp_path / "run"
    assert copying(folder, "--iterations", "4", "--optimizers", "srcd-u", "--uniform-seeds", "3") == 0
    names = ["srcd-u-seed0", "srcd-u-seed0-draw1", "srcd-u-seed0-draw2"]
    first, *others = (losses(folder, name) for name in names)
    assert all(one[0] == first[0] and one != first for one in others)
    weights = [checkpoint(folder, name)["trainee"]["model"]["core.weight_hh"] for name in names[:2]]
    assert not torch.equal(*weights)
    table = json.loads((folder / "summary.json").read_text())["table"]
    assert [row["runs"] for row in table] == [1, 3]


def test_refusals(tmp_path, capsys):
    folder = tmp_path / "run"
    assert copying(folder, "--iterations", "1", "--optimizers", "srcd-u") == 0

    def said(*options):
        assert copying(folder, *options) == 2
        return capsys.readouterr().err

    assert "holds results already" in said("--optimizers", "srcd-u")
    assert "was made with lr = 0.0002" in said("--optimizers", "srcd-u", "--lr", "0.1", "--resume")
    assert "must be among frozen, sgd" in said("--optimizers", "sgdd", "--resume")
    assert "radam has steps of its own" in said("--optimizers", "radam:rmsprop", "--resume")
    assert "--threads" in said("--threads", "-1", "--resume")
    assert "cannot be used here" in said("--device", "cuda:17", "--resume")


def test_rmsprop_of_geoopt_divides_by_the_size_of_the_gradient_as_a_whole():
    """Its first step is as long as the step size, whatever the gradient."""
    size = {"hidden": 12, "delay": 6, "recall": 3, "batch": 4, "rates": Rates(1e-3, 1e-3)}
    trainee = CopyingTrainee(Method("rsgd", "rmsprop"), 5, **size)
    W = trainee.model.core.weight_hh
    before = W.detach().clone()
    trainee.step()
    assert float((W.detach() - before).norm()) == pytest.approx(1e-3, rel=1e-2)
    assert [group["betas"][0] for group in trainee.optimizers[0].param_groups] == [0.0, 0.0]


def test_the_control_is_always_there():
    labels = [m.label for m in parse_methods(["srcd-u", "matching:rmsprop", "radam"], "constant")]
    # radam alone has the steps of Adam: a control of its own would be compared with nothing of ours.
    assert labels == ["frozen", "frozen:rmsprop", "srcd-u", "matching:rmsprop", "radam"]
    assert [m.label for m in parse_methods(["radam"], "constant")] == ["frozen:adam", "radam"]


def test_help_teaches(capsys):
    for arguments, words in (([], "bit for bit"), (["copying", "--preset", "paper"], "srcd-gs-block")):
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--help"])
        assert end.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert words in shown
    assert "memoryless" in shown and "default: 1000" in shown
