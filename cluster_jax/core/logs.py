"""The logger of the package, its lines of progress, and its progress bars."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from tqdm import tqdm

from cluster_jax.core import checks


def shorten(record: logging.LogRecord) -> bool:
    """Makes the message of a warning one `checks.sentence`, as a filter of `logging`."""
    if record.levelno >= logging.WARNING:
        record.msg = checks.sentence(record.getMessage())
        record.args = None
    return True


# Warnings, and what a person waits for at the level INFO. An application sees them as it sees those
# of other packages; commands print them, see `cli.output`, and `ImageClusterer(verbose=True)` does.
logger = logging.getLogger("cluster_jax")
logger.addFilter(shorten)


def open_streams() -> None:
    """Lets standard output spell out the bytes of a name that is not UTF-8."""
    if getattr(sys.stdout, "errors", None) == "strict":  # A file name may not be valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str, stream: TextIO, *, is_result: bool = False) -> None:
    """Prints a line; once nobody reads the stream any longer, as after `| head`, it is left out.

    Args:
        text: the line.
        stream: where it is printed.
        is_result: whether the line is what was asked for. If it is not, as progress, an error such
            as a full disk ends nothing.

    Raises:
        OSError: a result cannot be printed, and somebody may still read the stream.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        is_closed = isinstance(error, BrokenPipeError)
        if is_closed or is_result:
            # Else Python would fail again at its end, when it prints what is left.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if is_result and not is_closed:
            raise OSError(error.errno, f"{error.strerror} while the result was printed") from error


class Printer(logging.Handler):
    """Prints lines of progress to stdout, and warnings as one line each to stderr.

    Attributes:
        is_stdout_free: whether progress goes to stderr too, because stdout has something else.
    """

    is_stdout_free = False

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record; the streams are those of the moment."""
        is_progress = record.levelno < logging.WARNING
        stream = sys.stdout if is_progress and not self.is_stdout_free else sys.stderr
        say(f"{'' if is_progress else 'warning: '}{record.getMessage()}", stream)


@contextlib.contextmanager
def level(of: int) -> Iterator[None]:
    """Sets the level of the package's logger inside."""
    before = logger.level
    logger.setLevel(of)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Prints progress and warnings inside, which no handler of the application prints again.

    What other libraries log is left out, unless the application has a handler for it.
    """
    printer = Printer()
    silent = logging.NullHandler()
    before = logger.propagate
    logger.addHandler(printer)
    logging.getLogger().addHandler(silent)
    logger.propagate = False
    try:
        with level(logging.INFO):
            yield
    finally:
        logger.removeHandler(printer)
        logging.getLogger().removeHandler(silent)
        logger.propagate = before


class Shared:
    """A context that the first of several concurrent calls enters and the last one leaves.

    The level and the handlers of a logger belong to the process, not to a thread: calls that each
    restored what they had found would leave behind what another one had set.
    """

    def __init__(self) -> None:
        self._lock, self._stack, self._calls = threading.Lock(), contextlib.ExitStack(), 0

    @contextlib.contextmanager
    def entered(self, context: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Enters the context if no other call is inside, and leaves it if this is the last one."""
        with self._lock:
            if not self._calls:
                self._stack.enter_context(context)
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._stack.close()


def progress_bar(items: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Makes a tqdm bar on stderr, shown where progress is printed and somebody can watch it.

    Args:
        items: what is iterated over, or None.
        **options: of `tqdm`.
    """
    is_watched = (sys.stderr is not None and sys.stderr.isatty()) or _is_notebook()
    is_shown = is_watched and logger.isEnabledFor(logging.INFO)
    options["disable"] = options.get("disable", False) or not is_shown
    return tqdm(items, file=sys.stderr, **options)


def _is_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
