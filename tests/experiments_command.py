"""The commands other than ``riemcd copying`` in small configurations, and what they leave."""

import json

from riemcd.cli import main

SMALL = {
    "sparsity": ["--hidden", "12", "--delay", "6", "--recall", "3", "--batch", "4", "--iterations", "6"],
    "cost": ["--sizes", "8", "16", "--delay", "4", "--batch", "4", "--trials", "1"],
    "problems": ["--size", "12", "--seconds", "0.05"],
    "digits": ["--hidden", "8", "--epochs", "3", "--coordinate-epochs", "3", "--seeds", "1",
               "--orders", "permuted", "--block", "4",
               "--batch", "500", "--optimizers", "partition", "radam", "rnn"],
    "rotate": ["--d", "16", "--group", "8", "--calibration", "64", "--batch", "16", "--iterations", "8",
               "--coordinate-iterations", "8",
               "--block", "4", "--rows", "heavy"],
}  # fmt: skip


def command(name, folder, *options):
    return main([name, "--output", str(folder), *SMALL[name], "--threads", "1", "--quiet", *options])


def summary(folder):
    return json.loads((folder / "summary.json").read_text())
