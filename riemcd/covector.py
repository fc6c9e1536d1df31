"""What backward left behind: the derivative of the loss, in a form that a basis reads cheaply."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Accumulated", "Ambient", "Covector", "Wedge"]


class Covector(ABC):  # noqa: B024 - a marker: what it holds is between a basis and its sources
    """The derivative of the loss at a point."""


@dataclass(frozen=True, eq=False)
class Ambient(Covector):
    """A point and the Euclidean gradient of the loss there, for bases that read entries.

    Parameters
    ----------
    point : Tensor
        ``(*batch, *point_shape)``
    grad : Tensor
        same shape as ``point``
    """

    point: Tensor  # (*batch, *point_shape)
    grad: Tensor  # (*batch, *point_shape)


@dataclass(frozen=True, eq=False)
class Wedge(Covector):
    r"""Two factors whose wedge holds the slope of every rotation.

    .. math:: a_{ij} - a_{ji} = \sum_k (u_{ki} v_{kj} - u_{kj} v_{ki})

    For rotations of columns :math:`(U, V) = (W, G)`, or the input gradient and the input of a linear
    layer; for rotations of rows :math:`(G^\top, W^\top)`.

    Parameters
    ----------
    u, v : Tensor
        ``(*batch, rows, d)``
    scale : float, optional
        What the wedge is multiplied with to be a slope; None leaves it to the basis, for factors from
        a layer, which do not show the shape of the weight.
    """

    u: Tensor  # (*batch, rows, d)
    v: Tensor  # (*batch, rows, d)
    scale: float | None = None


@dataclass(frozen=True, eq=False)
class Accumulated(Covector):
    r"""The product :math:`U^\top V` of the factors of a `Wedge`, summed over several of them.

    Parameters
    ----------
    product : Tensor
        ``(*batch, d, d)``
    """

    product: Tensor  # (*batch, d, d)
