"""Step sizes and passes for the digits: the best on images held out for it, and their neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from .methods import Method, Rates, cross

__all__ = ["PACE", "RATES", "grid_of", "passes_of", "rates_of"]

#: Step sizes that are compared: most stand on the first of these ladders, some on the steeper one.
_LADDERS = tuple(
    tuple(float(f"{digit}e{power}") for power in range(-5, 1) for digit in digits)
    for digits in ((1, 2, 5), (1, 3))
)
#: Passes of ours over the images for one of the others, by hidden size: what takes less than a third of the
#: time of geoopt's and geotorch's. The larger the matrices, the less there is to gain beside their products.
PACE = {64: 1.6, 128: 1.2, 256: 1.0}
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
#: with 256 hidden units they were looked for in random order only, without noise and with half the passes.
RATES: dict[tuple[int, str], dict[str, Rates]] = {
    (64, "rows"): {
        "frozen": Rates(0.0, 2e-2),
        "rsgd": Rates(5e-3, 5e-2),
        "radam": Rates(5e-2, 2e-2),
        "geotorch": Rates(5e-3, 2e-2),
        "matching": Rates(1e-3, 2e-2),
        "ours": Rates(5e-3, 2e-2),
        "rnn": Rates(0.0, 5e-3),
        "lstm": Rates(0.0, 1e-2),
    },
    (64, "permuted"): {
        "frozen": Rates(0.0, 2e-2),
        "rsgd": Rates(2e-2, 5e-2),
        "radam": Rates(5e-1, 2e-2),
        "geotorch": Rates(5e-3, 2e-2),
        "matching": Rates(2e-2, 2e-2),
        "ours": Rates(5e-3, 2e-2),
        "rnn": Rates(0.0, 5e-3),
        "lstm": Rates(0.0, 2e-2),
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
    found = RATES[_nearest((size for size, _ in RATES), hidden), order]
    return found.get(method.name, found["ours"])


def passes_of(hidden: int, epochs: int) -> int:
    """Return how often our optimizers go over the images where the others do so ``epochs`` times."""
    return max(1, round(PACE[_nearest(PACE, hidden)] * epochs))


def grid_of(hidden: int, order: str, method: Method) -> list[Rates]:
    """Return the step sizes of a method and their neighbours, which ``--preset tuning`` compares."""
    rates = rates_of(hidden, order, method)
    return cross(_beside(rates.orthogonal), _beside(rates.others))


def _nearest(sizes: Iterable[int], hidden: int) -> int:
    return min(sizes, key=lambda size: abs(size - hidden))


def _beside(rate: float) -> tuple[float, ...]:
    if rate == 0:
        return (rate,)
    ladder = next(ladder for ladder in _LADDERS if rate in ladder)
    at = ladder.index(rate)
    return ladder[at - 1 : at + 2]
