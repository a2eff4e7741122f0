"""A training step of every method on the device that is there: rate, memory, and PyTorch's rate.

Generated images of 32 pixels lie on the device, where the step augments them; one batch is taken
again and again. "nrcc_cifar10" and "ncc_cifar10" are those configs, with their ResNet-34. Of the
others the method is that of its digits config; network, heads, augmentation and optimizer are those
of `nrcc_cifar10` with a ResNet-18. On a CPU batch and network are smaller. `--only=NAMES` measures
some of them. Operations are counted before XLA compiles, for a CPU, because other backends count
none; memory is what the compiler plans.

PyTorch runs BYOL's step where it is installed (`_torch_byol.py`), in a process of its own; its two
views are an image and its mirror image, so it is compared with "byol with flips alone".
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType

from cluster_jax.core import checks
from cluster_jax.core import mesh as meshes
from cluster_jax.core.config import load_config, override_all
from cluster_jax.data import batches
from cluster_jax.training import build
from cluster_jax.training.config import RunConfig, parse_config
from cluster_jax.training.step import make_step
from experiments.benchmark import _measure

FLIPS: dict[str, Any] = {f"augment.{name}": None for name in ("crop", "jitter", "blur")}
FLIPS |= {"augment.grayscale": 0.0, "augment.flip": 0.5}
METHODS = "byol simsiam barlow moco kernel_infonce swav cc pcl ncc cueco ncl"
# Name -> the config, and changes of it.
STEPS: dict[str, tuple[str, dict]] = {
    "nrcc_cifar10": ("nrcc_cifar10", {}), "ncc_cifar10": ("ncc_cifar10", {}),
    "simclr": ("nrcc_digits", {"nrcc.weight": 0.0}),
    **{method: (f"{method}_digits", {}) for method in METHODS.split()},
    "byol + nrcc": ("byol_digits", {"nrcc.weight": 0.1}),
    "byol with flips alone": ("byol_digits", FLIPS),
}  # fmt: skip
# Images of a batch, channels of the network and of its heads.
LARGE = {"batch": 256, "width": 64, "hidden": 4096}
SMALL = {"batch": 32, "width": 16, "hidden": 256}
IMAGES, PIXELS, ROUNDS, ROUND_SECONDS, TORCH_SECONDS = 4_096, 32, 3, 2.0, 240


def measure(only: str | None = None) -> dict:
    """Figures of the steps and of PyTorch's; one that fails has its error instead.

    Args:
        only: names of the steps, separated by commas; None: all.

    Raises:
        InputError: there is no such step.
    """
    names = [name.strip() for name in only.split(",")] if only else list(STEPS)
    for name in names:
        checks.one_of("--only", name, tuple(STEPS))
    size = SMALL if jax.default_backend() == "cpu" else LARGE
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/images.npz"
        shape = (IMAGES, PIXELS, PIXELS, 3)
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        np.savez(file, images=images, labels=np.arange(IMAGES) % 10)
        for name in names:
            figures[name] = attempt(rate, name, file, size)
            print(f"{name}: {figures[name]}", file=sys.stderr)
    figures["PyTorch"] = attempt(torch_rate, size)
    return {"size": size, "steps": figures}


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or its error: one failure must not take the other results with it."""
    try:
        return function(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def configure(name: str, file: str, size: dict[str, int]) -> RunConfig:
    """The config of a step on the images of a file."""
    base, changes = STEPS[name]
    config, cifar = load_config(base), load_config("nrcc_cifar10")
    config.data.update(name="arrays", dir=file)
    config.train.batch_size, config.stages = size["batch"], {}
    if config.train.labeled_batch_size:
        config.train.labeled_batch_size = size["batch"] // 2
    if base.endswith("_digits"):
        config.augment, config.optimizer = cifar.augment, cifar.optimizer
        config.train.duration = cifar.train.duration
        config.network.update(name="resnet18", stem="cifar")
    config.network.width = size["width"]
    if config.network.frozen:
        config.network.frozen = "stage3"
    for head in (config.network.projector, config.network.predictor):
        if head is not None:
            head.hidden = size["hidden"]
    override_all(config, changes)
    parsed = parse_config(config)
    assert isinstance(parsed, RunConfig)
    return parsed


def start(config: RunConfig) -> tuple[dict[str, float], Callable[[int], Any]]:
    """What is known of a step before it runs, and a function that makes so many of them."""
    run, began = build.build_run(config).training, time.perf_counter()
    section = run.train
    stream = batches.stream(
        run.dataset, seed=0, batch_size=section.batch_size, labeled=section.labeled_batch_size,
        steps=range(1), prefetch=1,
    )  # fmt: skip
    batch = jax.device_put(next(stream), meshes.sharded(run.mesh))
    rest = batch, jax.device_put(run.dataset.images, meshes.replicated(run.mesh))
    state = build.initial_state(run)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, *rest))
    cpu, axes = jax.devices("cpu")[:1], (AxisType.Auto,)
    mesh = jax.make_mesh((1,), (meshes.AXIS,), axis_types=axes, devices=cpu)
    traced = make_step(run.method, run.optimizer, mesh).lower(*shapes)
    compiled = make_step(run.method, run.optimizer, run.mesh).lower(state, *rest).compile()
    cost: Any = traced.cost_analysis()
    memory: Any = compiled.memory_analysis()

    def steps(count: int) -> Any:
        nonlocal state
        for _ in range(count):
            state, _ = compiled(state, *rest)
        return state

    _measure.seconds(steps, 1)
    return {
        "gigaflop_per_image": cost["flops"] / section.batch_size / 1e9,
        "temporary_mb": memory.temp_size_in_bytes / 1e6,
        "first_step_seconds": time.perf_counter() - began,
    }, steps


def rate(name: str, file: str, size: dict[str, int]) -> dict:
    """Figures of a step on the images of a file, its rate in images/s."""
    config = configure(name, file, size)
    figures, steps = start(config)
    count = max(1, round(ROUND_SECONDS / _measure.seconds(steps, 1)))
    times = [_measure.seconds(steps, count) for _ in range(ROUNDS)]
    rates = [config.train.batch_size * count / t for t in times]
    return {**_measure.spread(rates), **figures}


def torch_rate(size: dict[str, int]) -> dict:
    """Figures of PyTorch's step, from a process of its own: both load their own CUDA."""
    command = [sys.executable, "-m", "experiments.benchmark._torch_byol"]
    command += map(str, (size["batch"], PIXELS, size["width"], size["hidden"], ROUND_SECONDS))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])
