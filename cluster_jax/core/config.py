"""Configs: finding and loading them, and parsing their sections into dataclasses."""

import dataclasses
import importlib.util
import pathlib
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.core.checks import InputError, finite


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Section = TypeVar("Section", bound=_Dataclass)

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# A wheel carries the configs inside the package; a checkout has them beside it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def config_names() -> list[str]:
    """Names of the configs that come with the package."""
    names = {file.stem for folder in _FOLDERS for file in folder.glob("*.py")}
    return sorted(names - {"__init__", "base"})


def find_config(config: str) -> pathlib.Path:
    """The file of a config given as a path or as a bare name (`nrcc_digits`).

    Raises:
        InputError: there is no such file and no config of that name.
    """
    path = pathlib.Path(config)
    if path.is_file():
        return path.resolve()
    is_name = path.parent in (pathlib.Path(), pathlib.Path("configs"))
    if is_name and path.suffix in ("", ".py"):
        for folder in _FOLDERS:
            file = folder / f"{path.stem}.py"
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
    loader = importlib.machinery.SourceFileLoader(f"_config_{file.stem}", str(file))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    if spec is None:
        raise InputError(f"{file} must be a Python file; got something else")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"{file} must define get_config(), as configs/nrcc_digits.py does")
    return module.get_config()


def override(config: ConfigDict, key: str, value: Any) -> None:
    """Sets one value of a config by its dotted key, such as "train.duration".

    Raises:
        InputError: no such key, or a value of another type or that is no finite number.
    """
    *sections, name = key.split(".")
    section: Any = config
    for part in sections:
        is_section = isinstance(section, ConfigDict) and part in section
        section = section[part] if is_section else None
    if not isinstance(section, ConfigDict) or name not in section:
        raise InputError(f"unknown config key {key}; see configs/base.py for the valid ones")
    finite(f"config.{key}", value)
    try:
        section[name] = io.plain(value)  # NumPy's integers are not instances of int.
    except TypeError as error:
        raise InputError(
            f"{key} must be of the type of the config's value; got {value!r} ({error})"
        ) from error


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
    if isinstance(values, ConfigDict):
        values = values.to_dict()
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
