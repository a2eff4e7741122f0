"""Checks of user input; each error is one sentence: "X must be ...; got ..."."""

import functools
import math
import numbers
from collections.abc import Mapping
from typing import Annotated, Any

# The largest float32, the dtype of losses and parameters.
_LARGEST = 3.4e38


class InputError(ValueError):
    """Invalid user input; the message is one sentence that says what to change."""


def finite(name: str, value: Any) -> None:
    """Raises an `InputError` for NaN or infinity in `value`, a number or nested sections of them.

    The message names the value as `name.section.key`.
    """
    if hasattr(value, "tolist"):  # An array or scalar of NumPy or JAX.
        value = value.tolist()
    if isinstance(value, Mapping):
        for key, part in value.items():
            finite(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            finite(name, part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number; got {value}")
    elif isinstance(value, float) and abs(value) > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST:g} in size; got {value}")


def largest(name: str, value: Any) -> tuple[float, str]:
    """The largest absolute value of a number in nested sections, and its key."""
    if isinstance(value, Mapping):
        parts = [largest(f"{name}.{key}".removeprefix("."), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [largest(name, part) for part in value]
    else:
        parts = [(abs(value), name)] if isinstance(value, int | float) else []
    return max(parts, default=(0.0, name))


def plain(name: str, value: Any) -> None:
    """Raises an `InputError` for a value, also in nested sections, that JSON cannot represent.

    The message names the value as `name.section.key`.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            plain(f"{name}.{key}".removeprefix("."), part)
    elif isinstance(value, list | tuple):
        for part in value:
            plain(name, part)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise InputError(
            f"{name} must be a number, a string, True, False, None, a list or a section; got "
            f"{type(value).__name__}"
        )


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


def whole(name: str, value: int, least: int, most: int = 2**53) -> None:
    """Raises an `InputError` unless `value` is an integer between `least` and `most`.

    Integers beyond 2^53 lose digits when they are converted to float64, as JSON readers do.
    """
    at_least(name, value, least)
    if not isinstance(value, numbers.Integral):
        raise InputError(f"{name} must be a whole number; got {value}")
    if value > most:
        raise InputError(f"{name} must be at most {most:,}; got {value}")


def _number(name: str, value: Any) -> None:
    """Raises an `InputError` unless `value` is a number; the caller reports None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name} must be a number; got {value!r}")


def one_of(name: str, value: Any, choices: tuple) -> None:
    """Raises an `InputError` unless `value` is one of `choices`."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def text(name: str, value: Any) -> None:
    """Raises an `InputError` unless `value` is a string."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be a string; got {value!r}")


# Types of config keys whose values are checked when a section is parsed (`core.config`).
Positive = Annotated[float, positive]
NonNegative = Annotated[float, functools.partial(at_least, least=0)]
Fraction = Annotated[float, functools.partial(between, low=0, high=1)]
Count = Annotated[int, functools.partial(whole, least=1)]
