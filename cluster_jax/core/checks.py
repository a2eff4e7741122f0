"""Checks of user input; each error is one sentence: "X must be ...; got ..."."""

import contextlib
import functools
import math
import numbers
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

# Characters of a sentence, and of a word in a longer one, such as a path, that are shown.
MOST, _WORDS = 300, (80, 40)
# What breaks a line, moves the cursor of a terminal, or turns the direction of a text.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(text: str) -> str:
    r"""Spells out the control characters in a text, such as the name of a file.

    Example:
        >>> one_line("a\nb.jpg")
        'a\\nb.jpg'
    """
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def sentence(text: str) -> str:
    """Shortens a message to one line of 300 characters: long words, then its middle are cut.

    The ends stay: of a path the name, and of a sentence the advice.
    """
    text = one_line(text)
    for most in _WORDS:
        if len(text) > MOST:
            text = " ".join(_cut(word, most, most // 4) for word in text.split(" "))
    return _cut(text, MOST, MOST // 2)


def _cut(text: str, most: int, start: int) -> str:
    """Cuts a text to at most `most` characters: the first `start` of them and its end."""
    if len(text) <= most:
        return text
    return f"{text[:start]}...{text[start + 3 - most :]}"


class InputError(ValueError):
    """Invalid user input; the message is one `sentence` that says what to change."""

    exit_code = 2  # of a command that it ends

    def __init__(self, message: str) -> None:
        super().__init__(sentence(message))


def warn(text: str, stacklevel: int = 1, kind: type[Warning] = UserWarning) -> None:
    """Issues a warning of one `sentence`; `stacklevel` is that of the caller, as of `warnings`."""
    warnings.warn(sentence(text), kind, stacklevel + 1)


@contextlib.contextmanager
def named(words: Mapping[str, str]) -> Iterator[None]:
    """Makes errors name what the user typed in place of a key of the config.

    Args:
        words: how a sentence calls a value -> the argument or flag that gives it.

    Example:
        >>> with named({"data.dir": "PHOTOS"}):
        ...     raise InputError("data.dir must be a folder; got x")
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: PHOTOS must be a folder; got x
    """
    try:
        yield
    except InputError as error:
        text = str(error)
        for key, word in words.items():
            text = re.sub(rf"(?<![\w.]){re.escape(key)}(?!\w)", word, text)
        if text == str(error):
            raise
        raise InputError(text) from error


def short(text: object, most: int = 80) -> str:
    """Cuts a text for a sentence to `most` characters."""
    line = str(text)
    return line if len(line) <= most else f"{line[: most - 3]}..."


def local(path: str | os.PathLike) -> str:
    """Returns a path of this machine.

    Raises:
        InputError: it is an address elsewhere.
    """
    path = os.fspath(path)
    if "://" in path:
        must = f"{short(path)} must be a file or folder of this machine; got an address"
        raise InputError(f"{must}: mount the bucket, or copy the files here")
    return path


def positive(name: str, value: float) -> None:
    """Raises an `InputError` unless `value > 0`."""
    _number(name, value, lambda x: x > 0, "greater than 0")


def at_least(name: str, value: float | None, least: float) -> None:
    """Raises an `InputError` unless `value >= least`."""
    _number(name, value, lambda x: x >= least, f"at least {least}")


def at_most(name: str, value: float | None, most: float, of: str = "") -> None:
    """Raises an `InputError` unless `value <= most`; `of` says of what, "training images"."""
    _number(name, value, lambda x: x <= most, f"at most {most:,} {of}".strip())


def multiple(name: str, value: int, divisor: int, of: str) -> None:
    """Raises an `InputError` unless `value` is a multiple of `divisor`; `of` is its name."""
    _number(name, value, lambda x: x % divisor == 0, f"a multiple of {of}, {divisor}")


def between(name: str, value: float | None, low: float, high: float) -> None:
    """Raises an `InputError` unless `low <= value <= high`."""
    _number(name, value, lambda x: low <= x <= high, f"between {low} and {high}")


def below_one(name: str, value: float) -> None:
    """Raises an `InputError` unless `0 <= value < 1`."""
    _number(name, value, lambda x: 0 <= x < 1, "at least 0 and below 1")


def share(name: str, value: float) -> None:
    """Raises an `InputError` unless `0 < value < 1`."""
    _number(name, value, lambda x: 0 < x < 1, "between 0 and 1, without them")


def whole(name: str, value: int | None, least: int, most: int = 2**53) -> None:
    """Raises an `InputError` unless `value` is an integer between `least` and `most`.

    Integers beyond 2^53 lose digits when they are converted to float64, as JSON readers do.
    """
    at_least(name, value, least)
    if not isinstance(value, numbers.Integral):
        raise InputError(f"{name} must be a whole number; got {value}")
    at_most(name, value, most)


def _number(name: str, value: Any, is_valid: Callable[[Any], bool], wanted: str) -> None:
    """Raises an `InputError` unless `value` is a number and valid; `wanted` says which are."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | None):
        raise InputError(f"{name} must be a number; got {value!r}")
    if value is None or not is_valid(value):
        raise InputError(f"{name} must be {wanted}; got {value}")


def if_number(check: Callable[..., None], name: str, value: Any, *limits: float) -> None:
    """Checks `value` if it is a number; None and arrays, whose value may be unknown, pass."""
    if isinstance(value, numbers.Real):
        check(name, value, *limits)


def one_of(name: str, value: Any, choices: tuple) -> None:
    """Raises an `InputError` unless `value` is one of `choices`."""
    if value not in choices:
        wanted = ", ".join(map(repr, choices))
        wanted = f"one of {wanted}" if len(choices) > 1 else wanted
        raise InputError(f"{name} must be {wanted}; got {value!r}")


def none(name: str, value: Any, where: str) -> None:
    """Raises an `InputError` unless `value` is None, as it must be for `where`."""
    if value is not None:
        raise InputError(f"{name} must be None for {where}; got {value!r}")


def steps(name: str, value: str, steps_per_epoch: int) -> int:
    """Counts the steps in `"1500 steps"` or `"0.5 epochs"`, rounded up to whole steps.

    Error messages start with `name`, the config key.

    Raises:
        InputError: a different format, a negative number, or a fractional number of steps.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s+(step|epoch)s?\s*", str(value))
    if match is None:
        wanted = "a duration like '1500 steps' or '200 epochs'"
        raise InputError(f"{name} must be {wanted}; got {value!r}")
    number = float(match[1])
    if match[2] == "epoch":
        # Rounded first: 0.55 epochs of 100 steps are 55.00000000000001 in floating point.
        return math.ceil(round(number * steps_per_epoch, 6))
    if not number.is_integer():
        raise InputError(f"{name} must be a whole number of steps; got {value!r}")
    return int(number)


# Types of config keys whose values are checked when a section is parsed (`core.config`).
Positive = Annotated[float, positive]
NonNegative = Annotated[float, functools.partial(at_least, least=0)]
Fraction = Annotated[float, functools.partial(between, low=0, high=1)]
BelowOne = Annotated[float, below_one]
AtLeastOne = Annotated[float, functools.partial(at_least, least=1)]
Count = Annotated[int, functools.partial(whole, least=1)]
CountOrZero = Annotated[int, functools.partial(whole, least=0)]
Duration = Annotated[str, functools.partial(steps, steps_per_epoch=1)]
