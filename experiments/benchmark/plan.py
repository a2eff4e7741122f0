"""Weak scaling of nrcc_imagenet by its plan: 16 and 256 chips of TPU v5e, 64 images a chip.

Compiled ahead of time, nothing is run: `TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu` and the extra
`tpu`. Predicted before the compilation: the work of a chip does not change, a ring's share of an
all-reduce grows from 15/16 to 255/256, so that 256 chips lose 0.1 % of the images/s of a chip.
"""

import os
import time
from typing import Any

from cluster_jax.core.config import load_config
from cluster_jax.pipeline import plan
from cluster_jax.pipeline.config import parse_config

CHIPS, ROWS, IMAGES = {"v5e:4x4": 16, "v5e:16x16": 256}, 64, 1_281_167
PREDICTED_LOSS = 0.001


def measure() -> dict[str, Any]:
    """What each plan says, seconds to make it, and the share of images/s a chip that is lost."""
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    plans, rates = {}, []
    for topology, chips in CHIPS.items():
        started, cpu = time.perf_counter(), time.process_time()
        config = load_config("nrcc_imagenet")
        config.train.batch_size = ROWS * chips
        found = plan.plan(parse_config(config), topology, IMAGES)
        rates.append(ROWS / found.step_seconds)
        plans[topology] = {
            **found._asdict(),
            "roofline_seconds": found.seconds,
            "images_per_second_and_chip": rates[-1],
            "gigabytes_per_chip": sum(found.memory.values()) / 1e9,
            "compiled_in_seconds": time.perf_counter() - started,
            "compiled_in_cpu_seconds": time.process_time() - cpu,
        }
    return {"loss": 1 - rates[1] / rates[0], "plans": plans}
