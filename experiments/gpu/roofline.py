"""`python -m experiments.gpu.roofline`: what to expect, written before anything is measured.

The least time of a step on a chip is the larger of its operations over the peak and its bytes over
the bandwidth. Operations are counted in the step as traced. Bytes count each output of a
convolution: written, read for BatchNorm's statistics, read and written by BatchNorm with ReLU, and
read by the next layer forward (5), and twice that backward; parameters and images are small beside
them. A target network passes forward only. Published rates of ResNets on such chips reach
about a third of that bound, hence `REACHED`. The epochs of NCC leave out its E-steps and the
evaluations.
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
from experiments.benchmark.steps import TARGET
from experiments.gpu import chips, order, rates, settings

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
BYOL, NRCC, NCC = (
    f"{name} resnet18 bfloat16 256" for name in ("byol", "byol + nrcc (sghmc)", "ncc")
)


def predict(item: Mapping[str, Any]) -> dict[str, Any]:
    """Operations and bytes of an item's image, and the images/s to expect on each chip."""
    config = settings.config_of(item, tiny=False)
    run = settings.build_run(config, settings.images_for(item, tiny=False)).training
    flops = rates.operations(run)
    width = 2 if item["dtype"] == "bfloat16" else 4
    backbone = parse_config(config).network.backbone()
    elements = _outputs(backbone.module, run.shape)
    passes = 2 * (FORWARD + BACKWARD) + SAMPLED[item.get("sampler")]
    passes += 2 * FORWARD if item["method"] in TARGET else 0
    moved = passes * width * elements
    expected = {}
    for name, chip in chips.CHIPS.items():
        peak = chips.peak_flops(chip, item["dtype"])
        bound = 1 / max(flops / peak, moved / chip.bandwidth)
        expected[name] = {"bound": bound, "images_per_second": REACHED * bound}
    return {"gflops_per_image": flops / 1e9, "megabytes_per_image": moved / 1e6, **expected}


def main() -> None:
    """Writes the predictions of all rates of the order."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu.roofline")
    parser.parse_args()
    items = [item for item in order.load() if item["kind"] == "rate"]
    predictions = {item["name"]: predict(item) for item in items}
    result = {
        "rates": predictions,
        "nrcc_over_byol": nrcc_over_byol(predictions),
        "ncc_resnet18_epochs_in_25_minutes": epochs(predictions),
        "reached": REACHED,
        "how": " ".join(__doc__.split("\n\n")[1].split()),
    }
    io.write_json(FILE, result)
    print(json.dumps(io.plain(result), indent=2))


def nrcc_over_byol(predictions: Mapping[str, Any]) -> dict[str, float]:
    """Operations of BYOL + NRCC (SGHMC) over those of BYOL, and the time on each chip."""
    byol, nrcc = predictions[BYOL], predictions[NRCC]
    key = "images_per_second"
    times = {f"time on {chip}": byol[chip][key] / nrcc[chip][key] for chip in chips.CHIPS}
    return {"operations": nrcc["gflops_per_image"] / byol["gflops_per_image"], **times}


def epochs(predictions: Mapping[str, Any]) -> dict[str, int]:
    """Epochs of NCC in a slice, at the rate of its steps: E-steps and evaluations take more."""
    seconds = 60 * MINUTES * TRAINING_SHARE
    return {
        chip: math.floor(seconds * predictions[NCC][chip]["images_per_second"] / TRAINING_IMAGES)
        for chip in chips.CHIPS
    }


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
