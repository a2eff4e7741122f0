"""One owner of a folder at a time, also on file systems that several machines share.

`flock` means nothing on many network file systems and in buckets, so the lock is a file that says
who holds it and that the owner rewrites while it lives. A crashed owner's is taken over: at once if
it ran on this machine, where its process can be looked for, else after it was not rewritten for a
while.
"""

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath

from cluster_jax.core.checks import InputError

NAME = "lock.json"
# Seconds between two signs of life, and without one until an owner elsewhere counts as dead.
BEAT, PATIENCE = 10.0, 45.0


class Lost(InputError):
    """The folder was deleted or taken over by another process; nothing more may be written."""


class Lock:
    """A held lock; a thread rewrites its file while it is held.

    Args:
        folder: the folder, which exists.

    Raises:
        InputError: a living process holds it.
    """

    def __init__(self, folder: epath.Path):
        self._file = folder / NAME
        self._owner = {**machine(), "pid": os.getpid(), "started": started(os.getpid())}
        self._token = secrets.token_hex(8)
        self._beat = 0
        self._released = threading.Event()
        wait(folder)
        self._write()
        # Of two that saw no owner at the same time, the later one to write has it.
        time.sleep(0.05)
        self.check()
        self._thread = threading.Thread(target=self._live, daemon=True, name="lock")
        self._thread.start()

    def check(self) -> None:
        """Raises `Lost` unless this process still holds the lock."""
        holder = read(self._file)
        if holder is None:
            raise Lost(
                f"{self._file.parent} must stay as it is during a run; got it deleted or emptied: "
                "run the same command again to start over"
            )
        if holder.get("token") != self._token:
            raise Lost(f"{_held(self._file, holder)}; this one stops")

    def release(self) -> None:
        """Ends the thread and removes the file if it is still this owner's."""
        self._released.set()
        self._thread.join()
        holder = read(self._file)
        if holder is not None and holder.get("token") == self._token:
            self._file.unlink(missing_ok=True)

    def _live(self) -> None:
        while not self._released.wait(BEAT):
            # A full disk or a network that is away for a while; the next check tells what is lost.
            with contextlib.suppress(OSError, Lost):
                self.check()
                self._write()

    def _write(self) -> None:
        """Rewrites the file; not by `io.write`, whose temporary file two starters would share."""
        self._beat += 1
        about = {**self._owner, "token": self._token, "beat": self._beat}
        partial = self._file.parent / f".{NAME}.{self._token}.partial"
        try:
            partial.write_text(json.dumps(about))
            partial.replace(self._file)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: epath.Path) -> Iterator[Lock]:
    """Holds the lock of a folder, which exists.

    Raises:
        InputError: a living process holds it.
    """
    lock = Lock(folder)
    try:
        yield lock
    finally:
        lock.release()


def machine() -> dict[str, str]:
    """Where process numbers have one meaning: machine, its start, and the container."""
    return {
        "host": platform.node(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "space": _link("/proc/self/ns/pid"),
    }


def read(file: epath.Path) -> dict[str, Any] | None:
    """What the file of an owner says; None if there is none; {} if it cannot be understood."""
    try:
        holder = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError):
        return {}
    return holder if isinstance(holder, dict) else {}


def wait(folder: epath.Path) -> None:
    """Returns once no living process holds the lock of a folder, at most `PATIENCE` s later.

    Raises:
        InputError: one does.
    """
    file = folder / NAME
    holder = first = read(file)
    if holder is None:
        return
    if all(holder.get(key) == value for key, value in machine().items()):
        pid = holder.get("pid")
        if isinstance(pid, int) and started(pid) == holder.get("started") != "":
            raise InputError(f"{_held(file, holder)}; wait for it, or choose another --workdir")
        return
    logging.warning(
        "%s was used by process %s on %s; waiting %.0f s for a sign of life",
        folder, holder.get("pid"), holder.get("host"), PATIENCE,
    )  # fmt: skip
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(min(1.0, PATIENCE / 10))
        holder = read(file)
        if holder is None:
            return
        if holder != first:
            raise InputError(f"{_held(file, holder)}; wait for it, or choose another --workdir")


def _held(file: epath.Path, holder: dict[str, Any]) -> str:
    return (
        f"{file.parent} is used by another run, process {holder.get('pid')} on {holder.get('host')}"
    )


def started(pid: int) -> str:
    """When a process of this machine was started, in its own units; "" if there is none."""
    stat = _text(f"/proc/{pid}/stat")
    if stat:  # The name, in parentheses, may hold anything.
        fields = stat.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie is dead
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "running"
    except (OSError, OverflowError, ValueError):
        return ""
    return "running"


def _text(path: str) -> str:
    """A small file of the system, "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
