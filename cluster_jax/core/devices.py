"""Devices and processes: CPU cores as JAX devices, several hosts as one job."""

import contextlib
import hashlib
import os
import platform
import signal
import threading
import warnings
from typing import Any

import jax

from cluster_jax.core.checks import InputError
from cluster_jax.core.logs import logger

# Seconds without a heartbeat after which a process counts as dead, and JAX ends the others.
HEARTBEAT_TIMEOUT = 20
# Seconds that a process waits for all others when it starts, and after which it says so.
START_TIMEOUT, PATIENCE = 300, 20
# Seconds that the other processes wait at the end for the first one.
SHUTDOWN_TIMEOUT = 24 * 3600
# Seconds of compilation above which a program is kept.
_LEAST = 0.2


def use_cores(batch_size: int) -> None:
    """Splits the CPU into JAX devices, at most one per core and one per 32 images of the batch.

    The number of devices divides the batch. XLA makes poor use of a second core for convolutions of
    small images: on two cores, a step of nrcc_digits is a third faster with two devices. The
    mathematics stays the same.
    """
    local = batch_size // int(os.environ.get("JAX_NUM_PROCESSES", 1))
    counts = range(1, cores() + 1)
    cpu_devices(max((n for n in counts if local % n == 0 and local // n >= 32), default=1))


def cores() -> int:
    """Counts the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_devices(count: int) -> None:
    """Splits the CPU into `count` JAX devices.

    Has no effect on TPU and GPU, if `JAX_NUM_CPU_DEVICES` is set, or after JAX has initialized its
    devices.
    """
    if jax.config.jax_num_cpu_devices < 0:  # type: ignore[attr-defined]  # not in its stub
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def keep_compiled() -> None:
    """Keeps compiled programs for the next start in the user's cache folder, by JAX's own cache.

    A cache that JAX was told of otherwise, by `JAX_COMPILATION_CACHE_DIR`, stays. What cannot be
    read in it is compiled again.
    """
    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]  # not in its stub
        return
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    folder = os.path.join(base, "cluster_jax", _machine())
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST)


def _machine() -> str:
    """Names the folder of programs that this processor runs and these versions have compiled."""
    about = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        about += [line for line in file.read().split("\n\n")[0].splitlines() if "flags" in line]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
    return f"jax-{jax.__version__}-{digest}"


def join() -> None:
    """Calls `distribute` for a command in which SIGTERM ends a process at once."""
    distribute()
    take_back_sigterm()


def take_back_sigterm() -> None:
    """Lets SIGTERM call Python's handler, also after JAX took it to agree on a step to save."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def is_first() -> bool:
    """Returns whether this process is the first of its job, or alone."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def say(text: str) -> None:
    """Logs a line of progress, of several processes in the first alone."""
    if is_first():
        logger.info("%s", text)


def distribute() -> None:
    """Initializes `jax.distributed` for a pod or a cluster job, if the environment announces one.

    `JAX_COORDINATOR_ADDRESS` with `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` announce a job (any
    cluster), several hosts in `TPU_WORKER_HOSTNAMES` or a multislice job (Cloud TPU), more than one
    task of SLURM or Open MPI. JAX's coordination service then ends all processes within a minute of
    the death of one. If a process does not start, the others say so, and JAX ends them after
    `START_TIMEOUT`.

    Raises:
        InputError: `JAX_COORDINATOR_ADDRESS` is set without the other two.
    """
    env = os.environ
    job: dict[str, Any] = {}
    if "JAX_COORDINATOR_ADDRESS" in env:  # JAX reads the address, but not the other two.
        for key in ("num_processes", "process_id"):
            if (name := f"JAX_{key.upper()}") not in env:
                raise InputError(f"{name} must be set with JAX_COORDINATOR_ADDRESS; got nothing")
            job[key] = int(env[name])
    is_announced = (
        job
        or len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        or int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
    )
    if not is_announced or jax.distributed.is_initialized():
        return
    minutes = f"at most {START_TIMEOUT / 60:g} minutes"
    text = f"this host waits for others that have not started this command, {minutes}"
    late = threading.Timer(PATIENCE, logger.warning, [text])
    late.daemon = True  # JAX may end the process meanwhile.
    late.start()
    try:
        jax.distributed.initialize(
            **job,
            initialization_timeout=START_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    finally:
        late.cancel()
    jax.devices()  # Now: a process waits at most two minutes here for all others.
