"""The flags of `train`: `--config`, its overrides `--config.KEY=VALUE`, and two folders."""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags
from ml_collections import ConfigDict, config_flags

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import check_key, config_names, find_config, load_config


class TrainFlags(NamedTuple):
    """Parsed flags.

    Attributes:
        config: with its overrides.
        name: the bare name of the config.
        workdir: folder of the run, or None.
        export: folder for links to the images by cluster, or None.
    """

    config: ConfigDict
    name: str
    workdir: str | None
    export: str | None


def read_flags(arguments: Sequence[str]) -> TrainFlags:
    """Reads the flags of `train`.

    Uses absl, because every value of a config is a flag.

    Raises:
        InputError: a flag is unknown, or its value cannot be used.
    """
    arguments = resolve_config(arguments)
    _check_keys(arguments)
    argv = ["cluster-jax train", *arguments]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config", None, "Config.", lock_config=True, flag_values=values, sys_argv=argv
    )
    flags.DEFINE_string("workdir", None, "Folder of the run.", flag_values=values)
    flags.DEFINE_string("export", None, "Folder of images by cluster.", flag_values=values)
    try:
        _, *others = values(argv)
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(_explain(error)) from error
    if others:
        raise InputError(
            f"arguments must be flags such as --config.train.batch_size=128; got {others[0]!r}"
        )
    name = pathlib.Path(config_flags.get_config_filename(values["config"])).stem
    return TrainFlags(values["config"].value, name, values["workdir"].value, values["export"].value)


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


def _explain(error: Exception) -> str:
    """One sentence for an error that absl or ml_collections raised while reading the flags."""
    text = str(error.args[0] if error.args else error).strip().split("\n")[0]
    return f"{text} (see configs/base.py for the keys and their types)"
