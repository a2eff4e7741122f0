"""A bucket on a storage server of the loopback: requests, a kill, and the second start.

The server is that of the tests (`tests/faults/gcs_server.py`), not Google's. The training is that
of a small network on scikit-learn's digits. Needs the extra `gcs`.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from tests.faults.gcs_server import CUT, Server, every

STEPS, FAILING = 1_000, 20
FLAGS = (
    "train", "--config=nrcc_digits", "--config.network.width=4",
    "--config.network.projector.hidden=16", "--config.network.projector.out=8",
    "--config.train.batch_size=32", "--config.optimizer.warmup=1 step",
    "--config.eval.reduce.method=pca", "--config.eval.linear_probe.epochs=1",
    "--config.data.limit=400", f"--config.train.duration={STEPS} steps",
    f"--config.train.checkpoint_every={STEPS // 4}",
)  # fmt: skip
SAME = ("embedding.npz", "clusters.npz", "assignments.csv")
_CHECKPOINTS = "checkpoints"


def measure() -> dict[str, Any]:
    """Requests of a training, a kill, and seconds to the first step."""
    server = Server("bucket")
    os.environ.update(server.environment)
    try:
        return {
            "load_average": os.getloadavg()[0],
            "training": _training(server),
            "kill": _kill(server),
            "seconds_to_first_step": _starts(),
        }
    finally:
        server.close()


def _start(workdir: str, *more: str, **variables: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "cluster_jax.cli.app", *FLAGS, f"--workdir={workdir}", *more]
    env = {**os.environ, **variables}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _succeed(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(errors.decode())


def _training(server: Server) -> dict[str, Any]:
    server.requests.clear()
    _succeed(_start("gs://bucket/whole"))
    beside = server.count(without=_CHECKPOINTS)
    return {"requests": beside, "of_4_checkpoints": server.count() - beside}


def _kill(server: Server) -> dict[str, Any]:
    """SIGKILL once a checkpoint is there, and the same command again; requests fail throughout."""
    server.faults.append(every(FAILING, (503, CUT, 429)))
    server.requests.clear()
    process = _start("gs://bucket/killed")
    committed = f"{_CHECKPOINTS}/{STEPS // 4}/commit_success.txt"
    while committed not in server.files("bucket/killed/"):
        if process.poll() is not None:
            raise RuntimeError(process.communicate()[1].decode())
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = sorted(name.split("/")[0] for name in server.files("bucket/killed/"))
    _succeed(_start("gs://bucket/killed"))
    server.faults.clear()
    one, two = server.files("bucket/whole/"), server.files("bucket/killed/")
    return {
        "failing_requests": server.count() // FAILING,
        "left_by_the_kill": sorted({*left}),
        "same_bit_for_bit": {name: one[name] == two[name] for name in SAME},
    }


def _starts() -> dict[str, float]:
    """The configuration of the README, with an empty cache and then with what it holds."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cache in (("without", "None"), ("first", "auto"), ("second", "auto")):
            start, seen = time.perf_counter(), b""
            command = [
                sys.executable, "-m", "cluster_jax.cli.app", "train", "--config=nrcc_digits",
                f"--workdir={folder}/{name}", f"--config.train.compilation_cache={cache}",
            ]  # fmt: skip
            kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
            env = {**kept, "XDG_CACHE_HOME": folder}
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0
            )
            assert process.stderr is not None
            compiling = 0.0
            while not re.search(rb"\b1/\d+ ", seen):
                if not (more := process.stderr.read(1)):
                    raise RuntimeError(seen.decode())
                seen += more
                if not compiling and b"compiling" in seen:
                    compiling = time.perf_counter()
            now = time.perf_counter()
            found[name] = now - compiling
            found[f"{name}, with imports, images and checks"] = now - start
            process.send_signal(signal.SIGKILL)
            process.communicate()
            # What is kept is written after the step.
    return found
