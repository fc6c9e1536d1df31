"""``riemcd copying``: the comparison of the paper, with the control it lacks, and what comes after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .copying_figure import draw, summarise
from .copying_task import CopyingTrainee
from .folder import open_folder
from .interrupt import Interrupts
from .methods import Method, Rates, Step, parse_methods
from .runs import Finished, carry_out, check_same
from .settings import Settings, prepare

__all__ = ["Copying", "presets", "run"]


@dataclass(frozen=True, kw_only=True)
class Copying(Settings):
    """Remember ten letters over a delay, with an orthogonal recurrent network.

    Optimizers: frozen (the control: W stays at its start, everything else is trained; always added),
    sgd (no constraint), rsgd and radam (geoopt's RiemannianSGD and RiemannianAdam), geotorch,
    srgd (the whole Riemannian gradient, by the exponential map), srcd-u (one random rotation),
    srcd-gs (the rotation of steepest descent), srcd-gs-block (the steepest 0.5 % of all rotations),
    matching (every column turned once, in random pairs), greedy-matching (in pairs of steep
    descent), partition (all rotations within random groups of --block columns). Write NAME:rmsprop or
    NAME:adam for adaptive steps. radam and geotorch run the recurrence as a loop under autograd, the others
    fused; ours never form the weight gradient.

    Below the memoryless loss K ln 8 / (L + 2K) a network has begun to remember.
    """

    preset: Literal["demo", "paper", "adaptive"] = "demo"
    """Where the other values come from: "demo" has delay 100 and takes about two minutes; "paper" is
    its comparison (delay 1000, 500 iterations, one step size for everything); "adaptive" goes beyond it
    (delay 1000, RMSProp steps, 4000 iterations or five minutes each). --help shows the values of the preset
    beside it."""

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

    adaptive_lr: float = 1e-3
    """Adaptive steps: the step size of all parameters but W."""

    adaptive_lr_orthogonal: float = 1e-3
    """Adaptive steps: the step size of W."""

    block: int = 19
    """How many columns partition puts in a group."""

    loop: Literal["usual", "batched"] = "usual"
    """How radam and geotorch run the recurrence: "usual" as in geotorch's own example, with the input,
    the recurrence and the readout at every step; "batched" takes input and readout for all steps at once."""

    seeds: int = 1
    """How many runs of each optimizer, with seeds 0, 1, ...: start, batches and coordinates."""

    uniform_seeds: int = 1
    """How many runs of srcd-u at least; the paper shows the mean of ten."""

    max_seconds: float | None = None
    """Stop a run when its iterations took so long together, however many they were."""

    def rates(self, method: Method) -> Rates:
        """Return the step sizes of a method."""
        if method.adaptive:
            return Rates(self.adaptive_lr_orthogonal, self.adaptive_lr)
        return Rates(self.lr, self.lr)


_PAPER = ("frozen", "srgd", "srcd-u", "srcd-gs", "srcd-gs-block")


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
            optimizers=("partition:rmsprop", "radam", "geotorch:rmsprop"),
            iterations=4000,
            adaptive_lr_orthogonal=3e-4,  # of 3e-4 and 1e-3 the better with seed 100
            max_seconds=300.0,
        ),
    }


def run(settings: Copying) -> int:
    """Carry out all runs, draw the figure, print the table; return 130 where Ctrl-C came."""
    device = prepare(settings)
    methods = parse_methods(settings.optimizers, settings.step)
    folder = open_folder("copying", settings)
    wanted = [(method, seed) for method in methods for seed in range(_seeds(settings, method))]
    for method, seed in wanted:
        check_same(folder, _name(method, seed), _what(settings, method, seed))
    done: list[tuple[Method, Finished]] = []
    with Interrupts() as stop:
        for method, seed in wanted:
            if stop.asked and not (folder.path / f"{_name(method, seed)}.pt").exists():
                continue  # what an earlier session computed is still shown
            finished = carry_out(
                folder,
                _name(method, seed),
                _what(settings, method, seed),
                partial(_trainee, settings, method, seed, device),
                settings.iterations,
                stop=stop,
                every=settings.checkpoint_every,
                max_seconds=settings.max_seconds,
                quiet=settings.quiet,
            )
            if finished.rows:
                done.append((method, finished))
    summary = summarise(settings, done)
    folder.write("summary.json", summary)
    draw(folder, summary)
    folder.table(summary["table"], summary["note"])
    print(f"\nEverything is in {folder.path}." + (" Go on with --resume." if stop.asked else ""))
    return 130 if stop.asked else 0


def _name(method: Method, seed: int) -> str:
    return f"{method.slug}-seed{seed}"


def _seeds(settings: Copying, method: Method) -> int:
    return max(settings.seeds, settings.uniform_seeds) if method.name == "srcd-u" else settings.seeds


def _what(settings: Copying, method: Method, seed: int) -> dict[str, Any]:
    """Return everything that decides about the numbers of a run."""
    rates = settings.rates(method)
    return {
        "optimizer": method.label,
        "seed": seed,
        "delay": settings.delay,
        "recall": settings.recall,
        "hidden": settings.hidden,
        "batch": settings.batch,
        "lr": rates.others,
        "lr_orthogonal": rates.orthogonal,
        "recurrence": f"{settings.loop} loop" if method.recurrence == "loop" else "fused",
        **({"block": settings.block} if method.name == "partition" else {}),
    }


def _trainee(settings: Copying, method: Method, seed: int, device: Any) -> CopyingTrainee:
    return CopyingTrainee(
        method,
        seed,
        hidden=settings.hidden,
        delay=settings.delay,
        recall=settings.recall,
        batch=settings.batch,
        rates=settings.rates(method),
        block=settings.block,
        loop=settings.loop,
        device=device,
    )
