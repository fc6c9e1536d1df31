"""A table of what an optimizer does with each parameter of a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from .measures import constraint_violation

__all__ = ["report"]

_COLUMNS = ("parameter", "manifold", "shape", "basis", "selection", "coordinates", "violation", "note")


def report(model: nn.Module, opt: Any) -> str:
    """Return a table: parameter, manifold, shape, basis, selection, coordinates, constraint violation.

    Parameters
    ----------
    model : nn.Module
        Gives the parameters their names.
    opt : SRCD

    Examples
    --------
    >>> import riemcd
    >>> layer = riemcd.constrain_(nn.Linear(4, 4, bias=False), init="identity")
    >>> print(report(layer, riemcd.SRCD(layer.parameters())))
    parameter  manifold            shape   basis        selection         coordinates  violation  note
    weight     Stiefel(euclidean)  (4, 4)  RightGivens  RandomMatching()            6          0
    """
    owned = opt.plans
    rows: list[tuple[str, ...]] = []
    for name, param in model.named_parameters():
        shape = str(tuple(param.shape))
        plan = owned.get(param)
        if plan is None:
            rows.append((name, "", shape, "", "", "", "", "not in this optimizer"))
        elif plan.basis is None:
            rows.append((name, "", shape, "", "", str(param.numel()), "", "plain: as in torch.optim"))
        else:
            rows.append(
                (
                    name,
                    str(plan.manifold.name),
                    shape,
                    type(plan.basis).__name__,
                    repr(plan.selection),
                    str(plan.index.count),
                    f"{constraint_violation(param, plan.manifold):.2g}",
                    plan.basis.note(plan.manifold, param.shape),
                )
            )
    return _table(rows)


def _table(rows: list[tuple[str, ...]]) -> str:
    table = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    numeric = {_COLUMNS.index("coordinates"), _COLUMNS.index("violation")}
    lines = [
        "  ".join(
            cell.rjust(width) if i in numeric else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)
