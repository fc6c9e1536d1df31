"""Dense oracles for rotations, written from the definition of the coordinates and for the laws only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..index import linear_to_pair

__all__ = ["group_distance", "group_exponential"]


def group_exponential(side: str, canonical: bool) -> Any:
    """Return the dense oracle: a full matrix exponential from the definition of the coordinates."""

    def move(point: Tensor, coords: Tensor, amounts: Tensor) -> Tensor:
        d = point.shape[-1] if side == "right" else point.shape[-2]
        j, l = linear_to_pair(coords, d)
        omega = amounts.new_zeros(*amounts.shape[:-1], d, d)
        omega[..., j, l] = amounts / (1.0 if canonical else math.sqrt(2.0))
        q: Tensor = torch.linalg.matrix_exp(omega - omega.mT)
        return point @ q if side == "right" else q @ point

    return move


def group_distance(canonical: bool) -> Any:
    """Return the dense oracle for columns that stay in their span: the norm of log of the rotation."""

    def distance(x: Tensor, y: Tensor) -> Tensor:
        # The eigenvalues of a rotation are exp(i angle): their angles are the norm of its logarithm.
        angles = torch.linalg.eigvals(x.mT @ y).angle()
        norm: Tensor = angles.square().sum(-1).sqrt()
        return norm / math.sqrt(2.0) if canonical else norm

    return distance
