"""How far rounding takes a matrix off the orthogonal group when nobody projects it back."""

from __future__ import annotations

from typing import Any

import geoopt
import torch
from torch import Tensor

from riemcd import SRCD, bases

__all__ = ["long", "types"]


def off(point: Tensor) -> float:
    """Return the Frobenius norm of X'X - I, computed in double precision."""
    wide = point.detach().double()
    return float((wide.mT @ wide - torch.eye(wide.shape[-1], dtype=torch.float64)).norm())


def walk(
    d: int, stops: list[int], dtype: torch.dtype, lr: float, copied: bool = False, **options: Any
) -> list[float]:
    """Take random matchings along random gradients; return the norm at every stop.

    With ``copied`` what is looked at is a bfloat16 copy of the point.
    """
    generator = torch.Generator().manual_seed(d)
    start = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q.contiguous()
    param = geoopt.ManifoldParameter(start.to(dtype), manifold=geoopt.EuclideanStiefel())
    grads = torch.randn(32, d, d, generator=generator).to(dtype)
    opt = SRCD([param], lr=lr, **options)
    found = []
    for step in range(max(stops) + 1):
        if step in stops:
            found.append(off(param.bfloat16() if copied else param))
        param.grad = grads[step % 32]
        opt.step()
    return found


def long(d: int = 256, steps: int = 100_000) -> dict[str, Any]:
    """Return the norm after many matchings by angles of about 0.01."""
    cases = [(torch.float32, bases.LeftGivens()), (torch.float32, bases.RightGivens())]
    cases.append((torch.float64, bases.LeftGivens()))
    rows = [
        {
            "type": str(dtype).removeprefix("torch."),
            "basis": type(basis).__name__,
            "‖WᵀW − I‖": walk(d, [steps], dtype, 0.02, basis=basis, nonfinite="skip")[-1],
        }
        for dtype, basis in cases
    ]
    note = f"d = {d}, {steps:,} random matchings of random slopes, no projection; Frobenius norm."
    return {"table": rows, "note": note}


def types(d: int = 64) -> dict[str, Any]:
    """Return the norm after more and more steps, for every type and for projections now and then."""
    stops = [0, 100, 1000, 10_000]
    cases: list[tuple[str, torch.dtype, dict[str, Any]]] = [
        ("float64", torch.float64, {}),
        ("float32", torch.float32, {}),
        ("float32, seen as a bfloat16 copy", torch.float32, {"copied": True}),
        *((name, getattr(torch, name), {}) for name in ("float16", "bfloat16")),
        *((f"bfloat16, stabilize={n}", torch.bfloat16, {"stabilize": n}) for n in (1000, 100, 10)),
        ("float16, stabilize=100", torch.float16, {"stabilize": 100}),
    ]
    rows = [
        {
            "type": name,
            **{
                f"{stop:,} steps": value
                for stop, value in zip(stops, walk(d, stops, dtype, 0.05, **options), strict=True)
            },
        }
        for name, dtype, options in cases
    ]
    note = f"d = {d}, random matchings of random slopes, lr 0.05; the Frobenius norm of WᵀW − I."
    return {"table": rows, "note": note}
