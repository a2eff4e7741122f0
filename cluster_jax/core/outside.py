"""Modules outside of the package, by the name of `import`: the one way to load parts of one's own.

A method, backbone, optimizer, schedule, sampler, augmentation, metric or clusterer of one's own is
a module with the functions that the part needs. A config names it where it would name one of the
package; `experiments/guide/own_parts.md` has an example of each.
"""

import functools
import hashlib
import importlib
import pathlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from cluster_jax.core.checks import InputError


class MissingModule(InputError):
    """Python cannot import the module of this name here."""


def named(choices: Sequence[str], *needs: str) -> Callable[[str, Any], None]:
    """Returns the check of a config key, for `Annotated`; see `check`."""
    return functools.partial(check, choices=choices, needs=needs)


def check(key: str, name: Any, choices: Sequence[str], needs: Sequence[str]) -> None:
    """Raises an `InputError` unless a name is one of `choices`, or may be that of a module.

    The module is not imported, so that a run can be read without the parts that only made it.

    Args:
        key: the flag, or the key of a config, that has this name; for messages.
        name: the name.
        choices: the names in the package.
        needs: what another module must define, such as `("fit",)`.
    """
    is_module = isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
    if name not in choices and not is_module:
        raise InputError(f"{_must(key, choices, needs)}; got {name!r}")


def module(key: str, name: Any, choices: Sequence[str], needs: Sequence[str]) -> ModuleType:
    """Imports a module outside of the package; an error of its own code is passed on.

    Args: see `check`.

    Raises:
        MissingModule: there is none of this name.
        InputError: it is no name of a module, or the module does not define what it needs.

    Example:
        >>> module("--method", "math", ("tree",), ("fit",))
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: --method must be one of 'tree', or a module of your \
own, with a function fit; got 'math', which has no fit
    """
    check(key, name, choices, needs)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # The module is there, and lacks another.
            raise
        how = f"PYTHONPATH=FOLDER has the folder of {name.split('.')[0]}.py"
        wanted = f"{_must(key, choices, needs)}, which Python can import ({how})"
        raise MissingModule(f"{wanted}; got {name!r}: {error}") from error
    for need in needs:
        if not callable(getattr(found, need, None)):
            raise InputError(f"{_must(key, choices, needs)}; got {name!r}, which has no {need}")
    return found


def digest(name: str) -> str | None:
    """Hashes (SHA-256) the file of a module, which is imported; None if it has none.

    Raises:
        ModuleNotFoundError: there is none of this name.
    """
    file = getattr(importlib.import_module(name), "__file__", None)
    if file is None:
        return None
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


def _must(key: str, choices: Sequence[str], needs: Sequence[str]) -> str:
    """Begins the sentence of an error with the names that there are; arguments see `check`."""
    own = "a module of your own, with "
    own += " and ".join(need if need[0].isupper() else f"a function {need}" for need in needs)
    if choices:
        own = f"one of {', '.join(map(repr, choices))}, or {own}"
    return f"{key} must be {own}"
