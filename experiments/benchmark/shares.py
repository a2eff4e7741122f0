"""Where the time of a training step goes, on a CPU: `nrcc_digits`, and `nrcc_cifar10` of 16 images.

Of `nrcc_imagenet`, which is too large to be timed here, shares of the operations as traced.

A share is what the step takes less without the part, or the part alone, by the whole step. NRCC
(its sampler, the passes of the third view, its loss) and the augmentation are left out of compiled
steps, which take turns; optimizer, moving average, and the host's batches are timed alone. The
rest is the network, forward and backward, and the method's loss.
"""

import statistics
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from cluster_jax.core.config import load_config
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training.loop import TrainingRun
from experiments.benchmark import _measure, _steps

# Images of a step, and how often it is timed.
BATCHES, REPEATS = {"nrcc_digits": 256, "nrcc_cifar10": 16}, {"nrcc_digits": 80, "nrcc_cifar10": 6}
# Written before the first measurement of nrcc_cifar10.
PREDICTED = {"nrcc": 0.2, "augmentation": 0.02, "optimizer": 0.02, "average": 0.01}
# Written before the first count of nrcc_imagenet: NRCC adds 2 to 8 forward passes.
PREDICTED_OPERATIONS = {"nrcc": 0.2, "augmentation": 0.02}
LARGE, LARGE_BATCH = "nrcc_imagenet", 64


def measure() -> dict[str, Any]:
    """Shares of the parts of both steps."""
    jax.config.update("jax_num_cpu_devices", 1)
    timed = {name: _shares(name, size) for name, size in BATCHES.items()}
    return {**timed, f"operations of {LARGE}": _operations(LARGE, LARGE_BATCH)}


def _operations(name: str, size: int) -> dict[str, float]:
    """Shares of the operations of a step, which is traced and never compiled."""
    changes: dict[str, dict] = {"": {}, "nrcc": {"nrcc": False}, "augmentation": {"views": False}}
    counts = {
        part: _steps.operations(_build(_config(name, size, **change), 2 * size))
        for part, change in changes.items()
    }
    whole = counts.pop("")
    shares = {part: 1 - count / whole for part, count in counts.items()}
    return {"gflop_per_image": whole / 1e9, **shares, "the rest": 1 - sum(shares.values())}


def _shares(name: str, size: int) -> dict[str, float]:
    whole, run = _prepare(_config(name, size))
    steps = {
        "whole": whole,
        "without nrcc": _prepare(_config(name, size, nrcc=False))[0],
        "without augmentation": _prepare(_config(name, size, views=False))[0],
    }
    times = _measure.alternate(steps, REPEATS[name])
    seconds = statistics.median(times["whole"])
    shares = {
        part: 1 - _measure.ratios(times[f"without {part}"], times["whole"])["median"]
        for part in ("nrcc", "augmentation")
    }
    state = build.initial_state(run)
    update = jax.jit(run.optimizer.update)
    shares["optimizer"] = _alone(lambda: update(state.params, state.opt, state.params)) / seconds
    after = jax.jit(run.method.after)
    average = _alone(lambda: after(state.params, state.model_state, state.step))
    shares["average"] = average / seconds
    stream = _steps.endless(run)
    shares["host"] = _alone(lambda: next(stream)) / seconds
    return {"step_seconds": seconds, **shares, "network_and_loss": 1 - sum(shares.values())}


def _config(name: str, size: int, nrcc: bool = True, views: bool = True) -> ConfigDict:
    config = load_config(name)
    config.train.batch_size = size
    side = config.augment.size
    config.data.update(name="arrays", split=None, image_size=None)
    if not nrcc:
        config.nrcc.weight = 0.0
    if not views:
        # Noise alone: of two equal views the compiler would pass one.
        config.augment = load_config("base").augment
        config.augment.crop = None
        config.augment.update(size=side, flip=0.0, grayscale=0.0, noise=0.01)
        config.augment.jitter.probability = 0.0
    return config


def _prepare(config: ConfigDict) -> tuple[Callable[[], object], TrainingRun]:
    """A step that goes on from its last state, run once, and the run that it is of."""
    run = _build(config, 2_048)
    return _steps.advancing(run)[0], run


def _build(config: ConfigDict, count: int) -> TrainingRun:
    """The run of a config on generated images."""
    channels = 1 if config.network.name == "small" else 3
    dataset = _steps.generated(count, config.augment.size, False, channels)
    return build.build_run(parse_config(config), dataset).training


def _alone(call: Callable[[], object]) -> float:
    _measure.seconds(call)
    return statistics.median(_measure.seconds(call) for _ in range(20))
