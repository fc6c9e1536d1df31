"""How far rounding takes a matrix off its manifold, step after step, when nobody projects it back."""

from __future__ import annotations

import math

import geoopt
import pytest
import torch
from torch import Tensor

from riemcd import SRCD, bases, kernels

LEFT, RIGHT = bases.LeftGivens(), bases.RightGivens()


def off(point: Tensor) -> float:
    """Return the Frobenius norm of X'X - I, computed in float64."""
    wide = point.detach().double()
    return float((wide.mT @ wide - torch.eye(wide.shape[-1], dtype=torch.float64)).norm())


def walk(
    d: int, steps: int, dtype: torch.dtype, basis: bases.Basis, lr: float, stabilize: int | None = None
) -> Tensor:
    """Take matching steps along gradients that have nothing to do with the point; return where it ends."""
    generator = torch.Generator().manual_seed(d)
    start = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.contiguous()
    param = geoopt.ManifoldParameter(start.to(dtype), manifold=geoopt.EuclideanStiefel())
    grads = torch.randn(32, d, d, generator=generator).to(dtype)
    opt = SRCD([param], lr=lr, basis=basis, stabilize=stabilize)
    for step in range(steps):
        param.grad = grads[step % 32]
        opt.step()
    return param.detach()


@pytest.mark.parametrize("basis", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.float64, 1e-11)])
def test_a_short_walk_stays_close(dtype: torch.dtype, most: float, basis: bases.Basis) -> None:
    """The bound of the long walk, scaled: errors add up like a random walk, over entries and over steps."""
    d, steps = 64, 2000
    drift = off(walk(d, steps, dtype, basis, lr=0.02))
    assert drift <= most * (d / 256) * math.sqrt(steps / 1e5)


@pytest.mark.long
@pytest.mark.parametrize("lr", [0.005, 0.2])
@pytest.mark.parametrize("basis", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.float64, 1e-11)])
def test_a_hundred_thousand_steps(dtype: torch.dtype, most: float, basis: bases.Basis, lr: float) -> None:
    """At d = 256, with small and with large angles."""
    drift = off(walk(256, 100_000, dtype, basis, lr))
    print(f"\n{dtype}, {type(basis).__name__}, lr {lr}: {drift:.2e}")
    assert drift <= most


def test_increments_drift_less_than_cosines() -> None:
    """Rotating by increments keeps single precision orthogonal several times longer than plain cosines."""
    d, steps = 40, 2000
    generator = torch.Generator().manual_seed(0)
    start = (
        torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.float().contiguous()
    )
    ours, plain = start.clone(), start.clone()
    for _ in range(steps):
        order = torch.randperm(d, generator=generator)
        angles = 0.01 * torch.randn(d // 2, generator=generator)
        pairs = bases.RightGivens().index((d, d)).halves(order)
        kernels.rotate_(ours, pairs, angles)
        a, b = plain[:, pairs.lo], plain[:, pairs.hi]
        plain[:, pairs.lo] = angles.cos() * a - angles.sin() * b
        plain[:, pairs.hi] = angles.sin() * a + angles.cos() * b
    assert 4 * off(ours) < off(plain)


@pytest.mark.parametrize("basis", [LEFT, RIGHT], ids=["left", "right"])
def test_bfloat16_is_usable_with_projections(basis: bases.Basis) -> None:
    """With ``stabilize`` the error stays what rounding a matrix to bfloat16 makes of it."""
    d = 48
    rounding = (
        math.sqrt(d) * torch.finfo(torch.bfloat16).eps
    )  # d*d entries of about d**-0.5, half an ulp each
    assert off(walk(d, 600, torch.bfloat16, basis, lr=0.02, stabilize=50)) < 2 * rounding
