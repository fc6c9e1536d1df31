"""Tables of benchmarks, read from the JSON files under ``benchmarks/results``.

``.. measured:: steps`` shows what the part of that name has measured, the command behind it and the machine.
``.. drawn:: gains`` shows a figure drawn from such numbers. What was not kept or drawn yet is said
to be missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from results import Results
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"
STATIC = Path(__file__).parents[1] / "_static"


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.0f} µs"


def times(ratio: float) -> str:
    """A ratio without powers of ten."""
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"


def steps(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each contestant: the median, and how many times as long as SGD."""
    names = list(dict.fromkeys(name for row in found["times"].values() for name in row))
    columns = [f"d = {d}" for d in found["times"]]
    rows = []
    for name in names:
        cells = {"one step": name}
        for d, row in found["times"].items():
            if name in row:
                cells[f"d = {d}"] = f"{seconds(row[name]['median'])} ({times(row[name]['to SGD'])}×)"
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


def procrustes(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each contestant, with the learning rate it was given, and a column for each size."""
    rows: dict[str, dict[str, str]] = {}
    columns = []
    for race in found["races"]:
        column = f"{race['n']} × {race['n']}"
        columns.append(column)
        rows.setdefault("riemcd.minimize", {})[column] = seconds(race["riemcd.minimize"])
        for name, peer in race["peers"].items():
            spent = peer["seconds"]
            text = "not reached" if spent == float("inf") else seconds(spent)
            rows.setdefault(name, {})[column] = f"{text} (lr {peer['lr']:.3g})"
    first = "to the same gap"
    return [first, *columns], [{first: name, **cells} for name, cells in rows.items()]


def table(found: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """What is a table already."""
    return list(found["table"][0]), found["table"]


def memory(found: dict[str, Any]) -> tuple[list[str], list[dict[str, str]]]:
    """One line for each rule, with the bytes per column."""
    rows: dict[str, dict[str, str]] = {}
    for peak in found["peaks"]:
        line = rows.setdefault(peak["step"], {"step": peak["step"]})
        line[f"d = {peak['d']}"] = f"{peak['bytes']:,} bytes ({peak['bytes per column']:.3g} d)"
    lines = list(rows.values())
    return list(lines[0]), lines


FORMS = {"memory": memory, "steps": steps, "promises": promises, "procrustes": procrustes}


class Measured(Results):
    """What a part of the benchmarks has measured; ``:elsewhere: xeon`` shows a run on another machine."""

    option_spec = {**Results.option_spec, "elsewhere": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name, elsewhere = self.arguments[0], self.options.get("elsewhere")
        part = "steps" if name == "promises" else name
        path = KEPT / (f"{part}-{elsewhere}.json" if elsewhere else f"{part}.json")
        self.env.note_dependency(str(path))
        command = f"python -m benchmarks {part}"
        if not path.exists():
            text = f"This run has not been kept yet: {command} measures it, and the table appears here."
            return [nodes.paragraph("", "", nodes.emphasis(text, text))]
        found = json.loads(path.read_text())
        form = FORMS.get(name, table if "table" in found else lines)
        columns, rows = form(found)
        machine = found["machine"]
        said = nodes.paragraph(text=f"{found['note']} " if "note" in found else "")
        said += nodes.literal(command, command)
        said += nodes.Text(f" on {machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}.")
        wide = nodes.container(classes=["wide-table"])
        wide += self.table(rows, columns)
        return [wide, said]


class Drawn(SphinxDirective):
    """A figure that ``benchmarks/figures.py`` draws from the numbers kept."""

    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name = f"{self.arguments[0]}.svg"
        path = STATIC / name
        self.env.note_dependency(str(path))
        command = "python -m benchmarks.figures"
        if not path.exists():
            text = f"This figure has not been drawn yet: {command} does it once its numbers are kept."
            return [nodes.paragraph("", "", nodes.emphasis(text, text))]
        lines = [f".. figure:: /_static/{name}", "   :class: on-white", "   :width: 100%"]
        lines += [f"   :alt: {self.options['alt']}", "", f"   Drawn by ``{command}``."]
        return self.parse_text_to_nodes("\n".join(lines) + "\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("measured", Measured)
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
