"""Laws are plain functions; a registry lets a suite run each of them under its own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Law", "Laws", "subclasses"]

C = TypeVar("C")


@dataclass(frozen=True)
class Law(Generic[C]):
    """One property that every plug-in of a kind has, if its flags promise it."""

    name: str
    check: Callable[[C], None]
    applies: Callable[[C], bool]

    def __call__(self, case: C) -> None:
        """Raise an AssertionError when the law is broken."""
        self.check(case)


class Laws(Generic[C]):
    """A list of laws that grows by decoration."""

    def __init__(self) -> None:
        self._laws: list[Law[C]] = []

    def add(
        self, applies: Callable[[C], bool] = lambda case: True
    ) -> Callable[[Callable[[C], None]], Callable[[C], None]]:
        """Register the decorated function for the cases that ``applies`` accepts."""

        def register(check: Callable[[C], None]) -> Callable[[C], None]:
            self._laws.append(Law(check.__name__, check, applies))
            return check

        return register

    def __iter__(self) -> Iterator[Law[C]]:
        return iter(self._laws)

    def of(self, case: C) -> Iterator[Law[C]]:
        """Return the laws that the flags of this case promise."""
        return (law for law in self._laws if law.applies(case))


def subclasses(base: type) -> list[Any]:
    """Return every concrete class below ``base``, by name."""
    found: dict[str, type] = {}
    stack: list[type] = [base]
    while stack:
        children: list[type] = stack.pop().__subclasses__()
        for kind in children:
            stack.append(kind)
            if not getattr(kind, "__abstractmethods__", None):
                found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return [found[name] for name in sorted(found)]
