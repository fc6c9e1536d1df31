"""Riemannian coordinate descent on top of geoopt and PyTorch."""

import warnings as _warnings

with _warnings.catch_warnings():
    # geoopt compiles its functions with torch.jit.script, which torch has deprecated: not our users' doing.
    _warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", DeprecationWarning)
    import geoopt as _geoopt  # noqa: F401

from . import bases, diagnostics, distributed, nn, problems, selections, stepsizes, theory
from .averaging import project_
from .constrain import constrain_, unconstrain_
from .diagnostics import report
from .minimize import minimize
from .optim import SRCD

__version__ = "0.1.0"
__all__ = [
    "SRCD",
    "bases",
    "constrain_",
    "diagnostics",
    "distributed",
    "minimize",
    "nn",
    "problems",
    "project_",
    "report",
    "selections",
    "stepsizes",
    "theory",
    "unconstrain_",
]
