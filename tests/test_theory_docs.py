"""The theory page names the test that checks each claim; every such test exists."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "theory.rst"


def defined():
    for path in HERE.glob("test_theory_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name


def named():
    return set(re.findall(r"``(test_[a-z]\w*)``", PAGE.read_text(encoding="utf-8")))


def test_every_test_the_page_names_exists():
    assert named() - set(defined()) == set()


def test_the_page_names_tests():
    assert len(named()) > 40
