"""A model of what a step costs on many ranks, its constants from this machine, and what it says elsewhere.

Letters: d the size of the matrix, k the coordinates of a step, N the ranks, b the rows of a rank's input.

==================  ===================================  ==========================================
                    DDP + RiemannianSGD                  SRCD, skip_weight_grad
==================  ===================================  ==========================================
payload, bytes      4 d²                                 4 (k + 1)
wire, bytes         2 (N − 1)/N of it + 2 (N − 1) h      2 (N − 1)/N of it + 2 (N − 1) h
flops               4bd² + 2bd² and a number times d³    4bd² + 4bk + 6dk
seconds             c₁·4bd² + c₁·2bd² + c₃·d³ + t        c₁·4bd² + c₀ + c₂·d² + t  (a matching)
==================  ===================================  ==========================================

with h bytes of headers per message, and t = 2(N − 1)·α + wire/β for an all-reduce in a ring; in a tree
2 log₂N takes the place of 2(N − 1).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import geoopt
import numpy as np
import torch

from riemcd import SRCD, nn

__all__ = ["FULL", "SKIPS", "Model", "carry", "check", "compute_times", "fit"]


FULL, SKIPS = "DDP + RiemannianSGD", "SRCD, skip_weight_grad, RandomMatching"


@dataclass(frozen=True)
class Model:
    """The constants."""

    flop: float  # c₁, seconds per flop of a product of matrices
    cube: float  # c₃, of RiemannianSGD per d³
    start: float  # c₀, of SRCD's step
    square: float  # c₂, of SRCD's step per d²
    latency: float  # α
    bandwidth: float  # β, bytes per second
    header: float  # h, bytes per message
    cores: int = 2  # ranks that compute at the same time; others wait
    tree: bool = False

    def payload(self, method: str, d: int) -> float:
        """Bytes for the orthogonal weight; k = d/2."""
        return 4.0 * d * d if method == "full" else 4.0 * (d // 2 + 1)

    def wire(self, payload: float, ranks: int) -> float:
        """Bytes that a rank sends."""
        return 2 * (ranks - 1) / ranks * payload + self.hops(ranks) * self.header

    def hops(self, ranks: int) -> float:
        """Messages that follow one another."""
        return 2 * log2(ranks) if self.tree else 2 * (ranks - 1)

    def flops(self, method: str, d: int, rows: int) -> float:
        """Of the layer, its gradients and the step; a QR decomposition with its products counts 6 d³."""
        if method == "full":
            return 6.0 * rows * d * d + 6.0 * d**3
        return 4.0 * rows * d * d + 4.0 * rows * (d // 2) + 6.0 * d * (d // 2)

    def all_reduce(self, payload: float, ranks: int) -> float:
        """Seconds of an all-reduce."""
        return self.hops(ranks) * self.latency + self.wire(payload, ranks) / self.bandwidth

    def compute(self, method: str, d: int, rows: int) -> float:
        """Seconds of one rank that has a core for itself."""
        if method == "full":
            return self.flop * 6 * rows * d * d + self.cube * d**3
        return self.flop * 4 * rows * d * d + self.start + self.square * d * d

    def seconds(self, method: str, d: int, rows: int, ranks: int) -> float:
        """Seconds of a whole step."""
        waiting = max(1.0, ranks / self.cores)
        return waiting * self.compute(method, d, rows) + self.all_reduce(self.payload(method, d), ranks)


def _median(call: Callable[[], Any], seconds: float = 1.0) -> float:
    call()
    call()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 200):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def compute_times(d: int, rows: int) -> dict[str, float]:
    """Seconds of the parts of a step that need no other rank, on one thread."""
    torch.manual_seed(0)
    x, delta = torch.randn(2, rows, d)
    layer = nn.OrthogonalLinear(d, d, bias=False)
    weight = layer.weight.detach().clone()
    full = geoopt.ManifoldParameter(weight.clone(), manifold=geoopt.EuclideanStiefel())
    full.grad = delta.mT @ x
    rsgd = geoopt.optim.RiemannianSGD([full], lr=1e-3)
    opt = SRCD(layer.parameters(), lr=1e-3, skip_weight_grad=True)
    source = x.clone().requires_grad_()

    def products() -> None:
        x @ weight.mT
        delta @ weight

    def skipping() -> None:
        opt.zero_grad()
        layer(source).square().mean().backward()
        opt.step()

    both = _median(products)
    return {
        "products": both,
        "weight gradient": _median(lambda: delta.mT @ x),
        "RiemannianSGD": _median(rsgd.step),
        "SRCD": max(_median(skipping) - both, 1e-9),
    }


def _relative_fit(design: list[list[float]], target: list[float]) -> list[float]:
    """Least squares of relative errors: what is fitted lies orders of magnitude apart."""
    scaled = np.array(design) / np.array(target)[:, None]
    return [float(c) for c in np.linalg.lstsq(scaled, np.ones(len(target)), rcond=None)[0]]


def fit(
    network: dict[int, dict[int, float]],
    compute: dict[int, dict[str, float]],
    measured: list[dict[str, Any]],
    rows: int,
) -> Model:
    """Return the constants, from what one process and two ranks have done at d = 1024 and below."""
    small = {d: times for d, times in compute.items() if d <= 1024}
    flop = statistics.median(times["products"] / (4 * rows * d * d) for d, times in small.items())
    cube = small[1024]["RiemannianSGD"] / 1024**3
    start, square = _relative_fit([[1.0, d * d] for d in small], [times["SRCD"] for times in small.values()])
    two = network[2]
    latency, per_byte = _relative_fit([[2.0, size] for size in two], list(two.values()))
    sent = next(row for row in measured if row["ranks"] == 2 and row["method"] == SKIPS)
    header = (sent["wire"] - sent["payload"]) / 2
    return Model(flop, cube, start, square, latency, 1 / per_byte, header)


def _compared(
    what: str, model: float, measured: float, unit: str = "ms", scale: float = 1e3
) -> dict[str, str]:
    return {
        "what": what,
        "model": f"{scale * model:,.3g} {unit}",
        "measured": f"{scale * measured:,.3g} {unit}",
        "ratio": f"{model / measured:.2f}",
    }


def check(
    model: Model,
    network: dict[int, dict[int, float]],
    compute: dict[int, dict[str, float]],
    measured: list[dict[str, Any]],
    rows: int,
) -> list[dict[str, str]]:
    """Return the model beside what was measured."""
    lines = []
    kinds = {FULL: "full", SKIPS: "few"}
    for row in measured:
        kind = kinds.get(row["method"])
        if kind is None:
            continue
        n, name = row["ranks"], row["method"].split(",")[0]
        payload = model.payload(kind, row["d"])
        apart = "" if n == 2 else " (not fitted)"
        lines.append(
            _compared(f"wire, {name}, N = {n}{apart}", model.wire(payload, n), row["wire"], "bytes", 1)
        )
        whole = model.seconds(kind, row["d"], rows, n)
        lines.append(_compared(f"step, {name}, N = {n}, d = {row['d']} (not fitted)", whole, row["seconds"]))
    for d, times in compute.items():
        apart = " (not fitted)" if d > 1024 else ""
        full, few = model.cube * d**3, model.start + model.square * d * d
        lines.append(_compared(f"RiemannianSGD.step, d = {d}{apart}", full, times["RiemannianSGD"]))
        lines.append(_compared(f"SRCD, slopes and step, d = {d}{apart}", few, times["SRCD"]))
    for n, sizes in network.items():
        apart = "" if n == 2 else " (not fitted)"
        for size, seconds in list(sizes.items())[::3]:
            lines.append(
                _compared(f"all-reduce of {size:,} bytes, N = {n}{apart}", model.all_reduce(size, n), seconds)
            )
    return lines


def carry(model: Model, rows: int) -> list[dict[str, str]]:
    """Return what the model says of a cluster: 100 Gbit/s, 10 µs per hop, a tree, a core like ours each."""
    far = replace(model, latency=1e-5, bandwidth=12.5e9, cores=1 << 20, tree=True)
    lines = []
    for d, ranks in ((1024, 8), (4096, 64), (16384, 256), (65536, 1024)):
        for kind, name in (("full", "DDP + RiemannianSGD"), ("few", "SRCD")):
            payload = far.payload(kind, d)
            lines.append(
                {
                    "d": f"{d:,}",
                    "ranks": f"{ranks:,}",
                    "method": name,
                    "payload, bytes": f"{payload:,.0f}",
                    "all-reduce, s": f"{far.all_reduce(payload, ranks):.2g}",
                    "flops": f"{far.flops(kind, d, rows):.2g}",
                    "step, s": f"{far.seconds(kind, d, rows, ranks):.2g}",
                }
            )
    return lines
