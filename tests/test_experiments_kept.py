"""What the results kept under ``docs/results`` show, as the page of experiments says it."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def kept(name, by="optimizer"):
    """Return the rows of a kept table by what they are about."""
    table = json.loads((RESULTS / f"{name}.json").read_text())["table"]
    rows = {row[by]: row for row in table}
    assert len(rows) == len(table)
    return rows


@pytest.mark.parametrize("kind", ["activations", "heavy"])
def test_learned_rotations_are_as_good_as_cayleys_in_a_fifth_of_its_time(kind):
    table = json.loads((RESULTS / "rotate-paper.json").read_text())["table"]
    rows = {row["rotation"]: row for row in table if row["rows"] == kind}
    ours, cayley = rows["srcd"], rows["cayley"]
    assert ours["runs"] == cayley["runs"] == 3
    assert ours["error"] <= cayley["error"] and ours["of its time"] <= 0.2
    assert ours["seconds"] <= 0.2 * cayley["seconds"]  # its whole run, too
    assert all(ours["error"] < rows[other]["error"] for other in rows if other != "srcd")
    assert ours["|RᵀR − I|"] < 1e-4


def test_rotations_were_learned_with_step_sizes_inside_their_grids():
    table = json.loads((RESULTS / "rotate-tuning.json").read_text())["table"]
    for key in {(row["rows"], row["rotation"]) for row in table if row["lr"] is not None}:
        rates = {row["lr"]: row["best"] for row in table if (row["rows"], row["rotation"]) == key}
        (best,) = (rate for rate, is_best in rates.items() if is_best)
        assert min(rates) < best < max(rates), key


def test_curves_of_the_paper_are_in_the_order_it_tells_at_first():
    found = json.loads((RESULTS / "copying-paper.json").read_text())
    loss = {curve["optimizer"]: dict(zip(curve["iteration"], curve["loss"], strict=True))
            for curve in found["curves"]}  # fmt: skip
    at = [i for i in loss["srgd"] if all(i in curve for curve in loss.values())]
    early = [i for i in at if 20 <= i <= 200]
    assert len(early) > 50
    for i in early:
        # The block is the nearest to gradient descent, and a steepest rotation ahead of a random one.
        others = ("srcd-u", "srcd-gs", "frozen")
        apart = abs(loss["srcd-gs-block"][i] - loss["srgd"][i])
        assert all(apart < abs(loss[name][i] - loss["srgd"][i]) for name in others)
        assert loss["srcd-gs"][i] < loss["srcd-u"][i]
    # What the paper does not show: one random rotation is the frozen control, all along.
    assert all(abs(loss["srcd-u"][i] / loss["frozen"][i] - 1) < 1e-3 for i in at)
    rows = kept("copying-paper")
    assert rows["srcd-u"]["runs"] == 10 and rows["frozen"]["|WᵀW − I|"] < 1e-4
    assert all(row["|WᵀW − I|"] < 1e-4 for name, row in rows.items() if name != "sgd")


@pytest.mark.parametrize("name", ["copying-demo", "copying-paper", "copying-adaptive"])
def test_a_frozen_control_is_in_every_figure(name):
    curves = json.loads((RESULTS / f"{name}.json").read_text())["curves"]
    assert any(curve["optimizer"].startswith("frozen") for curve in curves)


def test_delay_1000_is_learned():
    found = json.loads((RESULTS / "copying-adaptive.json").read_text())
    rows = kept("copying-adaptive")
    ours, peers = rows["partition:rmsprop"], [rows["radam"], rows["geotorch:rmsprop"]]
    assert found["delay"] == 1000 and found["memoryless"] == pytest.approx(0.0204, abs=5e-5)
    assert ours["half of it at"] is not None and ours["half of it at"] <= 4000
    for peer in peers:
        assert peer["recurrence"] == "usual loop" and peer["runs"] == ours["runs"]
        assert ours["loss"] < peer["loss"]
        assert peer["s/iteration"] > 3 * ours["s/iteration"]
