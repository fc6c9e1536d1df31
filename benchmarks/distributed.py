"""Bytes and seconds of a step on several ranks: ``python -m benchmarks.distributed``.

Ranks are processes of this machine that talk through gloo over the loopback interface, one thread each.
The payload is what a rank hands to collectives for the orthogonal weight; the wire is what the interface
has carried, headers included, per rank.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import geoopt
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from riemcd import SRCD, nn, selections
from riemcd.distributed import exclude_

from . import report, scaling
from .scaling import FULL, SKIPS

__all__ = ["ROWS", "rows"]

ROWS = 32  # rows of the input on every rank
DENSE, ONE = "DDP + SRCD, RandomMatching", "SRCD, skip_weight_grad, Uniform(1)"
METHODS = (FULL, DENSE, SKIPS, ONE)
TABLES = Path(__file__).parent.parent / "docs" / "results"


def _carried() -> int:
    """Bytes that the loopback interface has received so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise RuntimeError("no loopback interface is listed in /proc/net/dev")


def _method(name: str, d: int, sent: list[int]) -> tuple[Callable[[], None], Any]:
    """Return a whole training step of one layer and its optimizer; payloads are added to ``sent``."""
    torch.manual_seed(0)
    layer = nn.OrthogonalLinear(d, d, bias=False)
    model: Any = layer
    if name in (SKIPS, ONE):
        exclude_(layer, "weight")
        rule = selections.RandomMatching() if name == SKIPS else selections.Uniform(1)
        world = dist.group.WORLD
        opt: Any = SRCD(
            layer.parameters(), lr=1e-3, skip_weight_grad=True, process_group=world, selection=rule
        )
        reduce = dist.all_reduce

        def counted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            sent.append(tensor.numel() * tensor.element_size())
            return reduce(tensor, *args, **options)

        dist.all_reduce = counted
    else:
        model = DistributedDataParallel(layer)

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations, and by identity
            sent.append(bucket.buffer().numel() * bucket.buffer().element_size())
            return allreduce_hook(state, bucket)

        model.register_comm_hook(None, hook)
        kind = geoopt.optim.RiemannianSGD if name == FULL else SRCD
        opt = kind(layer.parameters(), lr=1e-3)
    x = torch.randn(ROWS, d, requires_grad=True)

    def step() -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    return step, opt


def _measure(rank: int, ranks: int, name: str, d: int, steps: int) -> dict[str, float]:
    reduce, sent = dist.all_reduce, []
    step, _ = _method(name, d, sent)
    for _ in range(2):
        step()
    dist.barrier()
    sent.clear()
    before, seconds = _carried(), []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    dist.barrier()
    wire = (_carried() - before) / steps / ranks
    dist.all_reduce = reduce
    return {"payload": sum(sent) / steps, "wire": wire, "seconds": statistics.median(seconds)}


def _measure_all(rank: int, ranks: int, d: int) -> dict[str, dict[str, float]]:
    return {name: _measure(rank, ranks, name, d, 8 if name == FULL else 60) for name in METHODS}


def _all_reduces(rank: int, ranks: int, sizes: list[int]) -> dict[int, float]:
    """Seconds of an all-reduce of so many bytes, medians."""
    found = {}
    for size in sizes:
        buffer, times = torch.zeros(size // 4), []
        for number in range(23 if size > 2**20 else 103):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(buffer)
            if number >= 3:
                times.append(time.perf_counter() - begin)
        found[size] = statistics.median(times)
    return found


def _rank(rank: int, ranks: int, folder: str, part: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.filterwarnings("ignore", module="geoopt")
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), ranks)
    limit = timedelta(minutes=10)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    result = part(rank, ranks, *args)
    torch.save(result, os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(ranks: int, part: Callable[..., Any], *args: Any) -> list[Any]:
    """Return what ``part(rank, ranks, *args)`` returned on every rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = [context.Process(target=_rank, args=(r, ranks, folder, part, args)) for r in range(ranks)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return [torch.load(Path(folder, f"{r}.pt"), weights_only=False) for r in range(ranks)]


def rows(d: int = 1024, ranks: tuple[int, ...] = (2, 4)) -> list[dict[str, Any]]:
    """Return payload, wire and seconds per step for every method and number of ranks."""
    found: list[dict[str, Any]] = []
    for n in ranks:
        first = on_ranks(n, _measure_all, d)[0]
        found += [{"ranks": n, "method": name, "d": d, **first[name]} for name in METHODS]
        dense = found[-len(METHODS)]["payload"]
        for row in found[-len(METHODS) :]:
            row["times fewer"] = dense / row["payload"]
    return found


def _write(name: str, table: list[dict[str, Any]]) -> None:
    TABLES.mkdir(exist_ok=True)
    with (TABLES / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def main() -> None:
    """Measure, fit the model, compare the two, and keep tables for the documentation."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="geoopt")
    sizes = [2**p for p in (11, 13, 15, 17, 19, 21, 22, 23)]
    network = {n: on_ranks(n, _all_reduces, sizes)[0] for n in (2, 4)}
    compute = {d: scaling.compute_times(d, ROWS) for d in (256, 512, 1024, 2048)}
    measured = rows()
    model = scaling.fit(network, compute, measured, ROWS)
    checks = scaling.check(model, network, compute, measured, ROWS)
    carried = scaling.carry(model, ROWS)
    machine = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    content = {"machine": machine, "steps": measured, "network": network, "compute": compute}
    report.save("distributed", {**content, "model": vars(model), "checks": checks, "carried": carried})
    table = [
        {
            "ranks": row["ranks"],
            "method": row["method"],
            "payload, bytes": f"{row['payload']:,.0f}",
            "wire, bytes": f"{row['wire']:,.0f}",
            "times fewer": f"{row['times fewer']:,.0f}",
            "ms per step": f"{1e3 * row['seconds']:.3g}",
        }
        for row in measured
    ]
    for name, lines in (("bytes", table), ("check", checks), ("scale", carried)):
        _write(f"distributed-{name}", lines)
        print(*lines, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
