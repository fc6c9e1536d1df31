"""Parameter groups that carry plug-in objects, and checkpoints of them that are plain data."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from .checkpoint import COUNTS, check_same_configuration, joined, restore_dtypes_
from .distributed import Ranks, check_company
from .draw import Draw
from .errors import WeightDecayWarning
from .lost import complain, no_manifold, orphaned, swapped
from .options import GROUP_KEYS, PLUGINS, check_keys, check_options, check_rate, fixed_values
from .plan import Plan, make_plan
from .posted import PostOffice

__all__ = ["PluginOptimizer"]


class PluginOptimizer(Optimizer):
    """An optimizer whose groups name plug-ins.

    The objects live beside ``param_groups``, which hold their ``repr``: a checkpoint is then plain
    data, loads with ``weights_only=True``, and one of another configuration can be recognised.
    """

    _ranks: Ranks | None = None

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], process_group: Any = None) -> None:
        check_options(defaults)
        self._ranks = None if process_group is None else Ranks(process_group)
        self._plugins: list[dict[str, Any]] = []
        self._shown: list[dict[str, str | None]] = []
        self._checked: list[tuple[Any, ...]] = []  # the rarely changed options, as they were last looked at
        self._plans: dict[Tensor, Plan] = {}
        self._warned = self._missed = False
        self._office = PostOffice(self._opening)
        super().__init__(params, defaults)
        self._warn_if_no_manifold()

    @property
    def plans(self) -> dict[Tensor, Plan]:
        """What will be done with each parameter: its manifold, basis, selection and coordinates."""
        for number, group in enumerate(self.param_groups):
            self._refresh(number, group)
        return dict(self._plans)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; a mistake in it is said in a sentence and leaves the optimizer as it was."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        if "params" not in group:
            raise ValueError(f"a parameter group must have 'params', got {sorted(group)}.")
        check_keys(group)
        check_options({**self.defaults, **group})
        plugins = {name: group.get(name, self.defaults[name]) for name in PLUGINS}
        group.update(_shown(plugins))
        super().add_param_group(group)
        added = self.param_groups[-1]
        try:
            plans = self._make_plans(len(self.param_groups) - 1, added, plugins)
            check_company(self._ranks, plans, added["skip_weight_grad"])
        except Exception:
            self.param_groups.pop()
            raise
        self._plugins.append(plugins)
        self._shown.append(_shown(plugins))
        self._checked.append(fixed_values(added))
        self._plans.update(plans)
        added["points"] = _points(added, plans)
        self._office.arrange(len(self.param_groups) - 1, added, plans)
        if self._ranks is not None:
            self._ranks.adopt_(param for param, _ in self._office.slots)
        self._warn_of_weight_decay(added, plans)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, and the slopes that layers have left with ``skip_weight_grad=True``."""
        if set_to_none and not (torch.compiler.is_compiling() or self._watched()):
            # What torch puts around this loop takes longer than the loop.
            for group in self.param_groups:
                for param in group["params"]:
                    param.grad = None
        else:
            super().zero_grad(set_to_none)
        self._office.clear()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether a GradScaler must hand over the scale: it cannot reach slopes left by layers."""
        return self._office.serves

    def _watched(self) -> bool:
        """Whether a hook or the profiler has to know of a step."""
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or _profiler_enabled()
        )

    def _average_slopes(self) -> None:
        """Put averages over all ranks in the place of the slopes that layers have left on this one."""
        assert self._ranks is not None
        for number, group in enumerate(self.param_groups):
            self._refresh(number, group)
        self._ranks.adopt_(param for param, _ in self._office.slots)
        self._ranks.average_(self._office.slots, self.param_groups, self.state)

    def _opening(self, number: int, param: Tensor) -> tuple[Draw, dict[str, Any]]:
        """Take over what was changed since the last step, and open the next one for a parameter."""
        self._refresh(number, self.param_groups[number])
        return self._draw(param, self._plans[param], self.param_groups[number])

    def _draw(self, param: Tensor, plan: Plan, group: dict[str, Any]) -> tuple[Draw, dict[str, Any]]:
        """Return the draw of a parameter's coming step, and a copy of its state.

        What a rule notes down in the copy counts only once the step is taken.
        """
        state = dict(self.state.get(param, {}))
        return Draw(group["seed"], state.get("step", 0), plan.ordinal, param.device), state

    def _make_plans(self, number: int, group: dict[str, Any], plugins: dict[str, Any]) -> dict[Tensor, Plan]:
        first = sum(len(g["params"]) for g in self.param_groups[:number])
        names = group.get("param_names") or [f"{number}.{i}" for i in range(len(group["params"]))]
        taken = {
            plan.name for param, plan in self._plans.items() if all(param is not p for p in group["params"])
        }
        names = [f"{number}.{name}" if name in taken else name for name in names]
        return {
            param: make_plan(names[i], first + i, param, group, plugins)
            for i, param in enumerate(group["params"])
        }

    def _refresh(self, number: int, group: dict[str, Any]) -> None:
        """Take over a plug-in, a manifold or an option that was changed since the last step."""
        lr, plans, own = group["lr"], self._plans, self._plugins[number]["manifold"]
        # A rate on another device would have to be waited for.
        if (type(lr) is not float or not 0.0 <= lr < inf) and not (isinstance(lr, Tensor) and not lr.is_cpu):
            check_rate(lr)
        same = fixed_values(group) == self._checked[number]
        stale = False
        for param in group["params"]:
            if getattr(param, "manifold", own) is not plans[param].manifold:
                stale = True
        if not same or stale:
            self._take_over(number, group, stale)

    def _take_over(self, number: int, group: dict[str, Any], stale: bool) -> None:
        plugins, shown = self._plugins[number], self._shown[number]
        changed = {name: group[name] for name in PLUGINS if group[name] != shown[name]}
        fresh = {**plugins, **changed}
        check_options({**group, **fresh})
        if not changed and not stale and self._office.asked(number) == group["skip_weight_grad"]:
            for param in group["params"]:  # schedulers may change the momentum before every step
                self._plans[param].check_rule(group, plugins["stepsize"])
            self._checked[number] = fixed_values(group)
            return
        lost = swapped(group["params"], self._plans, fresh["manifold"]) if stale else None
        if lost is not None:
            complain(lost, group["strict"], stacklevel=7)
        plans = self._make_plans(number, group, fresh)
        check_company(self._ranks, plans, group["skip_weight_grad"])
        self._office.arrange(number, group, plans)
        for param in group["params"]:
            if param in self.state and plans[param].basis != self._plans[param].basis:
                # Numbers per coordinate mean nothing along other directions.
                kept = {name: self.state[param][name] for name in COUNTS if name in self.state[param]}
                self.state[param] = kept
        self._plans.update(plans)
        self._plugins[number], self._shown[number] = fresh, _shown(fresh)
        group.update(self._shown[number])
        group["points"] = _points(group, plans)
        self._checked[number] = fixed_values(group)

    def _warn_of_weight_decay(self, group: dict[str, Any], plans: dict[Tensor, Plan]) -> None:
        idle = [plan.where for plan in plans.values() if plan.basis is not None and plan.basis.fixed_norm]
        if group["weight_decay"] == 0 or not idle or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"weight_decay does nothing where the manifold fixes the norm of a point ({idle[0]}).",
            WeightDecayWarning,
            stacklevel=5,
        )

    def _warn_if_no_manifold(self) -> None:
        if any(plan.manifold is not None for plan in self._plans.values()):
            return
        strict = any(group["strict"] for group in self.param_groups)
        complain(no_manifold(), strict, stacklevel=4)

    def _warn_of_orphans(self) -> None:
        """Complain, once unless it is an error, of points that are in no model any more."""
        for group in self.param_groups:
            if group["strict"] or not self._missed:
                sentence = orphaned(group["params"], self._plans, self.state, self._office)
                if sentence is not None:
                    complain(sentence, group["strict"], stacklevel=6)
                    self._missed = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; one of another configuration is refused before anything changes."""
        hooks = self._optimizer_load_state_dict_pre_hooks
        for hook in hooks.values():  # they may make it fit, so they come before the check
            state_dict = dict(state_dict)
            state_dict = hook(self, state_dict) or state_dict
        state_dict = joined(state_dict)
        check_same_configuration(state_dict, self.param_groups, self._plans)
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()
        try:
            super().load_state_dict(state_dict)
        finally:
            self._optimizer_load_state_dict_pre_hooks = hooks
        restore_dtypes_(self.state, self.param_groups, state_dict, self._plans)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_plugins", "_shown", "_checked", "_plans", "_warned", "_missed", "_ranks")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for number, group in enumerate(self.param_groups):
            for name in GROUP_KEYS:
                group.setdefault(name, {**self.defaults, **self._shown[number]}[name])
        # Groups have become other dicts, and slopes were left for the draws of another step.
        self._office = PostOffice(self._opening)
        for number, group in enumerate(self.param_groups):
            self._office.arrange(number, group, self._plans)


def _shown(plugins: dict[str, Any]) -> dict[str, str | None]:
    return {name: None if plugin is None else repr(plugin) for name, plugin in plugins.items()}


def _points(group: dict[str, Any], plans: dict[Tensor, Plan]) -> list[str]:
    """Return what each parameter of a group is, for a checkpoint to be compared with."""
    return [plans[param].describe(param) for param in group["params"]]
