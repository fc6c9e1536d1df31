"""The protocol by which torch's GradScaler hands the scale of the loss to an optimizer.

An optimizer with ``_step_supports_amp_scaling`` is called on every iteration and finds two attributes:
``grad_scale``, what the loss was multiplied with, and ``found_inf``, not zero when a gradient overflowed.
Slopes that lie in the mailbox are scaled too, and the scaler cannot reach them: hence this protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["NOT_SCALED", "Scaling", "scaling", "unscaled"]


@dataclass(frozen=True, eq=False)
class Scaling:
    """What a scaler says about the coming step."""

    scale: Tensor | None = None  # (), what the loss was multiplied with
    overflow: bool = False  # the step must be skipped
    blind: bool = False  # the scaler has seen no gradient of this optimizer, so slopes must tell


NOT_SCALED = Scaling()


@contextmanager
def scaling(optimizer: Any) -> Iterator[Scaling]:
    """Read what a scaler has handed over, and take it away again should the step raise."""
    if not hasattr(optimizer, "found_inf"):
        yield NOT_SCALED
        return
    try:
        if optimizer.grad_scale is None:
            raise RuntimeError(
                "scaler.unscale_(optimizer) divides gradients, but it cannot reach the slopes that "
                "skip_weight_grad=True keeps instead. Leave it out: scaler.step(optimizer) divides both. "
                "Limit steps with stepsizes.Clipped instead of clip_grad_norm_."
            )
        found = optimizer.found_inf
        yield Scaling(optimizer.grad_scale, bool(found), not isinstance(found, Tensor))
    except BaseException:
        del optimizer.grad_scale, optimizer.found_inf  # the scaler does so only after a step
        raise


def unscaled(value: Tensor, by: Scaling) -> Tensor:
    """Return a gradient, or a slope, of the loss itself; the tensor given is not written to."""
    return value if by.scale is None else value / by.scale.to(value.device)
