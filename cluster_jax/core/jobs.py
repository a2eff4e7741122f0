"""What the environment says about a job of several processes; loads no JAX."""

import os
from typing import Any

from cluster_jax.core.checks import InputError


def announced() -> dict[str, Any] | None:
    """Returns arguments of `jax.distributed.initialize` for the job of this process.

    `JAX_COORDINATOR_ADDRESS` with `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` announce a job (any
    cluster), several hosts in `TPU_WORKER_HOSTNAMES` or a multislice job (Cloud TPU), more than one
    task of SLURM or Open MPI.

    Returns:
        Number and ID of the processes, or nothing where JAX detects them by itself; None: this
        process is alone.

    Raises:
        InputError: `JAX_COORDINATOR_ADDRESS` is set without the other two.
    """
    env, job = os.environ, dict[str, Any]()
    if "JAX_COORDINATOR_ADDRESS" in env:  # JAX reads the address, but not the other two.
        for key in ("num_processes", "process_id"):
            if (name := f"JAX_{key.upper()}") not in env:
                raise InputError(f"{name} must be set with JAX_COORDINATOR_ADDRESS; got nothing")
            job[key] = int(env[name])
    is_distributed = (
        job
        or len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        or int(env.get("SLURM_STEP_NUM_TASKS", 1)) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE", 1)) > 1
    )
    return job if is_distributed else None
