"""``riemcd copying``, interrupted: nothing is lost, nothing is computed twice, and no bit changes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from copying_command import SMALL, checkpoint, copying, goes_on, lines, losses, same

from riemcd.experiments import copying_task
from riemcd.experiments.copying_task import CopyingTrainee

ADAPTIVE = ["partition:rmsprop", "srcd-gs-block", "radam"]
CONSTANT = ["sgd", "rsgd", "srcd-u", "--falling", "3"]


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
    ("count", "cut", "asked"),
    [(3, "frozen-rmsprop", ADAPTIVE), (17, "frozen", ADAPTIVE), (24, "partition-rmsprop", ADAPTIVE),
     (37, "srcd-gs-block", ADAPTIVE), (44, "radam", ADAPTIVE),
     (58, "geotorch-rmsprop", [*ADAPTIVE, "geotorch:rmsprop"]),
     (14, "sgd", CONSTANT), (25, "rsgd", CONSTANT), (36, "srcd-u", CONSTANT)],
)  # fmt: skip
def test_ctrl_c_and_resume_change_no_bit(tmp_path, monkeypatch, count, cut, asked):
    """Every kind of optimizer is cut short in the middle of its run."""
    if cut.startswith("geotorch"):
        pytest.importorskip("geotorch")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--iterations", "10", "--uniform-seeds", "1", "--optimizers", *asked]
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


@pytest.mark.parametrize("falling", [[], ["--falling", "3"]], ids=["constant", "falling"])
def test_a_run_can_be_made_longer(tmp_path, falling):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--optimizers", "partition:rmsprop", *falling]
    assert copying(whole, *options, "--iterations", "9") == 0
    assert copying(parts, *options, "--iterations", "4") == 0
    before = lines(parts)
    assert copying(parts, *options, "--iterations", "9", "--resume") == 0
    assert goes_on(before, lines(parts))
    assert losses(whole, "partition-rmsprop-seed0") == losses(parts, "partition-rmsprop-seed0")
    schedulers = checkpoint(parts, "partition-rmsprop-seed0")["trainee"]["schedulers"]
    assert same(schedulers, checkpoint(whole, "partition-rmsprop-seed0")["trainee"]["schedulers"])
    assert [one["last_epoch"] for one in schedulers] == ([9] if falling else [])
    assert ("Step sizes fall, after 3 iterations" in (parts / "table.txt").read_text()) is bool(falling)


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
