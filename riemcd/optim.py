"""The torch face: an optimizer for geoopt's ManifoldParameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from .amp import NOT_SCALED, scaling, unscaled
from .descent import Direct, Reading, aim, move_, raise_if_not_finite, read
from .groups import PluginOptimizer
from .plan import Plan, check_gradient, check_plain, gradient, is_direct, make_rule, project_
from .posted import all_finite
from .record import StepRecord
from .stepsizes import Constant, plain_step_

__all__ = ["SRCD"]

_Found = tuple[Tensor, Plan, Reading | Direct]


class SRCD(PluginOptimizer):
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
    skip_weight_grad : bool
        Have the layers of ``riemcd.nn`` leave slopes during backward instead of forming weight gradients.
    process_group : torch.distributed.ProcessGroup, optional
        Whose ranks train the same model; with ``skip_weight_grad`` the slopes are averaged over them. See
        `riemcd.distributed`.

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
        self._scaling = NOT_SCALED
        self._idle = False  # whether a point had no gradient in the last step
        #: What the last step did; see `riemcd.record.StepRecord`.
        self.last_step = StepRecord()
        super().__init__(params, defaults, process_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Read the slopes of all parameters, check them, and only then move.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model and returns the loss; called once, with gradients enabled.
        """
        if torch.compiler.is_compiling():
            return _outside_the_graph(self, closure)
        if self._watched():
            return _hooked_step(self, closure)
        return self._step(closure)

    # What torch would wrap around a step takes as long as a small step does, watched or not.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        before = torch.is_grad_enabled()
        if before:
            torch.set_grad_enabled(False)  # as a decorator, no_grad() takes as long as a small step
        try:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if hasattr(self, "found_inf"):
                with scaling(self) as self._scaling:
                    if not self._scaling.overflow:
                        self._take_step()
                self._scaling = NOT_SCALED
            else:
                self._take_step()
            self._office.clear()
            return loss
        finally:
            if before:
                torch.set_grad_enabled(True)

    def _take_step(self) -> None:
        readings: list[list[_Found]] = []
        self._idle = False
        if self._ranks is not None:
            self._average_slopes()
        for number, group in enumerate(self.param_groups):
            self._refresh(number, group)
            readings.append(self._read_group(number, group))
        if self._idle:
            self._warn_of_orphans()
        if self._scaling.blind and not all_finite([one[2] for found in readings for one in found]):
            return
        checked = [
            (plan.where, reading)
            for group, found in zip(self.param_groups, readings, strict=True)
            if group["nonfinite"] == "raise"
            for _, plan, reading in found
            if not isinstance(reading, Direct) or reading.bad
        ]
        if checked:
            raise_if_not_finite(checked)
        self.last_step = StepRecord()
        for number, group in enumerate(self.param_groups):
            self._move_group(number, group, readings[number])
            self._move_plain(number, group)

    def _read_group(self, number: int, group: dict[str, Any]) -> list[_Found]:
        """Read the slopes of a group, moving nothing."""
        stepsize = self._plugins[number]["stepsize"]
        rule = make_rule(group, stepsize)
        directly = rule.proportional and self._scaling.scale is None
        readings: list[_Found] = []
        for param in group["params"]:
            plan, grad = self._plans[param], param.grad
            if plan.basis is None:
                if grad is not None:
                    check_plain(plan, grad, group, stepsize, self.state.get(param, {}))
                continue
            slot = self._office.slot(param) if self._office.serves else None
            if slot is not None:
                readings.append((param, plan, slot.reading(param, group, self._scaling)))
                continue
            if grad is None:
                self._idle = True
                continue
            check_gradient(plan, param, grad)
            if directly and is_direct(plan, grad, group):
                direct = self._aim(param, grad, plan, group)
                if direct is not None:
                    readings.append((param, plan, direct))
                    continue
            found = gradient(plan, param, group, rule.stateful, self._scaling)
            draw, state = self._draw(param, plan, group)
            covector = plan.basis.covector(found.points, found.values)
            seen = read(
                covector, plan.basis, plan.selection, plan.index, draw, state, found.active, found.rows
            )
            seen = replace(seen, slopes=-seen.slopes) if found.climb else seen
            readings.append((param, plan, seen))
        return readings

    def _move_group(self, number: int, group: dict[str, Any], readings: list[_Found]) -> None:
        skip, every = group["nonfinite"] == "skip", group["stabilize"]
        for param, plan, reading in readings:
            basis = plan.basis
            assert basis is not None
            if isinstance(reading, Direct):
                assert param.grad is not None
                moved = reading.move_(param, param.grad, basis, skip)
            else:
                rule, lr = make_rule(group, self._plugins[number]["stepsize"]), group["lr"]
                rate = lr.reshape(()).to(reading.slopes.device) if isinstance(lr, Tensor) else lr
                moved = move_(param, reading, basis, rule, rate, skip)
                self.state[param].update(reading.state)
            self.last_step.add(plan.name, basis, moved)
            if self._count_step(param) % (every or 1) == 0 and every:
                project_(param, plan.manifold)

    def _aim(self, param: Tensor, grad: Tensor, plan: Plan, group: dict[str, Any]) -> Direct | None:
        """Choose coordinates, and find the amounts where they are to be checked."""
        basis, lr, (draw, state) = plan.basis, float(group["lr"]), self._draw(param, plan, group)
        assert basis is not None
        rate, check = lr if group["maximize"] else -lr, group["nonfinite"] == "raise"
        alone = len(self._plans) == 1
        return aim(param, grad, basis, plan.selection, plan.index, draw, state, rate, check, alone)

    def _move_plain(self, number: int, group: dict[str, Any]) -> None:
        plans = self._plans
        plain = [p for p in group["params"] if plans[p].basis is None and p.grad is not None]
        if not plain:
            return
        stepsize = self._plugins[number]["stepsize"] or Constant()
        states = [self.state[p] for p in plain]
        grads = [unscaled(p.grad, self._scaling) for p in plain]
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

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "last_step": self.last_step, "_scaling": NOT_SCALED, "_idle": False}


_hooked_step = Optimizer.profile_hook_step(SRCD._step)


@_disable_dynamo
def _outside_the_graph(optimizer: SRCD, closure: Callable[[], Any] | None) -> Any:
    """Take a step that was met while compiling as it is: traced, it would be compiled again and again."""
    return (_hooked_step if optimizer._watched() else SRCD._step)(optimizer, closure)
