"""Devices and processes: the cores of a CPU as devices, and joining the hosts of a pod."""

import contextlib
import os

import jax

from cluster_jax.core.checks import InputError

# Seconds that the other processes wait at the end while the first one clusters and reports.
PATIENCE = 24 * 3600


def use_cores(batch_size: int) -> None:
    """Makes one CPU device of each core, as far as the batch divides and leaves each 32 images.

    XLA uses a second core badly for the convolutions of small images; spread over devices, a
    step of nrcc_digits is a third faster on two cores. The mathematics stays the same.
    """
    processes = int(os.environ.get("JAX_NUM_PROCESSES", 1))
    batch_size = batch_size // processes
    fitting = [n for n in range(1, cores() + 1) if batch_size % n == 0 and batch_size // n >= 32]
    cpu_devices(max(fitting, default=1))


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_devices(count: int) -> None:
    """Makes `count` JAX devices of the CPU.

    Without effect on TPU and GPU, where a number is set already (`JAX_NUM_CPU_DEVICES`), and once
    JAX is at work.
    """
    if jax.config.jax_num_cpu_devices < 0:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def distribute() -> None:
    """Joins the processes of a pod or a cluster job, where there is more than one.

    Told by the environment: `JAX_COORDINATOR_ADDRESS` with `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` (any cluster), several hosts in `TPU_WORKER_HOSTNAMES` or a multi-slice
    (Cloud TPU), more than one task of SLURM or Open MPI.
    """
    env = os.environ
    if "JAX_COORDINATOR_ADDRESS" in env:
        for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
            if name not in env:
                raise InputError(f"JAX_COORDINATOR_ADDRESS is set, but {name} is not")
        jax.distributed.initialize(
            env["JAX_COORDINATOR_ADDRESS"],
            num_processes=int(env["JAX_NUM_PROCESSES"]),
            process_id=int(env["JAX_PROCESS_ID"]),
            shutdown_timeout_seconds=PATIENCE,
        )
        return
    several = (
        len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        or int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
    )
    if several:
        jax.distributed.initialize(shutdown_timeout_seconds=PATIENCE)
