"""Small losses and points that several tests share."""

import geoopt
import torch


def orthogonal(*shape, seed=0, dtype=torch.float64):
    """A random point with orthonormal columns, ``(*batch, n, p)``."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(*shape, generator=generator, dtype=torch.float64)).Q
    return q.to(dtype)


def parameter(*shape, seed=0, dtype=torch.float64, manifold=None):
    """A ManifoldParameter at such a point."""
    manifold = manifold or geoopt.EuclideanStiefelExact()
    return geoopt.ManifoldParameter(orthogonal(*shape, seed=seed, dtype=dtype), manifold=manifold)


def quartic(shape, seed=1, dtype=torch.float64):
    """A smooth loss without symmetry."""
    generator = torch.Generator().manual_seed(seed)
    linear, square = torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(dtype)

    def loss(x):
        return (linear * x).sum() + 0.5 * (square * x).square().sum() + 0.25 * x.pow(4).sum()

    return loss


def train(opt, param, loss, steps):
    """Take steps and return the point."""
    for _ in range(steps):
        opt.zero_grad()
        loss(param).backward()
        opt.step()
    return param.detach().as_subclass(torch.Tensor)


def violation(x):
    """Frobenius norm of XᵀX − I, the largest over the batch."""
    x = x.detach().double()
    eye = torch.eye(x.shape[-1], dtype=torch.float64)
    return float(torch.linalg.matrix_norm(x.mT @ x - eye).max())
