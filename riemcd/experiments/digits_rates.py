"""Step sizes for the digits: the grids that were tried, and what was best on images held out for it."""

from __future__ import annotations

from itertools import product

from .methods import Method, Rates

__all__ = ["GRIDS", "RATES", "grid_of", "rates_of"]

_OTHERS = (3e-3, 1e-2, 3e-2, 1e-1)
#: Step sizes of W and of the other parameters that ``--preset tuning`` tries, by optimizer and step.
GRIDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "frozen": ((0.0,), _OTHERS),
    "rsgd:constant": ((3e-3, 1e-2, 3e-2), (1e-2, 3e-2, 1e-1)),
    "radam:adam": ((1e-3, 3e-3, 1e-2), _OTHERS),
    "geotorch:adam": ((1e-4, 3e-4, 1e-3, 3e-3), _OTHERS),
    "matching:adam": ((1e-3, 3e-3, 1e-2, 3e-2), _OTHERS),
    "ours": ((3e-4, 1e-3, 3e-3, 1e-2, 3e-2), _OTHERS),
    "rnn": ((0.0,), (3e-4, 1e-3, 3e-3)),
    "lstm": ((0.0,), (1e-3, 3e-3, 1e-2)),
}
#: The best of them on the held-out images.
RATES: dict[str, Rates] = {
    "frozen": Rates(0.0, 3e-2),
    "rsgd:constant": Rates(1e-2, 3e-2),
    "radam:adam": Rates(3e-3, 3e-2),
    "geotorch:adam": Rates(1e-4, 1e-2),
    "matching:adam": Rates(1e-2, 1e-2),
    "ours": Rates(1e-2, 1e-2),
    "rnn": Rates(0.0, 1e-3),
    "lstm": Rates(0.0, 3e-3),
}


def rates_of(method: Method) -> Rates:
    """Return the step sizes that were best for a method."""
    return RATES[_key(method)]


def grid_of(method: Method) -> list[Rates]:
    """Return all step sizes that were tried for a method."""
    return [Rates(*pair) for pair in product(*GRIDS[_key(method)])]


def _key(method: Method) -> str:
    """Return the entry of a method, with whatever step; our other rules of choosing coordinates share one."""
    return next((key for key in RATES if key.partition(":")[0] == method.name), "ours")
