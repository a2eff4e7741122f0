"""Configs: finding and loading them, and turning their sections into calls with clear errors."""

import importlib.util
import inspect
import math
import numbers
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

_PACKAGE = pathlib.Path(__file__).resolve().parent
# A wheel carries the configs inside the package; a checkout has them beside it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


class InputError(ValueError):
    """Something the user gave is wrong; the message is one sentence that says what to do."""


def names() -> list[str]:
    """Names of the configs that come with the package."""
    found = {f.stem for folder in _FOLDERS for f in folder.glob("*.py")}
    return sorted(found - {"__init__", "base"})


def find(config: str) -> pathlib.Path:
    """The file of a config given as a path or as a bare name (`nrcc_digits`).

    Raises:
        InputError: there is no such file and no config of that name.
    """
    given = pathlib.Path(config)
    if given.is_file():
        return given.resolve()
    bare = given.parent in (pathlib.Path(), pathlib.Path("configs"))
    if bare and given.suffix in ("", ".py"):
        for folder in _FOLDERS:
            file = folder / f"{given.stem}.py"
            if file.is_file():
                return file
    raise InputError(
        f"there is no config {config!r}; give the path of a file or one of {', '.join(names())}"
    )


def load(config: str) -> ConfigDict:
    """The `get_config()` of a config given as a path or as a bare name.

    Raises:
        InputError: no such config, or the file has no `get_config`.
    """
    file = find(config)
    spec = importlib.util.spec_from_file_location(f"_config_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{file} does not define get_config(); see configs/nrcc_digits.py")
    return module.get_config()


def bind(function: Callable, section: str, values: Mapping[str, Any], *given: Any) -> Any:
    """`function(*given, **values)`, where `values` are a section of the config.

    Raises:
        InputError: a key is missing or spare; the message names it as `section.key`.
    """
    parameters = inspect.signature(function).parameters.values()
    wanted = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    missing, spare = sorted(wanted - set(values)), sorted(set(values) - wanted)
    if missing:
        raise InputError(f"the config lacks {section}.{missing[0]}; add it")
    if spare:
        raise InputError(
            f"the config has {section}.{spare[0]}, which nothing reads; "
            f"{section} takes {', '.join(sorted(wanted)) or 'no keys'}"
        )
    return function(*given, **values)


def finite(name: str, value: Any) -> None:
    """Raises an `InputError` for NaN or infinity in `value`, a number or a tree of them.

    The message names the key as `name.section.key`.
    """
    if hasattr(value, "tolist"):  # NumPy's and JAX's
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, part in value.items():
            finite(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            finite(name, part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number; got {value}")


def positive(name: str, value: float) -> None:
    """Raises an `InputError` unless `value > 0`."""
    _number(name, value)
    if value is None or not value > 0:
        raise InputError(f"{name} must be greater than 0; got {value}")


def at_least(name: str, value: float, least: float) -> None:
    """Raises an `InputError` unless `value >= least`."""
    _number(name, value)
    if value is None or not value >= least:
        raise InputError(f"{name} must be at least {least}; got {value}")


def between(name: str, value: float, low: float, high: float) -> None:
    """Raises an `InputError` unless `low <= value <= high`."""
    _number(name, value)
    if value is None or not low <= value <= high:
        raise InputError(f"{name} must be between {low} and {high}; got {value}")


def whole(name: str, value: int, least: int) -> None:
    """Raises an `InputError` unless `value` is a whole number, `least` or more."""
    at_least(name, value, least)
    if not isinstance(value, numbers.Integral):
        raise InputError(f"{name} must be a whole number; got {value}")


def _number(name: str, value: Any) -> None:
    """Leaves None, a setting that was not given, to the caller's own sentence."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name} must be a number; got {value!r}")


def one_of(name: str, value: Any, choices: tuple) -> None:
    """Raises an `InputError` unless `value` is one of `choices`."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")
