"""Several processes of one job, such as the hosts of a pod: the first leads, the others follow.

The first process has the rows of a computation, and each process gets those of its own devices.
Processes exchange arrays and names of functions of this package; nothing is ever unpickled.
"""

import contextlib
import importlib
import io
import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array
from jax._src import distributed
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

# Bytes that are sent at once.
_BLOCK = 2**26
_PACKAGE = __name__.partition(".")[0]
_A_DAY = 24 * 3600 * 1000  # in milliseconds
# Seconds that the others wait for the first process altogether while it computes alone.
LONGEST_WAIT = 15 * 60
# Each barrier has a name of its own; all processes pass the same ones in the same order.
_BARRIERS = itertools.count()


class WaitedTooLong(Exception):
    """The first process has computed alone for too long, and the job ends in all processes."""

    exit_code = 75  # of a command that it ends: the same command goes on


class _Clock:
    """Measures how long the others wait for the first process, and interrupts it in the end.

    A call of a library that runs then, in C, is interrupted when it returns.

    Attributes:
        left: seconds that they still wait; None: as long as it takes.
    """

    def __init__(self) -> None:
        self.left: float | None = None
        self._runs = False

    def run(self) -> None:
        """Starts it, or lets it go on."""
        if self.left is not None and threading.current_thread() is threading.main_thread():
            self._runs = True
            signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, max(self.left, 0.001))

    def pause(self) -> None:
        """Stops it, for example while all processes compute."""
        if self._runs:
            self._runs = False
            self.left, _ = signal.setitimer(signal.ITIMER_REAL, 0)

    def _end(self, number: int, frame: object) -> None:
        if self._runs:
            self._runs = False
            raise WaitedTooLong(_too_long())


def _too_long() -> str:
    return (
        f"the other hosts have waited {LONGEST_WAIT / 60:g} minutes for the first one, which has "
        "not clustered yet: run the same command on one machine, or set eval.sample to the number "
        "of images that it clusters, and they wait until it is done"
    )


_CLOCK = _Clock()


def wait_for_all(name: str) -> None:
    """Waits until all processes are here, a day if need be.

    A collective operation, which the first of them to come would start, waits half a minute only.
    """
    if jax.process_count() > 1:
        # JAX has no public barrier of its coordination service; Orbax takes this one, too.
        client = distributed.global_state.client
        assert client is not None  # There are several processes.
        client.wait_at_barrier(f"{_PACKAGE} {name} {next(_BARRIERS)}", _A_DAY)


def mesh_of_all() -> Mesh | None:
    """Returns a mesh of the devices of all processes; None for a single process."""
    if jax.process_count() == 1:
        return None
    return Mesh(np.array(jax.devices()), ("rows",))


def from_first(arrays: Mapping[str, NDArray] | None) -> dict[str, NDArray]:
    """Returns the arrays of the first process, in all processes, which call this together.

    Args:
        arrays: by name; ignored in all processes but the first.
    """
    content = b""
    if arrays is not None and jax.process_index() == 0:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its options are among the arrays
        content = buffer.getvalue()
    # JAX has no 64-bit integers by default.
    sizes = _sent(np.array(divmod(len(content), 2**31), np.uint32))
    size = int(sizes[0]) * 2**31 + int(sizes[1])
    own = np.frombuffer(content, np.uint8)
    parts = []
    for start in range(0, size, _BLOCK):
        count = min(_BLOCK, size - start)
        block = np.zeros(-(-count // 4) * 4, np.uint8)
        block[: len(own[start : start + count])] = own[start : start + count]
        parts.append(_sent(block.view(np.uint32)).tobytes()[:count])
    with np.load(io.BytesIO(b"".join(parts)), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _sent(words: NDArray) -> NDArray:
    """Returns the uint32 words of the first process; those of the others have the same shape."""
    return np.asarray(multihost_utils.broadcast_one_to_all(words))


class Spread:
    """Rows float `[n, d]` of the first process, of which each process has those of its devices.

    All processes call the constructor, `mean`, `min`, `max` and `rows[INDICES]` together. A slice
    is read by one process alone, and holds rows of one of its devices: device i of the mesh has the
    i-th part of the rows, of n / devices rounded up.

    Args:
        rows: the rows; None in all processes but the first.
        mesh: the devices of all processes.
    """

    def __init__(self, rows: NDArray | None, mesh: Mesh) -> None:
        self._all = rows
        about = None
        if rows is not None:
            about = {"shape": np.array(rows.shape), "dtype": np.array(rows.dtype.str)}
        known = from_first(about)
        self.shape = tuple(known["shape"].tolist())
        self.dtype = np.dtype(known["dtype"].item())
        n, d = self.shape
        local = -(-n // mesh.size)
        step = max(1, _BLOCK // max(1, d * self.dtype.itemsize))
        self._own = dict[int, NDArray]()
        for i, device in enumerate(mesh.devices.ravel()):
            first, stop = min(n, i * local), min(n, (i + 1) * local)
            is_own = device.process_index == jax.process_index()
            parts = [np.zeros((0, d), self.dtype)]
            for start in range(first, stop, step):
                block = self[np.arange(start, min(start + step, stop))]
                if is_own and rows is None:
                    parts.append(block)
            if is_own:
                self._own[first] = np.concatenate(parts) if rows is None else rows[first:stop]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> NDArray:
        """Reads the rows of a slice, or in all processes those of an array of indices."""
        if isinstance(index, slice):
            first = max((start for start in self._own if start <= index.start), default=0)
            return self._own[first][index.start - first : index.stop - first]
        return self._from_first(lambda rows: rows[index])

    def mean(self, axis: int, dtype: Any = None) -> NDArray:
        """Returns the mean over an axis, as of an array."""
        return self._from_first(lambda rows: rows.mean(axis=axis, dtype=dtype))

    def min(self, axis: int) -> NDArray:
        """Returns the lowest numbers along an axis."""
        return self._from_first(lambda rows: rows.min(axis=axis))

    def max(self, axis: int) -> NDArray:
        """Returns the highest numbers along an axis."""
        return self._from_first(lambda rows: rows.max(axis=axis))

    def _from_first(self, read: Callable[[NDArray], NDArray]) -> NDArray:
        """Returns what a function of all rows returns, computed by the process that has them."""
        return from_first(None if self._all is None else {"rows": read(self._all)})["rows"]


def placed(rows: NDArray | Spread, mesh: Mesh) -> Array:
    """Puts rows `[n, d]` on the devices of a mesh of one axis, which share them.

    Zeros fill the last ones: each device has n / devices rows, rounded up.
    """
    n, d = rows.shape
    local = -(-n // mesh.size)

    def of_device(index: Any) -> NDArray:
        low, high, _ = index[0].indices(local * mesh.size)
        part = rows[slice(min(low, n), min(high, n))]
        missing = high - low - len(part)
        # Many rows are not copied without need.
        return np.pad(part, ((0, missing), (0, 0))) if missing else part

    sharding = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
    return jax.make_array_from_callback((local * mesh.size, d), sharding, of_device)


def on_all(
    function: Callable[..., Any], mesh: Mesh | None, rows: NDArray, *arrays: NDArray, **options: Any
) -> Any:
    """Returns `function(rows, *arrays, mesh=mesh, **options)`, computed by all processes.

    The first process calls this inside `leading`, while the others are in `follow`. There `rows`
    are a `Spread`.

    Args:
        function: a function of a module of this package.
        mesh: the devices of all processes; None: this process computes alone.
        rows: `[n, d]`.
        arrays: further arrays, which all processes get.
        options: JSON values.
    """
    if mesh is None:
        return function(rows, *arrays, mesh=None, **options)
    message = {"module": function.__module__, "function": function.__name__, "options": options}
    _CLOCK.pause()
    _send(message, arrays)
    result = function(Spread(rows, mesh), *arrays, mesh=mesh, **options)
    _CLOCK.run()
    return result


def _send(message: Mapping[str, Any], arrays: tuple[NDArray, ...] = ()) -> None:
    """Sends a message from the first process to those that are in `follow`."""
    wait_for_all("message")
    numbered = {str(i): np.asarray(array) for i, array in enumerate(arrays)}
    from_first({"message": np.array(json.dumps(message)), **numbered})


@contextlib.contextmanager
def leading(limited: bool = True) -> Iterator[None]:
    """Ends `follow` in the other processes afterwards, unless there is an error.

    An error ends this process, and JAX's coordination service then ends the others.

    Args:
        limited: whether the others wait at most `LONGEST_WAIT` while this process computes alone.

    Raises:
        WaitedTooLong: they have waited that long; it is raised in all processes.
    """
    if jax.process_count() == 1:
        yield
        return
    _CLOCK.left = LONGEST_WAIT if limited else None
    _CLOCK.run()
    try:
        yield
    except WaitedTooLong:
        _send({"module": None, "in_time": False})
        raise
    finally:
        _CLOCK.pause()
    _send({"module": None, "in_time": True})


def follow() -> None:
    """Computes with the first process, see `on_all`, until that leaves `leading`.

    Raises:
        WaitedTooLong: see `leading`.
    """
    mesh = mesh_of_all()
    assert mesh is not None  # The first process does not follow.
    while True:
        wait_for_all("message")
        received = from_first(None)
        message = json.loads(received.pop("message").item())
        module = message["module"]
        if module is None:
            if not message["in_time"]:
                raise WaitedTooLong(_too_long())
            return
        assert module.partition(".")[0] == _PACKAGE, module
        function = getattr(importlib.import_module(module), message["function"])
        arrays = (received[str(i)] for i in range(len(received)))
        function(Spread(None, mesh), *arrays, mesh=mesh, **message["options"])
