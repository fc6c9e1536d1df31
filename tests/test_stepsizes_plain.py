"""Plain parameters of an SRCD with Adam's steps, many together, against ``torch.optim.Adam``."""

import geoopt
import pytest
import torch
from torch import nn

from riemcd import SRCD, stepsizes

SHAPES = [(64, 1), (64,), (10, 64), (), (0, 3), (33, 17)]


def twins(dtypes):
    """Return the same parameters twice."""
    torch.manual_seed(0)
    some = [torch.randn(shape).to(dtype) for shape, dtype in zip(SHAPES, dtypes, strict=True)]
    return [nn.Parameter(x.clone()) for x in some], [nn.Parameter(x.clone()) for x in some]


def rotation():
    """Return a parameter for whose sake one takes SRCD at all; without a gradient it stays where it is."""
    return geoopt.ManifoldParameter(torch.eye(2), manifold=geoopt.EuclideanStiefel())


def fill(ours, theirs, step, late=()):
    """Give both the same gradients, and none to the late ones in the first steps."""
    generator = torch.Generator().manual_seed(step)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        grad = torch.randn(a.shape, generator=generator).to(a.dtype) * 10.0 ** (step % 5 - 3)
        waits = number in late and step < 3
        a.grad, b.grad = (None, None) if waits else (grad, grad.clone())


@pytest.mark.parametrize("late", [(), (1, 4)], ids=["together", "some later"])
@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1}, {"maximize": True}, {"lr": torch.tensor(0.02)}],
    ids=["plain", "decay", "maximize", "lr in a tensor"],
)
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "three types"])
def test_many_parameters_get_bit_for_bit_what_adam_does(options, late, mixed):
    types = [torch.float32, torch.float64, torch.bfloat16] if mixed else [torch.float32]
    ours, theirs = twins([types[i % len(types)] for i in range(len(SHAPES))])
    betas, eps, options = (0.8, 0.99), 1e-5, {"lr": 0.02, **options}
    opt = SRCD(
        [{"params": [rotation()], "weight_decay": 0}, {"params": ours}],
        stepsize=stepsizes.Adam(betas, eps),
        **options,
    )
    adam = torch.optim.Adam(theirs, betas=betas, eps=eps, **options)
    for step in range(8):
        fill(ours, theirs, step, late)
        before = [None if p.grad is None else p.grad.clone() for p in ours]
        opt.step()
        adam.step()
        for a, b, grad in zip(ours, theirs, before, strict=True):
            assert torch.equal(a, b)
            assert a.grad is None if grad is None else torch.equal(a.grad, grad)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_forgotten_as_torch_forgets_them(to_none):
    ours, theirs = twins([torch.float32] * len(SHAPES))
    opt, adam = (
        SRCD([{"params": [rotation()], "weight_decay": 0}, {"params": ours}], lr=0.1),
        torch.optim.Adam(theirs, lr=0.1),
    )
    fill(ours, theirs, 0, late=(2,))
    opt.zero_grad(to_none)
    adam.zero_grad(to_none)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is None if b.grad is None else torch.equal(a.grad, b.grad)
