"""The torch face: an optimizer for geoopt's ManifoldParameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .checkpoint import check_same_configuration, restore_dtypes_
from .descent import Reading, move_, raise_if_not_finite, read
from .draw import Draw
from .errors import ManifoldLostWarning, WeightDecayWarning
from .options import PLUGINS, check_keys, check_options
from .plan import Plan, active_points, gradient, make_plan, make_rule, project_
from .record import StepRecord
from .stepsizes import Constant, plain_step_

__all__ = ["SRCD"]


class SRCD(Optimizer):
    r"""Stochastic Riemannian coordinate descent, in the place of ``geoopt.optim.RiemannianSGD``.

    A step chooses coordinates :math:`i` of the tangent space, reads the slopes
    :math:`\partial_i = Df(W)[\eta_i]` and moves along them, :math:`W \leftarrow
    \mathrm{Exp}_W(-\mathrm{lr} \sum_i \partial_i \eta_i)`. On orthogonal matrices that is a set of
    Givens rotations. Parameters without a manifold get what ``torch.optim.SGD`` would do.

    Parameters
    ----------
    params : iterable
        Parameters, ``(name, parameter)`` pairs, or dicts of groups; every option may be given per group.
    lr : float or Tensor
        Step size.
    momentum, dampening, weight_decay, nesterov
        As in ``torch.optim.SGD``, one momentum number per coordinate. Weight decay does nothing on
        manifolds where the norm of a point is fixed.
    stabilize : int, optional
        Project onto the manifold every so many steps.
    basis : Basis, optional
        Which directions there are; by default ``bases.basis_for`` the manifold of each parameter.
    selection : Selection, optional
        Which coordinates to take; by default a random matching of columns where coordinates are
        pairs, one uniformly random coordinate elsewhere.
    stepsize : StepSize, optional
        How far along each; ``stepsizes.Constant()`` by default.
    maximize : bool
        Climb instead of descending.
    seed : int
        Where the random coordinates come from, together with the parameter and its step count.
    nonfinite : {"raise", "skip", "ignore"}
        What to do about slopes that are NaN or infinite: raise before anything has moved, leave those
        coordinates alone, or go on.
    strict : bool
        Raise where a manifold seems to have been lost instead of warning.

    Examples
    --------
    >>> import geoopt, riemcd, torch
    >>> W = geoopt.ManifoldParameter(torch.eye(4), manifold=geoopt.EuclideanStiefel())
    >>> opt = riemcd.SRCD([W], lr=0.1)
    >>> (W * torch.arange(16.0).view(4, 4)).sum().backward()
    >>> opt.step()
    >>> bool(torch.allclose(W.T @ W, torch.eye(4), atol=1e-6))
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        stabilize: int | None = None,
        *,
        basis: Any = None,
        selection: Any = None,
        stepsize: Any = None,
        maximize: bool = False,
        seed: int = 0,
        nonfinite: str = "raise",
        strict: bool = False,
        skip_weight_grad: bool = False,
        process_group: Any = None,
    ) -> None:
        if skip_weight_grad:
            raise ValueError("skip_weight_grad=True needs the layers of riemcd.nn, which are not there yet.")
        if process_group is not None:
            raise ValueError("process_group= is not supported yet: under DDP leave it None.")
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "stabilize": stabilize,
            "basis": basis,
            "selection": selection,
            "stepsize": stepsize,
            "manifold": None,
            "maximize": maximize,
            "seed": seed,
            "nonfinite": nonfinite,
            "strict": strict,
            "skip_weight_grad": skip_weight_grad,
        }
        check_options(defaults)
        self._plugins: list[dict[str, Any]] = []  # beside param_groups, which hold their repr
        self._shown: list[dict[str, str | None]] = []
        self._plans: dict[Tensor, Plan] = {}
        self._warned = False
        #: What the last step did; see `riemcd.record.StepRecord`.
        self.last_step = StepRecord()
        super().__init__(params, defaults)
        self._warn_if_no_manifold()

    # ------------------------------------------------------------------ groups and their plug-ins

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; a mistake in it is said in a sentence and leaves the optimizer as it was."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        group = dict(param_group)
        check_keys(group)
        check_options({**self.defaults, **group})
        plugins = {name: group.get(name, self.defaults[name]) for name in PLUGINS}
        group.update(_shown(plugins))
        super().add_param_group(group)
        added = self.param_groups[-1]
        try:
            plans = self._make_plans(len(self.param_groups) - 1, added, plugins)
        except Exception:
            self.param_groups.pop()
            raise
        self._plugins.append(plugins)
        self._shown.append(_shown(plugins))
        self._plans.update(plans)
        self._warn_of_weight_decay(added, plans)

    def _make_plans(self, number: int, group: dict[str, Any], plugins: dict[str, Any]) -> dict[Tensor, Plan]:
        first = sum(len(g["params"]) for g in self.param_groups[:number])
        names = group.get("param_names") or [f"{number}.{i}" for i in range(len(group["params"]))]
        return {
            param: make_plan(names[i], first + i, param, group, plugins)
            for i, param in enumerate(group["params"])
        }

    def _refresh(self, number: int, group: dict[str, Any]) -> None:
        """Take over a plug-in, or a manifold, that was changed since the last step."""
        plugins, shown = self._plugins[number], self._shown[number]
        changed = {name: group[name] for name in PLUGINS if group[name] != shown[name]}
        own = plugins["manifold"]
        stale = any(getattr(p, "manifold", own) is not self._plans[p].manifold for p in group["params"])
        if not changed and not stale:
            return
        fresh = {**plugins, **changed}
        check_options({**group, **fresh})
        self._plans.update(self._make_plans(number, group, fresh))
        self._plugins[number], self._shown[number] = fresh, _shown(fresh)
        group.update(self._shown[number])

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
        sentence = (
            "no parameter handed to SRCD has a manifold, so all of them are trained by plain SGD. "
            "A manifold is easily lost in to('meta'), load_state_dict(assign=True) or FSDP; declare "
            "geoopt.ManifoldParameters, or give the group a 'manifold'."
        )
        if self.defaults["strict"]:
            raise ValueError(sentence)
        warnings.warn(sentence, ManifoldLostWarning, stacklevel=3)

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Read the slopes of all parameters, check them, and only then move.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model and returns the loss; called once, with gradients enabled.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        readings: list[list[tuple[Tensor, Reading]]] = []
        for number, group in enumerate(self.param_groups):
            self._refresh(number, group)
            readings.append(self._read_group(number, group))
        raise_if_not_finite(
            [
                (self._plans[param].where, reading)
                for group, found in zip(self.param_groups, readings, strict=True)
                if group["nonfinite"] == "raise"
                for param, reading in found
            ]
        )
        self.last_step = StepRecord()
        for number, group in enumerate(self.param_groups):
            self._move_group(number, group, readings[number])
            self._move_plain(number, group)
        return loss

    def _read_group(self, number: int, group: dict[str, Any]) -> list[tuple[Tensor, Reading]]:
        stateful = make_rule(group, self._plugins[number]["stepsize"]).stateful
        readings = []
        for param in group["params"]:
            plan = self._plans[param]
            if param.grad is None or plan.basis is None:
                continue
            grad = gradient(plan, param, group)
            state = dict(self.state[param])  # what a rule notes down counts only once the step is taken
            draw = Draw(group["seed"], state.get("step", 0), plan.ordinal, param.device)
            readings.append(
                (
                    param,
                    read(
                        plan.basis.covector(param, grad),
                        plan.basis,
                        plan.selection,
                        plan.index,
                        draw,
                        state,
                        active_points(plan, grad) if stateful else None,
                    ),
                )
            )
        return readings

    def _move_group(self, number: int, group: dict[str, Any], readings: list[tuple[Tensor, Reading]]) -> None:
        rule = make_rule(group, self._plugins[number]["stepsize"])
        lr = group["lr"]
        skip = group["nonfinite"] == "skip"
        for param, reading in readings:
            plan = self._plans[param]
            assert plan.basis is not None
            rate = lr.reshape(()).to(reading.slopes.device) if isinstance(lr, Tensor) else lr
            moved = move_(param, reading, plan.basis, rule, rate, skip)
            self.state[param].update(reading.state)
            self.last_step.add(plan.name, plan.basis, moved)
            if self._count_step(param) % (group["stabilize"] or 1) == 0 and group["stabilize"]:
                project_(param, plan.manifold)

    def _move_plain(self, number: int, group: dict[str, Any]) -> None:
        plain = [p for p in group["params"] if p.grad is not None and self._plans[p].basis is None]
        if not plain:
            return
        stepsize = self._plugins[number]["stepsize"] or Constant()
        states = [self.state[p] for p in plain]
        grads = [p.grad for p in plain]
        if stepsize.has_torch_twin:
            stepsize.euclidean_(plain, grads, states, group)
        else:
            rule = make_rule(group, stepsize)
            for param, grad, state in zip(plain, grads, states, strict=True):
                plain_step_(rule, param, grad, state, group)
        for param in plain:
            self._count_step(param)

    def _count_step(self, param: Tensor) -> int:
        state = self.state[param]
        if "shape" not in state:
            state["shape"] = torch.tensor(param.shape, dtype=torch.int64)
        state["step"] = steps = int(state.get("step", 0)) + 1
        return steps

    @torch.no_grad()
    def stabilize_group(self, group: dict[str, Any]) -> None:
        """Project the parameters of a group back onto their manifolds."""
        for param in group["params"]:
            if self._plans[param].basis is not None:
                project_(param, self._plans[param].manifold)

    def stabilize(self) -> None:
        """Project every parameter back onto its manifold, as geoopt's optimizers do."""
        for group in self.param_groups:
            self.stabilize_group(group)

    # ------------------------------------------------------------------ saving and loading

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; one of another configuration is refused before anything changes."""
        check_same_configuration(state_dict, self.param_groups)
        super().load_state_dict(state_dict)
        restore_dtypes_(self.state, self.param_groups, state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_plugins", "_shown", "_plans", "_warned", "last_step")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for number, group in enumerate(self.param_groups):
            for name, value in self.defaults.items():
                if name in PLUGINS:
                    group.setdefault(name, self._shown[number][name])
                else:
                    group.setdefault(name, value)


def _shown(plugins: dict[str, Any]) -> dict[str, str | None]:
    return {name: None if plugin is None else repr(plugin) for name, plugin in plugins.items()}
