"""Several processes as one job: when one ends, all do, each with one sentence.

JAX's own service leaves the others waiting for minutes or aborts them. So each process of a job is
a small one that starts the command again as its child, and writes signs of life into the workdir,
which all of them share. It outlives whatever happens to the child, and looks at the others.
"""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from etils import epath

from cluster_jax.core import interrupt, lock

# Set for the child; and the folder of a workdir for the signs of life.
CHILD, FOLDER = "CLUSTER_JAX_CHILD", "processes"
# Seconds between looks; until an interrupted child is ended; for others to say why they ended.
_LOOK, _GRACE, _EXPLAIN = 1.0, 30.0, 8.0
# What XLA and Python write of a lost connection, and what follows it; not warnings of Python's own.
_NOISE = re.compile(
    rb"[EW]\d{4} \d\d:(?![^]]*\.py:).*|.*\[Gloo\].*|Additional GRPC error |:[A-Z]+:Error received"
)
_OURS = re.compile(rb"[WE]\d{4} [^]]*\.py:\d+\]")  # what Python code logs
_FATAL = re.compile(rb"F\d{4} \d\d:|Fatal Python error|\*\*\* Check failure|Traceback \(most rec")


class Place(NamedTuple):
    """A process of a job: its number, and how many there are."""

    rank: int
    size: int


def place(env: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place in a job of several, from environment variables; None if it is alone.

    See `devices.distribute` for the variables; a multislice job of TPUs is not watched.
    """
    found = None
    if "JAX_COORDINATOR_ADDRESS" in env:
        found = (env.get("JAX_PROCESS_ID"), env.get("JAX_NUM_PROCESSES"))
    elif "MEGASCALE_COORDINATOR_ADDRESS" in env:
        return None
    elif int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        found = (env.get("SLURM_PROCID"), env["SLURM_STEP_NUM_TASKS"])
    elif int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        found = (env.get("OMPI_COMM_WORLD_RANK"), env["OMPI_COMM_WORLD_SIZE"])
    elif "TPU_WORKER_HOSTNAMES" in env:
        hosts = env["TPU_WORKER_HOSTNAMES"].split(",")
        found = (env.get("TPU_WORKER_ID"), f"{len(hosts)}")
    if found is None or not all(text is not None and text.isdecimal() for text in found):
        return None
    rank, size = (int(str(text)) for text in found)
    return Place(rank, size) if size > 1 else None


def supervise(
    arguments: Sequence[str], workdir: epath.Path, where: Place, *, preempted: int, failure: int
) -> int:
    """Runs `cluster-jax ARGUMENTS` as a child and watches the other processes; its exit code.

    Args:
        arguments: of the command.
        workdir: of the run, shared by all processes.
        where: this process.
        preempted: exit code of an interrupted command.
        failure: exit code where another process has ended.
    """
    folder = workdir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    told = _told(workdir, where)
    told.unlink(missing_ok=True)
    others = _Others(folder, where)
    child = _Child(arguments)
    interrupts: list[float] = []

    def stop(*of_signal: Any) -> None:
        interrupts.append(time.monotonic())
        with contextlib.suppress(OSError):  # as in `_Others.say`
            told.touch()
        child.interrupt(kill=len(interrupts) > 1)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while child.is_alive():
        time.sleep(_LOOK)
        others.say("running")
        ended = others.ended()
        if ended is None:
            continue
        if ended["state"] == "interrupted" and not interrupts:
            stop()
        if ended["state"] == "failed" or time.monotonic() - interrupts[0] > _GRACE:
            child.interrupt(kill=True)
    code = child.code()
    told.unlink(missing_ok=True)
    is_told = code in (preempted, 128 + signal.SIGINT)
    ended = None
    if code == 0:
        ended = others.end_of_first(_GRACE)
        if ended is None:
            child.finish(quiet=True)  # What looked fatal was not.
            others.say("done")
            return 0
    elif not is_told and not interrupts:
        ended = others.wait_for_end(_EXPLAIN)
    if is_told or interrupts or (ended is not None and ended["state"] == "interrupted"):
        others.say("interrupted")
        child.finish(quiet=not is_told)  # It may have lost the others, and tell of that.
        if not is_told:
            _print(f"Interrupted; {interrupt.AGAIN}.")
        return preempted
    child.finish(quiet=ended is not None)
    if ended is None:
        reason = child.reason()
        others.say("failed", f"process {where.rank} of {where.size} ended ({reason})")
        return failure if code < 0 else code
    others.say("failed", str(ended["cause"]))
    _print(f"error: {ended['cause']}; {interrupt.AGAIN}")
    return failure


def was_told(workdir: epath.Path) -> bool:
    """Whether this process of a job was interrupted, even if JAX took the signal for itself."""
    where = place()
    return where is not None and bool(os.environ.get(CHILD)) and _told(workdir, where).exists()


def _told(workdir: epath.Path, where: Place) -> epath.Path:
    """The file that is there before a child is interrupted."""
    return workdir / FOLDER / f"{where.rank}.told"


class _Child:
    """The command itself; its messages pass through, without those of a lost connection."""

    def __init__(self, arguments: Sequence[str]):
        command = [sys.executable, "-m", "cluster_jax.cli.app", *arguments]
        environment = {**os.environ, CHILD: "1"}
        # In a session of its own: a terminal sends Ctrl-C to all processes of one.
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._held: list[bytes] = []
        self._last = b""
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self, kill: bool) -> None:
        """Asks the child to end, or ends it."""
        if self.is_alive():
            self._process.kill() if kill else self._process.terminate()

    def code(self) -> int:
        code = self._process.wait()
        self._thread.join(timeout=5)
        return code

    def finish(self, quiet: bool) -> None:
        """Writes what was held back, if `quiet` only what Python code logged."""
        held = (x for x in self._held if not quiet or _OURS.match(x.lstrip(b"\r")))
        sys.stderr.buffer.write(b"".join(held))
        sys.stderr.flush()

    def reason(self) -> str:
        """Why the child ended, from its last line or its signal."""
        code = self._process.returncode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return self._last.decode(errors="replace").strip().removeprefix("error: ") or f"code {code}"

    def _forward(self) -> None:
        stream: IO[bytes] | None = self._process.stderr
        assert stream is not None
        fatal = False
        for line in _lines(stream):
            fatal = fatal or _FATAL.match(line.lstrip(b"\r")) is not None
            if line.strip():
                self._last = line
            if fatal:
                self._held.append(line)
            elif not _NOISE.match(line.lstrip(b"\r")):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()


class _Others:
    """Signs of life of this process, and those of the others."""

    def __init__(self, folder: epath.Path, where: Place):
        self._folder, self._where = folder, where
        pid = os.getpid()
        self._about = {**lock.machine(), "pid": pid, "started": lock.started(pid)}
        self._about["token"] = secrets.token_hex(8)
        self._beat, self._written = 0, ("", 0.0)
        # The first process looks at all; each of the others at the first alone.
        ranks = range(where.size) if where.rank == 0 else (0,)
        # What is there before is of an earlier job until it changes.
        self._first = {rank: self._read(rank) for rank in ranks if rank != where.rank}
        self._seen: dict[int, tuple[Any, float]] = {}
        self.say("running")

    def say(self, state: str, cause: str = "") -> None:
        """Writes a sign of life, at most every few seconds while the state is the same."""
        now = time.monotonic()
        if state == self._written[0] and now - self._written[1] < lock.BEAT / 2:
            return
        self._beat, self._written = self._beat + 1, (state, now)
        about = {**self._about, "beat": self._beat, "state": state, "cause": cause}
        file = self._folder / f"{self._where.rank}.json"
        partial = self._folder / f".{file.name}.{self._about['token']}.partial"
        try:
            partial.write_text(json.dumps(about))
            partial.replace(file)
        except OSError:  # The command itself tells of a folder that cannot be written.
            partial.unlink(missing_ok=True)

    def ended(self) -> dict[str, Any] | None:
        """What another process says that has ended otherwise than well; None if none has."""
        found = None
        for rank, first in self._first.items():
            about = self._read(rank)
            if about is None or (about == first and rank not in self._seen):
                continue
            if rank not in self._seen or self._seen[rank][0] != about:
                self._seen[rank] = (about, time.monotonic())
            if about.get("state") == "failed":
                return about
            if about.get("state") == "interrupted":
                found = about
            elif about.get("state") == "running" and self._is_dead(rank, about):
                host = about.get("host")
                cause = f"process {rank} of {self._where.size} on {host} ended without a word"
                return {"state": "failed", "cause": cause}
        return found

    def end_of_first(self, seconds: float) -> dict[str, Any] | None:
        """What the first process says, with which the others end; None if it ended well."""
        end = time.monotonic() + seconds
        ended = None
        while self._where.rank and ended is None and time.monotonic() < end:
            about, ended = self._read(0), self.ended()
            if about is not None and about != self._first[0] and about.get("state") == "done":
                break
            time.sleep(0.2)
        return ended

    def wait_for_end(self, seconds: float) -> dict[str, Any] | None:
        """What another process says within a time, or is found dead of; see `ended`."""
        end, ended = time.monotonic() + seconds, self.ended()
        while ended is None and time.monotonic() < end:
            time.sleep(0.2)
            ended = self.ended()
        return ended

    def _is_dead(self, rank: int, about: Mapping[str, Any]) -> bool:
        if all(about.get(key) == value for key, value in lock.machine().items()):
            return lock.started(int(about["pid"])) != about.get("started")
        return time.monotonic() - self._seen[rank][1] > lock.PATIENCE

    def _read(self, rank: int) -> dict[str, Any] | None:
        return lock.read(self._folder / f"{rank}.json")


def end_with_parent() -> None:
    """Ends this process with the one that watches it: the pipe between them closes."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    if os.environ.get(CHILD):
        threading.Thread(target=wait, daemon=True, name="parent").start()


@contextlib.contextmanager
def not_waiting(for_codes: Collection[int]) -> Iterator[None]:
    """Ends a child that fails inside at once.

    JAX would wait at its end for the other processes, which wait for this one in the next step.

    Args:
        for_codes: exit codes of commands that end together, and so wait.
    """
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        # Outside training an interruption ends one process alone.
        alone = isinstance(error.__context__, KeyboardInterrupt | interrupt.Terminated)
        if not os.environ.get(CHILD) or (code in for_codes and not alone):
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _lines(stream: IO[bytes]) -> Any:
    """Lines that end with a newline, or start with a carriage return, as a bar's do."""
    rest = b""
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]  # of a buffered reader
        *lines, rest = re.split(rb"(?<=\n)|(?=\r)", rest + chunk)
        yield from lines
        if rest.startswith(b"\r"):
            yield rest
            rest = b""
    if rest:
        yield rest


def _print(sentence: str) -> None:
    sys.stderr.write(f"\n{sentence}\n")
    sys.stderr.flush()
