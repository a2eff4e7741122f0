"""Flags of commands, with one style of help and of errors, and values of a config as flags."""

import argparse
import ast
import contextlib
import difflib
import functools
import operator
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from etils import epath
from ml_collections import ConfigDict

from cluster_jax.cli import exit_codes, output
from cluster_jax.core import checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import check_key, find_config, load_config, override, override_all


class Parser(argparse.ArgumentParser):
    """Parser of `cluster-jax COMMAND`; the help ends with its exit codes.

    Args:
        command: name of the subcommand; None: of `cluster-jax` itself.
        description: what it does, the docstring of its module.
        details: further text of the help, before the exit codes.
    """

    def __init__(self, command: str | None, description: str | None, details: str = "") -> None:
        super().__init__(
            "cluster-jax" if command is None else f"cluster-jax {command}",
            description=(description or "").strip(),
            epilog=f"{details}{exit_codes.HELP if command is None else exit_codes.SHORT}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if command is not None:
            output.add_flags(self)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Refuses an unknown flag before others are missed: it may be one of them, mistyped."""
        args = sys.argv[1:] if args is None else list(args)
        options = [*self._option_string_actions]
        for name in (argument.split("=")[0] for argument in args):
            if re.match(r"--(?!config\.)[a-z]", name) and name not in options:
                close = difflib.get_close_matches(name, options, 1)
                meant = f"; did you mean {close[0]}?" if close else ""
                self.error(f"there is no flag {name}{meant}")
        parsed, others = super().parse_known_args(args, namespace)
        if hasattr(parsed, "quiet"):
            output.follow(parsed)
        return parsed, others

    def error(self, message: str) -> NoReturn:
        """Raises an `InputError`."""
        raise InputError(f"{message} (see {self.prog} --help)")


def add_export(parser: Parser, groups: str) -> None:
    """Adds the flags of an export to a command.

    Args:
        parser: of the command.
        groups: what there is a folder of.
    """
    add = parser.add_argument
    add(
        "--export",
        metavar="DIR",
        help=f"folder to write, which has a folder of images for each {groups}",
    )
    ways = "whether --export links to the images or copies them (default: %(default)s)"
    add("--by", choices=("link", "copy"), default="link", help=ways)


def check_export(args: argparse.Namespace) -> None:
    """Raises an `InputError` for flags of an export that do not go together."""
    if args.export is None and args.by != "link":
        raise InputError("--by must come with --export=DIR; got no --export")


def add_new_rows(parser: Parser, rows: str) -> None:
    """Adds the flags for embeddings of a run of `cluster` to a command; `rows` says which."""
    add = parser.add_argument
    add("--features", metavar="FILE", help=f"for a run of `cluster`, {rows}")
    add("--array", metavar="NAME", help="array or column of the rows in the file")
    add_row_names(parser)


def is_of_rows(args: argparse.Namespace, title: str, images: str | None) -> bool:
    """Returns whether the run in `args.workdir` is one of embeddings.

    Args:
        args: flags of a command.
        title: of the argument for images.
        images: its value.

    Raises:
        InputError: there is no run, or what is new is of the other kind; `--array` and the like
            stand alone.
    """
    from cluster_jax.runs import workdir as workdirs

    for name in ("array", "ids", "add"):
        if getattr(args, name, None) and args.features is None:
            raise InputError(f"--{name} must come with --features; got no --features")
    is_of_rows = workdirs.is_of_embeddings(workdirs.of_run(args.workdir))
    if is_of_rows and images:
        must = f"--features must be given in place of {title} for a run of embeddings"
        raise InputError(f"{must}; got {images}")
    if args.features and not is_of_rows:
        must = f"{title} must be given in place of --features for a run of images, or of their"
        raise InputError(f"{must} features; got {args.features}")
    return is_of_rows


def add_row_names(parser: Parser) -> None:
    """Adds the flag for ids of rows to a command."""
    ids = "column, array or file of the ids of rows (default: the column id)"
    parser.add_argument("--ids", metavar="NAME", help=ids)


def add_encoder(parser: Parser) -> None:
    """Adds the flag for a frozen network to a command."""
    names = "lite2, a .safetensors file, or hf:ORG/NAME"
    parser.add_argument("--encoder", metavar="NAME", help=f"network that embeds: {names}")


def output_file(path: epath.PathLike, *, may_be_folder: bool = False) -> epath.Path:
    """Returns the file to write at `path`, whose `~` is expanded.

    Raises:
        InputError: its folder does not exist, or it is a folder.
    """
    file = epath.Path(checks.local(path)).expanduser()
    if not file.parent.is_dir():
        raise InputError(f"--out must be a file in a folder that exists; got {path}")
    if file.is_dir() and not may_be_folder:
        raise InputError(f"--out must be a file; got the folder {path}")
    io.check_writable(file.parent)
    return file


def config_parser(
    command: str, description: str | None, example: str, required: bool = True
) -> Parser:
    """Builds the parser of a command with `--config=NAME` and `--config.KEY=VALUE`.

    Args:
        command: name of the subcommand.
        description: what it does, the docstring of its module.
        example: a value of a config as a flag, for the help.
        required: whether `--config` must be given.
    """
    parser = Parser(command, description, "configs/base.py explains the keys of a config.\n\n")
    name = "name or path of a config, such as images"
    parser.add_argument("--config", required=required, metavar="NAME", help=name)
    values = f"any value of the config, for example {example}"
    parser.add_argument("--config.KEY", metavar="VALUE", help=values)
    return parser


def parse(parser: Parser, arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parses the flags of a command; returns all other arguments too, maybe values of a config.

    Args:
        parser: parser of the command.
        arguments: the arguments; None: those of the process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    # To argparse, a value with a space is no flag.
    values = [a for a in given if a.startswith("--config.")]
    parsed, others = parser.parse_known_args([a for a in given if a not in values])
    return parsed, [*values, *others]


def read_config(
    config: str, overrides: Sequence[str], encoder: str | None = None
) -> tuple[ConfigDict, str]:
    """Loads a config and sets the values of the flags `--config.KEY=VALUE`; the last one counts.

    Args:
        config: path or name of the config.
        overrides: the flags.
        encoder: value of `--encoder`, whose values are set before; None: as in the config.

    Returns:
        The config, and its bare name.

    Raises:
        InputError: there is no such config, a flag is unknown, or its value cannot be used.
    """
    file = find_config(config)
    loaded = load_config(str(file))
    if encoder is not None:
        from cluster_jax.nets import pretrained

        with checks.named({"encoder": "--encoder"}):
            override_all(loaded, pretrained.config_values(encoder, loaded))
    for flag in overrides:
        match = re.fullmatch(r"--config\.([\w.]+)=(.*)", flag, re.DOTALL)
        if match is None:
            raise InputError(
                f"arguments must be flags such as --config.train.batch_size=128; got {flag!r}"
            )
        _set(loaded, *match.groups())
    return loaded, file.stem


def _set(config: ConfigDict, key: str, text: str) -> None:
    """Sets a key to the value that a text writes: a text where the key is one, else a literal."""
    check_key(config, key)
    *sections, name = key.split(".")
    section = functools.reduce(operator.getitem, sections, config)
    kind = section.get_type(name)
    value: Any = text
    if kind is not str or text == "None":
        with contextlib.suppress(SyntaxError, ValueError):
            value = ast.literal_eval(text.capitalize() if kind is bool else text)
    if kind in (tuple, list) and isinstance(value, str | int | float):
        value = (value,)
    override(config, key, value)
