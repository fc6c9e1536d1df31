"""Tables of benchmarks, read from the JSON files under ``benchmarks/results``.

``.. measured:: steps`` shows what the part of that name has measured, the command behind it and the machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from results import Results
from sphinx.application import Sphinx

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.0f} µs"


def steps(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each contestant: the median, and how many times as long as SGD."""
    names = list(dict.fromkeys(name for row in found["times"].values() for name in row))
    columns = [f"d = {d}" for d in found["times"]]
    rows = []
    for name in names:
        cells = {"one step": name}
        for d, row in found["times"].items():
            if name in row:
                cells[f"d = {d}"] = f"{seconds(row[name]['median'])} ({row[name]['to SGD']:.2g}×)"
        rows.append(cells)
    return ["one step", *columns], rows


def promises(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each ratio that was promised, medians and the least times."""
    rows = [
        {
            "step": row["step"],
            "against": row["against"],
            "d": str(row["d"]),
            "ratio": f"{row['ratio']:.3g}",
            "of the least times": f"{row['of the least']:.3g}",
            "aim": f"{row['at most']:.3g}",
        }
        for row in found["promises"]
    ]
    return list(rows[0]), rows


def lines(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each ratio."""
    rows = []
    for row in found["lines"]:
        unit = "ms" if "ms" in row else "MB"
        rows.append(
            {
                "case": row["name"],
                "against": row["against"],
                "ratio": f"{row['ratio']:.3g}",
                "aim": (row["must"] or "–").replace("<=", "≤"),
                "measured": f"{row[unit]:.3g} against {row['against_' + unit]:.3g} {unit}",
            }
        )
    return list(rows[0]), rows


FORMS = {"steps": steps, "promises": promises}


class Measured(Results):
    """What a part of the benchmarks has measured."""

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        part = "steps" if name == "promises" else name
        path = KEPT / f"{part}.json"
        self.env.note_dependency(str(path))
        command = f"python -m benchmarks {part}"
        if not path.exists():
            text = f"No numbers of {command} are kept yet."
            return [nodes.paragraph("", "", nodes.emphasis(text, text))]
        found = json.loads(path.read_text())
        columns, rows = FORMS.get(name, lines)(found)
        machine = found["machine"]
        said = nodes.paragraph()
        said += nodes.literal(command, command)
        said += nodes.Text(f" on {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}.")
        wide = nodes.container(classes=["wide-table"])
        wide += self.table(rows, columns)
        return [wide, said]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
