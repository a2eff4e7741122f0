"""Signals of a command: answered at once, whatever the main thread does; a second one ends at once.

Python runs handlers in the main thread, and only once a call into compiled code returns: the
compilation of a step can take a minute. So a thread of its own answers. Training handles them in
`training.loop`, where it saves a step; exit codes are in `cli.exit_codes`.
"""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# Advice after an interruption that may have come before anything was saved.
AGAIN = "the same command goes on from what is saved, if anything is"
_ANSWER = "\nInterrupted: ends when this step is done; once more ends at once.\n"
_MOMENT = 0.5  # seconds
_AGAIN = 128  # plus a signal: the one to send again
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
    old_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    old_hook = sys.unraisablehook
    sys.unraisablehook = functools.partial(_send_again, sink, old_hook)
    try:
        yield
    finally:
        sys.unraisablehook = old_hook
        if old_interrupt is not None:
            signal.signal(signal.SIGINT, old_interrupt)
        signal.set_wakeup_fd(old_sink)
        # None: set by compiled code, which Python cannot put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if old_handler is None else old_handler)
        os.write(sink, b"\0")
        thread.join()
        os.close(source)
        os.close(sink)


def _send_again(sink: int, otherwise: Callable[[Any], Any], ignored: Any) -> None:
    """Has an interrupt sent again that a callback of compiled code, as of llvmlite, has ignored."""
    if isinstance(ignored.exc_value, KeyboardInterrupt | Terminated):
        is_ctrl_c = isinstance(ignored.exc_value, KeyboardInterrupt)
        os.write(sink, bytes([_AGAIN + (signal.SIGINT if is_ctrl_c else signal.SIGTERM)]))
    else:
        otherwise(ignored)


def terminate() -> None:
    """Lets SIGTERM raise `Terminated`, also after JAX has taken it to agree on a step to save."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, frame: Any) -> None:
    raise Terminated


def _answer(source: int, codes: dict[int, int]) -> None:
    signals, sent, is_told = 0, 0, False
    while True:
        # The first one is answered where the end takes longer than a moment.
        if signals == 1 and not is_told and not select.select([source], [], [], _MOMENT)[0]:
            sys.stderr.write(_ANSWER)
            sys.stderr.flush()
            is_told = True
        number = os.read(source, 1)[0]
        if number == 0:
            return
        if number > _AGAIN:
            time.sleep(0.05)  # until the callback has returned
            sent += 1
            signal.pthread_kill(threading.main_thread().ident or 0, number - _AGAIN)
        elif number in codes and sent:
            sent -= 1
        elif number in codes:
            signals += 1
        if signals > 1:
            sys.stderr.write(_END)
            sys.stderr.flush()
            os._exit(codes[number])
