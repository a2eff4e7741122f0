"""Images per second of the training steps of several configs, measured alternately."""

import time
from collections.abc import Mapping

import jax
import numpy as np
from ml_collections import ConfigDict

from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step

ROUNDS, STEPS = 5, 30


def measure(configs: Mapping[str, ConfigDict]) -> dict[str, list[float]]:
    """Images per second of each config in each round, compilation excluded."""
    sides = {name: _prepare(config) for name, config in configs.items()}
    speeds: dict[str, list[float]] = {name: [] for name in configs}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start = time.perf_counter()
            _advance(side, STEPS)
            speeds[name].append(STEPS * side["batch"] / (time.perf_counter() - start))
    return speeds


def _prepare(config: ConfigDict) -> dict:
    built = build.build_run(parse_config(config)).training
    batch = built.train.batch_size
    index = np.random.default_rng(0).permutation(built.dataset.size)[:batch].astype(np.int32)
    images = built.dataset.images[index]
    rows = jax.device_put({"index": index, "image": images}, states.sharded(built.mesh))
    step = make_step(built.method, built.optimizer, built.mesh)
    side = {
        "state": build.initial_state(built),
        "step": lambda state: step(state, rows, None)[0],
        "batch": batch,
    }
    _advance(side, 1)
    return side


def _advance(side: dict, steps: int) -> None:
    for _ in range(steps):
        # Step by step: dozens in flight can deadlock (see training/progress.py).
        side["state"] = jax.block_until_ready(side["step"](side["state"]))
