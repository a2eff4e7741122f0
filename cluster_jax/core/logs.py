"""The logger of the package."""

import contextlib
import logging
from collections.abc import Iterator

from cluster_jax.core import checks


def shorten(record: logging.LogRecord) -> bool:
    """Makes the message of a record one `checks.sentence`, as a filter of `logging`."""
    record.msg, record.args = checks.sentence(record.getMessage()), None
    return True


# Without a handler of the application, Python prints its warnings to stderr; commands print them as
# theirs, see `cli.exit_codes`.
logger = logging.getLogger("cluster_jax")
logger.addFilter(shorten)


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Leaves the root logger as it was before imports: Orbax's gives it a handler.

    `logging.basicConfig` of an application does nothing if there is one.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
