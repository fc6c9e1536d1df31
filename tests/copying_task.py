"""The copying-memory task and a small recurrent network for it, trained with one step size or another."""

import math

import geoopt
import torch
from torch import Tensor, nn

import riemcd

LETTERS, RECALL = 8, 10


def batch_of(size: int, delay: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ten letters, blanks, a marker, blanks: the letters are asked for at the end. Both ``(time, size)``."""
    letters = torch.randint(1, LETTERS + 1, (RECALL, size), generator=generator)
    x = torch.zeros(RECALL + delay + RECALL, size, dtype=torch.int64)
    x[:RECALL] = letters
    x[RECALL + delay - 1] = LETTERS + 1
    y = torch.zeros_like(x)
    y[-RECALL:] = letters
    return x, y


def random_rotations(d: int, generator: torch.Generator) -> Tensor:
    """Rotations of pairs of columns by angles uniform in [−π, π]."""
    W = torch.eye(d)
    for j in range(0, d - 1, 2):
        a = (2 * float(torch.rand((), generator=generator)) - 1) * math.pi
        W[j : j + 2, j : j + 2] = torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
    return W


class Recurrence(torch.autograd.Function):
    """All states of h ← modReLU(W h + v), with one product for the gradient of W at the end."""

    @staticmethod
    def forward(ctx, v, W, b):
        """v ``(time, size, d)``; W ``(d, d)``; b ``(d,)``."""
        states, signs = torch.empty_like(v), torch.empty_like(v)
        h, turned = torch.zeros_like(v[0]), W.detach().as_subclass(Tensor).t()
        for step in range(v.shape[0]):
            z = torch.addmm(v[step], h, turned)
            h = states[step].copy_(z.abs().add_(b).relu_())
            torch.mul(z.sign_(), h > 0, out=signs[step])
            h.mul_(z)
        ctx.save_for_backward(states, signs, W)
        return states

    @staticmethod
    def backward(ctx, grad):
        """Through time."""
        states, signs, W = ctx.saved_tensors
        W, alive = W.detach().as_subclass(Tensor), signs.abs()
        dz, carried = torch.empty_like(states), torch.zeros_like(states[0])
        for step in range(states.shape[0] - 1, -1, -1):
            torch.mul(carried.add_(grad[step]), alive[step], out=dz[step])
            if step:
                torch.mm(dz[step], W, out=carried)
        db = (dz * signs).sum((0, 1))
        dW = dz[1:].flatten(0, 1).t() @ states[:-1].flatten(0, 1) if ctx.needs_input_grad[1] else None
        return dz, dW, db


class Network(nn.Module):
    """h ← modReLU(W h + V x), y = U h + c."""

    def __init__(self, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.W = geoopt.ManifoldParameter(
            random_rotations(hidden, generator), manifold=geoopt.EuclideanStiefel()
        )
        scale = math.sqrt(1 / (LETTERS + 2))
        self.V = nn.Parameter(torch.randn(LETTERS + 2, hidden, generator=generator) * scale)
        self.b = nn.Parameter((torch.rand(hidden, generator=generator) - 0.5) * 0.02)
        self.U = nn.Parameter(torch.randn(LETTERS + 1, hidden, generator=generator) * math.sqrt(1 / hidden))
        self.c = nn.Parameter(torch.zeros(LETTERS + 1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, ``(time, size, letters + 1)``, from letters, ``(time, size)``."""
        return Recurrence.apply(self.V[x], self.W, self.b) @ self.U.t() + self.c


def train(
    seed: int, *, selection=None, lr=None, momentum=0.0, stepsize=None, hidden=190, delay=100, iterations=300
) -> list[float]:
    """Return the loss of every iteration; ``lr=None`` leaves W where it was."""
    generator = torch.Generator().manual_seed(seed)
    network = Network(hidden, generator)
    others = [p for name, p in network.named_parameters() if name != "W"]
    opts: list[torch.optim.Optimizer] = [torch.optim.RMSprop(others, lr=1e-3)]
    if lr is None:
        network.W.requires_grad_(False)
    else:
        stepsize = riemcd.stepsizes.RMSProp() if stepsize is None else stepsize
        opts.append(
            riemcd.SRCD(
                [network.W], lr=lr, momentum=momentum, selection=selection, stepsize=stepsize, seed=seed
            )
        )
    losses = []
    for _ in range(iterations):
        x, y = batch_of(128, delay, generator)
        loss = nn.functional.cross_entropy(network(x).flatten(0, 1), y.flatten())
        for opt in opts:
            opt.zero_grad()
        loss.backward()
        for opt in opts:
            opt.step()
        losses.append(loss.item())
    return losses
