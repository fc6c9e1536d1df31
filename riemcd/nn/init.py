"""Orthonormal matrices to start from; every function fills a tensor in place and returns it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["cayley_", "haar_", "henaff_", "identity_"]


@torch.no_grad()
def haar_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill with a matrix of orthonormal columns (rows where it is wide), all equally likely.

    Parameters
    ----------
    tensor : Tensor
        ``(*batch, n, p)``
    generator : torch.Generator, optional

    Examples
    --------
    >>> W = haar_(torch.empty(3, 3, dtype=torch.float64))
    >>> bool(torch.allclose(W.T @ W, torch.eye(3, dtype=torch.float64)))
    True
    """
    wide = tensor.shape[-1] > tensor.shape[-2]
    kept = torch.promote_types(tensor.dtype, torch.float32)
    normal = torch.empty_like(tensor, dtype=kept, memory_format=torch.contiguous_format)
    normal.normal_(generator=generator)
    q, r = torch.linalg.qr(normal.mT if wide else normal)
    # The signs make the factorisation unique, and its orthogonal factor uniform.
    q = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(kept).unsqueeze(-2)
    return tensor.copy_(q.mT if wide else q)


@torch.no_grad()
def cayley_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with the paper's start: Cayley transforms of blocks, :math:`s` uniform on :math:`[-\pi, \pi]`.

    The Cayley transform of :math:`\begin{pmatrix} 0 & s \\ -s & 0 \end{pmatrix}` turns by
    :math:`2\arctan s`; the last row of an odd matrix stays where it is. The paper calls this the
    initialisation of Henaff et al., which is `henaff_`.

    Parameters
    ----------
    tensor : Tensor
        ``(*batch, d, d)``
    generator : torch.Generator, optional
    """
    s = _uniform_angles(tensor, generator)
    return _block_rotations_(tensor, 2 * torch.atan(s))


@torch.no_grad()
def henaff_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with blocks that turn by an angle uniform on :math:`[-\pi, \pi]` (Henaff et al., 2016).

    Parameters
    ----------
    tensor : Tensor
        ``(*batch, d, d)``
    generator : torch.Generator, optional
    """
    return _block_rotations_(tensor, _uniform_angles(tensor, generator))


@torch.no_grad()
def identity_(tensor: Tensor) -> Tensor:
    """Fill with the identity, or with its first columns or rows.

    Parameters
    ----------
    tensor : Tensor
        ``(*batch, n, p)``
    """
    return tensor.copy_(torch.eye(*tensor.shape[-2:], dtype=tensor.dtype, device=tensor.device))


def _uniform_angles(tensor: Tensor, generator: torch.Generator | None) -> Tensor:
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(f"block rotations fill square matrices, got shape {tuple(tensor.shape)}: use haar_.")
    shape = (*tensor.shape[:-2], tensor.shape[-1] // 2)
    angles = torch.empty(shape, dtype=torch.float64, device=tensor.device)
    return angles.uniform_(-math.pi, math.pi, generator=generator)


def _block_rotations_(tensor: Tensor, angles: Tensor) -> Tensor:
    """Fill with [[cos, sin], [-sin, cos]] along the diagonal; angles is (*batch, d // 2)."""
    identity_(tensor)
    at = 2 * torch.arange(angles.shape[-1], device=tensor.device)
    cos, sin = torch.cos(angles).to(tensor.dtype), torch.sin(angles).to(tensor.dtype)
    tensor[..., at, at] = cos
    tensor[..., at + 1, at + 1] = cos
    tensor[..., at, at + 1] = sin
    tensor[..., at + 1, at] = -sin
    return tensor
