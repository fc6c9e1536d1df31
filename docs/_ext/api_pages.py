"""Write one reference page per module of riemcd that declares ``__all__``.

What ``import riemcd`` offers through ``__all__``, its exported modules included, goes to ``api/face``, the
rest to ``api/inside``. Every name is documented once, in the first and shallowest module that exports it, so
that ``riemcd.SRCD`` does not appear a second time under the module that defines it. Nothing has to be edited
when a name is added; a public name without a docstring fails the build.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

PACKAGE = "riemcd"

# Examples in a docstring see the names of the module they stand in, as they do under pytest.
TESTSETUP = """.. testsetup:: *

   import importlib

   for _module in {modules!r}:
       for _name, _value in vars(importlib.import_module(_module)).items():
           if not _name.startswith("__"):
               globals()[_name] = _value
   # Two of them may use one name for different things: what the page documents is meant.
   globals().update((_name, getattr(importlib.import_module({page!r}), _name)) for _name in {names!r})
"""


def is_alias(value: Any) -> bool:
    """Whether a value names a type without being a class: ``dict[str, Any]``, ``A | B``, a type variable."""
    return typing.get_origin(value) is not None or isinstance(value, typing.TypeVar)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A public name: where it is documented, and what it is."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def origin(self) -> str | None:
        """The dotted path under which signatures mention it."""
        module, name = getattr(self.value, "__module__", None), getattr(self.value, "__qualname__", None)
        return f"{module}.{name}" if module and name else None

    @property
    def directive(self) -> str:
        if is_alias(self.value):
            return "py:type"
        if inspect.isclass(self.value):
            return "autoexception" if issubclass(self.value, BaseException) else "autoclass"
        return "autofunction" if inspect.isroutine(self.value) else "autodata"

    @property
    def comment(self) -> list[str]:
        """What ``#:`` says above a constant, in whichever module defines it."""
        for name, module in sorted(sys.modules.items()):
            if name.startswith(PACKAGE) and vars(module).get(self.name) is self.value:
                found = ModuleAnalyzer.for_module(name).find_attr_docs().get(("", self.name))
                if found:
                    return [line for line in found if line]
        return []

    @property
    def documented(self) -> bool:
        if self.directive == "py:type":
            return True
        if self.directive == "autodata":
            # An instance of a class of ours has the docstring of that class.
            return bool(self.comment) or type(self.value).__module__ != "builtins"
        text = (self.value.__doc__ or "").strip()
        # A dataclass without a docstring gets its signature for one.
        generated = dataclasses.is_dataclass(self.value) and text.startswith(f"{self.name}(")
        return bool(text) and not generated


def offered(module: ModuleType) -> Iterator[ModuleType]:
    """A module and, through ``__all__``, the modules it exports."""
    yield module
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.ismodule(value) and value.__name__.startswith(f"{module.__name__}."):
            yield from offered(value)


def public_modules() -> Iterator[ModuleType]:
    """Modules that declare ``__all__``: what the package offers, then the rest, shallow ones first."""
    root = importlib.import_module(PACKAGE)
    names = [info.name for info in pkgutil.walk_packages(root.__path__, prefix=f"{PACKAGE}.")]
    names = [name for name in names if not any(part.startswith("_") for part in name.split("."))]
    rest = [importlib.import_module(name) for name in sorted(names, key=lambda name: (name.count("."), name))]
    for module in dict.fromkeys([*offered(root), *rest]):
        if hasattr(module, "__all__"):
            yield module


def collect() -> dict[str, list[Entry]]:
    """Public names by the module that documents them."""
    pages: dict[str, list[Entry]] = {}
    seen: set[int] = set()
    for module in public_modules():
        for name in module.__all__:
            value = getattr(module, name)
            # A string or a number has no reference page: __version__ and the like.
            if inspect.ismodule(value) or isinstance(value, (str, int, float)) or id(value) in seen:
                continue
            seen.add(id(value))
            pages.setdefault(module.__name__, []).append(Entry(module.__name__, name, value))
    return pages


def hides_module(module: str) -> bool:
    """Whether the package offers something else under the name of this module."""
    parent, _, name = module.rpartition(".")
    return bool(parent) and not inspect.ismodule(getattr(importlib.import_module(parent), name, sys))


def page(module: str, entries: list[Entry]) -> str:
    lines = [module, "=" * len(module), "", f".. automodule:: {module}", "   :no-members:"]
    # riemcd.minimize is a function to the user and also the module that defines it: index the former.
    lines += ["   :no-index:", ""] if hides_module(module) else [""]
    defining = {getattr(entry.value, "__module__", None) or module for entry in entries}
    modules = sorted(name for name in defining if name.startswith(PACKAGE))
    lines += [TESTSETUP.format(modules=modules, page=module, names=[entry.name for entry in entries])]
    lines += [f".. currentmodule:: {module}", ""]
    if any(entry.directive not in ("py:type", "autodata") for entry in entries):
        lines += [".. autosummary::", ""]
    lines += [f"   {entry.name}" for entry in entries if entry.directive not in ("py:type", "autodata")]
    for entry in entries:
        if entry.directive == "autodata" and entry.comment:
            lines += ["", f".. py:data:: {entry.name}", "", *(f"   {line}" for line in entry.comment)]
            continue
        lines += ["", f".. {entry.directive}:: {entry.name}"]
        if entry.directive == "autodata":
            lines += ["   :no-value:"]
        if entry.directive == "autoclass":
            lines += ["   :members:"]
        elif entry.directive == "py:type":
            lines += [f"   :canonical: {str(entry.value).replace('typing.', '')}"]
    return "\n".join(lines) + "\n"


def write(app: Sphinx, _config: Any) -> None:
    pages = collect()
    bare = sorted(e.path for entries in pages.values() for e in entries if not e.documented)
    if bare:
        raise ExtensionError(f"public names without a docstring: {', '.join(bare)}")
    folder = Path(app.srcdir) / "api"
    face = {module.__name__ for module in offered(importlib.import_module(PACKAGE))}
    targets = {
        module: folder / ("face" if module in face else "inside") / f"{module}.rst" for module in pages
    }
    for stale in set(folder.rglob("*.rst")) - set(targets.values()):
        stale.unlink()
    for module, target in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        text = page(module, pages[module])
        # An unchanged file keeps its time stamp, and Sphinx does not read it again.
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


@functools.cache
def aliases() -> dict[str, str]:
    """From the defining path, and from the bare name where it is unique, to the documented path."""
    entries = [entry for entries in collect().values() for entry in entries]
    table: dict[str, str] = {}
    for entry in entries:
        if [other.name for other in entries].count(entry.name) == 1:
            table[entry.name] = entry.path
    for entry in entries:
        if entry.origin:
            table[entry.origin] = entry.path
    return table


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Point a reference to a defining module at the page that documents the name."""
    if node.get("refdomain") != "py":
        return None
    table = aliases()
    target = node["reftarget"]
    owner, _, member = target.rpartition(".")
    # A type variable or an unexported alias has no page: it stays plain text.
    if target not in table and is_alias(getattr(sys.modules.get(owner), member, None)):
        return content
    found = table.get(target) or (f"{table[owner]}.{member}" if owner in table else None)
    if found is None or found == target:
        return None
    domain = env.get_domain("py")
    for kind in (node["reftype"], "obj"):
        reference = domain.resolve_xref(env, node["refdoc"], app.builder, kind, found, node, content)
        if reference is not None:
            return reference
    return None


def readable_signature(
    _app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a dataclass field's default factory as an ellipsis: ``<factory>`` stops the parser."""
    return (signature.replace("<factory>", "...") if signature else signature), returns


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", write)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", readable_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
