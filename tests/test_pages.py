"""All Python on the pages runs, and prints what the page says."""

import contextlib
import doctest
import io
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(
    r"^\.\. (testsetup|testcode|testoutput|code-block)::(.*)\n((?:   :.*\n)*)\n((?:(?:   .*)?\n)+)",
    re.MULTILINE,
)
LOOSE = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
WRITTEN = ("_build", "api", "gallery")
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.rst")
    if path.relative_to(DOCS).parts[0] not in WRITTEN
)
#: What other libraries are said to do, and how often.
OTHERS = {"geotorch": (r"geotorch|remove_parametrizations", 2), "pymanopt": ("pymanopt", 1)}


def blocks(page):
    """Kinds, arguments and texts of the blocks of a page, in order."""
    found = BLOCK.findall((DOCS / page).read_text(encoding="utf-8") + "\n")
    return [
        (kind, argument.strip(), textwrap.dedent(text).strip("\n") + "\n")
        for kind, argument, _options, text in found
    ]


def run(code, namespace):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec", dont_inherit=True), namespace)
    return printed.getvalue()


WITH_CODE = [page for page in PAGES if any(kind == "testcode" for kind, _, _ in blocks(page))]


@pytest.mark.parametrize("page", WITH_CODE)
def test_what_is_said_to_be_printed_is(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(DOCS / "plugins"), *sys.path])
    torch.manual_seed(0)
    namespace, printed = {"__name__": "page"}, ""
    for kind, _, text in blocks(page):
        if kind in ("testsetup", "testcode"):
            assert not printed, "the page does not show what its code prints"
            printed = run(text, namespace)
        elif kind == "testoutput":
            assert doctest.OutputChecker().check_output(text, printed, LOOSE), printed
            printed = ""
    assert not printed, "the page does not show what its code prints"


@pytest.mark.parametrize("page", PAGES)
def test_python_is_run(page):
    """A block that is only shown may be no Python, unless it is about another library."""
    shown = [text for kind, argument, text in blocks(page) if kind == "code-block" and argument != "console"]
    theirs = [text for text in shown if any(re.search(words, text) for words, _ in OTHERS.values())]
    assert shown == (theirs if page == "coming_from.rst" else [])


@pytest.mark.parametrize("library", OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_what_others_are_said_to_do_runs(library):
    pytest.importorskip(library)
    torch.manual_seed(0)
    words, often = OTHERS[library]
    namespace, count = {"__name__": "page"}, 0
    for kind, _, text in blocks("coming_from.rst"):
        if kind == "code-block" and re.search(words, text):
            run(text, namespace)
            count += 1
    assert count == often


def test_no_block_escapes_the_search():
    """The pages are read by a regular expression: it sees every directive that holds code."""
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        directives = re.findall(
            r"^\s*\.\. (?:testsetup|testcode|testoutput|code-block|doctest)::", text, re.M
        )
        assert len(directives) == len(blocks(page)), page
        assert ">>>" not in text, f"{page}: write testcode"
