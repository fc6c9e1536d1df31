"""``riemcd copying``: the comparison of the paper, with the control it lacks, and what comes after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .copying_figure import draw, summarise
from .copying_task import CopyingTrainee
from .folder import conclude, open_folder
from .interrupt import Interrupts
from .methods import Method, Rates, Step, cross, parse_methods
from .runs import Finished, carry_out, check_same
from .settings import TUNING_SEED, Settings, prepare, where

__all__ = ["Copying", "presets", "run"]

_OTHERS = (1e-3, 3e-3, 1e-2)
#: Step sizes that ``--preset tuning`` tries, by optimizer.
GRIDS: dict[str, list[Rates]] = {
    "frozen:rmsprop": cross((0.0,), (*_OTHERS, 3e-2)),
    "partition:rmsprop": cross((1e-4, 3e-4, 1e-3), _OTHERS),
    "radam": cross((3e-3, 1e-2, 3e-2), (1e-2, 3e-2, 1e-1)),
    "geotorch:rmsprop": cross((1e-4, 3e-4, 1e-3), _OTHERS),
}
#: The best of them.
RATES: dict[str, Rates] = {
    "frozen:rmsprop": Rates(0.0, 1e-2),
    "partition:rmsprop": Rates(3e-4, 3e-3),
    "radam": Rates(1e-2, 3e-2),
    "geotorch:rmsprop": Rates(3e-4, 3e-3),
}


@dataclass(frozen=True, kw_only=True)
class Copying(Settings):
    """Remember ten letters over a delay, with an orthogonal recurrent network.

    Optimizers: frozen (the control: W stays at its start, everything else is trained; always added),
    sgd (no constraint), rsgd and radam (geoopt's RiemannianSGD and RiemannianAdam), geotorch,
    srgd (the whole Riemannian gradient, by the exponential map), srcd-u (one random rotation),
    srcd-gs (the rotation of steepest descent), srcd-gs-block (the steepest 0.5 % of all rotations),
    matching (every column turned once, in random pairs), greedy-matching (in pairs of steep
    descent), partition (all rotations within random groups of --block columns). Write NAME:rmsprop or
    NAME:adam for adaptive steps (rsgd:adam is RiemannianAdam, rsgd:rmsprop the same without a first
    moment, since geoopt has no RMSProp of its own). radam and geotorch run the recurrence as a loop under
    autograd, the others fused; ours never form the weight gradient.

    Below the memoryless loss K ln 8 / (L + 2K) a network has begun to remember.
    """

    preset: Literal["demo", "paper", "adaptive", "tuning"] = "demo"
    """Where the other values come from: "demo" has delay 100 and takes two minutes or less; "paper" is
    its comparison (delay 1000, 500 iterations, one step size for everything); "adaptive" goes beyond it
    (delay 1000, RMSProp steps that fall, 4000 iterations or four minutes each, three seeds), and "tuning"
    finds its step sizes. --help shows the values of the preset beside it."""

    optimizers: tuple[str, ...] = ()
    """Which ones, as above: for example frozen srcd-u partition:rmsprop."""

    step: Step = "constant"
    """How far optimizers step that do not say it themselves."""

    delay: int = 1000
    """L, the number of blanks to remember over."""

    recall: int = 10
    """K, the number of letters to remember."""

    hidden: int = 190
    """d, the size of the recurrent matrix."""

    batch: int = 128
    """Sequences per iteration, drawn anew each time."""

    iterations: int = 500
    """Per run; those before a --resume count."""

    lr: float = 2e-4
    """Constant steps: the step size, for everything."""

    adaptive_lr: float | None = 1e-3
    """Adaptive steps: the step size of all parameters but W; None for the best of the optimizer's grid
    (frozen:rmsprop, partition:rmsprop, radam and geotorch:rmsprop have one), and 1e-3 where there is none."""

    adaptive_lr_orthogonal: float | None = 1e-3
    """Adaptive steps: the step size of W, likewise."""

    falling: float | None = None
    """Let all step sizes fall by the power 3/4 of the iterations, as Robbins and Monro ask for: after so many
    they are 0.59 of what they were, after three times as many 0.35. None lets them stay."""

    tuning: bool = False
    """Try every step size of a grid, with seeds 100, 101, ...; optimizers without a grid run with the step
    sizes above."""

    block: int = 19
    """How many columns partition puts in a group."""

    loop: Literal["usual", "batched"] = "usual"
    """How radam and geotorch run the recurrence: "usual" as in geotorch's own example, with the input,
    the recurrence and the readout at every step; "batched" takes input and readout for all steps at once."""

    seeds: int = 1
    """How many runs of each optimizer, with seeds 0, 1, ...: start, batches and coordinates."""

    uniform_seeds: int = 1
    """How many runs of srcd-u at least; the paper shows the mean of ten. Every start has as many: beyond
    --seeds they have the starts and batches of the others again, and differ by the rotations drawn."""

    max_seconds: float | None = None
    """Stop a run when its iterations took so long together, however many they were."""

    def rates(self, method: Method) -> list[Rates]:
        """Return the step sizes of a method, all of its grid where they are to be tuned."""
        if not method.adaptive:
            return [Rates(self.lr, self.lr)]
        if self.tuning and method.label in GRIDS:
            return GRIDS[method.label]
        best = RATES.get(method.label, Rates(1e-3, 1e-3))
        orthogonal, others = self.adaptive_lr_orthogonal, self.adaptive_lr
        return [
            Rates(
                best.orthogonal if orthogonal is None else orthogonal,
                best.others if others is None else others,
            )
        ]


@dataclass(frozen=True)
class _Run:
    """One of the runs that are wanted."""

    method: Method
    rates: Rates
    seed: int  # of the start and the batches
    again: int  # the number of this draw of random coordinates, from the same start

    @property
    def draw(self) -> int:
        """The seed of random coordinates, which does not depend on how many runs there are."""
        return self.seed + 1000 * self.again


_PAPER = ("frozen", "srgd", "srcd-u", "srcd-gs", "srcd-gs-block")
_BEYOND = ("partition:rmsprop", "radam", "geotorch:rmsprop")


def presets() -> dict[str, Copying]:
    """Return the configurations by name."""
    return {
        "demo": Copying(
            preset="demo",
            optimizers=(*_PAPER[1:], "matching:rmsprop", "partition:rmsprop"),
            delay=100,
            iterations=250,
        ),
        "paper": Copying(
            preset="paper",
            optimizers=("frozen", "sgd", "rsgd", *_PAPER[1:], "matching", "greedy-matching", "partition"),
            uniform_seeds=10,
        ),
        "adaptive": Copying(
            preset="adaptive",
            optimizers=_BEYOND,
            iterations=4000,
            adaptive_lr=None,
            adaptive_lr_orthogonal=None,
            falling=300.0,
            max_seconds=240.0,
            seeds=3,
        ),
        "tuning": Copying(preset="tuning", optimizers=_BEYOND, iterations=200, tuning=True),
    }


def run(settings: Copying) -> int:
    """Carry out all runs, draw the figure, print the table; return 130 where Ctrl-C came."""
    device = prepare(settings)
    methods = parse_methods(settings.optimizers, settings.step)
    folder = open_folder("copying", settings)
    first = TUNING_SEED if settings.tuning else 0
    wanted = [  # seed by seed: all take turns on a machine that is not always as fast
        _Run(method, rates, seed, again)
        for seed in range(first, first + settings.seeds)
        for method in methods
        for rates in settings.rates(method)
        for again in range(_draws(settings, method))
    ]
    for one in wanted:
        check_same(folder, _name(settings, one), _what(settings, one))
    folder.keep_settings("copying", settings)
    done: list[tuple[Method, Finished]] = []
    with Interrupts() as stop:
        for one in wanted:
            name = _name(settings, one)
            if stop.asked and not (folder.path / f"{name}.pt").exists():
                continue  # what an earlier session computed is still shown
            finished = carry_out(
                folder,
                name,
                _what(settings, one),
                partial(_trainee, settings, one, device),
                settings.iterations,
                stop=stop,
                every=settings.checkpoint_every,
                max_seconds=settings.max_seconds,
                quiet=settings.quiet,
            )
            if finished.rows:
                done.append((one.method, finished))
        return conclude(folder, summarise(settings, done), draw, stop.asked)


def _name(settings: Copying, one: _Run) -> str:
    tried = f"-{one.rates.orthogonal:g}-{one.rates.others:g}" if settings.tuning else ""
    again = f"-draw{one.again}" if one.again else ""
    return f"{one.method.slug}{tried}-seed{one.seed}{again}"


def _draws(settings: Copying, method: Method) -> int:
    """Return how often random coordinates are drawn from each start."""
    return -(-settings.uniform_seeds // settings.seeds) if method.name == "srcd-u" else 1


def _what(settings: Copying, one: _Run) -> dict[str, Any]:
    """Return everything that decides about the numbers of a run."""
    method = one.method
    return {
        "optimizer": method.label,
        "seed": one.seed,
        "draw": one.draw,
        "delay": settings.delay,
        "recall": settings.recall,
        "hidden": settings.hidden,
        "batch": settings.batch,
        "lr": one.rates.others,
        "lr_orthogonal": one.rates.orthogonal,
        "falling": settings.falling,
        "recurrence": f"{settings.loop} loop" if method.recurrence == "loop" else "fused",
        **({"block": settings.block} if method.name == "partition" else {}),
        **where(settings),
    }


def _trainee(settings: Copying, one: _Run, device: Any) -> CopyingTrainee:
    return CopyingTrainee(
        one.method,
        one.seed,
        draw=one.draw,
        hidden=settings.hidden,
        delay=settings.delay,
        recall=settings.recall,
        batch=settings.batch,
        rates=one.rates,
        block=settings.block,
        loop=settings.loop,
        falling=settings.falling,
        device=device,
    )
