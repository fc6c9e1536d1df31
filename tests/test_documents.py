"""Every block of Python in the README runs, block after block, as a reader would paste them."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_code_blocks_run(name):
    torch.manual_seed(0)
    namespace = {}
    for block in FENCE.findall((ROOT / name).read_text()):
        exec(compile(block, name, "exec"), namespace)
    if name == "README.md":
        W = namespace["W"].detach()
        assert (W.T @ W - torch.eye(16)).norm() < 1e-5
        assert float(namespace["loss"].detach()) < 1e-3


def test_the_changelog_speaks_of_this_version():
    import riemcd

    text = (ROOT / "CHANGELOG.md").read_text()
    assert "Unreleased" in text or riemcd.__version__ in text
    assert f'version = "{riemcd.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_the_table_of_the_readme_is_what_was_measured():
    from benchmarks import readme

    assert readme.BEGIN + readme.table() + readme.END in readme.README.read_text()


@pytest.mark.parametrize("name", ["gains", "choosing"])
def test_figures_show_the_numbers_kept(name):
    """Draw them again with ``python -m benchmarks.figures`` after measuring."""
    from benchmarks import figures

    path = figures.OUT / f"{name}.svg"
    if all(source.exists() for source in figures.FIGURES[name]):
        assert f"numbers {figures.digest(name)}" in path.read_text()
    else:
        assert not path.exists()


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_the_software_to_cite_is_this_version():
    import riemcd

    assert f"version = {{{riemcd.__version__}}}" in (ROOT / "docs" / "citing.bib").read_text()
    assert f"version: {riemcd.__version__}" in (ROOT / "CITATION.cff").read_text()
