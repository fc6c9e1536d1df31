"""Every basis, selection and step size that the library ships keeps every law its flags promise."""

import pytest
import torch

from riemcd.bases import Basis
from riemcd.selections import Selection
from riemcd.stepsizes import StepSize
from riemcd.testing import (
    BASIS_LAWS,
    INDICES,
    SELECTION_LAWS,
    STEPSIZE_LAWS,
    BasisCase,
    SelectionCase,
    StepSizeCase,
    subclasses,
)


def shipped(base):
    return [kind for kind in subclasses(base) if kind.__module__.startswith("riemcd.")]


def name(dtype):
    return str(dtype).removeprefix("torch.")


BASIS_TRIALS = [
    pytest.param(law, case, id=f"{kind.__name__}-{number}-{case.batch}-{name(case.dtype)}-{law.name}")
    for kind in shipped(Basis)
    for number, example in enumerate(kind.examples())
    for batch in ((), (2,), (2, 3))
    for dtype in (torch.float64, torch.float32)
    for case in [BasisCase(example, batch, dtype)]
    for law in BASIS_LAWS.of(case)
]
SELECTION_TRIALS = [
    pytest.param(law, cases, id=f"{rule!r}-{law.name}")
    for kind in shipped(Selection)
    for rule in kind.examples()
    for law in SELECTION_LAWS
    for cases in [
        [
            case
            for index in INDICES
            for batch in ((), (2,), (2, 3))
            for case in [SelectionCase(rule, index, batch)]
            if case.applies and law.applies(case)
        ]
    ]
    if cases
]
STEPSIZE_TRIALS = [
    pytest.param(law, case, id=f"{rule!r}-{law.name}")
    for kind in shipped(StepSize)
    for rule in kind.examples()
    for case in [StepSizeCase(rule)]
    for law in STEPSIZE_LAWS.of(case)
]


@pytest.mark.parametrize("kind", [*shipped(Basis), *shipped(Selection), *shipped(StepSize)])
def test_every_plug_in_is_tried_somewhere(kind):
    assert len(kind.examples()) > 0


@pytest.mark.parametrize(("law", "case"), BASIS_TRIALS)
def test_basis(law, case):
    law(case)


@pytest.mark.parametrize(("law", "cases"), SELECTION_TRIALS)
def test_selection(law, cases):
    for case in cases:
        law(case)


@pytest.mark.parametrize(("law", "case"), STEPSIZE_TRIALS)
def test_stepsize(law, case):
    law(case)
