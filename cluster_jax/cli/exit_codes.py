"""What a command says and returns when it ends: one sentence on stderr and an exit code."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from cluster_jax.core.checks import InputError

SUCCESS = 0
FAILURE = 1
BAD_INPUT = 2
PREEMPTED = 75  # "Temporary failure" of sysexits.h: a scheduler may start the command again.
INTERRUPTED = 130  # 128 + SIGINT, as shells have it.

HELP = f"""\
exit codes:
  {SUCCESS:<5} success, also when the run in the workdir was finished already
  {FAILURE:<5} failure: the training diverged, a file could not be written, out of memory
  {BAD_INPUT:<5} bad input: a flag, the config, the data or the workdir cannot be used
  {PREEMPTED:<5} told to stop (SIGTERM) and saved: run the same command again to resume
  {INTERRUPTED:<5} interrupted (Ctrl-C): run the same command again to resume
"""


@contextlib.contextmanager
def handle_errors() -> Iterator[None]:
    """Ends the process with a sentence and an exit code where a traceback would say no more.

    Warnings inside become one line each. Errors that no user can cause keep their traceback.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        except KeyboardInterrupt:
            _exit("Interrupted. Run the same command again to resume.", INTERRUPTED)
        except InputError as error:
            _exit(f"error: {error}", BAD_INPUT)
        except MemoryError:
            _exit("error: out of memory", FAILURE)
        except OSError as error:
            _exit(f"error: {error}", FAILURE)
        except Exception as error:
            # Loads JAX: what raises these errors has loaded it already.
            from cluster_jax.training import loop

            if isinstance(error, loop.NotFinite):
                _exit(f"error: {error}", FAILURE)
            if isinstance(error, loop.Preempted):
                _exit(f"{error}. Run the same command again to resume.", PREEMPTED)
            raise


def _exit(sentence: str, code: int) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    sys.stderr.write(f"warning: {message}\n")
