"""Run the benchmarks: all of them, or some by name, as in ``python -m benchmarks steps --sizes 512 1024``."""

from __future__ import annotations

import argparse
import platform
import warnings

import torch

from . import backward, memory, procrustes, report, spd, steps, tables

#: Parts whose lines are of one kind: who, against whom, the ratio and what it must be.
LINES = {"backward": backward.rows, "spd": spd.rows, "tables": tables.rows}
PARTS = ("steps", "growth", "memory", "procrustes", *LINES)


def main() -> None:
    """Measure, print tables, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(steps.SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=15.0, help="seconds that one step may take")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="geoopt")
    torch.set_num_threads(2)
    machine = {
        "cpu": report.cpu(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": 2,
    }
    parts = options.parts or PARTS
    if "steps" in parts:
        times = steps.measure(tuple(options.sizes), options.rounds, options.limit)
        rows = steps.promises(times)
        report.save("steps", {"machine": machine, "times": times, "promises": rows})
        report.picture(times)
        print(report.table(times), report.verdicts(rows), sep="\n\n")
    if "growth" in parts:
        grown = steps.growth(rounds=options.rounds)
        report.save("growth", {"machine": machine, **grown})
        print(f"cost of one coordinate grows like d^{grown['power']:.2f}, at most 1.2: {grown['seconds']}")
    if "memory" in parts:
        extra = memory.peaks()
        report.save("memory", {"machine": machine, "peaks": extra})
        for row in extra:
            print(
                f"{row['step']:30} d = {row['d']:5} {row['bytes']:8} bytes, {row['bytes per column']:.1f} d"
            )
    if "procrustes" in parts:
        raced = [procrustes.race(n) for n in (200, 500)]
        report.save("procrustes", {"machine": machine, "races": raced})
        print(report.races(raced))
    for part, rows in LINES.items():
        if part in parts:
            lines = rows()
            report.save(part, {"machine": machine, "lines": lines})
            print(report.lines(lines))


if __name__ == "__main__":
    main()
