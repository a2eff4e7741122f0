"""A training step of every method on the device that is there: rate, memory, profile, PyTorch's.

Generated images of 32 pixels lie on the device, where the step augments them; one batch is taken
again and again. "nrcc_cifar10" and "ncc_cifar10" are those configs, with their ResNet-34. Of the
others the method is that of its digits config; network, heads, augmentation and optimizer are those
of `nrcc_cifar10` with a ResNet-18. On a CPU batch and network are smaller. `--tiny` takes the
digits config as it is, with a small batch. "remat" computes blocks again for gradients.
`--only=NAMES` measures some of them, and PyTorch's.

PyTorch runs BYOL's step where it is installed (`_torch_byol.py`), in a process of its own; its two
views are an image and its mirror image, so it is compared with "byol with flips alone". Operations
are counted before XLA compiles, for a CPU, because other backends count none; memory is what the
compiler plans.
"""

import collections
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType

from cluster_jax.core.config import load_config, override_all
from cluster_jax.data import batches
from cluster_jax.runs import build
from cluster_jax.runs.config import RunConfig, parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from experiments import tables
from experiments.benchmark import _measure


class Size(NamedTuple):
    """Images of a batch, their pixels, and channels of the network and its heads."""

    batch: int
    pixels: int = 32
    width: int = 64
    hidden: int = 4096


NRCC = {"nrcc.weight": 0.1}
FLIPS = {
    "augment.crop": None, "augment.jitter": None, "augment.blur": None, "augment.grayscale": 0.0,
    "augment.flip": 0.5,
}  # fmt: skip
METHODS = (
    "byol", "simsiam", "barlow", "moco", "kernel_infonce", "swav", "cc", "pcl", "ncc", "cueco",
    "ncl",
)  # fmt: skip
# Name -> the config, and changes of it.
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "nrcc_cifar10": ("nrcc_cifar10", {}),
    "ncc_cifar10": ("ncc_cifar10", {}),
    "simclr": ("nrcc_digits", {"nrcc.weight": 0.0}),
    **{method: (f"{method}_digits", {}) for method in METHODS},
    "byol + nrcc": ("byol_digits", NRCC),
    "byol + nrcc by HMC": ("byol_digits", {**NRCC, "nrcc.sampler": "hmc"}),
    "byol + nrcc + remat": ("byol_digits", {**NRCC, "train.remat": True}),
    "byol with flips alone": ("byol_digits", FLIPS),
}
PROFILED = "byol + nrcc"
LARGE, SMALL, TINY = Size(256), Size(32, width=16, hidden=256), Size(32, pixels=8)
# Entry of a step's figures -> column of the table.
COLUMNS = {
    "median": "images/s", "low": "lowest", "high": "highest", "gigaflop_per_image": "GFLOP/image",
    "temporary_mb": "temporary MB", "first_step_seconds": "first step s",
}  # fmt: skip
IMAGES, ROUNDS, ROUND_SECONDS, TORCH_SECONDS, PROFILED_STEPS, KERNELS = 4_096, 3, 2.0, 240, 10, 10


def measure(tiny: bool = False, only: str | None = None) -> dict[str, Any]:
    """Figures of the steps and of PyTorch's, and a profile; what fails has its error instead.

    Args:
        tiny: whether batch and network are as small as a test needs.
        only: names of the steps, separated by commas; None: all.
    """
    size = TINY if tiny else SMALL if jax.default_backend() == "cpu" else LARGE
    seconds, figures = ROUND_SECONDS / (100 if tiny else 1), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/images.npz"
        shape = (IMAGES, size.pixels, size.pixels, 1 if tiny else 3)
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        np.savez(file, images=images, labels=np.arange(IMAGES) % 10)
        for name in only.split(",") if only else STEPS:
            figures[name] = attempt(lambda name=name: rate(configure(name, file, size), seconds))
            print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
        figures["PyTorch, byol"] = attempt(lambda: torch_rate(size, seconds))
        traced = attempt(lambda: profile(configure(PROFILED, file, size)))
    return {"size": size._asdict(), "steps": figures, "profile": traced}


def attempt(call: Callable[[], Any]) -> Any:
    """The result of a call, or its error: one failure must not take the other results with it."""
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}


def configure(name: str, file: str, size: Size) -> RunConfig:
    """The config of a step on the images of a file."""
    base, changes = STEPS[name]
    config, cifar = load_config(base), load_config("nrcc_cifar10")
    config.data.update(name="arrays", dir=file)
    config.train.batch_size, config.stages = size.batch, {}
    if config.train.labeled_batch_size:
        config.train.labeled_batch_size = size.batch // 2
    if size != TINY:
        if base.endswith("_digits"):
            config.augment, config.optimizer = cifar.augment, cifar.optimizer
            config.train.duration = cifar.train.duration
            config.network.update(name="resnet18", stem="cifar")
        config.network.width = size.width
        if config.network.frozen:
            config.network.frozen = "stage3"
        for head in (config.network.projector, config.network.predictor):
            if head is not None:
                head.hidden = size.hidden
    override_all(config, changes)
    return parse_config(config)


def start(config: RunConfig) -> tuple[dict[str, float], Callable[[int], Any]]:
    """What is known of a step before it runs, and a function that makes so many of them."""
    run, began = build.build_run(config).training, time.perf_counter()
    section = run.train
    stream = batches.stream(
        run.dataset, seed=0, batch_size=section.batch_size, labeled=section.labeled_batch_size,
        steps=range(1), prefetch=1,
    )  # fmt: skip
    batch = jax.device_put(next(stream), states.sharded(run.mesh))
    rest = batch, jax.device_put(run.dataset.images, states.replicated(run.mesh))
    state = build.initial_state(run)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, *rest))
    cpu, axes = jax.devices("cpu")[:1], (AxisType.Auto,)
    mesh = jax.make_mesh((1,), (states.AXIS,), axis_types=axes, devices=cpu)
    traced = make_step(run.method, run.optimizer, mesh).lower(*shapes)
    compiled = make_step(run.method, run.optimizer, run.mesh).lower(state, *rest).compile()

    def steps(count: int) -> Any:
        nonlocal state
        for _ in range(count):
            state, _ = compiled(state, *rest)
        return state

    _measure.seconds(steps, 1)
    return {
        "gigaflop_per_image": traced.cost_analysis()["flops"] / section.batch_size / 1e9,
        "temporary_mb": compiled.memory_analysis().temp_size_in_bytes / 1e6,
        "first_step_seconds": time.perf_counter() - began,
    }, steps


def rate(config: RunConfig, seconds: float) -> dict[str, Any]:
    """Figures of a step, its rate in rounds of about so many seconds each."""
    figures, steps = start(config)
    count = max(1, round(seconds / _measure.seconds(steps, 1)))
    times = [_measure.seconds(steps, count) for _ in range(ROUNDS)]
    rates = [config.train.batch_size * count / t for t in times]
    return {**_measure.spread(rates), **figures}


def torch_rate(size: Size, seconds: float) -> dict[str, Any]:
    """Figures of PyTorch's step, from a process of its own: both load their own CUDA."""
    if importlib.util.find_spec("torch") is None:
        return {"error": "PyTorch is not installed"}
    command = [sys.executable, "-m", "experiments.benchmark._torch_byol"]
    command += map(str, (size.batch, size.pixels, size.width, size.hidden, seconds))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def profile(config: RunConfig) -> dict[str, Any]:
    """The kernels that take the most time in some steps, see `summarize`."""
    _, steps = start(config)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(steps(PROFILED_STEPS))
        (file,) = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    device = [plane for plane in planes if plane.name.startswith("/device:")]
    return summarize(
        (event.name, event.start_ns, event.duration_ns)
        for plane in device or planes  # A CPU has no plane of its own.
        for line in plane.lines
        if line.name.startswith(("Stream", "XLA Ops", "tf_XLA"))
        for event in line.events
    )


def summarize(events: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """The share of time in which one of events (name, start, duration in ns) runs, the largest."""
    durations, busy, end = collections.defaultdict(list), 0.0, 0.0
    ordered = sorted(events, key=lambda event: event[1])
    for name, began, duration in ordered:
        durations[name].append(duration)
        busy += max(0.0, began + duration - max(began, end))
        end = max(end, began + duration)
    total = sum(map(sum, durations.values()))
    largest = sorted(durations.items(), key=lambda item: -sum(item[1]))[:KERNELS]
    kernels = {
        name: {"ms": sum(of) / 1e6, "share": sum(of) / total, "calls": len(of)}
        for name, of in largest
    }
    return {"busy": ordered and busy / (end - ordered[0][1]), "kernels": kernels}


def texts(figures: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    """The figures as Markdown."""
    rows = [
        [name, *(f"{row[key]:,.4g}" if key in row else "" for key in COLUMNS), row.get("error", "")]
        for name, row in figures["steps"].items()
    ]
    traced = figures["profile"]
    kernels = [
        [f"`{name[:80]}`", f"{of['ms']:.3g}", f"{of['share']:.1%}", of["calls"]]
        for name, of in traced.get("kernels", {}).items()
    ]
    return [
        f"# A training step on {about['device']}",
        f"Sizes: {figures['size']}.",
        tables.markdown(["", *COLUMNS.values(), ""], rows),
        f"Kernels of {PROFILED_STEPS} steps of {PROFILED}; one runs in {traced['busy']:.1%} of it:"
        if kernels
        else f"Profile: {traced.get('error', 'no kernels')}.",
        tables.markdown(["kernel", "ms", "share", "calls"], kernels) if kernels else "",
    ]
