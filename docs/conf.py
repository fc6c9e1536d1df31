"""Sphinx configuration. Build with ``make docs``."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE / "plugins"))  # examples of plug-ins, which a page runs through the laws

# geoopt compiles helpers with torch.jit.script when it is imported; gallery scripts may import it first.
warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)

project = "riemcd"
author = "The riemcd contributors"
copyright = author
release = metadata.version("riemcd")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    # Formulas must show without a network. This extension carries the MathJax 3 files as a pip package
    # and copies them into _static, so neither node nor LaTeX is needed, at build or at view time.
    "sphinx-mathjax-offline",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "myst_parser",
    "api_pages",
    "measured",
    "results",
]

exclude_patterns = ["_build", "results", "plugins", "gallery/**/*.ipynb", "gallery/**/*.md5"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
nitpicky = True
smartquotes_action = "qe"  # dashes stay as they are: --resume is an option

# Other projects' inventories need a network: set RIEMCD_DOCS_INTERSPHINX=1 where there is one.
if os.environ.get("RIEMCD_DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "geoopt": ("https://geoopt.readthedocs.io/en/latest", None),
    }

# Without them, names of other packages in signatures stay plain text. Names of riemcd are never ignored.
_FOREIGN = "torch|numpy|np|geoopt|scipy|matplotlib|collections|typing|abc|functools|enum|types|pathlib|os"
_FOREIGN_BARE = (
    "Tensor|Parameter|Module|Generator|device|dtype|ProcessGroup|ManifoldParameter|Manifold|ManifoldTensor"
    "|Callable|Iterable|Iterator|Sequence|Mapping|MutableMapping|Any|Optional|Union|Literal|ClassVar|Self"
    "|ndarray|Axes|Figure|Path|ABC|ParamsT|optional|array_like"
    # Lists of what a flag of the command may be.
    "|Contestant|Name|Learned"
)
nitpick_ignore_regex = [
    (r"py:.*", rf"({_FOREIGN})(\..*)?"),
    (r"py:.*", rf"({_FOREIGN_BARE})"),
]

autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

doctest_global_setup = """
import torch
torch.manual_seed(0)
"""

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"/_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    # Its table would load a script from the network.
    "write_computation_times": False,
    "min_reported_time": 1,
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    # All examples run in one process: none may leave settings of torch to the next.
    "reset_modules": ("matplotlib", "gallery_reset.reset_torch"),
}

html_theme = "furo"
html_title = "riemcd"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {"navigation_with_keys": True}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
