"""``riemcd copying`` in a small configuration, and what it leaves."""

import json

import torch

from riemcd.cli import main

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
