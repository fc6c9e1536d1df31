"""Experiments that are interrupted at a bad moment, diverge, find odd folders or miss a package."""

import signal
import sys

import numpy as np
import pytest
import torch
from experiments_command import SMALL, summary

from riemcd.cli import main
from riemcd.experiments import cost
from riemcd.experiments.copying_figure import draw
from riemcd.experiments.rotate_task import RotateTrainee

COPYING = ["--delay", "4", "--recall", "2", "--hidden", "8", "--batch", "4", "--block", "4",
           "--iterations", "3"]  # fmt: skip
ROTATE = SMALL["rotate"]
COST = ["--delay", "4", "--batch", "4", "--trials", "1"]


def run(name, folder, *options):
    return main([name, "--output", str(folder), "--threads", "1", "--quiet", *options])


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("count", [1, 10, 11, 12, 13])
def test_ctrl_c_before_the_first_look_at_a_rotation_keeps_the_others(count, tmp_path, monkeypatch):
    """Step 10 is the one in which cayley warms up, 11 to 14 are those before its error is looked at."""
    calls, original = [], RotateTrainee.step

    def step(self):
        calls.append(0)
        if len(calls) == count:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(RotateTrainee, "step", step)
        assert run("rotate", tmp_path / "run", *ROTATE) == 130
    rotations = [row["rotation"] for row in summary(tmp_path / "run")["table"]]
    assert "hadamard" in rotations and (count == 1 or "srcd" in rotations)
    assert (tmp_path / "run" / "rotate.png").exists()
    assert run("rotate", tmp_path / "run", *ROTATE, "--resume") == 0
    assert {"srcd", "cayley", "qr"} <= {row["rotation"] for row in summary(tmp_path / "run")["table"]}


def test_every_start_has_as_many_draws_of_coordinates(tmp_path):
    """Otherwise starts that are harder than others would count more often for srcd-u than for the control."""
    options = ["copying", tmp_path / "run", *COPYING, "--optimizers", "srcd-u", "--uniform-seeds", "3"]
    assert run(*options, "--seeds", "2") == 0
    runs = [one for one in summary(tmp_path / "run")["runs"] if one["optimizer"] == "srcd-u"]
    assert sorted(one["seed"] for one in runs) == [0, 0, 1, 1]
    assert len({one["draw"] for one in runs}) == 4
    before = content(tmp_path / "run")
    assert run(*options, "--seeds", "3", "--resume") == 0  # more starts, with fewer draws of each
    runs = [one for one in summary(tmp_path / "run")["runs"] if one["optimizer"] == "srcd-u"]
    assert [one["seed"] for one in runs] == [0, 1, 2]
    after = content(tmp_path / "run")
    assert all(after[name] == text for name, text in before.items() if name.endswith(".jsonl"))


def test_a_run_that_diverges_does_not_end_the_others(tmp_path):
    wanted = ["sgd", "srgd", "matching", "partition"]
    options = ["--lr", "1e20", "--iterations", "9", "--optimizers", *wanted]
    assert run("copying", tmp_path / "run", *COPYING, *options) == 0
    rows = {row["optimizer"]: row for row in summary(tmp_path / "run")["table"]}
    assert all(not np.isfinite(rows[name]["loss"]) for name in wanted)
    assert all(row["iterations"] == 9 for row in rows.values())


@pytest.mark.parametrize(("name", "options"), [("copying", COPYING), ("digits", ["--hidden", "8"])])
def test_a_missing_package_is_said_before_anything_is_run(name, options, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "geotorch", None)
    assert run(name, tmp_path / "run", *options, "--optimizers", "partition", "geotorch") == 2
    assert "the optimizer geotorch needs geotorch, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", ["matplotlib", "tqdm"])
@pytest.mark.parametrize("name", ["copying", "sparsity", "cost", "problems", "digits", "rotate"])
def test_what_the_end_needs_is_looked_for_at_the_beginning(name, module, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    assert run(name, tmp_path / "run") == 2
    assert f"needs {module}, which is not installed: pip install 'riemcd" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["copying", "digits", "rotate"])
def test_groups_have_two_columns_or_more(name, tmp_path, capsys):
    assert run(name, tmp_path / "run", "--block", "1") == 2
    assert "--block must be 2 or more, got 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_there_are_only_so_many_hidden_states(tmp_path, capsys):
    options = [*ROTATE[:-2], "--rows", "activations", "--calibration", "100000"]
    assert run("rotate", tmp_path / "run", *options) == 2
    assert "--calibration must be at most 80472" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_steps_of_radam_are_not_drawn_as_constant(tmp_path, monkeypatch):
    """What moving W brings is drawn for constant steps, and radam has others."""
    assert run("copying", tmp_path / "run", *COPYING, "--optimizers", "radam") == 0
    shown = []
    monkeypatch.setattr("riemcd.experiments.copying_figure.close", lambda figure: shown.append(figure))

    class Nowhere:
        def figure(self, name, figure):
            pass

    draw(Nowhere(), summary(tmp_path / "run"))
    titles = [axes.get_title() for axes in shown[0].axes]
    assert len(titles) == 2 and not any("constant steps" in title for title in titles)


def test_sizes_that_are_added_later_are_in_order(tmp_path, capsys):
    assert run("cost", tmp_path / "run", *COST, "--sizes", "16", "24") == 0
    assert run("cost", tmp_path / "run", *COST, "--sizes", "8", "16", "24", "--resume") == 0
    sizes = [row["d"] for row in summary(tmp_path / "run")["table"]]
    assert sizes == sorted(sizes) and set(sizes) == {8, 16, 24} and len(sizes) == 3 * len(cost.CONTESTANTS)


def test_seconds_of_other_threads_are_not_put_together(tmp_path, capsys):
    assert run("cost", tmp_path / "run", *COST, "--sizes", "8") == 0
    before = content(tmp_path / "run")
    threads = torch.get_num_threads()
    try:
        assert (
            main(["cost", "--output", str(tmp_path / "run"), "--quiet", *COST, "--threads", "2", "--resume"])
            == 2
        )
    finally:
        torch.set_num_threads(threads)
    assert "was made with threads = 1, now it is 2" in capsys.readouterr().err
    assert content(tmp_path / "run") == before


def test_folders_of_others_and_damaged_files_are_named(tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for more in ([], ["--resume"]):
        assert run("copying", folder, *COPYING, *more) == 2
        assert "holds files, but no results of riemcd" in capsys.readouterr().err
    (folder / "notes.txt").unlink()
    wanted = ["--optimizers", "matching"]
    assert run("copying", folder, *COPYING, *wanted) == 0
    (folder / "matching-seed0.pt").write_bytes(b"PK and nothing else")
    assert run("copying", folder, *COPYING, *wanted, "--resume") == 2
    assert "matching-seed0.pt is damaged: remove it" in capsys.readouterr().err
    (folder / "matching-seed0.pt").unlink()
    assert run("copying", folder, *COPYING, *wanted, "--resume") == 0
    (folder / "settings.json").write_text("{")
    assert run("copying", folder, *COPYING, *wanted, "--resume") == 2
    assert "settings.json is damaged" in capsys.readouterr().err
