"""Learning rates that fall as the convergence theorem wants them to, as ordinary torch schedulers."""

from __future__ import annotations

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from .validate import number

__all__ = ["RobbinsMonroLR", "TheoremLR"]


class RobbinsMonroLR(LRScheduler):
    r"""Let the learning rate fall by a power of the step: :math:`\alpha_k = \alpha_0 / (1 + k/\tau)^{p}`.

    With :math:`1/2 < p \le 1` the rates satisfy what Robbins and Monro ask for,
    :math:`\sum_k \alpha_k = \infty` and :math:`\sum_k \alpha_k^2 < \infty`.

    Parameters
    ----------
    optimizer : Optimizer
        Its learning rates are the :math:`\alpha_0` of each group.
    power : float
        The exponent :math:`p`, in (1/2, 1].
    delay : float
        The number of steps :math:`\tau` before the fall is felt.
    last_epoch : int
        As in every torch scheduler.

    Examples
    --------
    >>> import torch
    >>> opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> scheduler = RobbinsMonroLR(opt, power=1.0)
    >>> for _ in range(3):
    ...     opt.step(); scheduler.step()
    >>> scheduler.get_last_lr()
    [0.25]
    """

    def __init__(
        self, optimizer: Optimizer, power: float = 0.75, delay: float = 1.0, last_epoch: int = -1
    ) -> None:
        number("RobbinsMonroLR", "power", power, 0.5, 1, from_low=False, to_high=True)
        number("RobbinsMonroLR", "delay", delay, 0, float("inf"), from_low=False)
        self.power = power
        self.delay = delay
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of every group at this step."""
        fall: float = (1 + self.last_epoch / self.delay) ** -self.power
        return [base * fall for base in self.base_lrs]


class TheoremLR(LRScheduler):
    r"""The largest rates that the theorem allows: :math:`\alpha_k = \frac{\mu}{L M} (1 + k)^{-p}`.

    The theorem needs :math:`\alpha_k L M \le \mu` at every step, with :math:`\mu = \min(\mu_X, \mu_W/D)` and
    :math:`M = \max(M_X, M_W/D)` over :math:`D` coordinates. The learning rates of the groups are
    overruled: the rate is the same for all parameters.

    Parameters
    ----------
    optimizer : Optimizer
    smoothness : float
        The constant :math:`L`.
    mu, M : float
        The constants of the stochastic gradient; 1/D and 1/D (or 1 with other parameters) when it is exact.
    power : float
        The exponent :math:`p`, in (1/2, 1].
    last_epoch : int
        As in every torch scheduler.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        smoothness: float,
        mu: float = 1.0,
        M: float = 1.0,
        power: float = 0.75,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("smoothness", smoothness), ("mu", mu), ("M", M)):
            number("TheoremLR", name, value, 0, float("inf"), from_low=False)
        number("TheoremLR", "power", power, 0.5, 1, from_low=False, to_high=True)
        self.first = mu / (smoothness * M)
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of every group at this step."""
        rate = self.first * (1 + self.last_epoch) ** -self.power
        return [rate for _ in self.base_lrs]
