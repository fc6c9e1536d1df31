"""``riemcd rotate``: learn a rotation in which vectors are easy to quantise."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from .digits_task import Digits, DigitsTrainee, load_digits
from .folder import Folder, conclude, open_folder
from .interrupt import Interrupts
from .methods import Method, Rates
from .rotate_report import draw, summarise
from .rotate_task import CLOSED_FORMS, RotateTrainee, reconstruction_error
from .runs import carry_out, check_same
from .settings import TUNING_SEED, Settings, known, prepare, where

__all__ = ["Rotate", "presets", "run"]

Learned = Literal["srcd", "cayley", "qr"]
LEARNED: tuple[Learned, ...] = ("srcd", "cayley", "qr")
_UNSEEN = 8  # pixels after which the hidden states of images differ enough
#: Step sizes at the start that ``--preset tuning`` tries.
GRIDS: dict[Learned, tuple[float, ...]] = {
    "srcd": (0.02, 0.03, 0.05, 0.08),
    "cayley": (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0),
    "qr": (30.0, 100.0, 300.0, 1000.0),
}
#: The best of them on held-out rows.
RATES: dict[tuple[str, Learned], float] = {
    ("activations", "srcd"): 0.03,
    ("activations", "cayley"): 300.0,
    ("activations", "qr"): 300.0,
    ("heavy", "srcd"): 0.05,
    ("heavy", "cayley"): 100.0,
    ("heavy", "qr"): 300.0,
}


@dataclass(frozen=True, kw_only=True)
class Rotate(Settings):
    """Quantise vectors to int4 in a rotated basis, and learn the rotation.

    Rows x are rotated to y = xR, rounded to the nearest of 15 levels with one scale per group of
    neighbours, and rotated back. Rotations without training: none, hadamard (random signs), the
    eigenbasis of the covariance (the second moments: rows are rotated about zero), and that mixed by a
    Hadamard matrix within groups. Learned from the Hadamard one, on the same loss and batches: srcd
    (coordinate descent, which never forms the d x d gradient), cayley (Cayley SGD with momentum, which
    quantisation toolkits port for this) and qr (geoopt's RiemannianSGD with its QR retraction). Reported: the
    relative error ||Q(xR)Rᵀ − x||² / ||x||² on held-out rows, seconds, and the seconds it took to get as far
    as cayley in the end. Step sizes fall linearly to zero; where they start is the best of a grid for every
    way and kind of rows (--preset tuning).
    """

    preset: Literal["demo", "paper", "tuning"] = "demo"
    """Where the other values come from: "paper" has both kinds of rows and three seeds, "tuning" goes
    through the grids of step sizes."""

    learned: tuple[Learned, ...] = LEARNED
    """Which rotations to learn."""

    tuning: bool = False
    """Try every step size of a grid, with seeds 100, 101, ...; none of the rows that are tested otherwise is
    looked at."""

    rows: tuple[Literal["activations", "heavy"], ...] = ("activations", "heavy")
    """What to quantise: hidden states of a recurrent network that reads digits, or rows with heavy tails
    (Student's t with 4 degrees of freedom, a decaying spectrum, and a few channels twenty times as large)."""

    d: int = 1024
    """The size of the vectors, a power of two."""

    group: int = 64
    """How many neighbours share a scale."""

    calibration: int = 16384
    """Rows to learn from; a quarter as many to test."""

    batch: int = 256
    """Rows per iteration."""

    iterations: int = 150
    """Of cayley and qr."""

    coordinate_iterations: int = 250
    """Of srcd, whose iterations are cheaper: what counts is the time."""

    block: int = 64
    """How many coordinates srcd puts in a group at a time: all rotations within groups are taken at once."""

    lr: float | None = None
    """The step size at the start; by default the best of a grid for each."""

    seeds: int = 1
    """How many runs of each, with seeds 0, 1, ..."""

    def rates(self, kind: str, name: Learned) -> tuple[float, ...]:
        """Return the step size of a rotation, all of its grid where they are to be tuned."""
        if self.lr is not None:
            return (self.lr,)
        return GRIDS[name] if self.tuning else (RATES[kind, name],)


def presets() -> dict[str, Rotate]:
    """Return the configurations by name."""
    return {
        "demo": Rotate(preset="demo", rows=("activations",)),
        "paper": Rotate(preset="paper", seeds=3),
        "tuning": Rotate(preset="tuning", tuning=True),
    }


def rows_of(
    kind: str, d: int, count: int, seed: int, device: Any, tuning: bool = False
) -> tuple[Tensor, Tensor]:
    """Return rows to learn from, ``(count, d)``, and rows to test, ``(count // 4, d)``.

    Hidden states to test are those on the images the network has not seen; to tune, on ones it has seen.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "heavy":
        spectrum = torch.logspace(0, -1.5, d)
        mixing = torch.linalg.qr(torch.randn(d, d, generator=generator)).Q
        total = count + count // 4
        tails = (torch.randn(total, 4, generator=generator).square().sum(1, keepdim=True) / 4).rsqrt()
        found = (torch.randn(total, d, generator=generator) * spectrum * tails) @ mixing
        found[:, torch.randperm(d, generator=generator)[: max(2, d // 100)]] *= 20
        found = found.to(device)
        return found[:count], found[count:]
    data = load_digits(False, device)
    seen = _images(data, tuning)
    trainee = DigitsTrainee(Method("partition", "rmsprop"), seed, data, hidden=d, batch=128,
                            rates=Rates(1e-3, 1e-3), block=16)  # fmt: skip
    trainee.step()
    with torch.no_grad():
        core: Any = trainee.model.core
        pools = [core(x[..., None])[0][_UNSEEN:].reshape(-1, d) for x in seen]
    sizes = (count, count // 4)
    return tuple(
        pool[torch.randperm(len(pool), generator=generator)[:size].to(pool.device)].contiguous()
        for pool, size in zip(pools, sizes, strict=True)
    )


def _images(data: Digits, tuning: bool) -> tuple[Tensor, Tensor]:
    """Return the images whose hidden states are learnt from, ``(64, images)``, and those that are tested."""
    return (data.x[:, :1149], data.x[:, 1149:]) if tuning else (data.x, data.x_test)


def _check_calibration(settings: Rotate) -> None:
    """Refuse more rows than there are hidden states, before a network is trained for them."""
    if "activations" not in settings.rows:
        return
    learned, tested = ((len(x) - _UNSEEN) * x.shape[1] for x in _images(load_digits(False), settings.tuning))
    most = min(learned, 4 * tested)
    if settings.calibration > most:
        raise ValueError(
            f"--calibration must be at most {most}, the number of hidden states; got {settings.calibration}."
        )


def run(settings: Rotate) -> int:
    """Try and learn all rotations, draw, print; return 130 where Ctrl-C came."""
    device = prepare(settings)
    known("--learned", settings.learned, LEARNED)
    if settings.d % settings.group:
        raise ValueError(f"--d must be a multiple of --group, got {settings.d} and {settings.group}.")
    if settings.d & (settings.d - 1):
        raise ValueError(f"--d must be a power of two, for the Hadamard rotation; got {settings.d}.")
    _check_calibration(settings)
    folder = open_folder("rotate", settings)
    results: list[dict[str, Any]] = []
    first = TUNING_SEED if settings.tuning else 0
    wanted = [(kind, seed) for kind in settings.rows for seed in range(first, first + settings.seeds)]
    for kind, seed in wanted:
        for one in _runs(settings, kind, seed):
            check_same(folder, one["name"], one["what"])
    folder.keep_settings("rotate", settings)
    with Interrupts() as stop:
        for kind, seed in wanted:
            begun = any((folder.path / f"{one['name']}.pt").exists() for one in _runs(settings, kind, seed))
            if begun or not stop.asked:
                results += _of_rows(settings, folder, kind, seed, device, stop)
        return conclude(folder, summarise(results, d=settings.d, group=settings.group), draw, stop.asked)


def _runs(settings: Rotate, kind: str, seed: int) -> list[dict[str, Any]]:
    """Return the rotations to learn for rows of one kind and seed: name of the run, rotation and settings."""
    found = []
    for name in settings.learned:
        for lr in settings.rates(kind, name):
            run_name = f"{kind}-{name}-{f'{lr:g}-' if settings.tuning else ''}seed{seed}"
            what = _what(settings, kind, name, seed, lr)
            found.append({"name": run_name, "rotation": name, "what": what})
    return found


def _of_rows(
    settings: Rotate, folder: Folder, kind: str, seed: int, device: Any, stop: Interrupts
) -> list[dict[str, Any]]:
    """Return what became of every rotation, for rows of one kind and one seed."""
    x, test = rows_of(kind, settings.d, settings.calibration, seed, device, settings.tuning)
    results = []

    def judge(name: str, rotation: Tensor, seconds: float, **more: Any) -> None:
        errors = {"error": reconstruction_error(test, rotation, settings.group),
                  "calibration error": reconstruction_error(x, rotation, settings.group)}  # fmt: skip
        results.append({"rows": kind, "rotation": name, "seed": seed, **errors, "seconds": seconds, **more})

    for name, make in CLOSED_FORMS.items():
        begun = time.perf_counter()
        rotation = make(x, settings.group, torch.Generator().manual_seed(seed))
        judge(name, rotation, time.perf_counter() - begun)
    start = CLOSED_FORMS["hadamard"](x, settings.group, torch.Generator().manual_seed(seed))
    for run_name, name, what in (one.values() for one in _runs(settings, kind, seed)):
        if stop.asked and not (folder.path / f"{run_name}.pt").exists():
            continue
        made: list[RotateTrainee] = []
        make_one = partial(
            RotateTrainee, name, seed, x, test, start, lr=what["lr"], iterations=what["iterations"],
            batch=settings.batch, group=settings.group, block=settings.block,
        )  # fmt: skip
        if not (folder.path / f"{run_name}.pt").exists():
            make_one().step()  # kernels are loaded and caches filled before the clock runs

        def make_and_keep(make_one: Any = make_one, made: list[RotateTrainee] = made) -> RotateTrainee:
            made.append(make_one())
            return made[-1]

        finished = carry_out(folder, run_name, what, make_and_keep, what["iterations"], stop=stop,
                             every=settings.checkpoint_every, quiet=settings.quiet)  # fmt: skip
        pace = finished.seconds_per_iteration
        judge(name, made[-1].rotation, pace * len(finished.rows), iterations=len(finished.rows),
              seconds_per_iteration=pace, lr=what["lr"], complete=finished.complete,
              curve=[[row["iteration"], row["error"]] for row in finished.rows if "error" in row],
              orthogonality=finished.end["orthogonality"])  # fmt: skip
    return results


def _what(settings: Rotate, kind: str, name: str, seed: int, lr: float) -> dict[str, Any]:
    names = ("d", "group", "calibration", "batch", "iterations")
    asked = {one: getattr(settings, one) for one in names}
    found = {"rows": kind, "rotation": name, "seed": seed, **asked, "lr": lr, **where(settings)}
    if name == "srcd":
        found["iterations"] = settings.coordinate_iterations
    return {**found, "block": settings.block} if name == "srcd" else found
