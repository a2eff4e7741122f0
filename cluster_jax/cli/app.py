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
COMMANDS = (
    *("images", "train", "embed", "cluster", "export", "report", "plan", "predict", "update"),
    "merge",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; `arguments` are those of the process by default."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _run(arguments)
    except KeyboardInterrupt:  # While the modules of the command were imported.
        sys.stderr.write("Interrupted; nothing was done.\n")
        sys.exit(130)


def _run(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] in COMMANDS:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*joblib will operate in serial mode")
            module = _module(arguments[0])
        module.main(arguments[1:])
        return
    from cluster_jax.cli import exit_codes
    from cluster_jax.core.checks import InputError

    with exit_codes.handle_errors():
        command = next(iter(arguments), "-")
        if not command.startswith("-"):
            close = difflib.get_close_matches(command, COMMANDS, 1)
            meant = f"did you mean {close[0]}?" if close else f"choose from {', '.join(COMMANDS)}"
            raise InputError(f"there is no command {command}; {meant} (see cluster-jax --help)")
        _parser().parse_args(arguments)


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
