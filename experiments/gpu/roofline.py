"""`python -m experiments.gpu.roofline`: what to expect, written before anything is measured.

The least time of a step on a chip is the larger of its operations over the peak and its bytes over
the bandwidth. Operations are counted in the step as traced. Bytes count each output of a
convolution: written, read for BatchNorm's statistics, read and written by BatchNorm with ReLU, and
read by the next layer forward (5), and twice that backward; parameters and images are small beside
them. A target network passes forward only. Published rates of ResNets on such chips reach
about a third of that bound, hence `REACHED`.
"""

import argparse
import functools
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cluster_jax.core import io
from cluster_jax.nets.backbone import Layers
from cluster_jax.nets.norm import BatchNorm
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from experiments.benchmark.steps import TARGET
from experiments.gpu import order, rates, settings
from experiments.gpu.chips import CHIPS

FILE = pathlib.Path(__file__).parent / "predictions.json"
REACHED = 0.3
FORWARD, BACKWARD = 5, 10  # passes over an output of a convolution
# The Monte Carlo view needs no gradient at the images; SGHMC and HMC add one backward pass to the
# images, HMC one forward pass more; each sampled view is embedded by the target network.
SAMPLED = {
    None: 0,
    "monte_carlo": 2 * FORWARD,
    "sghmc": FORWARD + BACKWARD,
    "hmc": 2 * FORWARD + BACKWARD,
}
MINUTES, TRAINING_SHARE, TRAINING_IMAGES = 25, 0.6, 60_000
NRCC_RATIO = 1.25


def predict(item: Mapping[str, Any]) -> dict[str, Any]:
    """Operations and bytes of an item's image, and the images/s to expect on each chip."""
    config = settings.config_of(item, tiny=False)
    run = settings.build_run(config, settings.images_for(item, tiny=False)).training
    state = jax.eval_shape(
        lambda: states.initial(run.method, run.optimizer, seed=0, shape=run.shape)
    )
    stream = rates.endless(run)
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    lowered = make_step(run.method, run.optimizer, run.mesh).lower(state, next(stream), resident)
    flops = lowered.cost_analysis()["flops"] / item["batch"]
    width = 2 if item["dtype"] == "bfloat16" else 4
    backbone = parse_config(config).network.backbone()
    elements = _outputs(backbone.module, run.shape)
    passes = 2 * (FORWARD + BACKWARD) + SAMPLED[item.get("sampler")]
    passes += 2 * FORWARD if item["method"] in TARGET else 0
    moved = passes * width * elements
    expected = {}
    for name, chip in CHIPS.items():
        peak = chip.flops if width == 2 else chip.flops / 2
        bound = 1 / max(flops / peak, moved / chip.bandwidth)
        expected[name] = {"bound": bound, "images_per_second": REACHED * bound}
    return {"gflops_per_image": flops / 1e9, "megabytes_per_image": moved / 1e6, **expected}


def main() -> None:
    """Writes the predictions of all rates of the order."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu.roofline")
    parser.parse_args()
    items = [item for item in order.load() if item["kind"] == "rate"]
    predictions = {item["name"]: predict(item) for item in items}
    seconds = 60 * MINUTES * TRAINING_SHARE
    epochs = {}
    for chip in CHIPS:
        rate = predictions["byol resnet18 bfloat16 256"][chip]["images_per_second"]
        epochs[chip] = math.floor(seconds * rate / TRAINING_IMAGES)
    result = {
        "rates": predictions,
        "nrcc_over_byol": NRCC_RATIO,
        "ncc_resnet18_epochs_in_25_minutes": epochs,
        "reached": REACHED,
        "how": " ".join(__doc__.split("\n\n")[1].split()),
    }
    io.write_json(FILE, result)
    print(json.dumps(io.plain(result), indent=2))


def _outputs(module: Any, shape: tuple[int, int, int]) -> int:
    """Entries of all outputs of convolutions for one image."""
    norm = functools.partial(BatchNorm, False, None, None, None)
    net = module(Layers(norm, norm, 0, None))

    def convolutions(layer: nn.Module, method: str) -> bool:
        return isinstance(layer, nn.Conv) and method == "__call__"

    def run(key: jax.Array) -> Any:
        return net.init_with_output(
            key, jnp.zeros((1, *shape)), capture_intermediates=convolutions
        )[1]["intermediates"]

    leaves = jax.tree.leaves(jax.eval_shape(run, jax.random.key(0)))
    return sum(math.prod(leaf.shape) for leaf in leaves)


if __name__ == "__main__":
    main()
