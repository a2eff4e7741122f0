"""Exit codes and error messages of all commands.

exit codes:
  0     success, also when the run in the workdir was already finished
  1     failure: the training diverged, a file could not be written, out of memory
  2     bad input: a flag, the config, the data or the workdir cannot be used
  75    interrupted during training (Ctrl-C, SIGTERM), checkpoint saved, or by SIGTERM at
        any time; or hosts have waited too long for the first one: the same command goes
        on from what is saved
  130   interrupted outside training (Ctrl-C): the same command goes on from what is
        saved
"""

import contextlib
import os
import pathlib
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from cluster_jax.core import buckets, logs
from cluster_jax.core.checks import InputError, sentence

FAILURE = 1
PREEMPTED = 75  # "Temporary failure" of sysexits.h: a scheduler may start the command again.
INTERRUPTED = 130  # 128 + SIGINT, the convention of shells.

# The table above, with which `cluster-jax --help` ends; and a line for that of each command.
HELP = str(__doc__).partition("\n\n")[2]
SHORT = "exit codes: 0 success, 1 failure, 2 bad input, 75 and 130 interrupted (cluster-jax --help)"


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, which training alone handles otherwise, see `training.loop`."""

    exit_code = PREEMPTED


@contextlib.contextmanager
def handle_errors() -> Iterator[None]:
    """Ends a command with one sentence on stderr and an exit code after an expected error.

    Warnings are printed as one line each. Other errors are bugs and keep their traceback. What
    libraries log is left out: errors and warnings say it with the name of the file.
    """
    logs.open_streams()
    with warnings.catch_warnings(), logs.printing():
        warnings.showwarning = _show_warning
        with contextlib.suppress(ValueError):  # Only the main thread handles signals.
            signal.signal(signal.SIGTERM, _terminate)
        try:
            yield
        except BaseException as error:
            _end(error)
            raise


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated


def _end(error: BaseException) -> None:
    """Says an expected error in one sentence and ends with its code; returns after a bug."""
    text = str(error)
    code = getattr(error, "exit_code", None)
    if isinstance(error, SystemExit):
        text, code = "", error.code
    elif isinstance(error, KeyboardInterrupt):
        text = "Interrupted; the same command goes on from what is saved, if anything is."
        code = code or INTERRUPTED
    elif isinstance(error, OSError | MemoryError) or buckets.is_error(error):
        text = " ".join(text.split()) if buckets.is_error(error) else text
        text, code = text or "out of memory", FAILURE
    elif _has_no_device(error):
        must = "JAX_PLATFORMS must name devices of this machine, such as cpu"
        got = os.environ["JAX_PLATFORMS"]
        text, code = f"{must}; got {got}: change it or unset it", InputError.exit_code
    if text and code is not None:
        kind = "" if code in (PREEMPTED, INTERRUPTED) else "error: "
        logs.say(f"{kind}{sentence(text)}", sys.stderr)
    jax = sys.modules.get("jax")
    is_preempted = code == PREEMPTED and not isinstance(error, Terminated)
    if jax is not None and jax.distributed.is_initialized() and not is_preempted:
        # JAX would wait for the other processes of the job, which wait for this one.
        if code is None:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(FAILURE if code is None else code)
    if code is not None:
        sys.exit(code)


def _has_no_device(error: BaseException) -> bool:
    """Returns whether JAX does not find the devices that its environment variable names."""
    is_expected = isinstance(error, RuntimeError | AssertionError)  # JAX asserts that there is one.
    if not is_expected or not os.environ.get("JAX_PLATFORMS"):
        return False
    *_, last = traceback.extract_tb(error.__traceback__)
    return pathlib.PurePath(last.filename).name == "xla_bridge.py"


def _show_warning(message: Warning | str, *place: Any, **_: Any) -> None:
    # Pillow does not say of which file; joblib misses /dev/shm, which nothing here needs.
    if pathlib.PurePath(place[1]).parent.name not in ("PIL", "joblib"):
        logs.say(f"warning: {sentence(str(message))}", sys.stderr)
