"""The whole order on the CPU with tiny sizes: killed once in a training, then completed."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from cluster_jax.core.checks import InputError
from experiments.gpu import images, order, pieces, settings, slices

MINUTES = 10.0
PIECE_MB = 0.1
LIMIT = 900  # seconds; only a process that hangs reaches it


def main() -> None:
    """Runs the order in a process that is killed, then in one that goes on.

    Raises:
        InputError: an item was not completed; names it.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out, data = pathlib.Path(folder) / "out", pathlib.Path(folder) / "data"
        made = settings.generated(settings.TINY_IMAGES, settings.TINY_SIDE, False)
        content = images.pack(made.images, made.labels, tuple("0123456789"))
        pieces.split(content, data, {"kind": "images", "name": "generated"}, PIECE_MB)
        _until_killed(out, data)
        before = _finished(out)
        print(f"killed after {len(before)} results; going on", flush=True)
        subprocess.run(_command(out, data), env=_environment(out), check=True, timeout=LIMIT)
        missing = [
            item["name"] for item in order.load(tiny=True) if item["name"] not in _finished(out)
        ]
        if missing:
            raise InputError(
                f"the dry run must complete every item; not done: {', '.join(missing)}"
            )
        failed = [
            name for name, entry in slices.results(out).items() if "error" in entry["figures"]
        ]
        if failed:
            raise InputError(f"every item of the dry run must succeed; failed: {', '.join(failed)}")
        print((out / "tables.md").read_text())
    print(f"dry run: {time.monotonic() - start:.0f} s")


def child(out: str, data: str) -> None:
    """One slice with tiny sizes."""
    dataset = images.load(pathlib.Path(data))
    items = order.load(tiny=True)
    slices.run(pathlib.Path(out), MINUTES, items, dataset=dataset, resume=None, tiny=True)


def _until_killed(out: pathlib.Path, data: pathlib.Path) -> None:
    """Runs a slice and kills it as soon as a training has a checkpoint."""
    process = subprocess.Popen(_command(out, data), env=_environment(out))
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < deadline:
        if any((out / "train").glob("*/checkpoints/[0-9]*")):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(0.05)
    process.kill()
    raise InputError(f"a training must begin within {LIMIT} s; the process ended without one")


def _finished(out: pathlib.Path) -> set[str]:
    return {name for name, entry in slices.results(out).items() if entry["complete"]}


def _command(out: pathlib.Path, data: pathlib.Path) -> list[str]:
    return [sys.executable, "-m", "experiments.gpu.dry_run", str(out), str(data)]


def _environment(out: pathlib.Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        # Compiling is most of the time; the steps are few.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(out / "cache"),
    }


if __name__ == "__main__":
    child(*sys.argv[1:])
