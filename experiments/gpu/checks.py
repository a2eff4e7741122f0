"""What must hold on an accelerator before anything is measured; `pytest -m gpu` runs the same."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax
import numpy as np
import optax

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core.config import config_names, load_config
from cluster_jax.pipeline import build
from cluster_jax.training import state as states
from cluster_jax.training.loop import TrainingRun
from cluster_jax.training.step import make_step
from experiments.gpu import neighbors, rates, settings

METHODS = ("byol", "ncl", "simclr", "simsiam", "barlow", "moco", "kernel_infonce", "ncc", "cueco")
SAMPLERS = ("sghmc", "hmc", "monte_carlo", "noise")
BATCH, WIDTH = 32, 8
# Relative errors: float32 with full precision of products; the gradient passes many BatchNorms.
LOSS, GRADIENT = 1e-4, 1e-2
BFLOAT16_LOSS, BFLOAT16_STEPS = 5e-2, 20
ROWS, DIMENSIONS, CLUSTERS = 4096, 64, 10
THREADS = 8


def gradient(method: str, sampler: str | None, tiny: bool) -> dict[str, float]:
    """Relative errors of loss and gradient on the device against the CPU, in float32.

    The first step moves nothing but fills the queues; the second, gradient descent with rate 1,
    changes the parameters by minus the gradient.
    """
    descent = optax.sgd(lambda count: 1.0 * count)
    run = _small_run(method, sampler, "float32", tiny)._replace(optimizer=descent)
    with jax.default_matmul_precision("highest"):
        here, there = (_two_steps(run, jax.devices(kind)[0]) for kind in (None, "cpu"))
    changes = [_flat(before) - _flat(after) for before, after, _ in (here, there)]
    loss, expected = here[2]["loss"], there[2]["loss"]
    error = np.linalg.norm(changes[0] - changes[1]) / np.linalg.norm(changes[1])
    return {"loss": abs(loss - expected) / abs(expected), "gradient": float(error)}


def bfloat16(tiny: bool) -> dict[str, float]:
    """First loss in bfloat16 against float32, relative, and the losses of the steps after."""
    losses = {}
    for dtype in ("float32", "bfloat16"):
        run = _small_run("byol", None, dtype, tiny)
        losses[dtype] = _train(run, BFLOAT16_STEPS)
    first = abs(losses["bfloat16"][0] - losses["float32"][0]) / abs(losses["float32"][0])
    return {"first": first, "start": losses["bfloat16"][0], "end": losses["bfloat16"][-1]}


def config_step(name: str) -> float:
    """Loss of one step of a config on the device, with a small network and generated images."""
    config = settings.tiny_config(load_config(name))
    config.stages = {}
    channels = 1 if name.endswith("digits") else 3
    config.augment.mean = config.augment.std = None
    config.data.update(name="arrays", split=None)
    # The number of classes of the generated images.
    if "clusters" in config.method:
        config.method.clusters = settings.CLASSES
    if "classes" in config.method:
        config.method.classes, config.eval.kmeans.k = 5, 5
    labeled = config.train.labeled_batch_size is not None
    dataset = settings.generated(settings.TINY_IMAGES, settings.TINY_SIDE, labeled)
    images = dataset.images[..., :channels]
    dataset = dataset._replace(
        images=images, shape=images.shape[1:], fetch=lambda index: images[index]
    )
    run = settings.build_run(config, dataset).training
    return _train(run, 1)[0]


def clusters() -> dict[str, float]:
    """Inertia of k-means on the device over that on the CPU, minus 1, and shared neighbors."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((CLUSTERS, DIMENSIONS))
    x = centers[draw.integers(0, CLUSTERS, ROWS)] + draw.standard_normal((ROWS, DIMENSIONS))
    x = x.astype(np.float32)
    inertia, nearest = [], []
    for kind in (None, "cpu"):
        device = jax.devices(kind)[0]
        inertia.append(kmeans(x, CLUSTERS, mesh=rates.mesh_of(device)).inertia)
        nearest.append(neighbors.nearest(x, 10, device))
    shared = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)])
    return {"inertia": abs(inertia[0] / inertia[1] - 1), "neighbors": float(shared)}


def measure(
    earlier: Mapping[str, Any], write: Callable[[dict[str, Any], bool], None], tiny: bool
) -> None:
    """All checks with their figures and `passed`; a check that raises has the error instead.

    Args:
        earlier: figures so far; what they have is not done again.
        write: takes the figures after every check, and whether it was the last.
        tiny: a few of the checks, with sizes of the dry run.
    """
    start = time.perf_counter()
    before = earlier.get("seconds", 0.0)
    results = dict(earlier.get("checks", {}))
    # Several are compiled at once: XLA uses the host's cores, and the kernels are small.
    few = 2 if tiny else None  # of a kind in the dry run
    with ThreadPoolExecutor(few or THREADS) as pool:
        jobs = {
            pool.submit(_result, *call): name
            for name, call in _calls(few, tiny).items()
            if name not in results
        }
        for job in as_completed(jobs):
            results[jobs[job]] = job.result()
            write(_summary(results, before + time.perf_counter() - start), False)
    write(_summary(results, before + time.perf_counter() - start), True)


def _calls(few: int | None, tiny: bool) -> dict[str, tuple]:
    """Name -> function and arguments of every check."""
    calls: dict[str, tuple] = {
        f"gradient of {name}": (gradient, method, sampler, tiny)
        for name, method, sampler in gradient_cases()[:few]
    }
    names = [name for name in config_names() if name != "base"]
    calls |= {f"one step of {name}": (config_step, name) for name in names[:few]}
    return calls | {"bfloat16": (bfloat16, tiny), "k-means and neighbors": (clusters,)}


def _summary(results: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    failed = [name for name, figures in results.items() if not passes(name, figures)]
    return {
        "passed": not failed,
        "failed": failed,
        "checks": dict(results),
        "limits": {"loss": LOSS, "gradient": GRADIENT, "bfloat16": BFLOAT16_LOSS},
        "seconds": seconds,
    }


def gradient_cases() -> list[tuple[str, str, str | None]]:
    """(name, method, NRCC's sampler) of every case of `gradient`."""
    bare = [(method, method, None) for method in METHODS]
    return bare + [(f"byol + nrcc ({sampler})", "byol", sampler) for sampler in SAMPLERS]


def passes(name: str, figures: Any) -> bool:
    """Whether the figures of a check are within the limits."""
    if isinstance(figures, dict) and "error" in figures:
        return False
    if name.startswith("gradient"):
        return figures["loss"] <= LOSS and figures["gradient"] <= GRADIENT
    if name == "bfloat16":
        return figures["first"] <= BFLOAT16_LOSS and figures["end"] < figures["start"]
    if name.startswith("k-means"):
        return figures["inertia"] <= 1e-3 and figures["neighbors"] >= 0.999
    return bool(np.isfinite(figures))


def _small_run(method: str, sampler: str | None, dtype: str, tiny: bool) -> TrainingRun:
    item = {"method": method, "network": "resnet18", "batch": BATCH, "sampler": sampler}
    # One with augmentation and a ResNet is enough: the rest is what the methods differ in.
    is_whole = (method, sampler) == ("byol", None)
    item["views"] = "paper" if is_whole else "flips"
    config = settings.config_of({**item, "dtype": dtype}, tiny)
    if not tiny:
        config.network.width = WIDTH
        if not is_whole:
            config.network.update(name="small", stem=None, frozen=None)
        if config.network.projector is not None:
            config.network.projector.update(hidden=64, out=32)
        if config.network.predictor is not None:
            config.network.predictor.hidden = 64
        if config.method.get("queue"):
            config.method.queue = 64
        if "neighbors" in config.method:
            config.method.neighbors, config.method.hng.count = 3, 4
    config.optimizer.warmup = "0 epochs"
    if "warmup" in config.method:
        config.method.warmup = "1 step"
    side = settings.TINY_SIDE if tiny else 32
    dataset = settings.generated(settings.TINY_IMAGES, side, method == "ncl")
    return settings.build_run(config, dataset).training


def _two_steps(run: TrainingRun, device: jax.Device) -> tuple[Any, Any, dict[str, float]]:
    """Parameters before and after the second step, and its metrics."""
    state, step, batches = _prepare(run, device)
    state, _ = step(state, *next(batches))
    before = jax.device_get(state.params)
    state, metrics = step(state, *next(batches))
    return before, jax.device_get(state.params), {k: float(v) for k, v in metrics.items()}


def _train(run: TrainingRun, count: int) -> list[float]:
    state, step, batches = _prepare(run, jax.devices()[0])
    losses = []
    for _ in range(count):
        state, metrics = step(state, *next(batches))
        losses.append(float(metrics["loss"]))
    return losses


def _prepare(run: TrainingRun, device: jax.Device) -> tuple:
    run = run._replace(mesh=rates.mesh_of(device))
    state = build.initial_state(run)
    resident = jax.device_put(run.dataset.images, states.replicated(run.mesh))
    step = make_step(run.method, run.optimizer, run.mesh)
    return state, step, ((batch, resident) for batch in rates.endless(run))


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(params)])


def _result(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # A check must not keep the others from being reported.
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
