"""The folder of an experiment: logs as JSON lines, checkpoints, a summary, figures and a table."""

from __future__ import annotations

import json
import pickle
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..files import save_atomically, write_atomically
from .settings import Settings

__all__ = ["Folder", "Log", "as_table", "conclude", "open_folder"]

Row = dict[str, Any]
_NUMBERS = re.compile(r"\[\s+([-+\d.eE,\s]+?)\s+\]")


class Folder:
    """Where an experiment keeps what it computes.

    Parameters
    ----------
    path : Path
        Made where it does not exist.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    def keep_settings(self, experiment: str, settings: Settings) -> None:
        """Write down what was asked for, once it is known to fit what is there."""
        self.write("settings.json", {"experiment": experiment, **asdict(settings)})

    def write(self, name: str, content: Any) -> Path:
        """Write JSON, atomically, and return where."""
        text = json.dumps(content, indent=1, default=str) + "\n"
        # Numbers of a list go on one line: a curve is not worth a page.
        text = _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text)
        write_atomically(self.path / name, lambda file: file.write(text.encode()))
        return self.path / name

    def read(self, name: str) -> Any:
        """Read JSON, or return None where there is none."""
        path = self.path / name
        return _read_json(path) if path.exists() else None

    def save(self, name: str, content: Any) -> None:
        """Write a checkpoint, atomically."""
        save_atomically(content, self.path / name)

    def load(self, name: str) -> Any:
        """Read a checkpoint, wherever it was made, or return None where there is none."""
        path = self.path / name
        try:
            return torch.load(path, weights_only=True, map_location="cpu") if path.exists() else None
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            raise ValueError(f"{path} is damaged: remove it, and its run starts afresh.") from None

    def figure(self, name: str, figure: Any) -> Path:
        """Write a figure as PNG, atomically, and return where."""
        path = self.path / name
        write_atomically(path, lambda file: figure.savefig(file, dpi=150, format="png"))
        return path

    def table(self, rows: Sequence[Mapping[str, Any]], note: str = "") -> str:
        """Print a table, keep it as ``table.txt`` and return it."""
        text = as_table(rows) + (f"\n\n{note}" if note else "")
        print("\n" + text, flush=True)
        write_atomically(self.path / "table.txt", lambda file: file.write((text + "\n").encode()))
        return text


class Log:
    """One JSON object per line; a line is in the file as soon as it was added."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        rows = path.read_bytes().splitlines(keepends=True)[:keep] if keep else []
        if len(rows) < keep or any(not row.endswith(b"\n") for row in rows):
            raise ValueError(f"{path} should have {keep} lines up to its checkpoint; start it afresh.")
        write_atomically(path, lambda file: file.writelines(rows))
        self.rows: list[Row] = [json.loads(row) for row in rows]
        self._file = path.open("a")

    def add(self, row: Row) -> None:
        """Append a line."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *what: object) -> None:
        self._file.close()


def open_folder(experiment: str, settings: Settings) -> Folder:
    """Return the folder that was asked for, a new one, or the newest one of this preset to resume.

    A folder that holds results already is refused unless it is to be resumed, and to resume, it must hold
    results of this experiment.
    """
    path = settings.output
    if path is None:
        root = Path("runs")
        stem = f"{experiment}-{settings.preset}"
        if settings.resume:
            found = sorted(p for p in root.glob(f"{stem}-*") if (p / "settings.json").exists())
            if not found:
                raise ValueError(f"there is no run to resume: no folder runs/{stem}-*. Give --output.")
            path = found[-1]
        else:
            path = root / time.strftime(f"{stem}-%Y%m%d-%H%M%S")
    holds = path.exists() and any(not inside.name.startswith(".") for inside in path.iterdir())
    if holds and not (path / "settings.json").exists():
        raise ValueError(f"{path} holds files, but no results of riemcd: give another --output.")
    if holds and not settings.resume:
        raise ValueError(f"{path} holds results already: add --resume to go on with them, or give another.")
    if settings.resume:
        kept = path / "settings.json"
        made_by = _read_json(kept)["experiment"] if kept.exists() else None
        if made_by != experiment:
            what = "nothing to resume" if made_by is None else f"results of riemcd {made_by}"
            raise ValueError(f"{path} holds {what}: give the folder of a run of riemcd {experiment}.")
    return Folder(path)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise ValueError(f"{path} is damaged, it is no JSON: give another --output.") from None


def conclude(
    folder: Folder, summary: dict[str, Any], draw: Callable[[Folder, Any], None], asked: bool
) -> int:
    """Write the summary, the figure and the table, say where they are, and return the exit code.

    Parameters
    ----------
    draw : callable
        Not called where nothing was computed.
    asked : bool
        Whether Ctrl-C came.
    """
    folder.write("summary.json", summary)
    folder.table(summary["table"], summary["note"])
    if summary["table"]:
        draw(folder, summary)
    more = f" Go on with the same options and --resume --output {folder.path}." if asked else ""
    print(f"\nEverything is in {folder.path}.{more}")
    return 130 if asked else 0


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as text in columns; numbers to the right, all with the digits that tell something."""
    if not rows:
        return "(nothing was computed)"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    numeric = [all(isinstance(row.get(name), int | float | type(None)) for row in rows) for name in names]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(names), line(["-" * width for width in widths]), *map(line, cells)])


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.1e}"
