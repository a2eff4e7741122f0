"""The console script `cluster-jax`: imports and runs a subcommand."""

import contextlib
import difflib
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from cluster_jax import __version__

if TYPE_CHECKING:
    from cluster_jax.cli.flags import Parser

# `cluster_jax.cli.NAME` has the function `main(arguments)`; its docstring says what it does.
COMMANDS = ("images", "train", "embed", "cluster", "report", "predict", "update")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; `arguments` are those of the process by default."""
    with _ending_at_once(is_process=arguments is None):
        _run(sys.argv[1:] if arguments is None else list(arguments))


def run(command: str) -> None:
    """Runs a command as `python -m cluster_jax.NAME`, with the process's arguments."""
    with _ending_at_once(is_process=True):
        _run([command, *sys.argv[1:]])


@contextlib.contextmanager
def _ending_at_once(*, is_process: bool) -> Iterator[None]:
    """Ends the process at once by a signal while modules are imported, and after the command.

    A `KeyboardInterrupt` there would be ignored by a callback or told as an error of an import.
    What runs in between answers signals itself, see `core.interrupt`.

    Args:
        is_process: whether the process is that of the command, and ends with it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if not is_process:
            for number, handler in before.items():
                signal.signal(number, handler)


def _end(number: int, frame: object) -> NoReturn:
    os.write(2, b"Interrupted.\n")
    os._exit(130 if number == signal.SIGINT else 75)


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
