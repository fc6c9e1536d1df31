"""The convergence theorem, made checkable: its constants, its assumptions and both of its sides.

A researcher points these at their own loss: `smoothness` and `noise_constants` estimate what Assumptions
1 and 2 ask for, `is_robbins_monro` judges a schedule, `DescentMonitor` watches a run and `convergence_bound`
compares both sides of the theorem. `expected_step` and `second_moment` are the two facts about the coordinate
draw on which the proof rests, computed exactly.
"""

from .bound import Constants, ConvergenceBound, Premise, Run, convergence_bound
from .closed_forms import (
    Certificate,
    JointQuadratic,
    joint_diagonalization_bound,
    linear_trace_bound,
    lipschitz_bound,
    quadratic_trace_bound,
    upper_bound,
)
from .moments import directions, expected_step, second_moment
from .monitor import DescentMonitor, StepCheck
from .noise import Estimate, Noise, NoiseConstants, Observation, noise_constants, observe_noise
from .robbins_monro import PowerLaw, Verdict, is_robbins_monro
from .rules import RuleMoments, moments_in_closed_form, rule_moments
from .search import Witness, remainder_ratio
from .smoothness import Smoothness, smoothness

__all__ = [
    "Certificate",
    "Constants",
    "ConvergenceBound",
    "DescentMonitor",
    "Estimate",
    "JointQuadratic",
    "Noise",
    "NoiseConstants",
    "Observation",
    "PowerLaw",
    "Premise",
    "RuleMoments",
    "Run",
    "Smoothness",
    "StepCheck",
    "Verdict",
    "Witness",
    "convergence_bound",
    "directions",
    "expected_step",
    "is_robbins_monro",
    "joint_diagonalization_bound",
    "linear_trace_bound",
    "lipschitz_bound",
    "moments_in_closed_form",
    "noise_constants",
    "observe_noise",
    "quadratic_trace_bound",
    "remainder_ratio",
    "rule_moments",
    "second_moment",
    "smoothness",
    "upper_bound",
]
