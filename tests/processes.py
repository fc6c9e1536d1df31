"""Processes for tests: several ranks of one group, and runs that are killed."""

import contextlib
import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path

import torch

# Children are forked from a process that has imported everything and computed nothing: each of them
# starts in milliseconds, and no thread or autograd state is inherited.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["riemcd", "torch.distributed.checkpoint"])


def start(target, *args):
    """Run ``target(*args)`` in a process of its own."""
    process = CONTEXT.Process(target=_quietly, args=(target, *args), daemon=True)
    process.start()
    return process


def _quietly(target, *args):
    torch.set_num_threads(1)
    target(*args)


def wait(process, seconds=120):
    """Wait until a process has ended and return its exit code; one that does not end is killed."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"a process did not end within {seconds} s")
    return process.exitcode


def run_ranks(folder, ranks, target, *args, timeout=60):
    """Run ``target(rank, ranks, *args)`` on every rank of a gloo group; return what each returned.

    What a rank returned is what it saved: a list by rank, with the text of an exception in its place.
    """
    folder = Path(folder, f"group-{time.monotonic_ns()}")
    folder.mkdir()
    started = [start(_rank, rank, ranks, str(folder), timeout, target, args) for rank in range(ranks)]
    codes = [wait(process, timeout + 60) for process in started]
    results = []
    for rank, code in enumerate(codes):
        path = folder / f"{rank}.pt"
        results.append(torch.load(path, weights_only=False) if path.exists() else f"exit code {code}")
    return results


def _rank(rank, ranks, folder, timeout, target, args):
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        store=dist.FileStore(os.path.join(folder, "store"), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    try:
        result = target(rank, ranks, *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    torch.save(result, os.path.join(folder, f"{rank}.pt"))
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    os._exit(0)  # a group whose peers are gone may wait for them on the way out
