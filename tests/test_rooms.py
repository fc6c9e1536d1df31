"""Imports point one way: a room imports only rooms below it, and siblings never import each other."""

import ast
from pathlib import Path

import pytest

import riemcd

PACKAGE = Path(riemcd.__file__).parent

#: From the ground up; what shares a line are siblings.
ROOMS = [
    {"errors", "amp", "files"},
    {"components", "draw", "covector"},
    {"index"},
    {"partials", "coordstate", "kernels"},
    {"bases", "selections", "stepsizes"},
    {"descent", "options", "mailbox"},
    {"record", "plan"},
    {"posted", "lost", "checkpoint"},
    {"distributed"},
    {"groups"},
    {"optim", "problems", "constrain", "averaging"},
    {"nn", "minimize"},
    {"diagnostics", "theory", "testing"},
    {"experiments"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}

#: Rooms that may know geoopt; of the bases, those of its manifolds.
KNOW_GEOOPT = {
    "bases",
    "options",
    "plan",
    "groups",
    "optim",
    "constrain",
    "averaging",
    "nn",
    "posted",
} | set().union(*ROOMS[12:])


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path):
    parts = path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) - node.level]
            names = [*base, *(node.module or "").split(".")] if node.module else list(base)
            names = [name for name in names if name]
            if names:
                yield names[0]
            else:
                yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "riemcd":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("riemcd."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("riemcd."))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_lower_rooms(path):
    own = room_of(path)
    assert own in LEVEL, f"{own} has no place in the house: give it one in ROOMS"
    for room in imported_rooms(path):
        assert room == own or LEVEL[room] < LEVEL[own], f"{own} must not import {room}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_geoopt_stays_in_its_rooms(path):
    found = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    if any(name.split(".")[0] == "geoopt" for name in found):
        assert room_of(path) in KNOW_GEOOPT


def test_no_file_is_longer_than_300_lines():
    long = {str(p): n for p in modules() if (n := len(p.read_text().splitlines())) > 300}
    assert not long
