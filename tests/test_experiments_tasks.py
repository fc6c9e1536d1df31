"""What experiments compute, against independent answers, and the step sizes they were run with."""

import json
import math
from pathlib import Path

import geoopt
import numpy as np
import pytest
import torch
from experiments_command import command, summary

from riemcd.experiments import (
    copying,
    cost,
    digits_rates,
    problems_rates,
    problems_task,
    rotate,
    rotate_task,
    sparsity,
)
from riemcd.experiments.copying_task import CopyingTrainee
from riemcd.experiments.methods import Method, Rates
from riemcd.experiments.problems_task import PROBLEMS, amari_distance, solve
from riemcd.experiments.rotate_task import CayleySGD, RotateTrainee, hadamard, quantise, reconstruction_error
from riemcd.nn.init import haar_

# ---------------------------------------------------------------------------------------- sparsity


def test_the_slopes_looked_at_are_those_of_the_dense_gradient():
    trainee = CopyingTrainee(Method("srgd", "constant"), 3, hidden=10, delay=5, recall=2, batch=6,
                             rates=Rates(0.1, 0.1))  # fmt: skip
    trainee.step()
    found = sparsity.look(trainee)
    W = trainee.model.core.weight_hh
    (G,) = torch.autograd.grad(trainee.loss(), W)
    A = (W.detach().T @ G).double().as_subclass(torch.Tensor)
    slopes = ((A - A.T) / math.sqrt(2))[np.triu_indices(10, 1)].abs().sort(descending=True).values
    assert found["largest"] == pytest.approx(float(slopes[0]), rel=1e-4)
    assert found["gradient_norm"] == pytest.approx(float(slopes.norm()), rel=1e-4)
    assert sum(found["counts"]) == 45
    for share in (0.95, 0.99):
        for kind, wanted in (("norm", share * slopes.norm()), ("squared", share**0.5 * slopes.norm())):
            count = next(k for k in range(1, 46) if slopes[:k].norm() >= wanted)
            assert found[kind][str(share)] == pytest.approx(count / 45)


# -------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("greedy", [False, True])
def test_the_dense_step_is_a_rotation_downhill(greedy):
    torch.manual_seed(0)
    start = haar_(torch.empty(7, 7, dtype=torch.float64))
    W = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.EuclideanStiefel())
    M = torch.randn(7, 7, dtype=torch.float64)
    opt = cost.DenseSRCD([W], lr=0.1, greedy=greedy)
    before = float((W.detach() * M).sum())
    (W * M).sum().backward()
    opt.step()
    assert float((W.detach() * M).sum()) < before
    assert (W.detach().T @ W.detach() - torch.eye(7)).norm() < 1e-13
    assert ((W.detach() - start).abs().amax(0) > 1e-12).sum() == 2


@pytest.mark.parametrize("scaled", [False, True])
def test_the_sentence_under_the_costs_says_from_where_on_a_step_matters(scaled):
    """From the size at which it takes a tenth, and does at every larger one."""
    shares = {"dense": {8: 12.0, 16: 5.0, 32: 30.0, 64: 40.0}, "ours": {8: 1.0, 16: 9.9, 32: 2.0, 64: 3.0}}
    table = [
        {"optimizer": name, "d": d, "step in %": 99.0 if scaled else share}
        | ({"at delay 1000": share} if scaled else {})
        for name, one in shares.items()
        for d, share in one.items()
    ]
    takes = "would take" if scaled else "takes"
    assert cost._sentence(table) == (
        f"At delay 1000 backward {takes} 60 to 99 % of backward and step; the step {takes} a tenth or more "
        "for dense from d = 32."
    )
    assert "for none of these up to d = 64." in cost._sentence(table[4:])
    assert cost._sentence([]) == ""


def test_costs_have_a_seed(tmp_path):
    """The same network, batch and rotation again with the same one, others with another."""
    settings = [cost.Cost(seed=seed, delay=4, batch=4) for seed in (0, 0, 1)]
    found = [cost._trainee("srcd-u", 8, one, "cpu") for one in settings]
    for trainee in found:
        cost.time_once(trainee)
    same, again, other = (trainee.model.core.weight_hh.detach() for trainee in found)
    assert torch.equal(same, again) and not torch.equal(same, other)
    drawn = [trainee.optimizers[0].generator.get_state() for trainee in found]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert command("cost", tmp_path / "run", "--seed", "3") == 0
    assert command("cost", tmp_path / "run", "--seed", "4", "--resume") == 2


def test_slopes_that_are_not_finite_have_no_shares(tmp_path):
    folder = tmp_path / "run"
    assert command("sparsity", folder, "--optimizer", "sgd", "--lr", "1e30") == 0
    ends = [row for row in summary(folder)["table"] if row["after"] > 0]
    assert len(ends) == 2
    assert all(math.isnan(row[key]) for row in ends for key in row if key.endswith("of rotations"))


# ------------------------------------------------------------------------------------------ tuning


@pytest.mark.parametrize("name", ["digits", "rotate"])
def test_tuning_goes_through_the_grids_with_seeds_of_its_own(name, tmp_path):
    tried = {"digits": ["--optimizers", "lstm"], "rotate": ["--learned", "cayley"]}[name]
    folder = tmp_path / "run"
    assert command(name, folder, "--tuning", *tried) == 0
    seeds = {json.loads(path.read_text())["what"]["seed"] for path in folder.glob("*-seed*.json")}
    assert seeds == {100}
    rows = [row for row in summary(folder)["table"] if row["lr"] is not None]
    lstm = digits_rates.grid_of(8, "permuted", Method("lstm", "adam"))
    grid = [rates.others for rates in lstm] if name == "digits" else rotate.GRIDS["cayley"]
    assert [row["lr"] for row in rows] == list(grid) and len(rows) >= 3
    assert any(row["best"] for row in rows)


RESULTS = Path(__file__).parent.parent / "docs" / "results"


def kept(name):
    """Return the best rows of a tuning."""
    path = RESULTS / f"{name}.json"
    return [row for row in json.loads(path.read_text())["table"] if row["best"] and row["lr"] is not None]


def test_the_step_sizes_are_those_that_tuning_found():
    for name, hidden in (("digits-tuning", 64), ("digits-wide-tuning", 256)):
        for row in kept(name):
            rates = digits_rates.rates_of(hidden, row["order"], Method(row["optimizer"], row["step"]))
            ties = [
                (r["lr of W"], r["lr"])
                for r in kept(name)
                if all(r[key] == row[key] for key in ("order", "optimizer", "step"))
            ]
            assert (rates.orthogonal, rates.others) in ties
    for row in kept("rotate-tuning"):
        assert rotate.RATES[row["rows"], row["rotation"]] == row["lr"]
    for row in kept("copying-tuning"):
        assert copying.RATES[row["optimizer"]] == Rates(row["lr of W"] or 0.0, row["lr"])
    kinds = {contestant: kind for kind, contestant in problems_rates.KINDS.items()}
    for name, size in (("problems-tuning", 300), ("problems-small-tuning", 100)):
        for row in kept(name):
            assert problems_rates.rates_of(size, row["problem"])[kinds[row["contestant"]]] == row["lr"]


def test_adaptive_copying_was_run_with_these_step_sizes():
    table = json.loads((RESULTS / "copying-adaptive.json").read_text())["table"]
    assert len(table) == len(copying.RATES)
    for row in table:
        assert copying.RATES[row["optimizer"]] == Rates(row["lr of W"] or 0.0, row["lr"])


# ------------------------------------------------------------------------------------------ rotate


def test_rounding_is_to_the_nearest_level_of_each_group():
    y = torch.randn(5, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = quantise(y, 8)
    for row in range(5):
        for group in range(2):
            part = y[row, 8 * group : 8 * group + 8]
            levels = torch.arange(-7, 8) * part.abs().max() / 7
            nearest = levels[(part[:, None] - levels).abs().argmin(1)]
            torch.testing.assert_close(found[row, 8 * group : 8 * group + 8], nearest)


def test_the_loss_foretells_the_error():
    """For rows without structure, the rounding error is uniform within a step."""
    y = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    error = reconstruction_error(y, torch.eye(128), 64)
    assert float(rotate_task.rounding_loss(y, 64)) == pytest.approx(error, rel=0.05)


def test_hadamard_is_orthogonal_with_even_entries():
    H = hadamard(16, torch.Generator().manual_seed(0))
    torch.testing.assert_close(H @ H.T, torch.eye(16))
    assert torch.allclose(H.abs(), torch.full((16, 16), 0.25))
    with pytest.raises(ValueError, match="power of two"):
        hadamard(12, torch.Generator())


def test_cayley_sgd_follows_the_cayley_transform():
    """One step without momentum, against the transform solved exactly."""
    torch.manual_seed(0)
    X = haar_(torch.empty(6, 6, dtype=torch.float64))
    G = torch.randn(6, 6, dtype=torch.float64)
    param = torch.nn.Parameter(X.clone())
    param.grad = G.clone()
    CayleySGD([param], lr=1e-2, momentum=0.0, iterations=60).step()
    product = -G @ X.T
    half = product - 0.5 * X @ (X.T @ product)
    W = half - half.T
    eye = torch.eye(6, dtype=torch.float64)
    expected = torch.linalg.solve(eye - 0.005 * W, (eye + 0.005 * W) @ X)
    torch.testing.assert_close(param.detach(), expected, atol=1e-12, rtol=0)


def test_learned_rotations_beat_their_start():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 32, generator=generator) * torch.logspace(0, -2, 32)
    x = x @ torch.linalg.qr(torch.randn(32, 32, generator=generator)).Q
    start = hadamard(32, generator)
    for name, lr in (("srcd", 0.04), ("cayley", 100.0), ("qr", 100.0)):
        trainee = RotateTrainee(name, 0, x, x, start, lr=lr, iterations=60, batch=128, group=8, block=8)
        for _ in range(60):
            trainee.step()
        assert reconstruction_error(x, trainee.rotation, 8) < reconstruction_error(x, start, 8), name
        assert trainee.finish()["orthogonality"] < 1e-4


# ---------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize("name", ["procrustes", "pca", "brockett", "joint"])
def test_exact_angles_reach_the_closed_form(name):
    outcome = solve(PROBLEMS[name](20, 3), "minimize", 0.0, 20.0, 1e-10, lambda gap: False)
    assert outcome.curve[-1][1] <= 1e-10
    assert problems_task.off_manifold(outcome.point) < 1e-10


def test_a_line_search_that_finds_no_step_ends_where_it_is(monkeypatch):
    """Near the optimum scipy's may divide by a difference that is zero."""
    case, calls = PROBLEMS["pca"](12, 0), []

    def step(self, closure):
        calls.append(closure())
        raise ZeroDivisionError

    monkeypatch.setattr(geoopt.optim.RiemannianLineSearch, "step", step)
    outcome = solve(case, "RiemannianLineSearch", 0.0, 5.0, 1e-12, lambda gap: False)
    assert len(calls) == 1 and len(outcome.curve) == 2
    assert torch.equal(outcome.point, case.start)


def test_unmixing_finds_the_sources():
    case = PROBLEMS["ica"](100, 0)
    assert case.quality is not None
    rate = problems_rates.rates_of(300, "ica")["coordinate"]
    outcome = solve(case, "SRCD matching", rate, 20.0, 1e-6, lambda gap: False)
    assert outcome.curve[-1][1] <= 1e-6
    assert case.quality(outcome.point) < 0.06 < case.quality(case.start)


def test_amari_distance():
    permutation = torch.eye(4)[[2, 0, 3, 1]] * torch.tensor([1.0, -2.0, 0.5, 3.0])
    assert amari_distance(permutation) == 0
    assert amari_distance(torch.ones(4, 4)) == pytest.approx(1)
