"""Training on several ranks: what DDP is to leave alone, and the few slopes that are averaged instead.

Ranks choose the same coordinates without talking, since a draw depends on nothing but the seed, the step
and the parameter. What DDP averages, `riemcd.SRCD` moves on every rank alike. Of a weight whose gradient is
never formed (``skip_weight_grad=True``) only the slopes of the chosen coordinates are averaged, those of all
such weights in one all-reduce per step.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from .plan import Plan
from .posted import Posted

__all__ = ["Ranks", "check_company", "exclude_"]

# parameters that `exclude_` took away from DDP
_excluded = WeakTensorKeyDictionary()


def exclude_(model: nn.Module, names: str | Iterable[str]) -> nn.Module:
    """Make DDP leave parameters of a model alone; call it before wrapping.

    An ``SRCD`` with ``process_group=`` and ``skip_weight_grad=True`` must then train them: it gives all ranks
    the weights of the first one, and averages the slopes of every step.

    Parameters
    ----------
    model : nn.Module
        The module that ``DistributedDataParallel`` will wrap, on every rank.
    names : str or iterable of str
        Names as in ``model.named_parameters()``; the parameter is left alone under all its names.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> from riemcd.nn import OrthogonalLinear
    >>> model = nn.Sequential(OrthogonalLinear(4, 4), nn.Linear(4, 1))
    >>> model = exclude_(model, ["0.weight"])
    """
    if isinstance(model, DistributedDataParallel):
        raise ValueError("exclude_ must come before DistributedDataParallel: it has the parameters already.")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    known = dict(model.named_parameters(remove_duplicate=False))
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in known:
            raise ValueError(f"the model has no parameter {name!r}; it has {', '.join(known)}.")
    chosen = {id(known[name]): known[name] for name in names}
    ignored = {*getattr(model, "_ddp_params_and_buffers_to_ignore", ())}
    for name, param in known.items():
        if id(param) in chosen:
            # One half of DDP calls a parameter of the outermost module "weight", the other ".weight".
            ignored |= {name, f".{name}"}
    mark: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    mark(model, sorted(ignored))
    for param in chosen.values():
        _excluded[param] = True
    return model


def check_company(ranks: Ranks | None, plans: dict[Tensor, Plan], skips: bool) -> None:
    """Refuse a group whose parameters would drift apart from rank to rank.

    Parameters
    ----------
    ranks : Ranks or None
    plans : dict
        What will be done with each parameter of the group.
    skips : bool
        Whether the group has ``skip_weight_grad=True``.
    """
    points = [(param, plan) for param, plan in plans.items() if plan.basis is not None]
    for param, plan in plans.items():
        if param in _excluded and (not skips or plan.basis is None or ranks is None):
            raise ValueError(
                f"DDP leaves this parameter alone, so nobody averages its gradient ({plan.where}): give its "
                "group skip_weight_grad=True and the optimizer process_group=, or do not exclude_ it."
            )
    if not skips or not points or ranks is not None or not dist.is_available() or not dist.is_initialized():
        return
    if dist.get_world_size() > 1:
        raise ValueError(
            f"skip_weight_grad=True on {dist.get_world_size()} ranks needs process_group=, without which "
            f"each of them goes its own way ({points[0][1].where}). Pass torch.distributed.group.WORLD, or "
            "a group of one rank (torch.distributed.new_subgroups(1)[0]) where that is what you want."
        )


class Ranks:
    """The ranks of a process group, as one optimizer sees them.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
        Where slopes are averaged: the group that DDP was given, ``torch.distributed.group.WORLD`` by default.
    """

    def __init__(self, group: Any) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a torch.distributed.ProcessGroup this rank belongs to, such as "
                f"torch.distributed.group.WORLD after init_process_group, got {type(group).__name__}."
            )
        self.group = group
        self.size = dist.get_world_size(group)
        self._adopted: set[int] = set()  # who has been broadcast, by id
        self._checked = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a process group cannot be pickled: save the optimizer's state_dict() instead.")

    @torch.no_grad()
    def adopt_(self, params: Iterable[Tensor]) -> None:
        """Give all ranks the first one's parameters, once."""
        first = dist.get_global_rank(self.group, 0)
        for param in params:
            if id(param) in self._adopted:
                continue
            whole = param.detach().as_subclass(Tensor).clone(memory_format=torch.contiguous_format)
            # As bytes: not every backend knows every type.
            parts = whole.view(-1).view(torch.uint8)
            self._together(partial(dist.broadcast, parts, first, group=self.group))
            param.copy_(whole)
            self._adopted.add(id(param))
            self._checked = False

    def average_(
        self, slots: Sequence[tuple[Tensor, Posted]], groups: list[dict[str, Any]], state: Any
    ) -> None:
        """Average what has come to the slots over all ranks, in one all-reduce.

        A rank to which nothing has come for a parameter takes part with zeros; what has come to no rank is
        left out of the step.

        Parameters
        ----------
        slots : sequence of (Tensor, Posted)
            Parameters and where their slopes lie, in the same order on all ranks.
        groups, state
            Of the optimizer: they must say the same on all ranks, which is checked before the first step.
        """
        if not self._checked:
            self._check(slots, groups, state)
        if not slots:
            return
        came = [not slot.empty or param.grad is not None for param, slot in slots]
        own = [slot.local(param) for param, slot in slots]
        # Which type is wide enough follows from the parameters, hence is the same on all ranks.
        wide = torch.float32
        for param, _ in slots:
            wide = torch.promote_types(wide, param.dtype)
        device = slots[0][0].device
        told = torch.tensor(came, dtype=wide).to(device)
        flat = torch.cat([*(one.reshape(-1).to(device, wide) for one in own), told])
        self._together(lambda: dist.all_reduce(flat, group=self.group))
        flat /= self.size
        # Only a rank to which nothing came has to look whether something came to another.
        anywhere = came if all(came) else [share > 0 for share in flat[-len(slots) :].tolist()]
        first = 0
        for (_, slot), one, any_came in zip(slots, own, anywhere, strict=True):
            mean = flat[first : first + one.numel()].view(one.shape)
            first += one.numel()
            if any_came:
                slot.receive(mean.to(one.device, one.dtype))
            else:
                slot.clear()

    def _together(self, call: Callable[[], Any]) -> None:
        """Talk to the other ranks, and say in a sentence that one of them is gone."""
        try:
            call()
        except RuntimeError as error:
            raise RuntimeError(
                f"this step could not be taken together by {self.size} ranks, one of which has died or does "
                "not answer; nothing was changed. Start all ranks from the last checkpoint. "
                f"[{str(error).splitlines()[0]}]"
            ) from error

    def _check(
        self, slots: Sequence[tuple[Tensor, Posted]], groups: list[dict[str, Any]], state: Any
    ) -> None:
        """Refuse weights that DDP averages too, and optimizers that differ from rank to rank."""
        where = _managed([param for param, _ in slots])
        if where is not None:
            raise ValueError(
                f"DDP manages a parameter whose gradient is never formed ({slots[where][1].plan.where}): "
                "call riemcd.distributed.exclude_(model, names) before wrapping the model."
            )
        facts = _facts(groups, state)
        device = groups[0]["params"][0].device
        mine = torch.tensor([_digest(fact) for fact in facts.values()], dtype=torch.int64).to(device)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(every, mine, group=self.group))
        for rank, other in enumerate(every):
            odd = [name for name, same in zip(facts, (other == every[0]).tolist(), strict=True) if not same]
            if odd:
                raise ValueError(
                    f"all ranks must choose the same coordinates, but {', '.join(odd)} of rank {rank} is not "
                    "that of rank 0. Make the optimizers alike, and load the same checkpoint on all ranks."
                )
        self._checked = True


def _facts(groups: list[dict[str, Any]], state: Any) -> dict[str, Any]:
    """Return what has to be the same on all ranks, by the name it has in a sentence."""
    names = sorted(set().union(*groups) - {"params", "param_names", "points", "lr"})
    facts: dict[str, Any] = {name: [group.get(name) for group in groups] for name in names}
    facts["lr"] = [float(group["lr"]) for group in groups]
    facts["the shapes of parameters"] = [[tuple(p.shape) for p in group["params"]] for group in groups]
    steps = [[int(state.get(p, {}).get("step", 0)) for p in group["params"]] for group in groups]
    facts["the number of steps taken"] = steps
    return facts


def _digest(fact: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(fact).encode()).digest()[:8], "big", signed=True)


def _managed(params: list[Tensor]) -> int | None:
    """Return which of the parameters is averaged by a DDP module of this process, or None.

    A DDP module is not known to its parameters, so all objects there are must be asked; garbage that nobody
    has collected does not count.
    """
    wanted = {id(param): number for number, param in enumerate(params)}
    for attempt in range(2):
        found = [
            wanted[id(param)]
            for thing in gc.get_objects()
            if issubclass(type(thing), DistributedDataParallel)
            for param in getattr(thing, "_module_parameters", ())
            if id(param) in wanted
        ]
        if not found:
            return None
        if attempt == 0:
            gc.collect()
    return found[0]
