"""The logger of the package, its lines of progress, and its progress bars."""

import contextlib
import logging
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from cluster_jax.core import checks


def shorten(record: logging.LogRecord) -> bool:
    """Makes the message of a warning one `checks.sentence`, as a filter of `logging`."""
    if record.levelno >= logging.WARNING:
        record.msg, record.args = checks.sentence(record.getMessage()), None
    return True


# Warnings, and what a person waits for at the level INFO. An application sees them as it sees those
# of other packages; commands print them, see `cli.output`, and `ImageClusterer(verbose=True)` does.
logger = logging.getLogger("cluster_jax")
logger.addFilter(shorten)


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
        print(f"{'' if is_progress else 'warning: '}{record.getMessage()}", file=stream, flush=True)


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
    """Prints progress and warnings inside, which no handler of the application prints again."""
    printer, before = Printer(), logger.propagate
    logger.addHandler(printer)
    logger.propagate = False
    try:
        with level(logging.INFO):
            yield
    finally:
        logger.removeHandler(printer)
        logger.propagate = before


def progress_bar(items: Iterable[Any] | None = None, **options: Any) -> tqdm:
    """Makes a tqdm bar on stderr, shown where progress is printed and somebody can watch it.

    Args:
        items: what is iterated over, or None.
        **options: of `tqdm`.
    """
    is_watched = sys.stderr.isatty() or _is_notebook()
    is_shown = is_watched and logger.isEnabledFor(logging.INFO)
    options["disable"] = options.get("disable", False) or not is_shown
    return tqdm(items, file=sys.stderr, **options)


def _is_notebook() -> bool:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Leaves the root logger as it was before imports: Orbax's gives it a handler.

    `logging.basicConfig` of an application does nothing if there is one.
    """
    root = logging.getLogger()
    handlers, before = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


@contextlib.contextmanager
def without_leftovers() -> Iterator[None]:
    """Silences inside what Orbax's unfinished reads and writes report after a failure.

    When one array of a checkpoint cannot be read, Orbax raises and closes its event loop while its
    other coroutines wait; each of these fails whenever Python frees it, and prints a traceback.
    """
    asyncio, before = logging.getLogger("asyncio"), sys.unraisablehook

    def hook(raised: Any) -> None:
        if not _is_unfinished(raised):
            before(raised)

    asyncio.addFilter(_is_not_left_over)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        asyncio.removeFilter(_is_not_left_over)


def _is_unfinished(raised: Any) -> bool:
    code = getattr(raised.object, "cr_code", None)  # of a coroutine
    is_of_orbax = code is not None and "orbax" in pathlib.Path(code.co_filename).parts
    return is_of_orbax or "Event loop is closed" in str(raised.exc_value)


def _is_not_left_over(record: logging.LogRecord) -> bool:
    text = record.getMessage()  # of a task or a future
    is_of_orbax = "orbax" in text or "tensorstore" in text
    return not (is_of_orbax and "exception was never retrieved" in text)
