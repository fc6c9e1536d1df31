"""A million steps: no memory is gathered, no orthogonality is lost, and nothing becomes slower."""

import statistics
import time
from pathlib import Path

import geoopt
import pytest
import torch
from problems_for_tests import orthogonal, violation

from riemcd import SRCD

D, EVERY = 64, 1000


def resident():
    """Bytes of this process that are in memory now."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) * 1024


def walk(steps, chunk, momentum=0):
    """Yield seconds, resident bytes and ‖WᵀW − I‖ after every chunk of steps with noisy gradients."""
    W = geoopt.ManifoldParameter(orthogonal(D, D, dtype=torch.float32), manifold=geoopt.EuclideanStiefel())
    opt = SRCD([W], lr=0.01, momentum=momentum, stabilize=EVERY)
    generator = torch.Generator().manual_seed(0)
    # Gradients from a fixed pool: what is timed is the step, and the run never comes to rest.
    pool = torch.randn(64, D, D, generator=generator)
    for _ in range(steps // chunk):
        begin = time.perf_counter()
        for number in range(chunk):
            W.grad = pool[number % 64]
            opt.step()
        yield time.perf_counter() - begin, resident(), violation(W)


#: Just before a projection the drift of EVERY steps is there. A step rounds each entry, about 1/√D large, by
#: less than half an eps of it; an entry of WᵀW gathers √D such errors at random, a walk of EVERY steps √EVERY
#: times as much, and the norm of the D² of them is √(D·EVERY) times eps at most.
BOUND = torch.finfo(torch.float32).eps * (EVERY * D) ** 0.5


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_memory_and_orthogonality_over_twenty_thousand_steps(momentum):
    chunks = list(walk(20_000, 1_900, momentum))  # ends of chunks are anywhere between two projections
    memory = [row[1] for row in chunks]
    assert memory[-1] - memory[1] < 2**20
    assert max(row[2] for row in chunks) < BOUND


@pytest.mark.long
def test_a_million_steps():
    chunks = list(walk(1_001_000, 9_100))
    seconds, memory, drift = map(list, zip(*chunks, strict=True))
    tenth = len(chunks) // 10  # 100,100 steps
    grown = (memory[-1] - memory[tenth]) / 2**20
    print(f"first 1e5 steps {sum(seconds[:tenth]):.1f} s, last {sum(seconds[-tenth:]):.1f} s", end="; ")
    print(f"memory grew by {grown:.2f} MiB; largest drift {max(drift):.2g}, last {drift[-1]:.2g}")
    assert memory[-1] - memory[tenth] < 2**20
    assert max(drift) < BOUND and max(drift[-tenth:]) < 2 * max(drift[:tenth])
    # Medians of chunks: whatever else the machine does comes and goes.
    first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
    assert last < 1.1 * first
