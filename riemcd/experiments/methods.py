"""The optimizers that experiments on recurrent networks compare, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import geoopt
import torch
from torch import nn
from torch.nn.utils import parametrize

from .. import selections, stepsizes
from ..optim import SRCD
from .networks import LoopRNN
from .settings import known, needs

__all__ = [
    "METHODS",
    "OURS",
    "Method",
    "Rates",
    "Step",
    "cross",
    "make_optimizer",
    "parse_method",
    "parse_methods",
]

Step = Literal["constant", "rmsprop", "adam"]
_STEPS: dict[str, stepsizes.StepSize] = {
    "constant": stepsizes.Constant(),
    "rmsprop": stepsizes.RMSProp(),
    "adam": stepsizes.Adam(),
}
#: Which coordinates each of our methods takes; ``block`` is the size of a group of columns.
_RULES: dict[str, Callable[[int], selections.Selection]] = {
    "srgd": lambda block: selections.All(),
    "srcd-u": lambda block: selections.Uniform(1),
    "srcd-gs": lambda block: selections.GaussSouthwell(1),
    "srcd-gs-block": lambda block: selections.GaussSouthwell(fraction=0.005),
    "matching": lambda block: selections.RandomMatching(),
    "greedy-matching": lambda block: selections.GreedyMatching(),
    "partition": lambda block: selections.Partition(block),
}
#: Those that descend along coordinates.
OURS = tuple(_RULES)
#: All that can be named.
METHODS = ("frozen", "sgd", "rsgd", *OURS, "radam", "geotorch")


@dataclass(frozen=True)
class Rates:
    """Step sizes: for orthogonal weights and for the other parameters."""

    orthogonal: float
    others: float


def cross(orthogonal: Sequence[float], others: Sequence[float]) -> list[Rates]:
    """Return the step sizes that are in the middle of one list, with all of the other."""
    middle = orthogonal[len(orthogonal) // 2], others[len(others) // 2]
    pairs = [*((middle[0], rate) for rate in others), *((rate, middle[1]) for rate in orthogonal)]
    return [Rates(*pair) for pair in dict.fromkeys(pairs)]


@dataclass(frozen=True)
class Method:
    """An optimizer by name, and how far it steps; written ``name:step``."""

    name: str
    step: Step

    @property
    def label(self) -> str:
        """How it is written."""
        return self.name if self.step == "constant" or self.name == "radam" else f"{self.name}:{self.step}"

    @property
    def slug(self) -> str:
        """How it is written in the names of files."""
        return self.label.replace(":", "-")

    @property
    def recurrence(self) -> str:
        """Return ``loop`` for those whose users write the loop themselves, else ``fused``."""
        return "loop" if self.name in ("radam", "geotorch") else "fused"

    @property
    def adaptive(self) -> bool:
        """Whether steps are divided by the size of past slopes."""
        return self.step != "constant" or self.name == "radam"


def parse_method(written: str, step: Step, plain: Sequence[str] = ()) -> Method:
    """Return what ``name`` or ``name:step`` means.

    Parameters
    ----------
    step : {"constant", "rmsprop", "adam"}
        Where the text does not say; ``radam`` has Adam's.
    plain : sequence of str
        Names that are known besides, of networks that torch's Adam or RMSprop train.
    """
    name, _, own = written.partition(":")
    known("an optimizer", [name], [*METHODS, *plain])
    known("the step of an optimizer", [own] if own else [], list(_STEPS))
    chosen: Any = own or ("adam" if name == "radam" else step)
    if name == "radam" and chosen != "adam":
        raise ValueError(f"radam has steps of its own, got {written!r}: write radam.")
    if name in plain and chosen == "constant":
        raise ValueError(f"{name} is trained with adam or rmsprop, got {written!r}.")
    if name == "geotorch":  # said before anything is run
        needs("geotorch", "geotorch", "the optimizer geotorch")
    return Method(name, chosen)


def parse_methods(names: Sequence[str], step: Step) -> list[Method]:
    """Return the methods in the order given, with the frozen control of every kind of step in front.

    The steps of ``radam`` get one only where there is nothing else.

    Parameters
    ----------
    names : sequence of str
        ``name`` or ``name:step``.
    step : {"constant", "rmsprop", "adam"}
        For names that do not say.
    """
    found = [parse_method(written, step) for written in names]
    compared = [method for method in found if method.name != "radam"] or found
    controls = [Method("frozen", method.step) for method in compared]
    return list(dict.fromkeys([*controls, *found]))


def make_optimizer(
    method: Method, network: nn.Module, rates: Rates, *, block: int, seed: int
) -> torch.optim.Optimizer:
    """Return the optimizer of a network; a frozen weight stops asking for its gradient.

    Parameters
    ----------
    method : Method
    network : Module
        With one recurrent weight on a manifold, or parametrized by geotorch.
    rates : Rates
    block : int
        How many columns ``partition`` puts in a group.
    seed : int
        For random coordinates.
    """
    core: Any = network.core
    owner: Any = core.recurrent if isinstance(core, LoopRNN) else core
    if parametrize.is_parametrized(owner):
        constrained = list(owner.parametrizations.parameters())
    else:
        constrained = [p for p in network.parameters() if isinstance(p, geoopt.ManifoldParameter)]
    inside = {id(p) for p in constrained}
    others = [p for p in network.parameters() if id(p) not in inside]
    if method.name == "frozen":
        for param in constrained:
            param.requires_grad_(False)
        return _torch_optimizer(method.step, [{"params": others, "lr": rates.others}])
    groups: list[dict[str, Any]] = [
        {"params": constrained, "lr": rates.orthogonal},
        {"params": others, "lr": rates.others},
    ]
    if method.name in _RULES:
        # Plain parameters get what torch's optimizer of that name does, bit for bit.
        return SRCD(
            groups,
            selection=_RULES[method.name](block),
            stepsize=_STEPS[method.step],
            seed=seed,
            nonfinite="ignore",  # a run that diverges goes on, as with other optimizers
            skip_weight_grad=True,
        )
    if method.name == "rsgd" and method.step == "constant":
        made: torch.optim.Optimizer = geoopt.optim.RiemannianSGD(groups, lr=rates.others)
        return made
    if method.name in ("rsgd", "radam"):
        # geoopt has no RMSProp of its own: this is what its Adam does without a first moment.
        betas = (0.0, 0.99) if method.step == "rmsprop" else (0.9, 0.999)
        made = geoopt.optim.RiemannianAdam(groups, lr=rates.others, betas=betas)
        made.register_load_state_dict_post_hook(_count_in_integers)
        return made
    return _torch_optimizer(method.step, groups)


def _count_in_integers(adam: torch.optim.Optimizer) -> None:
    """Let geoopt's Adam go on with the step counts it had, after a checkpoint was loaded.

    It counts in Python's integers; torch loads them as float32 tensors, in which the corrections of the
    moments are rounded differently.
    """
    for state in adam.state.values():
        state["step"] = int(state["step"])


def _torch_optimizer(step: Step, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kinds = {"constant": torch.optim.SGD, "rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}
    made: torch.optim.Optimizer = kinds[step](groups)
    return made
