"""The `--config` flag: names of configs, and one sentence for what was mistyped."""

import pathlib
import re
from typing import Any

from cluster_jax.core.checks import InputError
from cluster_jax.core.config import config_names, find_config


def resolve_config(argv: list[str]) -> list[str]:
    """`argv` with the value of `--config` replaced by the path of its file.

    Raises:
        InputError: there is no --config, or no such file or name.
    """
    argv = list(argv)
    for i, argument in enumerate(argv):
        if argument in ("--config", "-config") and i + 1 < len(argv):
            argv[i + 1] = str(find_config(argv[i + 1]))
            return argv
        if match := re.fullmatch(r"(--?config=)(.*)", argument):
            argv[i] = match[1] + str(find_config(match[2]))
            return argv
    if any(a in ("--help", "-help", "--helpfull", "--helpshort") for a in argv):
        return argv
    raise InputError(
        f"give a config: --config=NAME or --config=PATH, with NAME one of "
        f"{', '.join(config_names())}"
    )


def explain(error: Exception) -> str:
    """One sentence for an error that absl or ml_collections raised while reading the flags."""
    text = str(error.args[0] if error.args else error).strip().split("\n")[0]
    return f"{text} (see configs/base.py for the keys and their types)"


def config_name(flag: Any) -> str:
    """The bare name of the config that a flag holds."""
    return pathlib.Path(flag.config_filename).stem
