"""What the gallery says of its pictures holds for other seeds than the one it shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Run an example with other random numbers, and return its variables."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    threads, sow = torch.get_num_threads(), torch.manual_seed

    def run(name, seed):
        monkeypatch.setattr(torch, "manual_seed", lambda shown: sow(100 * seed + shown))
        return runpy.run_path(str(EXAMPLES / f"plot_{name}.py"))

    with matplotlib.rc_context():
        yield run
    pyplot.close("all")
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_joint_diagonalisation_ends_quadratically_and_averages_the_noise(seed, play):
    shown = play("joint_diagonalization", seed)
    total = shown["exact"].square().sum().item()
    exact = [sweep.gradient_norm / total for sweep in shown["found"][0.0].history]
    near = next(k for k, size in enumerate(exact) if size < 1e-2)
    assert exact[near + 1] < exact[near] ** 1.5
    assert exact[-1] < 1e-13
    sweeps = [minimum.sweeps for minimum in shown["found"].values()]
    assert sweeps == sorted(sweeps)
    for noise in shown["NOISES"][1:]:
        alone = torch.linalg.eigh(shown["given"][noise][0]).eigenvectors
        assert shown["degrees"](shown["found"][noise].point) < shown["degrees"](alone)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_signals_are_unmixed(seed, play):
    shown = play("ica", seed)
    assert shown["distances"][-1] < 0.1 * shown["distances"][0]
    assert shown["distances"][-1] < 1.5 * shown["peer"]
    assert len(set(shown["place"])) == shown["count"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_learned_rotation_rounds_better_than_a_hadamard_matrix(seed, play):
    shown = play("quantisation_rotation", seed)
    errors = shown["errors"]
    assert errors["learned"] < 0.75 * errors["Hadamard"] < 0.75 * errors["no rotation"]
    steps = {
        name: shown["steps_of"](shown["test"] @ R).square().mean((0, 2)).sqrt()
        for name, R in shown["rotations"].items()
    }
    assert steps["learned"].max() < 1.1 * steps["Hadamard"].max()
    assert steps["learned"].min() < 1.5 * steps["no rotation"].min()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_narrow_network_reads_better_when_its_recurrence_turns(seed, play):
    shown = play("digits_rnn", seed)
    turned, frozen = (shown["curves"][name][-1][0] for name in ("W turned", "W frozen"))
    assert turned > frozen > 60
    assert shown["net"].rnn.weight_hh.grad is None
