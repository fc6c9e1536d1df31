"""The table of the README, written from the numbers kept: ``python -m benchmarks.readme``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["table"]

README = Path(__file__).parents[1] / "README.md"
RESULTS = Path(__file__).parent / "results"
SGD = "torch.optim.SGD"
BEGIN, END = "<!-- measured: python -m benchmarks.readme -->\n", "<!-- end -->\n"

SHOWN = {
    "SRCD Uniform(1)": "`SRCD`, one coordinate",
    "SRCD RandomMatching, LeftGivens": "`SRCD`, a matching of all rows",
    "SRCD RandomMatching, RightGivens": "`SRCD`, a matching of all columns (the default)",
    "SRCD Partition(16), LeftGivens": "`SRCD`, groups of 16 rows",
    "SRCD Partition(16), RightGivens": "`SRCD`, groups of 16 columns",
    SGD: "`torch.optim.SGD`, no constraint",
    "POGO": "pogo-torch",
    "geoopt RiemannianSGD, EuclideanStiefel": "geoopt `RiemannianSGD`",
    "geoopt RiemannianAdam, EuclideanStiefel": "geoopt `RiemannianAdam`",
    "geotorch.orthogonal": "geotorch",
    "parametrizations.orthogonal": "torch's `parametrizations.orthogonal`",
}
SIZES = ("512", "1024", "2048")


def _ratio(found: dict[str, Any]) -> str:
    return f"{found['to SGD']:.2f}" if found["to SGD"] < 10 else f"{found['to SGD']:.0f}"


def table() -> str:
    """Return the time of one step as a multiple of that of SGD, and the machine."""
    kept = json.loads((RESULTS / "steps.json").read_text())
    lines = ["| one step, as a multiple of SGD's time | " + " | ".join(f"d = {d}" for d in SIZES) + " |"]
    lines.append("|---|" + "---:|" * len(SIZES))
    for name, shown in SHOWN.items():
        cells = [_ratio(kept["times"][d][name]) if name in kept["times"].get(d, {}) else "" for d in SIZES]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    machine = kept["machine"]
    lines += [
        "",
        f"`make bench`, float32, {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Put the table between its marks."""
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(before + BEGIN + table() + END + after)


if __name__ == "__main__":
    main()
