"""What the ``riemcd`` command runs: one module per experiment, written with the public API only."""
