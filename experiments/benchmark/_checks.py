"""What must hold on an accelerator before anything is measured; `pytest -m gpu` runs the same."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import optax

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core.config import config_names, load_config
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training.loop import TrainingRun
from experiments.benchmark import _steps
from experiments.benchmark._steps import Item

SAMPLERS = ("sghmc", "hmc", "monte_carlo", "noise")
BATCH, WIDTH = 32, 8
# Relative errors: float32 with full precision of products; the gradient passes many BatchNorms.
LOSS, GRADIENT, INERTIA = 1e-4, 1e-2, 1e-3
BFLOAT16_LOSS, BFLOAT16_STEPS = 5e-2, 20
ROWS, DIMENSIONS = 4096, 64
THREADS = 8


def measure(tiny: bool) -> dict[str, Any]:
    """Figures of each check by name, and the names of the checks that failed.

    A check that raises has its error in place of figures. Several checks run at once: XLA compiles
    on the cores of the host, and the kernels are small. If `tiny`, one check of each kind in
    float32.
    """
    few = 1 if tiny else None
    calls: dict[str, tuple] = {
        f"gradient of {name}": (gradient, *case, tiny)
        for name, case in list(gradient_cases().items())[:few]
    }
    names = [name for name in config_names() if name != "base"]
    calls |= {f"one step of {name}": (config_step, name) for name in names[:few]}
    calls |= {"k-means": (clusters,)} | ({} if tiny else {"bfloat16": (bfloat16,)})
    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(zip(calls, pool.map(lambda call: attempt(*call), calls.values()), strict=True))
    return {
        "failed": [name for name, figures in found.items() if not passes(name, figures)],
        "figures": found,
        "limits": {"loss": LOSS, "gradient": GRADIENT, "bfloat16": BFLOAT16_LOSS},
    }


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or its error: one failure must not take the other results with it."""
    try:
        return function(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}


def passes(name: str, figures: Any) -> bool:
    """Whether the figures of a check are within the limits."""
    if isinstance(figures, Mapping) and "error" in figures:
        return False
    if name.startswith("gradient"):
        return figures["loss"] <= LOSS and figures["gradient"] <= GRADIENT
    if name == "bfloat16":
        return figures["first"] <= BFLOAT16_LOSS and figures["end"] < figures["start"]
    return figures <= INERTIA if name == "k-means" else bool(np.isfinite(figures))


def gradient_cases() -> dict[str, tuple[str, str | None]]:
    """Name -> method and NRCC's sampler of every case of `gradient`."""
    bare: dict[str, tuple[str, str | None]] = {m: (m, None) for m in _steps.CONFIGS}
    return bare | {f"byol + nrcc ({sampler})": ("byol", sampler) for sampler in SAMPLERS}


def gradient(method: str, sampler: str | None, tiny: bool) -> dict[str, float]:
    """Relative errors of loss and gradient on the device against the CPU, in float32.

    The first step moves nothing but fills the queues; the second, gradient descent with rate 1,
    changes the parameters by minus the gradient.
    """
    descent = optax.sgd(lambda count: 1.0 * count)
    run = _small_run(method, sampler, "float32", tiny)._replace(optimizer=descent)
    with jax.default_matmul_precision("highest"):
        here, there = (_two_steps(run, jax.devices(kind)[0]) for kind in (None, "cpu"))
    error = np.linalg.norm(here[0] - there[0]) / np.linalg.norm(there[0])
    return {"loss": abs(here[1] - there[1]) / abs(there[1]), "gradient": float(error)}


def bfloat16() -> dict[str, float]:
    """First loss in bfloat16 against float32, relative, and the losses of the steps after."""
    exact, losses = (
        _train(_small_run("byol", None, dtype), BFLOAT16_STEPS) for dtype in ("float32", "bfloat16")
    )
    first = abs(losses[0] - exact[0]) / abs(exact[0])
    return {"first": first, "start": losses[0], "end": losses[-1]}


def config_step(name: str) -> float:
    """Loss of one step of a config on the device, with a small network and generated images."""
    config = _steps.tiny_config(load_config(name))
    config.stages = {}
    config.augment.mean = config.augment.std = None
    config.data.update(name="arrays", split=None)
    # The number of classes of the generated images.
    if "clusters" in config.method:
        config.method.clusters = _steps.CLASSES
    if "classes" in config.method:
        config.method.classes, config.eval.kmeans.k = 5, 5
    is_labeled = config.train.labeled_batch_size is not None
    channels = 1 if name.endswith("digits") else 3
    dataset = _steps.generated(_steps.TINY_IMAGES, _steps.TINY_SIDE, is_labeled, channels)
    return _train(build.build_run(parse_config(config), dataset).training, 1)[0]


def clusters() -> float:
    """Relative difference of k-means' inertia on the device and on the CPU."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((_steps.CLASSES, DIMENSIONS))
    x = centers[draw.integers(0, _steps.CLASSES, ROWS)] + draw.standard_normal((ROWS, DIMENSIONS))
    here, there = (
        kmeans(x.astype(np.float32), _steps.CLASSES, mesh=_steps.mesh_of(jax.devices(kind)[0]))
        for kind in (None, "cpu")
    )
    return abs(here.inertia / there.inertia - 1)


def _small_run(method: str, sampler: str | None, dtype: str, tiny: bool = False) -> TrainingRun:
    # One with augmentation and a ResNet is enough: the methods differ in the rest.
    is_whole = (method, sampler) == ("byol", None)
    views = "paper" if is_whole else "flips"
    config = _steps.config_of(Item(method, "resnet18", dtype, BATCH, sampler, views=views), tiny)
    if not tiny:
        config.network.width = WIDTH
        if not is_whole:
            config.network.update(name="small", stem=None, frozen=None)
        _steps.shrink_heads(config, hidden=64, out=32, queue=64)
    config.optimizer.warmup = "0 epochs"
    if "warmup" in config.method:
        config.method.warmup = "1 step"
    side = _steps.TINY_SIDE if tiny else 32
    dataset = _steps.generated(_steps.TINY_IMAGES, side, method == "ncl")
    return build.build_run(parse_config(config), dataset).training


def _two_steps(run: TrainingRun, device: jax.Device) -> tuple[np.ndarray, float]:
    """What the second step changes in the parameters, and its loss."""
    state, step, stream, resident = _steps.prepare(run._replace(mesh=_steps.mesh_of(device)))
    state, _ = step(state, next(stream), resident)
    before = _flat(state.params)
    state, metrics = step(state, next(stream), resident)
    return before - _flat(state.params), float(metrics["loss"])


def _train(run: TrainingRun, count: int) -> list[float]:
    mesh = _steps.mesh_of(jax.devices()[0])
    state, step, stream, resident = _steps.prepare(run._replace(mesh=mesh))
    losses = []
    for _ in range(count):
        state, metrics = step(state, next(stream), resident)
        losses.append(float(metrics["loss"]))
    return losses


def _flat(params: Any) -> np.ndarray:
    leaves = jax.tree.leaves(jax.device_get(params))
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves])
