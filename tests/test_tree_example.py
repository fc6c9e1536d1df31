"""The tree in hyperbolic space: what the gallery shows holds for other trees of directions too."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[1] / "examples" / "plot_tree_embedding.py"


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_srcd_reaches_the_distortion_of_riemannian_adam_in_its_time(seed, monkeypatch, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    sow, threads, dtype = torch.manual_seed, torch.get_num_threads(), torch.get_default_dtype()
    monkeypatch.setattr(torch, "manual_seed", lambda _: sow(seed))
    try:
        runs = runpy.run_path(str(EXAMPLE))["runs"]
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
    for model in ("Lorentz", "Poincaré"):
        assert runs[model, "SRCD"].measure() <= runs[model, "RiemannianAdam"].measure()
    assert (tmp_path / "runs" / "tree_embedding.png").exists()
