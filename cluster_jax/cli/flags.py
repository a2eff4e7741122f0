"""Flags of commands with a config: `--config`, its overrides `--config.KEY=VALUE`, and others."""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import check_key, config_names, find_config, load_config


class ConfigFlags(NamedTuple):
    """Parsed flags.

    Attributes:
        config: with its overrides.
        name: the bare name of the config.
        others: the command's other flags by name, None where they are not given.
    """

    config: ConfigDict
    name: str
    others: dict[str, str | None]


def read_flags(command: str, arguments: Sequence[str], others: Sequence[str]) -> ConfigFlags:
    """Reads the flags of a command.

    Uses absl, because every value of a config is a flag.

    Args:
        command: name of the subcommand.
        arguments: the flags.
        others: names of its flags beside `--config`.

    Raises:
        InputError: a flag is unknown, or its value cannot be used.
    """
    arguments = resolve_config(arguments)
    _check_keys(arguments)
    argv = [f"cluster-jax {command}", *arguments]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config", None, "Config.", lock_config=True, flag_values=values, sys_argv=argv
    )
    for name in others:
        flags.DEFINE_string(name, None, "See --help.", flag_values=values)
    try:
        _, *unknown = values(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(_explain(error)) from error
    if unknown:
        raise InputError(
            f"arguments must be flags such as --config.train.batch_size=128; got {unknown[0]!r}"
        )
    name = pathlib.Path(config_flags.get_config_filename(values["config"])).stem
    return ConfigFlags(values["config"].value, name, {key: values[key].value for key in others})


def resolve_config(arguments: Sequence[str]) -> list[str]:
    """The arguments with the value of `--config` replaced by the path of its file.

    Raises:
        InputError: there is no --config, or no such file or name.
    """
    arguments = list(arguments)
    for i, argument in enumerate(arguments):
        if argument in ("--config", "-config") and i + 1 < len(arguments):
            arguments[i + 1] = str(find_config(arguments[i + 1]))
            return arguments
        if match := re.fullmatch(r"(--?config=)(.*)", argument):
            arguments[i] = match[1] + str(find_config(match[2]))
            return arguments
    raise InputError(
        "--config=NAME must be the path of a file or one of "
        f"{', '.join(config_names())}; got no --config"
    )


def _check_keys(arguments: Sequence[str]) -> None:
    """Raises an `InputError` for an override of a key that the config does not have."""
    path = next(
        arguments[i + 1] if "=" not in argument else argument.partition("=")[2]
        for i, argument in enumerate(arguments)
        if re.match("--?config(=|$)", argument)
    )
    config = load_config(path)
    for argument in arguments:
        if match := re.match(r"--?config\.([\w.]+)", argument):
            check_key(config, match[1])


# Words of Python and absl for a value of another type -> what is wanted.
_WANTED = {
    "for int()": "a whole number",
    "to float": "a number",
    "Non-boolean": "True or False",
    "ConfigDict": "a section, whose keys are set one by one",
    "tuple": "a list of values such as (0.2, 1.0)",
}


def _explain(error: Exception) -> str:
    """One sentence for an error that absl or ml_collections raised while reading the flags."""
    text = str(error.args[0] if error.args else error).strip().split("\n")[0]
    wanted = next((words for part, words in _WANTED.items() if part in text), None)
    match = re.match(r"flag --config\.([\w.]+)=(.*?): ", text)
    if match and wanted:
        return f"{match[1]} must be {wanted}; got {match[2]!r} (see configs/base.py)"
    return f"{text} (see configs/base.py for the keys and their types)"
