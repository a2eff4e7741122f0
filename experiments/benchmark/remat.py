"""Memory of a training step with and without `train.remat`, as the compiler plans it for a CPU.

BYOL + NRCC of `nrcc_cifar10` with a ResNet-18 of width 16 and 64 images; nothing is run. Megabytes
are those of all temporary values, beside state and batch.
"""

from typing import Any

import jax
import jax.numpy as jnp

from cluster_jax.core.config import load_config, override
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step

ROWS, SIDE, WIDTH = 64, 32, 16


def measure() -> dict[str, Any]:
    """Megabytes and operations of each step."""
    return {f"remat={remat}": _planned(remat) for remat in (False, True)}


def _planned(remat: bool) -> dict[str, float]:
    config, mesh = load_config("nrcc_cifar10"), states.make_mesh(1)
    for key, value in {
        "network.name": "resnet18",
        "network.width": WIDTH,
        "train.batch_size": ROWS,
        "train.remat": remat,
        "data.image_size": SIDE,
    }.items():
        override(config, key, value)
    images = {"size": 50_000, "shape": [SIDE, SIDE, 3], "mean": (0.5,) * 3, "std": (0.25,) * 3}
    run = build.rebuild_run(parse_config(config), images).training._replace(mesh=mesh)
    batch = {
        "index": jax.ShapeDtypeStruct((ROWS,), jnp.int32),
        "image": jax.ShapeDtypeStruct((ROWS, SIDE, SIDE, 3), jnp.uint8),
    }
    step = make_step(run.method, run.optimizer, mesh)
    lowered = step.lower(build.abstract_state(run), batch, None)
    memory, operations = lowered.compile().memory_analysis(), lowered.cost_analysis()["flops"]
    return {"megabytes": memory.temp_size_in_bytes / 1e6, "gigaflop": operations / 1e9}
