"""`python -m experiments.gpu.hlo`: what can be known of the step on a GPU without one.

Read off the BYOL step (ResNet-18, 32 px, batch 256, bfloat16) as traced and as compiled for the
CPU: dtypes and layouts of the convolutions, whether the state is updated in place, what the
augmentation costs, what a gather of the resident images costs. Written to `hlo.json`.
"""

import collections
import dataclasses
import functools
import json
import math
import pathlib
import re
import time
from typing import Any

import jax
import jax.numpy as jnp

from cluster_jax.core import io
from cluster_jax.data import views
from cluster_jax.methods import base
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from experiments import machine
from experiments.gpu import rates, settings
from experiments.gpu.chips import CHIPS

FILE = pathlib.Path(__file__).parent / "hlo.json"
ITEM = {"method": "byol", "network": "resnet18", "dtype": "bfloat16", "batch": 256}
TARGET_RATE = 50_000  # images/s


def measure() -> dict[str, Any]:
    """All figures."""
    config = settings.config_of(ITEM, tiny=False)
    run = settings.build_run(config, settings.images_for(ITEM, tiny=False)).training
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    step = make_step(run.method, run.optimizer, run.mesh)
    start = time.perf_counter()
    lowered = step.lower(state, next(rates.endless(run)), resident)
    traced = time.perf_counter() - start
    start = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - start
    text = lowered.as_text()
    sizes = compiled.memory_analysis()
    state_bytes = sum(_bytes(leaf) for leaf in jax.tree.leaves(state))
    return {
        "convolutions": convolutions(text),
        "host_callbacks": len(re.findall("callback|infeed|outfeed", text)),
        "state_mb": state_bytes / 1e6,
        "updated_in_place_mb": sizes.alias_size_in_bytes / 1e6,
        "augmentation": augmentation(config),
        "gather": gather(resident),
        "trace_seconds": traced,
        "compile_seconds_cpu": seconds,
    }


def convolutions(text: str) -> dict[str, int]:
    """Number of convolutions of a StableHLO text by result dtype and layout of images."""
    counts: dict[str, int] = collections.Counter()
    for line in text.splitlines():
        if "stablehlo.convolution" in line:
            dtype = re.findall(r"-> tensor<[0-9x]*x(\w+)>", line)[0]
            layout = re.findall(r"dim_numbers = (\[[^\]]*\])", line)[0]
            counts[f"{dtype} {layout}"] += 1
    return dict(counts)


def augmentation(config: Any) -> dict[str, Any]:
    """Cost of the two views of an image, and what they take of a chip at the target rate."""
    section = parse_config(config).augment
    mean = (0.5, 0.5, 0.5)
    augment = views.make(dataclasses.replace(section, mean=mean, std=mean))
    batch = {
        "index": jax.ShapeDtypeStruct((ITEM["batch"],), jnp.int32),
        "image": jax.ShapeDtypeStruct((ITEM["batch"], 32, 32, 3), jnp.uint8),
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    two = jax.jit(functools.partial(base.two_views, augment)).lower(key, batch).compile()
    cost = two.cost_analysis()
    moved, flops = (cost[name] / ITEM["batch"] for name in ("bytes accessed", "flops"))
    chip = CHIPS["H100"]
    return {
        "kilobytes_per_image": moved / 1e3,
        "megaflops_per_image": flops / 1e6,
        # Not on the tensor cores: the vector units' float32 is 67 TFLOP/s.
        "share_of_h100": TARGET_RATE * (moved / chip.bandwidth + flops / 67e12),
    }


def gather(resident: jax.ShapeDtypeStruct) -> dict[str, float]:
    """Bytes that a gather of a batch reads, against those of the rows."""
    index = jax.ShapeDtypeStruct((ITEM["batch"],), jnp.int32)
    taken = jax.jit(lambda images, index: images[index]).lower(resident, index).compile()
    rows = ITEM["batch"] * math.prod(resident.shape[1:])
    return {
        "temporary_mb": taken.memory_analysis().temp_size_in_bytes / 1e6,
        "rows_mb": rows / 1e6,
        "resident_mb": _bytes(resident) / 1e6,
    }


def _bytes(leaf: Any) -> int:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def main() -> None:
    """Writes and prints the figures."""
    origin = {
        "command": "python -m experiments.gpu.hlo",
        "machine": machine.describe(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
    }
    result = io.plain({"figures": measure(), "provenance": origin})
    io.write_json(FILE, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
