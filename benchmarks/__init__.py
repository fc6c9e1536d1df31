"""What a step costs, against the optimizers it stands beside: ``python -m benchmarks``."""
