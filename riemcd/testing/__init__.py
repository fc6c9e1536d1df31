"""The laws that every basis, selection and step size keeps, for our plug-ins and for yours.

>>> from riemcd.selections import Uniform
>>> check_selection(Uniform(1))
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from ..bases import Basis, Example
from ..selections import Selection
from ..stepsizes import StepSize
from .basis_case import BasisCase
from .basis_laws import BASIS_LAWS
from .registry import Law, Laws, subclasses
from .selection_laws import INDICES, SELECTION_LAWS, SelectionCase
from .stepsize_laws import STEPSIZE_LAWS, StepSizeCase

C = TypeVar("C")

__all__ = [
    "BASIS_LAWS",
    "INDICES",
    "SELECTION_LAWS",
    "STEPSIZE_LAWS",
    "BasisCase",
    "Law",
    "Laws",
    "SelectionCase",
    "StepSizeCase",
    "check_basis",
    "check_selection",
    "check_stepsize",
    "subclasses",
]


def check_basis(basis: Basis, *examples: Example, seeds: int = 2) -> None:
    """Raise an AssertionError with a sentence when a basis breaks a law that its flags promise.

    Parameters
    ----------
    basis : Basis
    *examples : Example
        Where to try it; ``basis.examples()`` when none are given.
    seeds : int
        How many random points to try at each.
    """
    places = [replace(example, basis=basis) for example in examples] or basis.examples()
    if not places:
        raise ValueError(f"{type(basis).__name__}.examples() names no place to try it: pass an Example.")
    for example in places:
        for batch in ((), (2,), (2, 3)):
            for dtype in (torch.float64, torch.float32):
                for seed in range(seeds):
                    case = BasisCase(example, batch, dtype, seed)
                    for law in BASIS_LAWS.of(case):
                        _run(law, case, f"{type(basis).__name__} {example.shape} {batch} {dtype}")


def check_selection(selection: Selection) -> None:
    """Raise an AssertionError with a sentence when a rule breaks a law that its flags promise."""
    tried = 0
    for index in INDICES:
        for batch in ((), (2,), (2, 3)):
            case = SelectionCase(selection, index, batch)
            if case.applies:
                tried += 1
                for law in SELECTION_LAWS.of(case):
                    _run(law, case, f"{selection!r} {index} {batch}")
    if not tried:
        raise AssertionError(f"{selection!r} refuses every kind of coordinates: no law could be tried.")


def check_stepsize(stepsize: StepSize) -> None:
    """Raise an AssertionError with a sentence when a rule breaks a law that its flags promise."""
    case = StepSizeCase(stepsize)
    for law in STEPSIZE_LAWS.of(case):
        _run(law, case, repr(stepsize))


def _run(law: Law[C], case: C, where: str) -> None:
    try:
        law(case)
    except AssertionError as error:
        said = str(error) or (law.check.__doc__ or "").strip()
        raise AssertionError(f"{where} breaks the law '{law.name}': {said}") from error
