"""The console script `cluster-jax`: imports and runs a subcommand."""

import difflib
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cluster_jax import __version__

if TYPE_CHECKING:
    from cluster_jax.cli.flags import Parser

# `cluster_jax.cli.NAME` has the function `main(arguments)`; its docstring says what it does.
COMMANDS = ("images", "train", "embed", "cluster", "report", "predict", "update")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    from cluster_jax.cli import exit_codes
    from cluster_jax.core.checks import InputError

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = next(iter(arguments), "-")
    with exit_codes.handle_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*joblib will operate in serial mode")
        if command.startswith("-"):
            _parser().parse_args(arguments)
        if command not in COMMANDS:
            close = difflib.get_close_matches(command, COMMANDS, 1)
            meant = f"did you mean {close[0]}?" if close else f"choose from {', '.join(COMMANDS)}"
            raise InputError(f"there is no command {command}; {meant} (see cluster-jax --help)")
        module = _module(command)
    module.main(arguments[1:])


def _module(command: str) -> Any:
    return importlib.import_module(f"cluster_jax.cli.{command}")


def _parser() -> "Parser":
    from cluster_jax.cli.flags import Parser

    texts = {name: str(_module(name).__doc__).partition("\n")[0] for name in COMMANDS}
    commands = "".join(f"  {name:<9} {text}\n" for name, text in texts.items())
    parser = Parser(
        None,
        "Contrastive deep clustering of images without labels.",
        f"commands (cluster-jax COMMAND --help for their flags):\n{commands}\n",
    )
    parser.add_argument("command", metavar="COMMAND", help="see below")
    parser.add_argument("--version", action="version", version=f"cluster-jax {__version__}")
    return parser


if __name__ == "__main__":
    main()
