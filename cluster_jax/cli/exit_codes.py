"""Exit codes and error messages of all commands.

exit codes:
  0     success, also when the run in the workdir was already finished
  1     failure: the training diverged, a file could not be written, out of memory
  2     bad input: a flag, the config, the data or the workdir cannot be used
  75    interrupted during training (Ctrl-C, SIGTERM), checkpoint saved, or by SIGTERM at
        any time: the same command goes on from what is saved
  130   interrupted outside training (Ctrl-C): the same command goes on from what is
        saved
"""

import contextlib
import logging
import os
import pathlib
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import NoReturn

import absl.logging

from cluster_jax.core import buckets, interrupt, jobs, logs
from cluster_jax.core.checks import InputError, sentence

SUCCESS = 0
FAILURE = 1
BAD_INPUT = 2
PREEMPTED = 75  # "Temporary failure" of sysexits.h: a scheduler may start the command again.
INTERRUPTED = 130  # 128 + SIGINT, the convention of shells.

# Libraries that read files and buckets, by the names of their logs.
_OF_LIBRARIES = ("PIL", "tifffile", "fsspec", "gcsfs", "s3fs", "aiohttp", "asyncio", "urllib3")

# The table above, with which `cluster-jax --help` ends; and a line for that of each command.
HELP = str(__doc__).partition("\n\n")[2]
SHORT = "exit codes: 0 success, 1 failure, 2 bad input, 75 and 130 interrupted (cluster-jax --help)"


@contextlib.contextmanager
def handle_errors(*, joins: bool = False) -> Iterator[None]:
    """Ends a command with one sentence on stderr and an exit code after an expected error.

    Warnings are printed as one line each. Other errors are bugs and keep their traceback.

    Args:
        joins: whether the command joins the job of several processes that is announced.
    """
    if getattr(sys.stdout, "errors", None) == "strict":  # A file name may not be valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    codes = {int(signal.SIGINT): INTERRUPTED, int(signal.SIGTERM): PREEMPTED}
    with _failing_at_once(joins), warnings.catch_warnings(), _logged(), interrupt.answered(codes):
        warnings.showwarning = _show_warning
        try:
            with _ended_elsewhere():
                yield
        except (KeyboardInterrupt, interrupt.Terminated) as stop:
            code = INTERRUPTED if isinstance(stop, KeyboardInterrupt) else PREEMPTED
            _exit(f"Interrupted; {interrupt.AGAIN}.", code)
        except InputError as error:
            _exit(f"error: {error}", BAD_INPUT)
        except MemoryError:
            _exit("error: out of memory", FAILURE)
        except OSError as error:
            _exit(f"error: {buckets.explain(error) or error}", FAILURE)
        except ImportError as error:
            if "gcsfs" not in str(error):
                raise
            _exit("error: gs:// paths need gcsfs: pip install 'cluster-jax[gcs]'", BAD_INPUT)
        except Exception as error:
            from cluster_jax.training import loop, progress

            if isinstance(error, progress.NotFinite | progress.Collapsed):
                _exit(f"error: {error}", FAILURE)
            if isinstance(error, loop.Preempted):
                _exit(f"{error}. Run the same command again to resume.", PREEMPTED)
            if told := buckets.explain(error):
                _exit(f"error: {told}", FAILURE)
            raise


@contextlib.contextmanager
def _ended_elsewhere() -> Iterator[None]:
    """Ends a process of a job with a sentence where another one has ended, whatever failed so."""
    try:
        yield
    except Exception as error:
        if "jax" in sys.modules:
            from cluster_jax.core import devices

            if told := devices.ended_elsewhere(error):
                _exit(f"error: {told}", FAILURE)
        raise


@contextlib.contextmanager
def _failing_at_once(joins: bool) -> Iterator[None]:
    """Ends a failed process at once where Python would wait at its exit.

    JAX waits for the other processes of a job, which in turn wait for the failed process in their
    next step, or for it to join. After a preemption all processes end, so this one ends as usual.
    And Python waits for a save that Orbax has given up, in which TensorStore may try again for
    ever.
    """
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else FAILURE
        is_told = joins and code in (FAILURE, BAD_INPUT) and _is_announced()
        if "jax" not in sys.modules and not is_told:  # It is alone.
            raise
        import jax

        from cluster_jax.core import devices
        from cluster_jax.training import loop

        is_saving = any(type(x).__module__.startswith("orbax.") for x in threading.enumerate())
        is_job = jax.distributed.is_initialized() or is_told
        if not is_saving and (not is_job or isinstance(error.__context__, loop.Preempted)):
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        if is_told:
            devices.tell_others()
        os._exit(code if isinstance(code, int) else FAILURE)


def _is_announced() -> bool:
    with contextlib.suppress(InputError, ValueError):
        return jobs.announced() is not None
    return False


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Prints what is logged, without absl's prefix of date and file.

    What libraries log about files is left out: errors and warnings say it with the file's name.
    """
    printer, of_orbax = logs.Printer(), absl.logging.get_absl_logger()
    printer.addFilter(logs.shorten)  # Orbax's are long.
    absl.logging.set_verbosity(absl.logging.WARNING)
    of_orbax.addHandler(printer)
    of_orbax.propagate = False  # Else a handler of another package prints it once more.
    silenced = {name: logging.getLogger(name).level for name in _OF_LIBRARIES}
    for name in silenced:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        with logs.printing(), logs.without_leftovers():
            yield
    finally:
        of_orbax.removeHandler(printer)
        of_orbax.propagate = True
        for name, level in silenced.items():
            logging.getLogger(name).setLevel(level)


def _exit(text: str, code: int) -> NoReturn:
    kind = "error: " if text.startswith("error: ") else ""
    sys.stderr.write(f"{kind}{sentence(text.removeprefix(kind))}\n")
    sys.exit(code)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: object, **__: object
) -> None:
    # Pillow does not say of which file; joblib misses /dev/shm, which nothing here needs.
    if pathlib.PurePath(filename).parent.name in ("PIL", "joblib"):
        return
    sys.stderr.write(f"warning: {sentence(str(message))}\n")
