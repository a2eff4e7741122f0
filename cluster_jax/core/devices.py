"""Devices and processes: CPU cores as JAX devices, several hosts as one job."""

import contextlib
import os
from typing import Any

import jax

from cluster_jax.core.checks import InputError

# Seconds without a heartbeat after which a process counts as dead, and JAX ends the others.
HEARTBEAT_TIMEOUT = 20
# Seconds that the other processes wait at the end while the first one clusters and reports.
SHUTDOWN_TIMEOUT = 24 * 3600


def use_cores(batch_size: int) -> None:
    """Splits the CPU into JAX devices, at most one per core and one per 32 images of the batch.

    The number of devices divides the batch. XLA makes poor use of a second core for convolutions of
    small images: on two cores, a step of nrcc_digits is a third faster with two devices. The
    mathematics stays the same.
    """
    processes = int(os.environ.get("JAX_NUM_PROCESSES", 1))
    batch_size = batch_size // processes
    counts = range(1, cores() + 1)
    valid = [n for n in counts if batch_size % n == 0 and batch_size // n >= 32]
    cpu_devices(max(valid, default=1))


def cores() -> int:
    """Number of cores that this process may use."""
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


def distribute() -> None:
    """Initializes `jax.distributed` for a pod or a cluster job of more than one process.

    JAX's coordination service then ends all processes within a minute of the death of one.

    Environment variables announce the job: `JAX_COORDINATOR_ADDRESS` with `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` (any cluster), several hosts in `TPU_WORKER_HOSTNAMES` or a multislice job
    (Cloud TPU), more than one task of SLURM or Open MPI.

    Raises:
        InputError: `JAX_COORDINATOR_ADDRESS` is set without the other two.
    """
    env = os.environ
    coordinator: dict[str, Any] = {}  # If empty, JAX detects address, number and ID by itself.
    if "JAX_COORDINATOR_ADDRESS" in env:
        for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
            if name not in env:
                raise InputError(f"{name} must be set with JAX_COORDINATOR_ADDRESS; got nothing")
        coordinator = {
            "coordinator_address": env["JAX_COORDINATOR_ADDRESS"],
            "num_processes": int(env["JAX_NUM_PROCESSES"]),
            "process_id": int(env["JAX_PROCESS_ID"]),
        }
    is_distributed = (
        coordinator
        or len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        or int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
    )
    if is_distributed:
        jax.distributed.initialize(
            **coordinator,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
        jax.devices()  # Now: a process waits at most two minutes here for all others.
