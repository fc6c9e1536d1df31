"""Measures of what a constrained model does."""

from .measures import constraint_violation, gradient_sparsity, partial_derivatives, slope_check
from .report import report

__all__ = ["constraint_violation", "gradient_sparsity", "partial_derivatives", "report", "slope_check"]
