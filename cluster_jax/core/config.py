"""Configs: loading files, overriding values, parsing sections into dataclasses."""

import contextlib
import dataclasses
import difflib
import functools
import numbers
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cluster_jax.core.checks import InputError, one_of

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")
_LARGEST = 3.4e38  # the largest float32, the dtype of losses and parameters

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# Wheels contain the configs inside the package; in a checkout they are next to it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def config_names() -> list[str]:
    """Lists the names of the configs included in the package."""
    names = {file.stem for folder in _FOLDERS for file in folder.glob("*.py")}
    return sorted(names - {"__init__", "base"})


def find_config(config: str) -> pathlib.Path:
    """Finds the file of a config given as a path or a name (`nrcc_digits`).

    Raises:
        InputError: neither a file nor the name of a config.
    """
    path = pathlib.Path(config)
    # A file that happens to have the name of a config, in the current folder, is not run.
    if path.is_file() and (path.suffix == ".py" or os.sep in config):
        return path.resolve()
    is_name = path.parent in (pathlib.Path(), pathlib.Path("configs"))
    files = [folder / f"{path.stem}.py" for folder in _FOLDERS]
    file = next(filter(pathlib.Path.is_file, files), None)
    if is_name and path.suffix in ("", ".py") and file is not None:
        return file
    close = difflib.get_close_matches(path.stem, config_names(), 3, 0.75) if is_name else []
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    wanted = "the path of a file or the name of a config, such as nrcc_digits"
    raise InputError(f"config must be {wanted}; got {config!r}{hint}")


def load_config(config: str) -> ConfigDict:
    """Loads a config given as a path or a name by calling its `get_config()`.

    Raises:
        InputError: no such config, or the file has no `get_config`.
    """
    file = find_config(config)
    # The name under which Python imports the file, where it also holds a method.
    module: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module)
        if "get_config" not in module:
            raise InputError(f"{file} must define get_config(), as configs/nrcc_digits.py does")
        return module["get_config"]()
    except InputError:
        raise
    except Exception as error:  # whatever the user's own file raises
        must = f"{file} must be a config that runs"
        raise InputError(f"{must}; got {type(error).__name__}: {error}") from error


def derived(name: str, /, **changes: Any) -> Callable[[], ConfigDict]:
    """Returns the `get_config` of a config file: the config `name` with other values.

    Args:
        name: see `load_config`.
        changes: by key; a dictionary changes these keys of a section, after the section has been
            taken from the config that its key "like" names. A `ConfigDict`, or a `method` with a
            name, takes the place of a whole section.

    Returns:
        A function that loads `name` when it is called. It raises an `InputError` if there is no
        such config, or a key is unknown.
    """

    def get_config() -> ConfigDict:
        config = load_config(name)
        _change(config, config, changes, "")
        return config

    return get_config


def _change(config: ConfigDict, section: ConfigDict, changes: Mapping, prefix: str) -> None:
    for key, value in changes.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and "like" in value:
            section[key] = dict(_dotted(load_config(value["like"])))[path]
            value = {k: each for k, each in value.items() if k != "like"}
        check_key(config, path)
        is_section = isinstance(section[key], ConfigDict)
        is_whole = not section[key] or (key == "method" and "name" in value)
        if is_section and isinstance(value, dict) and not is_whole:
            _change(config, section[key], value, f"{path}.")
        elif value is None and not is_section:
            section[key] = placeholder(section.get_type(key))  # so that a flag can still set it
        else:
            section[key] = ConfigDict(value) if isinstance(value, dict) else value


def check_key(config: ConfigDict, key: str) -> None:
    """Raises an `InputError` unless the config has the dotted key, such as "train.duration"."""
    *sections, name = key.split(".")
    section: Any = config
    for part in sections:
        section = section.get(part) if isinstance(section, ConfigDict) else None
    if not isinstance(section, ConfigDict) or name not in section:
        values = dict(_dotted(config))
        similar = [k for k in values if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
        similar = similar or difflib.get_close_matches(key, values)
        hint = f"did you mean {' or '.join(similar)}?" if similar else "see configs/base.py"
        unset = [k for k, value in values.items() if value is None and key.startswith(f"{k}.")]
        hint = f"{unset[0]} is None in this config" if unset else hint
        raise InputError(f"unknown config key {key}; {hint}")


def _dotted(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        yield f"{prefix}{name}", value
        if isinstance(value, ConfigDict):
            yield from _dotted(value, f"{prefix}{name}.")


def override(config: ConfigDict, key: str, value: Any) -> None:
    """Sets one value of a config by its dotted key, such as "train.duration".

    Of which type it is, and whether it suits, is checked when the config is parsed.

    Raises:
        InputError: the key is unknown.
    """
    check_key(config, key)
    *sections, name = key.split(".")
    section = functools.reduce(lambda outer, part: outer[part], sections, config)
    with section.ignore_type():  # NumPy integers are not instances of int.
        section[name] = value.tolist() if hasattr(value, "tolist") else value


def override_all(config: ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets several values of a config, see `override`."""
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InputError(f"overrides must be a dict of config keys; got {values!r}")
    for key, value in values.items():
        override(config, key, value)


def parse_section(cls: type[Section], name: str, values: Mapping[str, Any]) -> Section:
    """Parses a config section into its dataclass and checks the values.

    Every value must have the type of its field. One of type `Annotated[type, check]` is also
    checked by `check(name, value)`, see `core.checks`, one of type `Literal` by its choices.
    `__post_init__` checks what concerns several fields. A
    field whose type is a dataclass (or optionally one) is parsed as a nested section, unless its
    value is parsed already. Lists become tuples, because JSON turns tuples into lists.

    Args:
        cls: frozen dataclass with a field for each key of the section; its default values, if it
            has any, are not used.
        name: name of the section for messages, such as "train" or "eval.kmeans"; "" for the whole
            config.
        values: the section's keys and values.

    Raises:
        InputError: a key is missing or unknown, or a value is out of range.
    """
    if isinstance(values, ConfigDict):
        values = values.to_dict()
    if not isinstance(values, Mapping):
        raise InputError(f"{name} must be a section of the config; got {values!r}")
    hints = typing.get_type_hints(cls, include_extras=True)
    keys = [field.name for field in dataclasses.fields(cls)]
    check_keys(name, keys, values)
    labels = {key: f"{name}.{key}".removeprefix(".") for key in keys}
    return cls(**{key: _parsed(labels[key], values[key], hints[key]) for key in keys})


def check_values(name: str, section: Any) -> None:
    """Checks the fields of a dataclass as `parse_section` does; without a name, only by theirs."""
    hints = typing.get_type_hints(type(section), include_extras=True)
    for key in (field.name for field in dataclasses.fields(section)):
        _parsed(f"{name}.{key}".removeprefix("."), getattr(section, key), hints[key])


# The type of a key -> the class of its values, and their name in messages.
_KINDS: dict[Any, tuple[Any, str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a string"),
    tuple: (tuple, "a list"),
}


def _parsed(name: str, value: Any, hint: Any) -> Any:
    """Returns a value as the type of its key has it: lists are tuples, sections are dataclasses.

    Raises:
        InputError: it does not suit the type.
    """
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    is_section = dataclasses.is_dataclass(hint)
    if origin is typing.Annotated:
        value = _parsed(name, value, parts[0])
        for check in hint.__metadata__:
            check(name, value)
    elif origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in parts:
            return None
        *others, last = (part for part in parts if part is not types.NoneType)
        for part in others:
            with contextlib.suppress(InputError):
                return _parsed(name, value, part)
        return _parsed(name, value, last)
    elif origin is typing.Literal:
        one_of(name, value, parts)
    elif origin is tuple:
        value = tuple(value) if isinstance(value, list) else value
        _check_kind(name, value, tuple)
        elements = parts[:1] * len(value) if parts[-1] is ... else parts
        if len(value) != len(elements):
            raise InputError(f"{name} must be a list of {len(parts)} values; got {value!r}")
        pairs = zip(value, elements, strict=True)
        value = tuple(_parsed(name, item, element) for item, element in pairs)
    elif not is_section:
        _check_kind(name, value, origin or hint)
    elif isinstance(value, hint):  # It is parsed already.
        check_values(name, value)
    else:
        return parse_section(hint, name, value)
    return value


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Raises an `InputError` unless a value is of a type and, as a number, finite."""
    of, words = _KINDS.get(kind, (kind, "a section of the config"))
    if not isinstance(value, of) or (isinstance(value, bool) and kind is not bool):
        remedy = f" (give --config.{name}=VALUE)" if value is None and "." in name else ""
        raise InputError(f"{name} must be {words}; got {value!r}{remedy}")
    if kind is float and not abs(value) <= _LARGEST:
        raise InputError(f"{name} must be a finite number of 32 bits; got {value}")


def check_keys(name: str, keys: Collection[str], values: Mapping[str, Any]) -> None:
    """Raises an `InputError` unless the section `name` has exactly the keys `keys`."""
    prefix = f"{name}." if name else ""
    for key in keys:
        if key not in values:
            raise InputError(f"missing config key {prefix}{key}")
    for key in values:
        if key not in keys:
            valid = ", ".join(f"{prefix}{k}" for k in keys) or "none"
            raise InputError(f"unknown config key {prefix}{key}; valid keys: {valid}")
