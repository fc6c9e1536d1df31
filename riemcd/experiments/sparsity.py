"""``riemcd sparsity``: how few rotations carry the gradient, at the start and after training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from ..diagnostics import gradient_sparsity, partial_derivatives
from .copying_task import CopyingTrainee
from .figures import COLOURS, close, new_figure
from .folder import Folder, Row, conclude, open_folder
from .interrupt import Interrupts
from .methods import Method, Rates, parse_method
from .networks import recurrent_weight
from .runs import carry_out, check_same
from .settings import Settings, prepare, where

__all__ = ["Sparsity", "presets", "run"]

SHARES = (0.95, 0.99)
#: What the paper reports, in per cent: it does not say whether of the norm or of its square.
PAPER = {"start": {0.95: 0.1, 0.99: 4.2}, "end": {0.95: 9.0, 0.99: 28.4}}


@dataclass(frozen=True, kw_only=True)
class Sparsity(Settings):
    """Look at the partial derivatives of the copying loss, as the paper's histogram does.

    A network is trained on the copying task; at the start and at the end the slope of the loss along
    every rotation of two columns is taken on one batch. Reported: the histogram of their sizes, and the
    smallest share of all rotations that carries 95 % and 99 % of the gradient's norm, and of its square,
    since the paper does not say which it means.
    """

    preset: Literal["demo", "paper"] = "demo"
    """Where the other values come from: "demo" has delay 100, "paper" delay 1000, 500 iterations."""

    optimizer: str = "srgd"
    """What trains the network; any of those of `riemcd copying` but radam and geotorch, such as srcd-gs or
    partition:rmsprop."""

    delay: int = 1000
    """L, the number of blanks to remember over."""

    recall: int = 10
    """K, the number of letters to remember."""

    hidden: int = 190
    """d, the size of the recurrent matrix; there are d(d - 1)/2 rotations."""

    batch: int = 128
    """Sequences per iteration, and in the batch on which slopes are taken."""

    iterations: int = 500
    """How long to train between the two looks."""

    lr: float = 2e-4
    """The step size, for everything."""

    seeds: int = 1
    """How many runs, with seeds 0, 1, ...; the table has the mean."""


def presets() -> dict[str, Sparsity]:
    """Return the configurations by name."""
    return {"demo": Sparsity(preset="demo", delay=100), "paper": Sparsity(preset="paper")}


class _Looking(CopyingTrainee):
    """A trainee that ends with a look at its slopes."""

    def finish(self) -> Row:
        return {**super().finish(), **look(self)}


def look(trainee: CopyingTrainee) -> dict[str, Any]:
    """Return the shares and a histogram of the slopes on the next batch; nothing is trained."""
    plain = CopyingTrainee(
        Method("sgd", "constant"),
        seed=0,
        hidden=trainee.hidden,
        delay=trainee.delay,
        recall=trainee.recall,
        batch=trainee.batch,
        rates=Rates(0.0, 0.0),
        device=trainee.device,
    )
    plain.model.load_state_dict(trainee.model.state_dict())
    plain.generator.set_state(trainee.generator.get_state())
    plain.loss().backward()  # type: ignore[no-untyped-call]
    weight = recurrent_weight(plain.model.core)
    assert weight is not None
    slopes = partial_derivatives(weight).abs().double().cpu().numpy()
    edges = np.linspace(-14, 2, 129)
    counts, _ = np.histogram(np.log10(np.maximum(slopes, 1e-14)), bins=edges)
    return {
        "norm": {str(s): found for s, found in gradient_sparsity(weight, SHARES).items()},
        "squared": {str(s): found for s, found in gradient_sparsity(weight, SHARES, squared=True).items()},
        "gradient_norm": float(np.sqrt(np.square(slopes).sum())),
        "median": float(np.median(slopes)),
        "largest": float(slopes.max()),
        "log10_edges": edges.tolist(),
        "counts": counts.tolist(),
    }


def run(settings: Sparsity) -> int:
    """Train, look, draw, print; return 130 where Ctrl-C came."""
    device = prepare(settings)
    method = parse_method(settings.optimizer, "constant")
    if method.recurrence == "loop":
        raise ValueError(f"riemcd sparsity looks at fused recurrences, which {method.name} does not train.")
    folder = open_folder("sparsity", settings)
    names = [f"{method.slug}-seed{seed}" for seed in range(settings.seeds)]
    for seed, name in enumerate(names):
        check_same(folder, name, _what(settings, method, seed))
    folder.keep_settings("sparsity", settings)
    looks: list[dict[str, Any]] = []
    with Interrupts() as stop:
        for seed, name in enumerate(names):
            if stop.asked and not (folder.path / f"{name}.pt").exists():
                continue
            make = partial(
                _Looking, method, seed, hidden=settings.hidden, delay=settings.delay, recall=settings.recall,
                batch=settings.batch, rates=Rates(settings.lr, settings.lr), device=device,
            )  # fmt: skip
            start = look(make())
            finished = carry_out(
                folder,
                name,
                _what(settings, method, seed),
                make,
                settings.iterations,
                stop=stop,
                every=settings.checkpoint_every,
                quiet=settings.quiet,
            )
            looks.append({"seed": seed, "iterations": len(finished.rows), "complete": finished.complete,
                          "start": start, "end": finished.end})  # fmt: skip
        looks = [one for one in looks if one["complete"]] or looks[:1]
        return conclude(folder, _summarise(settings, looks), _draw, stop.asked)


def _what(settings: Sparsity, method: Method, seed: int) -> dict[str, Any]:
    """Return everything that decides about the numbers of a run."""
    names = ("delay", "recall", "hidden", "batch", "lr")
    asked = {name: getattr(settings, name) for name in names}
    return {"optimizer": method.label, "seed": seed, **asked, **where(settings)}


def _summarise(settings: Sparsity, looks: list[dict[str, Any]]) -> dict[str, Any]:
    table = []
    for when in ("start", "end") if looks else ():
        for kind in ("norm", "squared"):
            row: dict[str, Any] = {
                "after": 0 if when == "start" else looks[0]["iterations"],
                "share of": "the norm" if kind == "norm" else "its square",
            }
            for share in SHARES:
                found = [one[when][kind][str(share)] for one in looks]
                row[f"{share:.0%} in % of rotations"] = 100 * float(np.mean(found))
                row[f"paper, {share:.0%}"] = PAPER[when][share]
            row["largest over median"] = float(
                np.mean([one[when]["largest"] / one[when]["median"] for one in looks])
            )
            table.append(row)
    count = settings.hidden * (settings.hidden - 1) // 2
    runs = "one run" if len(looks) == 1 else f"mean of {len(looks)} runs"
    note = (
        f"{count} rotations; delay {settings.delay}, trained by {settings.optimizer}; {runs}. The paper "
        "does not say of which of the two its shares are; it looked after 500 iterations."
    )
    return {"experiment": "sparsity", "delay": settings.delay, "hidden": settings.hidden, "rotations": count,
            "optimizer": settings.optimizer, "table": table, "note": note, "looks": looks}  # fmt: skip


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    figure, axes = new_figure(figsize=(8, 4.8))
    looks = summary["looks"]
    names = {"start": "at the start", "end": f"after {looks[0]['iterations']} iterations"}
    for number, (when, name) in enumerate(names.items()):
        edges = 10.0 ** np.array(looks[0][when]["log10_edges"])
        counts = np.sum([one[when]["counts"] for one in looks], axis=0)
        look = {"color": COLOURS[number], "linestyle": ("-", "--")[number]}
        axes.stairs(counts, edges, fill=True, color=COLOURS[number], alpha=0.25)
        axes.stairs(counts, edges, label=name, linewidth=1.6, **look)
        axes.axvline(max(one[when]["largest"] for one in looks), linewidth=1.0, **look)
    used = np.sum([np.array(one[when]["counts"]) for one in looks for when in names], axis=0)
    at = np.flatnonzero(used)
    title = f"Copying memory, delay {summary['delay']}: slopes along all rotations"
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="|∂|, slope along one rotation of two columns",
        ylabel="number of rotations" + (", all runs" if len(looks) > 1 else ""),
        title=title,
        xlim=(edges[max(at[0], 1)], 2 * edges[at[-1] + 1]),
    )
    axes.legend(frameon=False, title="thin lines: the largest")
    folder.figure("sparsity.png", figure)
    close(figure)
