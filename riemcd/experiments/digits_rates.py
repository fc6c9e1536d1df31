"""Step sizes for the digits: the best on images held out for it, and their neighbours."""

from __future__ import annotations

from .methods import Method, Rates, cross

__all__ = ["RATES", "grid_of", "rates_of"]

_LADDER = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # the best is never at its ends
_WIDE = {
    "frozen": Rates(0.0, 3e-2),
    "rsgd": Rates(1e-2, 3e-2),
    "radam": Rates(3e-3, 3e-2),
    "geotorch": Rates(1e-4, 1e-2),
    "matching": Rates(1e-2, 1e-2),
    "ours": Rates(1e-2, 1e-2),
    "rnn": Rates(0.0, 1e-3),
    "lstm": Rates(0.0, 3e-3),
}
#: What is best on held-out images, of W and of the other parameters, by hidden size and order of the pixels;
#: with 256 hidden units they were looked for in random order only.
RATES: dict[tuple[int, str], dict[str, Rates]] = {
    (64, "rows"): {
        "frozen": Rates(0.0, 3e-2),
        "rsgd": Rates(3e-3, 3e-2),
        "radam": Rates(1e-1, 3e-2),
        "geotorch": Rates(3e-3, 3e-2),
        "matching": Rates(1e-3, 3e-2),
        "ours": Rates(1e-2, 1e-2),
        "rnn": Rates(0.0, 3e-3),
        "lstm": Rates(0.0, 1e-2),
    },
    (64, "permuted"): {
        "frozen": Rates(0.0, 3e-2),
        "rsgd": Rates(3e-2, 3e-2),
        "radam": Rates(1e-1, 1e-2),
        "geotorch": Rates(1e-2, 1e-2),
        "matching": Rates(1e-2, 3e-2),
        "ours": Rates(1e-2, 3e-2),
        "rnn": Rates(0.0, 3e-3),
        "lstm": Rates(0.0, 3e-2),
    },
    (256, "rows"): _WIDE,
    (256, "permuted"): _WIDE,
}


def rates_of(hidden: int, order: str, method: Method) -> Rates:
    """Return the step sizes of a method, with whatever step; our other ways to choose coordinates share one.

    Parameters
    ----------
    hidden : int
        Where there are none for this size, those for the nearest are taken.
    order : {"rows", "permuted"}
    method : Method
    """
    nearest = min(dict.fromkeys(size for size, _ in RATES), key=lambda size: abs(size - hidden))
    found = RATES[nearest, order]
    return found.get(method.name, found["ours"])


def grid_of(hidden: int, order: str, method: Method) -> list[Rates]:
    """Return the step sizes of a method and their neighbours, which ``--preset tuning`` compares."""
    rates = rates_of(hidden, order, method)
    return cross(_beside(rates.orthogonal), _beside(rates.others))


def _beside(rate: float) -> tuple[float, ...]:
    if rate == 0:
        return (rate,)
    at = _LADDER.index(rate)
    return _LADDER[at - 1 : at + 2]
