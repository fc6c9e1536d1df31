"""A run: iterations that can be interrupted anywhere and resumed bit for bit."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from .folder import Folder, Log, Row
from .interrupt import Interrupts
from .settings import progress

__all__ = ["Finished", "Trainee", "carry_out", "check_same", "whole"]


class Trainee(ABC):
    """What a run trains: everything that changes from one iteration to the next.

    Attributes
    ----------
    model : Module
    optimizers : list of Optimizer
    schedulers : sequence of LRScheduler
        Of their step sizes; none where these stay, or follow from the iteration.
    generator : Generator
        Where the batches come from; on the CPU.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: Sequence[LRScheduler] = ()
    generator: torch.Generator

    @abstractmethod
    def step(self) -> Row:
        """Make one iteration, and return what is logged; ``loss`` is shown in the bar.

        Seconds under ``untimed``, such as those of an evaluation, are taken off the clock.
        """

    def finish(self) -> Row:
        """Return what is to be told of the end of a run."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {
            "model": self.model.state_dict(),
            "optimizers": [opt.state_dict() for opt in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "generator": self.generator.get_state(),
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint holds."""
        self.model.load_state_dict(state["model"])
        for opt, saved in zip(self.optimizers, state["optimizers"], strict=True):
            opt.load_state_dict(saved)
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["random"])


@dataclass
class Finished:
    """What a run left: its settings, its log and how it ended."""

    name: str
    what: dict[str, Any]
    rows: list[Row] = field(repr=False, default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    complete: bool = False

    @property
    def seconds(self) -> float:
        """What all iterations took together."""
        return float(self.rows[-1]["seconds"]) if self.rows else 0.0

    @property
    def seconds_per_iteration(self) -> float:
        """The median over the iterations, which a pause or a compilation does not disturb."""
        clock = [0.0, *(float(row["seconds"]) for row in self.rows)]
        apart = [later - earlier for earlier, later in pairwise(clock)]
        return statistics.median(apart) if apart else 0.0


def whole(runs: list[Finished]) -> list[Finished]:
    """Return the runs that came to their end; all of them where none did."""
    return [run for run in runs if run.complete] or runs


def carry_out(
    folder: Folder,
    name: str,
    what: dict[str, Any],
    make: Callable[[], Trainee],
    iterations: int,
    *,
    stop: Interrupts,
    every: float = 30.0,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> Finished:
    """Train, or go on training, and keep everything in the folder.

    Parameters
    ----------
    folder : Folder
        ``<name>.jsonl`` gets a line per iteration, ``<name>.pt`` the checkpoint and ``<name>.json``
        the settings and the end. What is there already is resumed.
    what : dict
        The settings that decide about the numbers; a run with others is not resumed but refused.
    make : callable
        Makes the trainee at its beginning.
    iterations : int
        In all, with those of earlier sessions.
    stop : Interrupts
        Looked at after every iteration.
    every : float
        Seconds between two checkpoints.
    max_seconds : float, optional
        Stop when the iterations took so long together.

    Returns
    -------
    Finished
    """
    check_same(folder, name, what)
    saved = folder.load(f"{name}.pt")
    if saved is None:
        folder.write(f"{name}.json", {"what": what, "end": {}, "complete": False})
    trainee = make()
    if saved is not None:
        trainee.restore(saved["trainee"])
    done = 0 if saved is None else int(saved["iterations"])
    with Log(folder.path / f"{name}.jsonl", keep=done) as log:
        finished = Finished(name, what, log.rows)

        def enough(ignoring_stop: bool = False) -> bool:
            late = max_seconds is not None and finished.seconds >= max_seconds
            return len(log.rows) >= iterations or late or (stop.asked and not ignoring_stop)

        with _bar(name, len(log.rows), iterations, quiet) as bar:
            _train(folder, finished, trainee, log, enough, every, bar)
        if len(log.rows) > done:
            _keep(folder, name, log, trainee)
    finished.complete = enough(ignoring_stop=True)
    finished.end = {"iterations": len(log.rows), "seconds": finished.seconds, **trainee.finish()}
    folder.write(f"{name}.json", {"what": what, "end": finished.end, "complete": finished.complete})
    return finished


def _train(
    folder: Folder,
    run: Finished,
    trainee: Trainee,
    log: Log,
    enough: Callable[[], bool],
    every: float,
    bar: Any,
) -> None:
    written = time.monotonic()
    while not enough():
        begun, before = time.perf_counter(), run.seconds
        row = trainee.step()
        row["seconds"] = before + time.perf_counter() - begun - row.pop("untimed", 0.0)
        log.add({"iteration": len(log.rows) + 1, **row})
        bar.update()
        bar.set_postfix_str(f"loss {row['loss']:.4g}", refresh=False)
        if time.monotonic() - written > every:
            _keep(folder, run.name, log, trainee)
            written = time.monotonic()


def _keep(folder: Folder, name: str, log: Log, trainee: Trainee) -> None:
    folder.save(f"{name}.pt", {"iterations": len(log.rows), "trainee": trainee.state()})


def check_same(folder: Folder, name: str, what: dict[str, Any]) -> None:
    """Refuse to go on with a run of that name that was made with other settings."""
    before = folder.read(f"{name}.json")
    if before is None:
        return
    for key in [*what, *before["what"]]:
        if before["what"].get(key) != what.get(key):
            raise ValueError(
                f"the run {name} in {folder.path} was made with {key} = {before['what'].get(key)!r}, "
                f"now it is {what.get(key)!r}: resume it as it was, or give another --output."
            )


def _bar(name: str, done: int, iterations: int, quiet: bool) -> Any:
    return progress(
        initial=done, total=iterations, desc=f"{name:28s}", unit="it", disable=quiet, mininterval=0.5
    )
