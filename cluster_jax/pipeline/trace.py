"""Traces what a run will compute, to find parts that do not work together; computes nothing."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from cluster_jax.core import checks, limits
from cluster_jax.data import batches
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import options
from cluster_jax.training import state as states
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.step import make_step


def try_step(run: TrainingRun) -> None:
    """Traces a step, which raises if parts of the run do not work together."""
    batch: dict[str, Any] = {}
    parts = batches.parts(run.dataset, run.train.batch_size, run.train.labeled_batch_size)
    for name, (_, count) in parts.items():
        states.check_batch(count, run.mesh)
        batch[name] = {
            "index": jax.ShapeDtypeStruct((count,), jnp.int32),
            "image": jax.ShapeDtypeStruct((count, *run.dataset.batch_shape), _dtype(run.dataset)),
        }
        if name == "labeled":
            batch[name]["label"] = jax.ShapeDtypeStruct((count,), jnp.int32)
    batch = batch.get("all", batch)
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    _check_memory(run, state)
    jax.eval_shape(make_step(run.method, run.optimizer, run.mesh), state, batch, None)


def _check_memory(run: TrainingRun, state: Any) -> None:
    """Raises an `InputError` if the state alone does not fit; CPU devices share one memory."""
    sizes = {
        jax.tree_util.keystr(path, simple=True, separator="."): math.prod(x.shape) * 4
        for path, x in jax.tree.leaves_with_path(state)
    }
    largest = max(sizes, key=lambda name: sizes[name])
    copies = run.mesh.size if jax.default_backend() == "cpu" else 1
    limits.check_memory(
        "the network and the method",
        f"{largest} of {sizes[largest] / 1e9:,.1f} GB",
        copies * sum(sizes.values()),
        "parameters, optimizer and queues",
    )


def check_features(run: TrainingRun, features: str) -> None:
    """Raises an `InputError` unless the method embeds `features`, the config's `eval.features`."""
    images = jax.ShapeDtypeStruct((1, *run.dataset.shape), _dtype(run.dataset))

    def embed(images: jax.Array) -> dict[str, jax.Array]:
        state = states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
        return run.method.embed(state.params, state.model_state, images)

    embedded = jax.eval_shape(embed, images)
    choices = tuple(name for name in options.FEATURES if name in embedded)
    checks.one_of("eval.features", features, choices)


def _dtype(dataset: Dataset) -> Any:
    return jnp.uint8 if dataset.has_images else jnp.float32
