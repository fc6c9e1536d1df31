"""The code on pages about other libraries runs, and prints what the page says."""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^\.\. (testcode|testoutput|code-block)::.*\n\n((?:(?:   .*)?\n)+)", re.MULTILINE)


def blocks(page):
    """Kinds and texts of the blocks of a page, in order."""
    found = BLOCK.findall((DOCS / page).read_text(encoding="utf-8") + "\n")
    return [(kind, textwrap.dedent(text).strip("\n") + "\n") for kind, text in found]


def run(code, namespace):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("page", ["coming_from.rst", "distributed.rst", "drop_in.rst"])
def test_what_is_said_to_be_printed_is(page):
    torch.manual_seed(0)
    namespace, printed, count = {"__name__": "page"}, None, 0
    for kind, text in blocks(page):
        if kind == "testcode":
            printed = run(text, namespace)
            count += 1
        elif kind == "testoutput":
            assert printed.split() == text.split()
    assert count


@pytest.mark.parametrize("library", ["geotorch", "pymanopt"])
@pytest.mark.filterwarnings("ignore")
def test_what_others_are_said_to_do_runs(library):
    """Where they are installed: they are no dependency of the tests."""
    pytest.importorskip(library)
    torch.manual_seed(0)
    theirs = {"geotorch": r"geotorch|remove_parametrizations", "pymanopt": "pymanopt"}[library]
    namespace, count = {"__name__": "page"}, 0
    for kind, text in blocks("coming_from.rst"):
        if kind == "code-block" and re.search(theirs, text):
            run(text, namespace)
            count += 1
    assert count == (2 if library == "geotorch" else 1)
