"""The ``riemcd`` command: the paper's experiments, and those that go beyond it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

__all__ = ["main"]

#: The experiments: a module with ``presets()`` and ``run(settings)``, and what it shows.
COMMANDS = {
    "copying": "the copying memory task: the paper's figure with its control, and adaptive steps",
    "sparsity": "how few rotations carry the gradient, at the start and after training",
    "cost": "what backward and a step cost, beside the paper's table",
    "problems": "problems whose answers are known: Procrustes, PCA, Brockett, joint diagonalisation, ICA",
    "digits": "handwritten digits pixel by pixel: against geoopt, geotorch, an RNN and an LSTM",
    "rotate": "learn a rotation in which vectors are easy to quantise, against Cayley SGD",
}

_DESCRIPTION = """Riemannian coordinate descent: experiments that run with one command.

Each writes JSON lines, a summary, a figure and a table to a folder under runs/. Ctrl-C keeps what was
computed, --resume goes on bit for bit. `riemcd COMMAND --preset paper --help` explains every option and shows
the values it has in that preset."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an experiment; return 0, 2 where something is wrong with the options, or 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import tyro
    except ImportError:
        print("The riemcd command needs tyro: pip install 'riemcd[experiments]'.", file=sys.stderr)
        return 2
    try:
        settings = _parse(tyro, given)
        runner: Callable[[Any], int] = _module(_command_of(settings)).run
        return runner(settings)
    except (ValueError, OSError) as problem:
        print(f"riemcd: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped at once; what was written is still there: go on with --resume.", file=sys.stderr)
        return 130


def _module(name: str) -> Any:
    return import_module(f"riemcd.experiments.{name}")


def _preset(given: Sequence[str]) -> str:
    """Return the preset among the arguments, before anything else is known of them."""
    for argument, following in zip(given, [*given[1:], ""], strict=True):
        if argument == "--preset":
            return following
        if argument.startswith("--preset="):
            return argument.partition("=")[2]
    return "demo"


def _defaults(name: str, preset: str) -> Any:
    presets = _module(name).presets()
    return presets.get(preset, presets["demo"])  # what is not known is refused where it is parsed


def _parse(tyro: Any, given: list[str]) -> Any:
    """Return the settings; the values of the preset are what help shows as defaults."""
    if given and given[0] in COMMANDS:
        defaults = _defaults(given[0], _preset(given))
        return tyro.cli(type(defaults), default=defaults, args=given[1:], prog=f"riemcd {given[0]}")
    kind = tyro.extras.subcommand_type_from_defaults(
        {name: _defaults(name, "demo") for name in COMMANDS}, descriptions=COMMANDS, prefix_names=False
    )
    return tyro.cli(kind, args=given, prog="riemcd", description=_DESCRIPTION)


def _command_of(settings: Any) -> str:
    return str(type(settings).__module__).rpartition(".")[2]


if __name__ == "__main__":
    raise SystemExit(main())
