"""The argument parser of all commands, with one style of help and of errors."""

import argparse
from typing import NoReturn

from etils import epath

from cluster_jax.cli import exit_codes
from cluster_jax.core.checks import InputError


class Parser(argparse.ArgumentParser):
    """Parser of `cluster-jax COMMAND`; the help ends with the exit codes.

    Args:
        command: name of the subcommand; None: of `cluster-jax` itself.
        description: what it does.
        details: further text of the help, before the exit codes.
    """

    def __init__(self, command: str | None, description: str, details: str = "") -> None:
        super().__init__(
            "cluster-jax" if command is None else f"cluster-jax {command}",
            description=description,
            epilog=f"{details}{exit_codes.HELP}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raises an `InputError`."""
        raise InputError(f"{message} (see {self.prog} --help)")


def check_output(path: str) -> None:
    """Raises an `InputError` unless the folder of a file to write exists."""
    if "://" not in path and not epath.Path(path).expanduser().parent.is_dir():
        raise InputError(f"--out must be a file in a folder that exists; got {path}")
