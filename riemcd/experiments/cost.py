"""``riemcd cost``: what backward and a step cost, beside the paper's table."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import geoopt
import torch
from torch import Tensor

from .copying_task import CopyingTrainee
from .figures import close, new_figure, style
from .folder import Folder, Log, conclude, open_folder
from .interrupt import Interrupts
from .methods import Method, Rates
from .networks import recurrent_weight
from .runs import check_same
from .settings import Settings, known, machine, prepare, progress, where

__all__ = ["Cost", "DenseSRCD", "presets", "run"]

#: The paper's Table 1, in seconds on a P100, d = 1000: backward and step, step.
PAPER = {
    "sgd": (0.3125, 0.00164),
    "srgd": (0.3311, 0.00197),
    "srcd-gs": (0.3191, 0.00177),
    "srcd-u": (0.3429, 0.00223),
}
Contestant = Literal[
    "sgd", "srgd", "srcd-gs", "srcd-u", "our srgd", "our srcd-gs", "our srcd-u", "our matching"
]
CONTESTANTS: tuple[Contestant, ...] = (
    "sgd", "srgd", "srcd-gs", "srcd-u", "our srgd", "our srcd-gs", "our srcd-u", "our matching",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Cost(Settings):
    """Time `loss.backward()` and `optimizer.step()` on the copying task, as the paper's table does.

    As the paper does it, with the gradient of W: sgd (torch), srgd (geoopt's RiemannianSGD with the matrix
    exponential), srcd-gs and srcd-u (the full d x d product, then one rotation). Ours, which never form that
    gradient: our srgd, our srcd-gs, our srcd-u and our matching. All run the same fused recurrence, so that
    only what is named differs.
    """

    preset: Literal["demo", "paper"] = "demo"
    """Where the other values come from: "paper" has d up to 2000 and a delay of 1000, "demo" smaller
    sizes and a delay of 30, from which the shares at 1000 are computed."""

    contestants: tuple[Contestant, ...] = CONTESTANTS
    """Which ones."""

    sizes: tuple[int, ...] = (250, 500, 1000, 2000)
    """d, the sizes of the recurrent matrix."""

    delay: int = 1000
    """L; backward takes L + 20 steps through time, so its share of the time grows with it."""

    batch: int = 128
    """Sequences per iteration."""

    trials: int = 5
    """Iterations per contestant after one that is not timed; reported are medians."""

    seed: int = 0
    """Of the networks, the batches and the random rotations."""


def presets() -> dict[str, Cost]:
    """Return the configurations by name."""
    return {
        "demo": Cost(preset="demo", sizes=(128, 256, 512), delay=30, trials=5),
        "paper": Cost(preset="paper", trials=3),
    }


class DenseSRCD(torch.optim.Optimizer):
    """One rotation per step the way the paper's code finds it: from the full product ``Wᵀ G``.

    Parameters
    ----------
    params : iterable of Parameter
        Square matrices are rotated, everything else gets plain gradient steps.
    lr : float
    greedy : bool
        Take the steepest rotation instead of a random one.
    seed : int
        Of the random ones.
    """

    def __init__(self, params: Any, lr: float, greedy: bool, seed: int = 0) -> None:
        super().__init__(params, {"lr": lr})
        self.greedy, self.generator = greedy, torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Rotate two columns of every matrix on a manifold."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if isinstance(param, geoopt.ManifoldParameter):
                    self._rotate_(param.detach().as_subclass(Tensor), param.grad, group["lr"])
                else:
                    param.add_(param.grad, alpha=-group["lr"])

    def _rotate_(self, W: Tensor, G: Tensor, lr: float) -> None:
        A = W.mT @ G
        slopes = (A - A.mT).triu(1)
        if self.greedy:
            j, l = divmod(int(slopes.abs().argmax()), W.shape[1])
        else:
            j, l = sorted(torch.randperm(W.shape[1], generator=self.generator)[:2].tolist())
        angle = -lr * slopes[j, l] / 2
        turn = torch.stack(
            [torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]
        )
        W[:, [j, l]] = W[:, [j, l]] @ turn


def _trainee(name: str, d: int, settings: Cost, device: Any) -> CopyingTrainee:
    ours = name.startswith("our ")
    method = Method(name.removeprefix("our ") if ours else "sgd", "constant")
    trainee = CopyingTrainee(
        method, settings.seed, hidden=d, delay=settings.delay, recall=10, batch=settings.batch,
        rates=Rates(2e-4, 2e-4), device=device,
    )  # fmt: skip
    if name == "srgd":
        weight = recurrent_weight(trainee.model.core)
        assert isinstance(weight, geoopt.ManifoldParameter)
        weight.manifold = geoopt.EuclideanStiefelExact()
        trainee.optimizers = [geoopt.optim.RiemannianSGD(trainee.model.parameters(), lr=2e-4)]
    elif name in ("srcd-gs", "srcd-u"):
        dense = DenseSRCD(trainee.model.parameters(), 2e-4, greedy=name == "srcd-gs", seed=settings.seed)
        trainee.optimizers = [dense]
    return trainee


def time_once(trainee: CopyingTrainee) -> tuple[dict[str, float], float]:
    """Return the seconds of forward, backward and step of one iteration, and the loss."""
    (opt,) = trainee.optimizers
    opt.zero_grad()
    _wait(trainee.device)
    clock = [time.perf_counter()]
    loss = trainee.loss()
    for part in (loss.backward, opt.step):
        _wait(trainee.device)
        clock.append(time.perf_counter())
        part()
    _wait(trainee.device)
    clock.append(time.perf_counter())
    names = ("forward", "backward", "step")
    return {name: b - a for name, a, b in zip(names, clock, clock[1:], strict=False)}, float(loss.detach())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run(settings: Cost) -> int:
    """Time everyone, draw, print; return 130 where Ctrl-C came. Resuming skips what was timed."""
    device = prepare(settings)
    known("a contestant", settings.contestants, CONTESTANTS)
    folder = open_folder("cost", settings)
    what = {name: getattr(settings, name) for name in ("delay", "batch", "trials", "seed")} | where(settings)
    check_same(folder, "times", what)
    folder.keep_settings("cost", settings)
    folder.write("times.json", {"what": what})
    path = folder.path / "times.jsonl"
    kept = path.read_bytes().count(b"\n") if path.exists() else 0
    shown: list[dict[str, Any]] = []  # timed less often than asked for, when Ctrl-C came
    with Interrupts() as stop, Log(path, keep=kept) as log:
        for d in settings.sizes:
            timed = {row["contestant"] for row in log.rows if row["d"] == d}
            missing = [name for name in settings.contestants if name not in timed]
            if missing and not stop.asked:
                rows = _times(missing, d, settings, device, stop)
                if stop.asked:
                    shown = rows
                else:
                    for row in rows:
                        log.add(row)
        rows = sorted([*log.rows, *shown], key=lambda row: row["d"])  # resuming may have added smaller ones
        return conclude(folder, _summarise(settings, rows), _draw, stop.asked)


def _times(names: list[Any], d: int, settings: Cost, device: Any, stop: Interrupts) -> list[dict[str, Any]]:
    """Let contestants take turns, so that a busy machine is busy for all of them."""
    trainees = {name: _trainee(name, d, settings, device) for name in names}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    turns = [name for _ in range(settings.trials + 1) for name in names]
    with progress(turns, desc=f"d = {d}", unit="it", disable=settings.quiet) as bar:
        for name in bar:
            if stop.asked:
                break
            taken, loss = time_once(trainees[name])
            found[name].append(taken)
            bar.set_postfix_str(f"{name}: backward {taken['backward']:.2g} s, loss {loss:.4g}", refresh=False)
    return [
        {
            "d": d,
            "contestant": name,
            **{part: statistics.median(one[part] for one in times[1:]) for part in times[0]},
        }
        for name, times in found.items()
        if len(times) > 1
    ]


_SCALED = "at delay 1000: the same share with backward scaled to that many steps through time; "


def _summarise(settings: Cost, rows: list[dict[str, Any]]) -> dict[str, Any]:
    table, longer = [], (1000 + 20) / (settings.delay + 20)
    for row in rows:
        back, step = row["backward"], row["step"]
        paper = PAPER.get(row["contestant"], (None, None)) if row["d"] == 1000 else (None, None)
        table.append({"d": row["d"], "optimizer": row["contestant"], "backward + step": back + step,
                      "step": step, "step in %": 100 * step / (back + step),
                      **({} if longer == 1 else {"at delay 1000": 100 * step / (back * longer + step)}),
                      "paper, backward + step": paper[0], "paper, step": paper[1]})  # fmt: skip
    note = (
        f"Seconds, medians of {settings.trials} (fewer after Ctrl-C); batch {settings.batch}, delay "
        f"{settings.delay}; {'' if longer == 1 else _SCALED}the paper's numbers are those of its GPU at "
        "delay 1000. " + _sentence(table)
    )
    return {"experiment": "cost", "delay": settings.delay, "batch": settings.batch, "seed": settings.seed,
            "trials": settings.trials, "table": table, "note": note, "machine": machine()}  # fmt: skip


def _sentence(table: list[dict[str, Any]]) -> str:
    """Say what dominates, and from which size on the step matters, as measured."""
    if not table:
        return ""
    scaled = "at delay 1000" in table[0]
    share = "at delay 1000" if scaled else "step in %"
    shares = [row[share] for row in table]
    first: dict[str, int] = {}
    for name in dict.fromkeys(row["optimizer"] for row in table):
        mine = sorted((row for row in table if row["optimizer"] == name), key=lambda row: -int(row["d"]))
        for row in takewhile(lambda row: row[share] >= 10, mine):
            first[name] = row["d"]  # and at every larger size
    largest = max(row["d"] for row in table)
    matters = ", ".join(f"for {name} from d = {d}" for name, d in first.items())
    matters = matters or f"for none of these up to d = {largest}"
    takes = "would take" if scaled else "takes"
    return (
        f"At delay 1000 backward {takes} {100 - max(shares):.3g} to {100 - min(shares):.3g} % of backward "
        f"and step; the step {takes} a tenth or more {matters}."
    )


def _draw(folder: Folder, summary: dict[str, Any]) -> None:
    figure, axes = new_figure(2, figsize=(10.5, 5), sharex=True)
    names = list(dict.fromkeys(row["optimizer"] for row in summary["table"]))
    for number, name in enumerate(names):
        rows = [row for row in summary["table"] if row["optimizer"] == name]
        look = {**style(number, int(not name.startswith("our "))), "markevery": 1}
        if not name.startswith("our "):  # many of these coincide: rings, one in the other, can be told apart
            look |= {"markersize": 6 + 2.5 * number, "markerfacecolor": "none"}
        for one, key in zip(axes, ("backward + step", "step"), strict=True):
            one.plot([row["d"] for row in rows], [row[key] for row in rows],
                     label=name if key == "step" else None, **look)  # fmt: skip
    sizes = sorted({row["d"] for row in summary["table"]})
    for one, key in zip(axes, ("backward + step", "step"), strict=True):
        one.set(xscale="log", yscale="log", xlabel="d", ylabel="seconds", title=key)
        one.set_xticks(sizes, [str(d) for d in sizes])
        one.minorticks_off()
    figure.suptitle(f"Copying memory, delay {summary['delay']}, batch {summary['batch']}")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    folder.figure("cost.png", figure)
    close(figure)
