"""Numbers, tables and figures of experiments, read from the JSON files under ``docs/results``.

``.. results:: rotate-paper`` shows the table, its note, the figure and the machine of a run.
``:result:`rotate-paper rotation=srcd,rows=heavy error``` is one number of its table: name, what picks the
row (with ``~`` for a space), column; two of them with ``/`` between are a ratio. What was never run is said
to be missing, so that no page can hold a number that no run produced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

RESULTS = Path(__file__).parent.parent / "results"


def load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def shown(value: Any) -> str:
    """Numbers with the digits that tell something."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    # A minus sign: a line may break after a hyphen.
    return f"{value:.1e}".replace("-", "−")


def number(text: str) -> float | int | str | None:
    """Find ``name key=value,key=value column``; raise a sentence where there is no such number."""
    name, chosen, column = text.split(maxsplit=2)
    found = load(name)
    if found is None:
        return None
    rows = found["table"]
    for condition in chosen.split(","):
        key, _, value = condition.replace("~", " ").partition("=")
        rows = [row for row in rows if str(row.get(key)) == value]
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows of {name} have {chosen}, there must be one")
    if column not in rows[0]:
        raise ValueError(f"{name} has no column {column!r}, it has {', '.join(rows[0])}")
    return rows[0][column]


class Result(SphinxRole):
    """One number, or the ratio of two."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            values = [number(part.strip()) for part in self.text.split(" / ")]
        except ValueError as problem:
            message = self.inliner.reporter.error(str(problem), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        if None in values:
            text = "(not reached or not run)"
        elif len(values) == 2:
            text = shown(float(values[0]) / float(values[1]))  # type: ignore[arg-type]
        else:
            text = shown(values[0])
        return [nodes.inline(text, text, classes=["result"])], []


class Results(SphinxDirective):
    """The table, the figure, the note and the machine of an experiment."""

    required_arguments = 1
    option_spec = {"columns": directives.unchanged, "width": directives.unchanged}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_dependency(str(RESULTS / f"{name}.json"))
        found = load(name)
        if found is None:
            text = f"This run has not been kept yet: the table appears here with docs/results/{name}.json."
            return [nodes.paragraph("", "", nodes.emphasis(text, text))]
        wanted = self.options.get("columns")
        columns = [c.strip() for c in wanted.split(",")] if wanted else list(found["table"][0])
        wide = nodes.container(classes=["wide-table"])
        wide += self.table(found["table"], columns)
        parts: list[nodes.Node] = [wide, nodes.paragraph(text=found["note"])]
        machine = found.get("machine")
        if machine:
            text = f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}."
            parts.append(nodes.paragraph(text=text))
        if (RESULTS / f"{name}.png").exists():
            lines = [f".. figure:: /results/{name}.png", f"   :alt: {found['note']}"]
            lines += ["   :class: on-white", "   :width: 100%", "", f"   The figure of ``{name}``."]
            parts += self.parse_text_to_nodes("\n".join(lines) + "\n")
        return parts

    def table(self, rows: list[dict[str, Any]], columns: list[str]) -> nodes.table:
        group = nodes.tgroup(cols=len(columns))
        for _ in columns:
            group += nodes.colspec(colwidth=1)
        head, body = nodes.thead(), nodes.tbody()
        head += self.row(columns)
        for row in rows:
            body += self.row([shown(row.get(column)) for column in columns])
        group += [head, body]
        table = nodes.table()
        table += group
        return table

    @staticmethod
    def row(cells: list[str]) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            entry = nodes.entry()
            entry += nodes.paragraph(text=cell)
            row += entry
        return row


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("result", Result())
    app.add_directive("results", Results)
    return {"parallel_read_safe": True}
