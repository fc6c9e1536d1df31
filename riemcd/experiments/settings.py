"""What every experiment can be told, and how a machine is prepared for it."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

__all__ = ["TUNING_SEED", "Settings", "check", "known", "machine", "needs", "prepare"]
__all__ += ["progress", "where"]

#: The first seed of tuning, which has seeds of its own, so that none that is reported has been chosen for.
TUNING_SEED = 100


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every experiment can be told."""

    preset: str = "demo"
    """Where the other values come from. "demo" takes two minutes or less on two cores, "paper" is the
    full-length experiment. --help shows the values of the preset given beside it."""

    output: Path | None = None
    """The folder for results; by default a new one under runs/. It will hold a JSON lines file and a
    checkpoint for every run (in cost and problems: one file with a line per contestant), a summary as JSON, a
    figure and the printed table."""

    resume: bool = False
    """Go on with the runs in --output, or in the newest folder of this preset, from their last
    checkpoints: the numbers are bit for bit those of a run that was never interrupted. Give the same options
    again; more iterations (where step sizes do not fall with them), optimizers or seeds may be asked for.
    problems keeps the contestants that are finished and cost the sizes, whose contestants take turns; they
    begin anew with what was interrupted."""

    device: str = "cpu"
    """Where to compute, such as cpu or cuda:0; problems is for the CPU only. Random numbers are drawn on the
    CPU and moved there."""

    threads: int = 2
    """How many threads torch may use; 0 leaves it as it is. The last digits depend on it, so that a run is
    resumed with as many as it had."""

    checkpoint_every: float = 30.0
    """Seconds between two checkpoints of a run. Ctrl-C writes one too, and draws what there is. cost and
    problems have none."""

    quiet: bool = False
    """Show no progress bars."""


def _keep_freed_memory() -> None:
    """Let the C library use freed tensors again, where it can be told to.

    It gives large ones back to the system at once, and every page of the next one is cleared and mapped
    again, which takes time in every iteration on long sequences.
    """
    adjust = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if adjust is not None:
        adjust(-3, 1 << 30)  # M_MMAP_THRESHOLD
        adjust(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


#: What numbers must be at least, where that is not one.
_LEAST = {"block": 2, "calibration": 4, "d": 2, "delay": 0, "first_seed": 0, "hidden": 2, "seed": 0,
          "size": 2, "sizes": 2, "threads": 0}  # fmt: skip
_MAY_BE_ZERO = ("checkpoint_every", "noise")
_MOST_THREADS = 1024


def check(settings: Settings) -> None:
    """Raise a ValueError when a number is out of its bounds, or a list is empty."""
    for item in fields(settings):
        value, option = getattr(settings, item.name), "--" + item.name.replace("_", "-")
        if value == ():
            raise ValueError(f"{option} must name at least one.")
        for one in value if isinstance(value, tuple) else (value,):
            least = _LEAST.get(item.name, 1)
            if isinstance(one, int) and not isinstance(one, bool) and one < least:
                raise ValueError(f"{option} must be {least} or more, got {one}.")
            if isinstance(one, float) and not (
                0 < one < math.inf or (item.name in _MAY_BE_ZERO and one == 0)
            ):
                raise ValueError(f"{option} must be positive and finite, got {one}.")
    if settings.threads > _MOST_THREADS:
        raise ValueError(f"--threads must be {_MOST_THREADS} or less, got {settings.threads}.")


def prepare(settings: Settings) -> torch.device:
    """Check the settings and what is installed, set the threads, keep freed memory, and return the device."""
    check(settings)
    for module, what in (("matplotlib", "the figure at the end"), ("tqdm", "the progress bar")):
        needs(module, "'riemcd[experiments]'", what)
    _keep_freed_memory()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        device = torch.device(settings.device)
        torch.ones(1, device=device).tolist()
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(f"--device {settings.device} cannot be used here: {reason}") from None
    return device


def needs(module: str, extra: str, what: str) -> Any:
    """Import a module that only some experiments need, or say in one sentence how to get it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        name = module.split(".")[0]
        raise ValueError(f"{what} needs {name}, which is not installed: pip install {extra}.") from None


def progress(*what: Any, **options: Any) -> Any:
    """Return a progress bar of tqdm."""
    return needs("tqdm", "'riemcd[experiments]'", "the progress bar").tqdm(*what, **options)


def where(settings: Settings) -> dict[str, Any]:
    """Return what the last digits and the seconds of a run depend on; it is not resumed with another."""
    return {"device": settings.device, "threads": torch.get_num_threads()}


def machine() -> dict[str, Any]:
    """Return what numbers of seconds are about."""
    return {"processor": _processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def _processor() -> str:
    """Return the name of the processor where the system tells it."""
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        for line in listed.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def known(kind: str, names: Sequence[str], among: Sequence[str]) -> None:
    """Raise a ValueError that lists what there is, when a name is not among it."""
    for name in names:
        if name not in among:
            raise ValueError(f"{kind} must be among {', '.join(among)}; got {name!r}.")
