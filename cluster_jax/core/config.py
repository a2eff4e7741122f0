"""Configs: finding and loading them, and turning their sections into calls with clear errors."""

import dataclasses
import importlib.util
import inspect
import pathlib
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict

from cluster_jax.core.checks import InputError

Section = TypeVar("Section")

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# A wheel carries the configs inside the package; a checkout has them beside it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def config_names() -> list[str]:
    """Names of the configs that come with the package."""
    found = {f.stem for folder in _FOLDERS for f in folder.glob("*.py")}
    return sorted(found - {"__init__", "base"})


def find_config(config: str) -> pathlib.Path:
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
        f"config must be the path of a file or one of {', '.join(config_names())}; got {config!r}"
    )


def load_config(config: str) -> ConfigDict:
    """The `get_config()` of a config given as a path or as a bare name.

    Raises:
        InputError: no such config, or the file has no `get_config`.
    """
    file = find_config(config)
    spec = importlib.util.spec_from_file_location(f"_config_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{file} does not define get_config(); see configs/nrcc_digits.py")
    return module.get_config()


def parse_section(cls: type[Section], name: str, values: Mapping[str, Any]) -> Section:
    """A config section as a value of its dataclass, which checks it in `__post_init__`.

    A field whose type is a dataclass, or a dataclass or None, is a section of its own. Lists become
    tuples, as JSON has no others.

    Args:
        cls: frozen dataclass of the section; its fields are the section's keys, none has a default.
        name: of the section, for messages: "train", "eval.kmeans".
        values: the section.

    Raises:
        InputError: a key is missing or unknown, or a value is out of range.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{name} must be a section of the config; got {values!r}")
    types = typing.get_type_hints(cls)
    keys = [field.name for field in dataclasses.fields(cls)]
    check_keys(name, keys, values)
    parsed = {}
    for key in keys:
        value = values[key]
        nested = [t for t in (types[key], *typing.get_args(types[key])) if is_section(t)]
        if nested and value is not None:
            value = parse_section(nested[0], f"{name}.{key}", value)
        parsed[key] = tuple(value) if isinstance(value, list) else value
    return cls(**parsed)


def is_section(kind: Any) -> bool:
    """Whether a type is that of a section."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def check_keys(name: str, keys: Collection[str], values: Mapping[str, Any]) -> None:
    """Raises an `InputError` unless `values` has exactly these keys; `name` is the section's."""
    prefix = f"{name}." if name else ""
    for key in keys:
        if key not in values:
            raise InputError(f"missing config key {prefix}{key}")
    for key in values:
        if key not in keys:
            valid = ", ".join(f"{prefix}{k}" for k in keys) or "none"
            raise InputError(f"unknown config key {prefix}{key}; valid keys: {valid}")


def bind_section(function: Callable, section: str, values: Mapping[str, Any], *given: Any) -> Any:
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
