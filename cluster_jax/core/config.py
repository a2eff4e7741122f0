"""Configs: loading files, overriding values, parsing sections into dataclasses."""

import dataclasses
import difflib
import functools
import numbers
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cluster_jax.core import io
from cluster_jax.core.checks import InputError, finite, one_of, short
from cluster_jax.core.names import counted


@typing.runtime_checkable
class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Section = TypeVar("Section", bound=Dataclass)

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
    names = config_names()
    close = difflib.get_close_matches(path.stem, names, 3, 0.75) if is_name else []
    wanted = "the path of a file or the name of a config"
    wanted += "" if close else ", such as nrcc_digits, of the folder configs"
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
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
    values = dict(_dotted(config))
    if key not in values:
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

    Raises:
        InputError: the key is unknown, or the value has a different type or is not finite.
    """
    check_key(config, key)
    *sections, name = key.split(".")
    section = functools.reduce(lambda outer, part: outer[part], sections, config)
    finite(f"config.{key}", value)
    try:
        section[name] = io.plain(value)  # NumPy integers are not instances of int.
    except (TypeError, ValueError, OverflowError) as error:
        old = section.get_ref(name).get_type()
        wanted = "a section of the config" if old is ConfigDict else _in_words(old)
        raise InputError(f"{key} must be {wanted}; got {short(repr(value))}") from error


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
    parsed = {}
    for key in keys:
        value, hint, label = values[key], hints[key], f"{name}.{key}".removeprefix(".")
        nested = [kind for kind, _ in _kinds(hint) if is_section(kind)]
        if nested and value is not None and not is_section(type(value)):
            value = parse_section(nested[0], label, value)
        parsed[key] = tuple(value) if isinstance(value, list) else value
        _check_value(label, parsed[key], hint)
    return cls(**parsed)


def check_values(name: str, section: Dataclass) -> None:
    """Checks the fields of a dataclass as `parse_section` does; without a name, only by theirs."""
    for key, hint in typing.get_type_hints(type(section), include_extras=True).items():
        _check_value(f"{name}.{key}".removeprefix("."), getattr(section, key), hint)


def _check_value(name: str, value: Any, hint: Any) -> None:
    """Raises an `InputError` unless a value, whose lists are tuples, suits the type of its key."""
    suited = ((kind, checks) for kind, checks in _kinds(hint) if _is_kind(value, kind))
    kind, checks = next(suited, (None, ()))
    if kind is None:
        remedy = f" (give --config.{name}=VALUE)" if value is None and "." in name else ""
        raise InputError(f"{name} must be {_in_words(hint)}; got {value!r}{remedy}")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        one_of(name, value, arguments)
    elif origin is tuple:
        elements = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(value) != len(elements):
            raise InputError(f"{name} must be {_in_words(hint)}; got {value!r}")
        for item, element in zip(value, elements, strict=True):
            _check_value(name, item, element)
    elif is_section(kind):
        check_values(name, value)
    for check in checks:
        check(name, value)


def _kinds(hint: Any) -> list[tuple[Any, tuple]]:
    """Lists the types that a hint allows, each with its checks."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return [kind for part in arguments for kind in _kinds(part)]
    if origin is typing.Annotated:
        return [(kind, (*checks, *hint.__metadata__)) for kind, checks in _kinds(arguments[0])]
    return [(hint, ())]


# What the types of keys are called in messages.
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string"}
_WORDS |= {tuple: "a list", list: "a list", types.NoneType: "None"}


def _is_kind(value: Any, kind: Any) -> bool:
    """Returns whether a value is of a type; of the items of a tuple nothing is asked."""
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        return isinstance(value, str)
    return not isinstance(origin, type) or isinstance(value, origin)


def _in_words(hint: Any) -> str:
    """Names a type as messages call it."""
    return " or ".join(dict.fromkeys(_called(kind) for kind, _ in _kinds(hint)))


def _called(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple:
        count = "a list" if arguments[-1] is Ellipsis else counted(len(arguments), "value")
        return f"{count}, each {_in_words(arguments[0])}"
    words = "a section of the config" if is_section(kind) else "a value of another type"
    return _WORDS.get(kind, words)


def is_section(cls: Any) -> bool:
    """Returns whether a type is the dataclass of a section."""
    return isinstance(cls, type) and dataclasses.is_dataclass(cls)


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
