"""Modules outside of the package: methods and clusterers of one's own, by the name of `import`."""

import hashlib
import importlib
import pathlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from cluster_jax.core.checks import InputError


def check(key: str, name: Any, choices: Sequence[str], having: str = "") -> None:
    """Raises an `InputError` unless a name is one of `choices`, or may be that of a module.

    Args:
        key: what has this name.
        name: the name.
        choices: the names in the package.
        having: what another module must have, such as ", with a function fit".
    """
    is_module = isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
    if name not in choices and not is_module:
        raise InputError(f"{must(key, choices, having)}; got {name!r}")


def module(key: str, name: Any, choices: Sequence[str], having: str = "") -> ModuleType:
    """Imports a module outside of the package.

    Args: see `check`.

    Raises:
        InputError: there is none of this name.
    """
    check(key, name, choices, having)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # The module is there, and lacks another.
            raise
        how = f"PYTHONPATH=FOLDER has the folder of {name.split('.')[0]}.py"
        wanted = f"{must(key, choices, having)}, which Python can import ({how})"
        raise InputError(f"{wanted}; got {name!r}: {error}") from error


def digest(module: ModuleType) -> str | None:
    """Hashes (SHA-256) the file of a module; None if it has none."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


def must(key: str, choices: Sequence[str], having: str) -> str:
    """Begins the sentence of an error with the names that there are; arguments see `check`."""
    return f"{key} must be one of {', '.join(map(repr, choices))}, or a module of your own{having}"
