"""``riemcd digits``: handwritten digits read pixel by pixel, by networks of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .digits_rates import grid_of, passes_of, rates_of
from .digits_report import draw, summarise
from .digits_task import FOLDS, PEERS, PLAIN, SHOWN, Digits, DigitsTrainee, load_digits
from .folder import conclude, open_folder
from .interrupt import Interrupts
from .methods import OURS, Method, Rates, parse_method
from .runs import Finished, carry_out, check_same
from .settings import TUNING_SEED, Settings, prepare, where

__all__ = ["DigitsSettings", "presets", "run"]


@dataclass(frozen=True, kw_only=True)
class DigitsSettings(Settings):
    """Recognise scikit-learn's handwritten digits, pixel by pixel as sequences of 64.

    Networks of equal hidden size: an orthogonal one trained by coordinate descent (partition, matching,
    srgd), by geoopt (rsgd, radam) and by geotorch, with its W left as it is (frozen), an unconstrained
    rnn and an lstm of torch. The last state is read out; step sizes fall as a cosine, to zero at the end.
    Reported: the accuracy on 360 test images, by seconds of training, and the seconds it took to get as far
    as the best of the other libraries. Step sizes are at least as good as their neighbours for the
    optimizers that are shown by default and both orders of the pixels, with 64 hidden units: --preset tuning
    compares them, with other seeds, on images held out of the 1437 to learn from.
    """

    preset: Literal["demo", "paper", "tuning"] = "demo"
    """Where the other values come from: "paper" has more seeds and shows the pixels in both orders, "tuning"
    tries the step sizes and their neighbours."""

    optimizers: tuple[str, ...] = SHOWN
    """Which ones: any of riemcd copying, rnn and lstm. A step can be named as in geotorch:rmsprop; all have
    Adam's unless told otherwise, and rsgd its own."""

    tuning: bool = False
    """Try step sizes and their neighbours, with seeds 100, 101, ...; each holds another fifth of the 1437
    images out and is tested there, so that the test images are not looked at."""

    orders: tuple[Literal["rows", "permuted"], ...] = ("rows", "permuted")
    """The order of the pixels: row after row, or a fixed random one."""

    hidden: int = 64
    """The size of the recurrent state. Where it is large, a random W reads digits nearly as well."""

    batch: int = 32
    """Images per step."""

    epochs: int = 24
    """Passes over the 1437 images."""

    coordinate_epochs: int | None = None
    """Passes of our optimizers and of the frozen control, which are cheaper: what counts is the time. By
    default 1.6 times as many as the others with 64 hidden units, which take less than a third of the time of
    geoopt's and geotorch's on the usual loop, 1.2 times with 128, and as many with 256."""

    block: int = 64
    """How many columns partition puts in a group."""

    noise: float = 0.15
    """The standard deviation of the noise that is added to pixels (from 0 to 1) to learn from, anew in every
    pass: as much as is best for geotorch. Without it networks know their 1437 images by heart soon."""

    loop: Literal["usual", "batched", "fused"] = "usual"
    """How geoopt and geotorch run the recurrence: a loop under autograd, one with the products of the input
    taken at once, or our fused recurrence."""

    lr: float | None = None
    """The step size of all parameters but W; by default what is best for each optimizer and order, with the
    steps that are shown by default. Optimizers that are not shown have those of partition."""

    lr_orthogonal: float | None = None
    """The step size of W."""

    first_seed: int = 0
    """The seed of the first run."""

    seeds: int = 2
    """How many runs of each, with this seed and the following ones."""

    def rates(self, order: str, method: Method) -> list[Rates]:
        """Return the step sizes of a method, with their neighbours where they are to be tuned."""
        asked = (self.hidden, order, method)
        known = grid_of(*asked) if self.tuning else [rates_of(*asked)]
        found = [
            Rates(
                rates.orthogonal if self.lr_orthogonal is None else self.lr_orthogonal,
                rates.others if self.lr is None else self.lr,
            )
            for rates in known
        ]
        return list(dict.fromkeys(found))

    def passes(self, method: Method) -> int:
        """Return how often a method goes over the images."""
        if method.name not in (*OURS, "frozen"):
            return self.epochs
        given = self.coordinate_epochs
        return passes_of(self.hidden, self.epochs) if given is None else given

    def draws(self) -> list[tuple[int, int | None]]:
        """Return the seeds, and which part of the images to learn from each holds out."""
        if not self.tuning:
            return [(self.first_seed + i, None) for i in range(self.seeds)]
        return [(TUNING_SEED + self.first_seed + i, (self.first_seed + i) % FOLDS) for i in range(self.seeds)]


@dataclass(frozen=True)
class _Run:
    """One of the runs that are wanted."""

    order: str
    method: Method
    rates: Rates
    seed: int
    held_out: int | None


def presets() -> dict[str, DigitsSettings]:
    """Return the configurations by name."""
    return {
        "demo": DigitsSettings(preset="demo", orders=("permuted",), seeds=1),
        "paper": DigitsSettings(preset="paper", first_seed=60, seeds=20),
        # other libraries do the same on either recurrence, and find their step sizes on the faster one
        "tuning": DigitsSettings(preset="tuning", tuning=True, seeds=2 * FOLDS, loop="fused"),
    }


def _method(written: str) -> Method:
    return parse_method(written, "constant" if written == "rsgd" else "adam", PLAIN)


def run(settings: DigitsSettings) -> int:
    """Carry out all runs, draw, print; return 130 where Ctrl-C came."""
    device = prepare(settings)
    methods = [_method(written) for written in settings.optimizers]
    folder = open_folder("digits", settings)
    wanted = [
        _Run(order, method, rates, seed, held_out)
        for seed, held_out in settings.draws()
        for order in settings.orders
        for method in methods
        for rates in settings.rates(order, method)
    ]
    data: dict[tuple[str, int | None], Digits] = {
        (order, held_out): load_digits(order == "permuted", device, held_out)
        for order, held_out in dict.fromkeys((one.order, one.held_out) for one in wanted)
    }
    for one in wanted:
        check_same(folder, _name(settings, one), _what(settings, one))
    folder.keep_settings("digits", settings)
    done: list[Finished] = []
    with Interrupts() as stop:
        left = [one for one in wanted if not (folder.path / f"{_name(settings, one)}.pt").exists()]
        for one in {one.method: one for one in left}.values():
            # kernels are loaded and caches filled before any clock runs
            _trainee(settings, one, data[one.order, one.held_out]).warm_up()
        for one in wanted:
            if stop.asked and not (folder.path / f"{_name(settings, one)}.pt").exists():
                continue
            finished = carry_out(
                folder,
                _name(settings, one),
                _what(settings, one),
                partial(_trainee, settings, one, data[one.order, one.held_out]),
                settings.passes(one.method),
                stop=stop,
                every=settings.checkpoint_every,
                quiet=settings.quiet,
            )
            if finished.rows:
                done.append(finished)
        summary = summarise(
            done,
            orders=settings.orders,
            hidden=settings.hidden,
            noise=settings.noise,
            tuning=settings.tuning,
        )
        return conclude(folder, summary, draw, stop.asked)


def _name(settings: DigitsSettings, one: _Run) -> str:
    tried = f"-{one.rates.orthogonal:g}-{one.rates.others:g}" if settings.tuning else ""
    return f"{one.order}-{one.method.name}-{one.method.step}{tried}-seed{one.seed}"


def _what(settings: DigitsSettings, one: _Run) -> dict[str, Any]:
    method = one.method
    loops = method.name in PEERS and settings.loop != "fused"
    recurrence = "torch" if method.name in PLAIN else f"{settings.loop} loop" if loops else "fused"
    return {
        "optimizer": method.name,
        "step": method.step,
        "order": one.order,
        "seed": one.seed,
        "held_out": one.held_out,
        "hidden": settings.hidden,
        "batch": settings.batch,
        "noise": settings.noise,
        "epochs": settings.passes(method),
        "lr": one.rates.others,
        "lr_orthogonal": one.rates.orthogonal,
        "recurrence": recurrence,
        **({"block": settings.block} if method.name == "partition" else {}),
        **where(settings),
    }


def _trainee(settings: DigitsSettings, one: _Run, data: Digits) -> DigitsTrainee:
    return DigitsTrainee(
        one.method,
        one.seed,
        data,
        hidden=settings.hidden,
        batch=settings.batch,
        rates=one.rates,
        block=settings.block,
        loop=settings.loop,
        epochs=settings.passes(one.method),
        noise=settings.noise,
    )
