"""Signals of a command: answered at once, whatever the main thread does; a second one ends at once.

Python runs handlers in the main thread, and only once a call into compiled code returns: the
compilation of a step can take a minute. So a thread of its own answers. Training handles them in
`training.loop`, where it saves a step; exit codes are in `cli.exit_codes`.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

# Advice after an interruption that may have come before anything was saved.
AGAIN = "the same command goes on from what is saved, if anything is"
_ANSWER = "\nInterrupted: ending; once more ends at once.\n"
_END = f"\nEnded at once; {AGAIN}.\n"


class Terminated(BaseException):
    """Raised by SIGTERM where no training is under way, so that there is nothing to save."""


@contextlib.contextmanager
def answered(codes: dict[int, int]) -> Iterator[None]:
    """Answers SIGINT and SIGTERM inside; SIGTERM raises `Terminated` where nothing handles it.

    Has no effect outside the main thread, where signals cannot be handled.

    Args:
        codes: signal -> exit code of a second one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    thread = threading.Thread(target=_answer, args=(source, codes), daemon=True, name="signals")
    thread.start()
    old_sink = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    old_handler = signal.getsignal(signal.SIGTERM)
    terminate()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_sink)
        # None: set by compiled code, which Python cannot put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if old_handler is None else old_handler)
        os.write(sink, b"\0")
        thread.join()
        os.close(source)
        os.close(sink)


def terminate() -> None:
    """Lets SIGTERM raise `Terminated`, also after JAX has taken it to agree on a step to save."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, frame: Any) -> None:
    raise Terminated


def _answer(source: int, codes: dict[int, int]) -> None:
    signals = 0
    while (number := os.read(source, 1)[0]) != 0:
        if number not in codes:
            continue
        signals += 1
        sys.stderr.write(_ANSWER if signals == 1 else _END)
        sys.stderr.flush()
        if signals > 1:
            os._exit(codes[number])
