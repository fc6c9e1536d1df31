"""``riemcd copying`` in a small configuration: what it leaves, and that an interruption changes no bit."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import torch
from torch import nn

from riemcd.cli import main
from riemcd.experiments import copying_task
from riemcd.experiments.copying import GRIDS
from riemcd.experiments.copying_task import LETTERS, CopyingTrainee, copying_batch, memoryless_loss
from riemcd.experiments.methods import METHODS, Method, Rates, parse_methods
from riemcd.experiments.networks import LoopRNN
from riemcd.nn import OrthogonalRNN

SMALL = ["--delay", "6", "--recall", "3", "--hidden", "12", "--batch", "4", "--block", "4", "--threads", "1",
         "--quiet"]  # fmt: skip


def copying(folder, *options):
    return main(["copying", "--output", str(folder), *SMALL, *options])


def losses(folder, run):
    return [json.loads(line)["loss"] for line in (folder / f"{run}.jsonl").read_text().splitlines()]


def lines(folder):
    """Return the lines of every log as they are, with their seconds, by run."""
    return {path.stem: path.read_bytes().splitlines(keepends=True) for path in folder.glob("*.jsonl")}


def goes_on(before, after):
    """Whether no iteration was computed again: the same loss would have come after other seconds."""
    return all(after[run][: len(kept)] == kept for run, kept in before.items())


def checkpoint(folder, run):
    return torch.load(folder / f"{run}.pt", weights_only=True)


def same(a, b):
    """Bit for bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


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


OPTIMIZERS = ["partition:rmsprop", "srcd-gs-block", "radam"]


def interrupted_at(monkeypatch, count, how):
    """Let the step number ``count`` of all runs together be the one in which something happens."""
    steps, original = [], CopyingTrainee.step

    def step(self):
        steps.append(0)
        if len(steps) == count:
            how()
        return original(self)

    monkeypatch.setattr(copying_task.CopyingTrainee, "step", step)


@pytest.mark.parametrize(
    ("count", "cut"),
    [(3, "frozen-rmsprop"), (17, "frozen"), (24, "partition-rmsprop"), (37, "srcd-gs-block"), (44, "radam"),
     (58, "geotorch-rmsprop")],
)  # fmt: skip
def test_ctrl_c_and_resume_change_no_bit(tmp_path, monkeypatch, count, cut):
    """Every kind of optimizer is cut short in the middle of its run."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--iterations", "10", "--optimizers", *OPTIMIZERS]
    if cut.startswith("geotorch"):
        pytest.importorskip("geotorch")
        options.append("geotorch:rmsprop")
    assert copying(whole, *options) == 0
    with monkeypatch.context() as patch:
        interrupted_at(patch, count, lambda: signal.raise_signal(signal.SIGINT))
        assert copying(parts, *options) == 130
    assert (parts / "copying.png").exists() and (parts / "table.txt").exists()
    before = lines(parts)
    # The iteration that was under way was finished, no other was begun.
    assert sum(map(len, before.values())) == count
    assert 0 < len(before[f"{cut}-seed0"]) < 10
    assert copying(parts, *options, "--resume") == 0
    assert goes_on(before, lines(parts))
    for run in sorted(path.stem for path in whole.glob("*.jsonl")):
        assert losses(whole, run) == losses(parts, run)
        assert same(checkpoint(whole, run), checkpoint(parts, run)), run


def test_a_crash_loses_only_what_came_after_the_checkpoint(tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--iterations", "8", "--optimizers", "matching:adam"]
    assert copying(whole, *options) == 0

    def crash():
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        interrupted_at(patch, 13, crash)
        with pytest.raises(RuntimeError, match="power cut"):
            copying(parts, *options, "--checkpoint-every", "0")
    before = lines(parts)
    assert checkpoint(parts, "matching-adam-seed0")["iterations"] == len(before["matching-adam-seed0"]) == 4
    with (parts / "matching-adam-seed0.jsonl").open("a") as log:
        log.write('{"iteration": 5, "lo')  # a line that was being written
    assert copying(parts, *options, "--resume") == 0
    assert goes_on(before, lines(parts))
    assert losses(whole, "matching-adam-seed0") == losses(parts, "matching-adam-seed0")


def test_a_run_can_be_made_longer(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--optimizers", "partition:rmsprop"]
    assert copying(whole, *options, "--iterations", "9") == 0
    assert copying(parts, *options, "--iterations", "4") == 0
    before = lines(parts)
    assert copying(parts, *options, "--iterations", "9", "--resume") == 0
    assert goes_on(before, lines(parts))
    assert losses(whole, "partition-rmsprop-seed0") == losses(parts, "partition-rmsprop-seed0")


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


def test_a_real_ctrl_c(tmp_path):
    """Another process, interrupted by the system as a terminal does it."""
    folder = tmp_path / "run"
    command = [sys.executable, "-W", "ignore", "-m", "riemcd.cli", "copying", "--output", str(folder), *SMALL]
    process = subprocess.Popen(
        [*command, "--iterations", "1000000", "--optimizers", "srcd-u"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    log = folder / "frozen-seed0.jsonl"
    patience = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size > 200) and time.monotonic() < patience:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopping after this iteration" in output and "--resume" in output
    assert checkpoint(folder, "frozen-seed0")["iterations"] == len(losses(folder, "frozen-seed0")) > 0
    assert (folder / "copying.png").exists()
