"""What a command prints beside errors: progress, and its end as text or as one JSON object."""

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from cluster_jax.core import io
from cluster_jax.core.logs import Printer, logger, say


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds `--quiet` and `--json`, which every command has."""
    quiet = "print nothing but warnings and errors"
    parser.add_argument("--quiet", action="store_true", help=quiet)
    one = "print one JSON object; all else to stderr"
    parser.add_argument("--json", action="store_true", help=one)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Adds `--report=no` to a command that writes `report.html`."""
    page = "whether to write report.html; `report` writes it later (default: %(default)s)"
    parser.add_argument("--report", choices=("yes", "no"), default="yes", help=page)


def follow(args: argparse.Namespace) -> None:
    """Follows `--quiet` and `--json` from now on, until `exit_codes.handle_errors` ends."""
    if args.quiet:
        logger.setLevel(logging.WARNING)
    for handler in logger.handlers:
        if isinstance(handler, Printer):
            handler.is_stdout_free = args.json


def end(args: argparse.Namespace, text: str, values: Mapping[str, Any]) -> None:
    """Prints how a command ended.

    Args:
        args: its flags.
        text: for a person, lines; left out with `--quiet`.
        values: for a program, the object of `--json`, printed with `--quiet` too.

    Raises:
        OSError: standard output cannot be written, as on a full disk.
    """
    if args.json:
        say(json.dumps(io.plain(values)), sys.stdout, is_result=True)
    elif text and not args.quiet:
        say(text, sys.stdout, is_result=True)
