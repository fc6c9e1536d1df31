"""``riemcd digits``: handwritten digits read pixel by pixel, by networks of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from .digits_task import PEERS, PLAIN, Digits, DigitsTrainee, load_digits
from .figures import close, new_figure, style
from .folder import Folder, open_folder
from .interrupt import Interrupts
from .methods import METHODS, Method, Rates
from .runs import Finished, carry_out, check_same
from .settings import Settings, known, machine, prepare

__all__ = ["DigitsSettings", "presets", "run"]

#: Step sizes of W and of the other parameters: the best of the few that were tried for each, on seeds that
#: are not among those that are reported.
RATES: dict[str, Rates] = {
    "frozen": Rates(0.0, 3e-3),
    "ours": Rates(1e-3, 3e-3),
    "rsgd": Rates(1e-1, 1e-1),
    "radam": Rates(3e-3, 1e-2),
    "geotorch": Rates(3e-4, 3e-3),
    "rnn": Rates(0.0, 1e-3),
    "lstm": Rates(0.0, 1e-2),
}


@dataclass(frozen=True, kw_only=True)
class DigitsSettings(Settings):
    """Recognise scikit-learn's handwritten digits, pixel by pixel as sequences of 64.

    Networks of equal hidden size: an orthogonal one trained by coordinate descent (partition, matching,
    srgd), by geoopt (rsgd, radam) and by geotorch, with its W left as it is (frozen), an unconstrained
    rnn and an lstm of torch. The last state is read out; step sizes fall as a cosine. Reported: the
    accuracy on 360 test images, by seconds of training, and the seconds it took to get as far as the best of
    the other libraries.
    """

    preset: Literal["demo", "paper"] = "demo"
    """Where the other values come from: "paper" has more seeds and shows the pixels in both orders."""

    optimizers: tuple[str, ...] = ("partition", "rsgd", "radam", "geotorch", "frozen", "rnn", "lstm")
    """Which ones: any of riemcd copying, rnn and lstm."""

    orders: tuple[Literal["rows", "permuted"], ...] = ("rows", "permuted")
    """The order of the pixels: row after row, or a fixed random one."""

    hidden: int = 256
    """The size of the recurrent state."""

    batch: int = 32
    """Images per step."""

    epochs: int = 12
    """Passes over the 1437 images."""

    block: int = 32
    """How many columns partition puts in a group."""

    loop: Literal["usual", "batched", "fused"] = "usual"
    """How geoopt's optimizers run the recurrence: a loop under autograd, one with the products of the input
    taken at once, or our fused recurrence (geotorch, which needs autograd, stays with the loop)."""

    lr: float | None = None
    """The step size of all parameters but W; by default the best of a grid for each optimizer."""

    lr_orthogonal: float | None = None
    """The step size of W."""

    seeds: int = 2
    """How many runs of each, with seeds 0, 1, ..."""

    def rates(self, method: Method) -> Rates:
        """Return the step sizes of a method."""
        best = RATES.get(method.name, RATES["ours"])
        return Rates(
            best.orthogonal if self.lr_orthogonal is None else self.lr_orthogonal,
            best.others if self.lr is None else self.lr,
        )


def presets() -> dict[str, DigitsSettings]:
    """Return the configurations by name."""
    return {
        "demo": DigitsSettings(preset="demo", orders=("permuted",), seeds=1),
        "paper": DigitsSettings(preset="paper", seeds=3),
    }


def _method(written: str) -> Method:
    name, _, step = written.partition(":")
    known("an optimizer", [name], [*METHODS, *PLAIN])
    usual: Any = {"rsgd": "constant", "radam": "adam", "rnn": "adam", "lstm": "adam"}.get(name, "rmsprop")
    known("the step of an optimizer", [step] if step else [], ["constant", "rmsprop", "adam"])
    chosen: Any = step or usual
    return Method(name, chosen)


def run(settings: DigitsSettings) -> int:
    """Carry out all runs, draw, print; return 130 where Ctrl-C came."""
    device = prepare(settings)
    methods = [_method(written) for written in settings.optimizers]
    folder = open_folder("digits", settings)
    data = {order: load_digits(order == "permuted", device) for order in settings.orders}
    wanted = [(o, m, s) for o in settings.orders for m in methods for s in range(settings.seeds)]
    for order, method, seed in wanted:
        check_same(folder, _name(order, method, seed), _what(settings, order, method, seed))
    done: list[Finished] = []
    with Interrupts() as stop:
        for method in methods:  # kernels are loaded and caches filled before any clock runs
            _trainee(settings, method, 0, next(iter(data.values()))).step()
        for order, method, seed in wanted:
            name = _name(order, method, seed)
            if stop.asked and not (folder.path / f"{name}.pt").exists():
                continue
            finished = carry_out(
                folder,
                name,
                _what(settings, order, method, seed),
                partial(_trainee, settings, method, seed, data[order]),
                settings.epochs,
                stop=stop,
                every=settings.checkpoint_every,
                quiet=settings.quiet,
            )
            if finished.rows:
                done.append(finished)
    summary = _summarise(settings, done)
    folder.write("summary.json", summary)
    if done:
        _draw(folder, summary)
    folder.table(summary["table"], summary["note"])
    print(f"\nEverything is in {folder.path}." + (" Go on with --resume." if stop.asked else ""))
    return 130 if stop.asked else 0


def _name(order: str, method: Method, seed: int) -> str:
    return f"{order}-{method.name}-{method.step}-seed{seed}"


def _what(settings: DigitsSettings, order: str, method: Method, seed: int) -> dict[str, Any]:
    rates = settings.rates(method)
    peer = method.name == "geotorch" or (method.name in PEERS and settings.loop != "fused")
    loop = "batched" if settings.loop == "batched" else "usual"
    recurrence = "torch" if method.name in PLAIN else f"{loop} loop" if peer else "fused"
    return {
        "optimizer": method.name,
        "step": method.step,
        "order": order,
        "seed": seed,
        "hidden": settings.hidden,
        "batch": settings.batch,
        "epochs": settings.epochs,
        "lr": rates.others,
        "lr_orthogonal": rates.orthogonal,
        "recurrence": recurrence,
        **({"block": settings.block} if method.name == "partition" else {}),
    }


def _trainee(settings: DigitsSettings, method: Method, seed: int, data: Digits) -> DigitsTrainee:
    return DigitsTrainee(
        method,
        seed,
        data,
        hidden=settings.hidden,
        batch=settings.batch,
        rates=settings.rates(method),
        block=settings.block,
        loop=settings.loop,
        epochs=settings.epochs,
    )


def _summarise(settings: DigitsSettings, done: list[Finished]) -> dict[str, Any]:
    """Return mean curves and one row of numbers per order and optimizer."""
    table: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for order in settings.orders:
        rows, drawn = _of_order(order, [run for run in done if run.what["order"] == order])
        table += rows
        curves += drawn
    note = (
        f"Hidden size {settings.hidden}. accuracy: on 360 test images after the last pass, mean of the runs; "
        "spread: standard deviation over the runs; to the best peer's: seconds of training until the mean "
        "accuracy was as high as that of the best of geoopt and geotorch in the end."
    )
    return {
        "experiment": "digits",
        "hidden": settings.hidden,
        "table": table,
        "note": note,
        "curves": curves,
        "runs": [{"name": run.name, **run.what, **run.end} for run in done],
        "machine": machine(),
    }


def _of_order(order: str, done: list[Finished]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for name in dict.fromkeys(run.what["optimizer"] for run in done):
        runs = [run for run in done if run.what["optimizer"] == name]
        length = min(len(run.rows) for run in runs)
        every = np.array([[row["accuracy"] for row in run.rows[:length]] for run in runs])
        pace = float(np.median([run.seconds_per_iteration for run in runs]))
        curves.append({"order": order, "optimizer": name, "seconds_per_epoch": pace,
                       "accuracy": every.mean(0).tolist()})  # fmt: skip
        off = [run.end["orthogonality"] for run in runs if run.end["orthogonality"] is not None]
        rows.append({"order": order, "optimizer": name, "step": runs[0].what["step"],
                     "recurrence": runs[0].what["recurrence"], "runs": len(runs), "epochs": length,
                     "accuracy": float(every[:, -1].mean()), "spread": float(every[:, -1].std()),
                     "s/epoch": pace, "seconds": pace * length, "to the best peer's": None,
                     "|WᵀW − I|": max(off, default=None)})  # fmt: skip
    best = max((row["accuracy"] for row in rows if row["optimizer"] in PEERS), default=2.0)
    for row, curve in zip(rows, curves, strict=True):
        reached = np.flatnonzero(np.array(curve["accuracy"]) >= best)
        if len(reached):
            row["to the best peer's"] = (int(reached[0]) + 1) * row["s/epoch"]
    return rows, curves


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    orders = list(dict.fromkeys(curve["order"] for curve in summary["curves"]))
    names = list(dict.fromkeys(curve["optimizer"] for curve in summary["curves"]))
    figure, axes = new_figure(len(orders), squeeze=False, figsize=(7 * len(orders), 5.2), sharey=True)
    titles = {"rows": "row after row", "permuted": "in a fixed random order"}
    for one, order in zip(axes[0], orders, strict=True):
        for curve in summary["curves"]:
            if curve["order"] != order:
                continue
            look = style(names.index(curve["optimizer"]), int(curve["optimizer"] in PEERS))
            if curve["optimizer"] == "frozen":
                look.update(color="0.45", marker=None, linewidth=3.0)
            at = (np.arange(len(curve["accuracy"])) + 1) * curve["seconds_per_epoch"]
            label = curve["optimizer"] if order == orders[0] else None
            one.plot(at, 100 * np.array(curve["accuracy"]), label=label, **look)
        one.set(xscale="log", xlabel="seconds of training", title=f"Digits, pixels {titles[order]}")
    axes[0][0].set_ylabel("test accuracy in %")
    figure.legend(loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    folder.figure("digits.png", figure)
    close(figure)
