"""The other commands in small configurations: what they leave, and that an interruption changes no bit."""

import json
import signal

import pytest
import torch
from experiments_command import SMALL, command, summary

from riemcd.cli import COMMANDS, main
from riemcd.experiments import cost, problems, problems_rates
from riemcd.experiments.copying_task import CopyingTrainee
from riemcd.experiments.digits_task import DigitsTrainee
from riemcd.experiments.folder import as_table
from riemcd.experiments.rotate_task import RotateTrainee


def test_every_command_is_tested():
    assert set(COMMANDS) == {"copying", *SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_what_a_command_leaves(name, tmp_path, capsys):
    folder = tmp_path / "run"
    assert command(name, folder) == 0
    assert (folder / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert list(folder.glob("*.jsonl")) and json.loads((folder / "settings.json").read_text())
    found = summary(folder)
    assert found["experiment"] == name and found["table"]
    assert as_table(found["table"]) in (folder / "table.txt").read_text()
    assert found["note"] in capsys.readouterr().out
    before = (folder / "summary.json").read_text()
    assert command(name, folder) == 2 and "holds results already" in capsys.readouterr().err
    assert command(name, folder, "--resume") == 0  # nothing is left to do
    if name not in ("rotate",):  # closed forms are timed anew
        assert (folder / "summary.json").read_text() == before


#: What no command can do, the options that ask for it and what the sentence says.
REFUSED = [
    ("copying", ["--recall", "0"], "--recall must be 1 or more"),
    ("copying", ["--hidden", "1"], "--hidden must be 2 or more"),
    ("copying", ["--delay", "-1"], "--delay must be 0 or more"),
    ("copying", ["--batch", "0"], "--batch must be 1 or more"),
    ("copying", ["--seeds", "0"], "--seeds must be 1 or more"),
    ("copying", ["--iterations", "-5"], "--iterations must be 1 or more"),
    ("copying", ["--lr", "nan"], "--lr must be positive and finite"),
    ("copying", ["--optimizers"], "--optimizers must name at least one"),
    ("copying", ["--threads", "99999999"], "--threads must be 1024 or less"),
    ("copying", ["--device", "meta"], "cannot be used here"),
    ("copying", ["--resume"], "holds nothing to resume"),
    ("sparsity", ["--optimizer", "radam"], "which radam does not train"),
    ("sparsity", ["--batch", "0"], "--batch must be 1 or more"),
    ("digits", ["--optimizers", "radam:rmsprop"], "radam has steps of its own"),
    ("digits", ["--optimizers", "rnn:constant"], "rnn is trained with adam or rmsprop"),
    ("digits", ["--epochs", "0"], "--epochs must be 1 or more"),
    ("rotate", ["--d", "48", "--group", "16"], "--d must be a power of two"),
    ("rotate", ["--calibration", "3"], "--calibration must be 4 or more"),
    ("rotate", ["--learned"], "--learned must name at least one"),
    ("cost", ["--sizes", "1"], "--sizes must be 2 or more"),
    ("cost", ["--trials", "0"], "--trials must be 1 or more"),
    ("problems", ["--goal", "nan"], "--goal must be positive and finite"),
    ("problems", ["--size", "1"], "--size must be 2 or more"),
]


@pytest.mark.parametrize(("name", "options", "sentence"), REFUSED, ids=lambda value: str(value))
def test_bad_input_gets_a_sentence_and_changes_nothing(name, options, sentence, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main([name, "--output", str(folder), "--threads", "1", "--quiet", *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not folder.exists()


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert command("cost", tmp_path / "file") == 2
    assert "riemcd: " in capsys.readouterr().err and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(("name", "other"), [("problems", ["--seed", "5"]), ("rotate", ["--batch", "8"]),
                                             ("sparsity", ["--lr", "0.1"])])  # fmt: skip
def test_a_refused_resume_changes_nothing(name, other, tmp_path, capsys):
    folder = tmp_path / "run"
    assert command(name, folder) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert command(name, folder, "--resume", *other) == 2
    assert "was made with" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    another = "digits" if name != "digits" else "cost"
    assert command(another, folder, "--resume") == 2
    assert f"holds results of riemcd {name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", SMALL)
def test_help_teaches(name, capsys):
    for preset in ("demo", "paper"):
        with pytest.raises(SystemExit):
            main([name, "--preset", preset, "--help"])
        assert f"(default: {preset})" in " ".join(capsys.readouterr().out.split())


#: Which step of all runs together is interrupted: one in the middle of a run.
TRAINED = {
    "digits": (DigitsTrainee, 5, "accuracy"),
    "rotate": (RotateTrainee, 16, "loss"),
    "sparsity": (CopyingTrainee, 4, "loss"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_ctrl_c_and_resume_change_no_bit(name, tmp_path, monkeypatch):
    kind, count, number = TRAINED[name]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert command(name, whole) == 0
    steps, original = [], kind.step

    def step(self):
        steps.append(0)
        if len(steps) == count:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "step", step)
        assert command(name, parts) == 130
    before = {path.name: path.read_bytes() for path in parts.glob("*.jsonl")}
    (cut,) = (path for path in parts.glob("*-seed*.json") if not json.loads(path.read_text())["complete"])
    assert before[f"{cut.stem}.jsonl"]
    assert command(name, parts, "--resume") == 0
    logs = sorted(path.name for path in whole.glob("*.jsonl"))
    assert logs
    for log in logs:
        # Nothing was computed again: the same numbers would have come after other seconds.
        assert (parts / log).read_bytes().startswith(before.get(log, b""))
        a, b = (
            [json.loads(line)[number] for line in (f / log).read_text().splitlines()] for f in (whole, parts)
        )
        assert a == b
    for checkpoint in whole.glob("*.pt"):
        a, b = (
            torch.load(f / checkpoint.name, weights_only=True)["trainee"]["model"] for f in (whole, parts)
        )
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_ctrl_c_in_cost_and_problems_keeps_what_is_finished(tmp_path, monkeypatch):
    """cost is cut short in its second size, problems in its second contestant."""
    for name, module, called, count in (("cost", cost, "time_once", 28), ("problems", problems, "solve", 4)):
        folder, asked, original = tmp_path / name, [], getattr(module, called)

        def once(*given, asked=asked, count=count, original=original):
            asked.append(0)
            if len(asked) == count:
                signal.raise_signal(signal.SIGINT)
            return original(*given)

        with monkeypatch.context() as patch:
            patch.setattr(module, called, once)
            assert command(name, folder) == 130
        assert len(asked) == count  # nothing was begun after it
        (log,) = folder.glob("*.jsonl")
        before, table = log.read_text(), summary(folder)["table"]
        assert len(before.splitlines()) == (8 if name == "cost" else 1)
        # Contestants of cost that had a time already are shown, and asked again.
        assert len(table) == (12 if name == "cost" else 1) and (folder / f"{name}.png").exists()
        assert command(name, folder, "--resume") == 0
        assert log.read_text().startswith(before)
        assert len(summary(folder)["table"]) == (16 if name == "cost" else 44)


def test_cost_and_problems_skip_what_is_done(tmp_path, monkeypatch):
    """They resume by whole contestants."""
    for name, module, called in (("cost", cost, "time_once"), ("problems", problems, "solve")):
        folder, asked = tmp_path / name, []
        assert command(name, folder) == 0
        rows = next(folder.glob("*.jsonl")).read_text().splitlines()
        next(folder.glob("*.jsonl")).write_text("\n".join(rows[:-1]) + "\n")
        original = getattr(module, called)
        with monkeypatch.context() as patch:
            patch.setattr(module, called, lambda *a, o=original, s=asked: (s.append(0), o(*a))[1])
            assert command(name, folder, "--resume") == 0
        assert len(asked) == 2  # one trial and one that is not timed


def test_tuning_of_problems_ends_inside_its_grid(tmp_path):
    folder = tmp_path / "run"
    options = ["--tuning", "--problems", "pca", "--seconds", "0.02"]
    assert (
        main(["problems", "--output", str(folder), "--size", "12", "--threads", "1", "--quiet", *options])
        == 0
    )
    for contestant in problems_rates.KINDS.values():
        rows = [row for row in summary(folder)["table"] if row["contestant"] == contestant]
        (best,) = (row["lr"] for row in rows if row["best"])
        assert min(row["lr"] for row in rows) < best < max(row["lr"] for row in rows)
