"""The cost of training steps: operations of each method, queue, CueCo's centroids, NCC's E-step.

`predicted` was written before anything was measured and has not been changed since. It counts by
hand, from the shapes of the layers: a multiply-add is two operations, and a product with a zero of
the padding is none, which is also how XLA counts.

ResNet-18 with CIFAR stem, 32x32, batch 64, heads of 4096 and 256, queue of 16,384: the same for
every method; augmentation, optimizer and the method's own settings are those of its config.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.stages import Compiled, Lowered
from numpy.typing import NDArray

from cluster_jax.clustering import online
from cluster_jax.clustering.kmeans import KMeansResult
from cluster_jax.core import devices, ops
from cluster_jax.core.config import load_config, parse_section
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.data import views
from cluster_jax.methods import base as methods
from cluster_jax.methods.base import Encoded, Method, MethodContext, TwoView
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.nets.network import Network
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.training import state as states
from cluster_jax.training.step import Step, make_step

SIDE, BATCH, HIDDEN, OUT, QUEUE, CLUSTERS = 32, 64, 4096, 256, 16_384, 10
FEATURES = 512
# The config from which each method's section is taken; the network is the same for all.
CONFIGS = {
    "simclr": "nrcc_digits",
    "byol": "nrcc_cifar10",
    "simsiam": "simsiam_digits",
    "barlow": "barlow_digits",
    "moco": "moco_digits",
    "kernel_infonce": "kernel_infonce_cifar10",
    "ncc": "ncc_cifar10",
    "cueco": "cueco_cifar10",
}
PREDICTS = ("byol", "simsiam", "ncc", "cueco")
TARGET = ("byol", "moco", "ncc", "cueco")
# Operations other than products per element of a normalized feature map: BatchNorm with ReLU and
# its share of the shortcut additions, forward (7) and backward (13).
FORWARD, BACKWARD = 7, 13
# Operations per parameter: decay 2, momentum 2, rate 1, sum 1, norm of the gradient 2; with LARS
# also two norms and a factor; for a moving average 3.
MOVE, ADAPT, AVERAGE = 8, 5, 3
# Operations per logit, forward and backward, and per element of an L2-normalized row.
LOGIT, UNIT = 20, 12

# Those of CIFAR-10; the images themselves are not needed, since no count depends on them.
IMAGES, MEAN, STD = 50_000, (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
REPEATS, CALLS = 3, 500
ROWS, NOISE, DRIFT = 60_000, 8.0, 0.3
SEED = 0

# Where the prediction is off and why, determined by comparing the parts as traced and compiled.
DIFFERENCES = {
    "step": "0.6 to 0.7 % more than predicted, 0.1 % as traced; SimCLR's compiled without fusions "
    "has 0.03 % less: fused BatchNorms recompute some values instead of reading them",
    "augmentation": "as traced within 1 %; compiled 9 % less: XLA simplifies the blends",
    "optimizer of kernel_infonce": "46 % more than predicted (wrong: ADAPT): optax's trust "
    "ratio computes both norms twice to be differentiable at 0",
    "loss of ncc": "21 % more than predicted (wrong: its rows): they are normalized for the "
    "alignment and again for the prototypes",
    "loss of kernel_infonce": "8 % more than predicted (wrong: LOGIT), 2 % without fusions: the "
    "power and sum of two kernels cost more than a cosine's logit, and fusions recompute them",
}


class Built(NamedTuple):
    """A method as a whole and as its two parts, with what it is built from."""

    config: Any
    network: Network
    two_view: TwoView
    method: Method
    optimizer: optax.GradientTransformation
    mesh: Mesh


def measure() -> tuple[dict, dict]:
    """Measured and predicted operations of the steps; times, measured alternately."""
    devices.cpu_devices(devices.cores())
    unit = _operations(*_forward(_build("simclr")))
    figures = {
        "steps": {name: _compare(name, unit) for name in CONFIGS},
        "beside_a_step": _beside_a_step(),
        "e_step": _e_step(),
    }
    setup = {
        "network": "resnet18, CIFAR stem, 32x32, float32, heads of 4096 and 256",
        "batch": BATCH,
        "queue": QUEUE,
        "configs": CONFIGS,
        "seed": SEED,
        "repeats": REPEATS,
        "cores": devices.cores(),
        "device": jax.devices()[0].device_kind,
        "gflops": "10^9 operations by XLA's cost analysis of the function compiled for one device: "
        "the whole step, and separately a forward pass (unit), the loss with its gradient, queue, "
        "and clusters, the optimizer with moving average and norm of the gradient, the views",
        "units": "step minus the last three, divided by unit",
        "predicted": "by hand before the first measurement, not changed since",
        "ratio": "measured over predicted operations of the step; unfused: as traced, before XLA's "
        "fusions, which compute some values twice",
        "differences": DIFFERENCES,
        "beside_a_step": f"CueCo's on one device, K = {CLUSTERS}; push: into a donated queue; "
        "push_copied: into a queue that is kept, hence copied; clusters: assignment and update; "
        f"means of {CALLS} alternating calls, medians over the repeats; queue_copies: in the "
        "compiled step",
        "e_step": f"{ROWS} x {OUT}, K = {CLUSTERS}, as in ncc_cifar10, with one CPU device per "
        f"core; groups: {CLUSTERS} normal directions plus normal noise {NOISE:g} times as long; "
        "noise: without directions; cold: the first call of the process, on groups, without "
        f"initial centers; warm: rows moved by {DRIFT:g} of a direction's length, starting from "
        "the centers found before the move; updates: in the best run, at most "
        f"{methods.MAX_ITER}",
    }
    return figures, setup


def _compare(name: str, unit: float) -> dict:
    """A step and its parts, measured and predicted."""
    built = _build(name)
    state = jax.eval_shape(functools.partial(_state, built))
    parts = {
        "loss": _operations(*_loss_alone(built, state)),
        "optimizer": _operations(*_optimizer_alone(built, state)),
        "augmentation": _operations(*_views_alone(built)),
    }
    lowered = _step(built).lower(state, _batch(), None)
    whole = _flops(lowered.compile())
    hand = predicted(name)
    units, total = hand.pop("units"), sum(hand.values())
    return {
        "ratio": whole / total,
        "ratio_unfused": _flops(lowered) / total,
        "units": (whole - sum(parts.values())) / unit,
        "gflops": {key: n / 1e9 for key, n in {"step": whole, "unit": unit, **parts}.items()},
        "predicted": {
            "units": units,
            "gflops": {key: n / 1e9 for key, n in {"step": total, **hand}.items()},
        },
    }


def _build(name: str) -> Built:
    section = load_config(CONFIGS[name]).method
    config_name = CONFIGS[name] if CONFIGS[name].endswith("cifar10") else "nrcc_cifar10"
    config = config_json(load_config(config_name))
    config["method"] = config_json(section)
    config["network"] = config_json(load_config("base").network)
    config["network"].update(name="resnet18", dtype="float32")
    if name not in PREDICTS:
        config["network"]["predictor"] = None
    if name in ("moco", "cueco"):
        config["method"]["queue"] = QUEUE
    config["augment"].update(mean=MEAN, std=STD)
    config["train"]["batch_size"] = BATCH
    config["nrcc"]["weight"] = 0.0
    images = {"size": IMAGES, "shape": (SIDE, SIDE, 3), "mean": MEAN, "std": STD, "known": None}
    run = build.rebuild_run(parse_config(config), images).training
    net = network.make(parse_section(NetworkConfig, "network", config["network"]))
    augment = views.make(parse_section(views.AugmentConfig, "augment", config["augment"]))
    context = MethodContext(net, augment, False, IMAGES, run.schedule.total, IMAGES // BATCH, BATCH)
    values = {key: value for key, value in config["method"].items() if key != "name"}
    two_view = methods.build(name, values, context)
    return Built(config, net, two_view, run.method, run.optimizer, states.make_mesh(1))


def _state(built: Built) -> states.State:
    return states.initial(built.method, built.optimizer, seed=SEED, shape=(SIDE, SIDE, 3))


def _step(built: Built) -> Step:
    return make_step(built.method, built.optimizer, built.mesh)


def _batch() -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "index": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
        "image": jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), jnp.uint8),
    }


def _key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(SEED))


def _flops(stage: Lowered | Compiled) -> float:
    return stage.cost_analysis()["flops"]


def _operations(function: Callable, *arguments: Any) -> float:
    """Operations of the function compiled for the shapes of its arguments."""
    return _flops(jax.jit(function).lower(*arguments).compile())


def _forward(built: Built) -> tuple:
    """Backbone and projector of a batch, as in training."""
    state = jax.eval_shape(functools.partial(_state, built))
    images = jax.ShapeDtypeStruct((BATCH, SIDE, SIDE, 3), jnp.float32)
    forward = functools.partial(built.network.forward, train=True, axis=None)
    return forward, state.params, state.model_state.batch_stats, images


def _views_alone(built: Built) -> tuple:
    return functools.partial(methods.two_views, built.two_view.augment), _key(), _batch()


def _loss_alone(built: Built, state: states.State) -> tuple:
    """The objective given the networks' outputs: value, gradient, and new model state."""
    rows = jax.ShapeDtypeStruct((BATCH, OUT), jnp.float32)
    name = built.config["method"]["name"]
    online_rows = ((rows, rows), (rows, rows) if name in PREDICTS else None)
    targets = (rows, rows) if name in TARGET or name in PREDICTS else None

    def loss(moved: Any, targets: Any, model_state: Any, index: Any, step: Any, key: Any) -> Any:
        encoded = Encoded(*moved, targets, None, index)
        value, model_state, metrics = built.two_view.objective(
            {}, encoded, model_state, step, key, None
        )
        return value, (model_state, metrics)

    index = _batch()["index"]
    arguments = (online_rows, targets, state.model_state, index, state.step, _key())
    return jax.value_and_grad(loss, has_aux=True), *arguments


def _optimizer_alone(built: Built, state: states.State) -> tuple:
    def move(state: states.State, gradient: Any) -> Any:
        updates, opt = built.optimizer.update(gradient, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        model_state = built.method.after(params, state.model_state, state.step)
        return params, opt, model_state, optax.tree.norm(gradient)

    return move, state, state.params


def _beside_a_step() -> dict:
    """Cost of queue and clusters relative to CueCo's whole step."""
    built = _build("cueco")
    draw = np.random.default_rng(SEED)
    images = draw.integers(0, 256, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    batch = {"index": np.arange(BATCH, dtype=np.int32), "image": images}
    batch = jax.device_put(batch, states.sharded(built.mesh))
    state = states.create(
        built.method, built.optimizer, seed=SEED, shape=(SIDE, SIDE, 3), mesh=built.mesh
    )
    step = _step(built).lower(state, batch, None).compile()
    copies = step.as_text().count(f"= f32[{QUEUE},{OUT}]{{1,0}} copy(")

    rows, centroids = (
        ops.l2_normalize(jnp.asarray(draw.standard_normal((n, OUT), dtype=np.float32)))
        for n in (BATCH, CLUSTERS)
    )
    decays = {key: built.config["method"][key] for key in ("centroid_decay", "variance_decay")}

    def update(clusters: online.Clusters) -> online.Clusters:
        return online.update(clusters, rows, online.assign(rows, clusters.centroids), **decays)

    def push(queue: Queue) -> Queue:
        return enqueue(queue, rows)

    def empty() -> Queue:
        return create_queue(QUEUE, jnp.zeros(OUT))

    calls = {
        "step": (lambda state: step(state, batch, None)[0], 1),
        "push": (jax.jit(push, donate_argnums=0), CALLS),
        "push_copied": (jax.jit(push), CALLS),
        "clusters": (jax.jit(update), CALLS),
    }
    states_by_name = {
        "step": state,
        "push": empty(),
        "push_copied": empty(),
        "clusters": online.Clusters(centroids, jnp.ones(CLUSTERS)),
    }
    times = {name: [] for name in calls}
    for _ in range(REPEATS + 1):
        for name, (call, count) in calls.items():
            start = time.perf_counter()
            for _ in range(count):
                states_by_name[name] = call(states_by_name[name])
            jax.block_until_ready(states_by_name[name])
            times[name].append(1e3 * (time.perf_counter() - start) / count)
    times = {name: rounds[1:] for name, rounds in times.items()}  # the first round compiles
    median = {name: statistics.median(rounds) for name, rounds in times.items()}
    share = {name: 100 * value / median["step"] for name, value in median.items()}
    return {
        "percent": {name: value for name, value in share.items() if name != "step"},
        "milliseconds": median,
        "milliseconds_range": {name: [min(rounds), max(rounds)] for name, rounds in times.items()},
        "queue_copies": copies,
    }


def _e_step() -> dict:
    """Seconds of NCC's E-step, and updates of the centers in the best run."""
    section = load_config("ncc_cifar10").method
    mesh = states.make_mesh()

    def cluster(x: NDArray, init: NDArray | None) -> tuple[float, KMeansResult]:
        start = time.perf_counter()
        result = methods.spherical_clusters(
            x,
            section.clusters,
            n_init=section.n_init,
            key=jax.random.key(SEED),
            init=init,
            mesh=mesh,
        )
        return time.perf_counter() - start, result

    draw = np.random.default_rng(SEED)
    directions = draw.standard_normal((CLUSTERS, OUT), dtype=np.float32)
    noise, drift = (draw.standard_normal((ROWS, OUT), dtype=np.float32) for _ in range(2))
    groups = directions[draw.integers(0, CLUSTERS, ROWS)] + NOISE * noise
    figures = {}
    for name, x in (("groups", groups), ("noise", noise)):
        first_seconds, first = cluster(x, None)
        figures.setdefault("cold", first_seconds)
        later = [cluster(x + DRIFT * drift, first.centers) for _ in range(REPEATS)]
        seconds = [elapsed for elapsed, _ in later]
        figures[name] = {
            "warm": statistics.median(seconds),
            "warm_range": [min(seconds), max(seconds)],
            "updates": later[0][1].n_iter,
            "updates_without_known": first.n_iter,
        }
    return figures


def predicted(name: str) -> dict[str, float]:
    """Operations of one step of a method, by part; `units` is the network's in forward passes.

    A unit is the forward pass of a batch through backbone and projector. A backward pass is two
    units, minus the gradient with respect to the images, which nothing needs.
    """
    layers = _convolutions()
    projector = 2 * (FEATURES * HIDDEN + HIDDEN * OUT)
    predictor = 2 * (OUT * HIDDEN + HIDDEN * OUT) if name in PREDICTS else 0
    stem, *_ = products = [2 * c_in * c_out * t**2 for _, c_in, c_out, t, _ in layers]
    unit = BATCH * (sum(products) + projector)
    online = 3 * (unit + BATCH * predictor) - BATCH * stem
    network = 2 * (online + (unit if name in TARGET else 0))

    hidden = HIDDEN * (1 + (name in PREDICTS))
    maps = sum(side**2 * c_out for _, _, c_out, _, side in layers)
    around = 2 * BATCH * (maps + hidden) * (FORWARD + BACKWARD)
    if name in TARGET:
        around += 2 * BATCH * (maps + HIDDEN) * FORWARD

    kernels = sum(k**2 * c_in * c_out for k, c_in, c_out, _, _ in layers)
    encoder = kernels + sum(2 * c_out for _, _, c_out, _, _ in layers) + projector / 2
    every = encoder + predictor / 2
    optimizer = every * (MOVE + (ADAPT if name == "kernel_infonce" else 0))
    optimizer += AVERAGE * encoder if name in TARGET else 0
    return {
        "units": network / unit,
        "network": network,
        "norms": around,
        "loss": _loss(name),
        "optimizer": optimizer,
        "augmentation": 2 * BATCH * _view(name),
    }


def _convolutions() -> list[tuple[int, int, int, int, int]]:
    """ResNet-18: kernel size, channels in and out, `_taps`, and output side of each convolution."""
    layers, channels, side = [(3, 3, 64, _taps(SIDE, 3, 1), SIDE)], 64, SIDE
    for out in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if out > 64 and block == 0 else 1
            after = side // stride
            layers.append((3, channels, out, _taps(side, 3, stride), after))
            layers.append((3, out, out, _taps(after, 3, 1), after))
            if stride == 2:
                layers.append((1, channels, out, _taps(side, 1, 2), after))
            channels, side = out, after
    return layers


def _taps(side: int, size: int, stride: int) -> int:
    """Pairs of an output position and a kernel position that meet a pixel, along one axis."""
    pixels = [o * stride + t - size // 2 for o in range(side // stride) for t in range(size)]
    return sum(0 <= pixel < side for pixel in pixels)


def _loss(name: str) -> float:
    """Matrices of inner products, forward and for the gradients, and the operations on them.

    Products within a batch are differentiated on both sides (3 products), products with constants
    on one (2), assignments to clusters on none (1). Two kernels share the forward product (5).
    """
    views = 2 * BATCH
    rows = UNIT * 2 * BATCH * OUT
    if name in ("simclr", "kernel_infonce"):
        kernels = 2 if name == "kernel_infonce" else 1
        return (1 + 2 * kernels) * 2 * views**2 * OUT + kernels * LOGIT * views**2 + rows
    if name == "barlow":
        return 3 * 2 * BATCH * OUT**2 + LOGIT * OUT**2 + rows
    if name == "ncc":
        # Cluster centers of two views, online (2) and target (1); then 3 of their products.
        centers = 2 * (2 + 1) * 2 * BATCH * CLUSTERS * OUT + 2 * 3 * 2 * CLUSTERS**2 * OUT
        return centers + 2 * rows
    loss = 2 * rows
    if name in ("moco", "cueco"):
        loss += 2 * (2 * 2 * BATCH * QUEUE * OUT + LOGIT * BATCH * QUEUE)
    if name == "cueco":
        # Assignment (1) and contrast (2) in both directions; the update assigns and averages.
        loss += (2 * 3 + 2) * 2 * BATCH * CLUSTERS * OUT
    return loss


def _view(name: str) -> float:
    """Operations of one view of one image: two products resize it, the others are per pixel."""
    numbers = 3 * SIDE**2
    resize = 2 * 2 * SIDE * numbers + 2 * 12 * SIDE**2
    # A blend is 5, a luma 2; each position in the order computes all three and selects one.
    jitter = 6 * (3 * 5 + 2 * 2 + 4) + 20
    # To floats 2, flip 1, gray 3, standardized 2, jitter or not 1.
    other = 2 + 1 + 3 + 2 + 1
    # Blur: 3 multiply-adds along 2 axes; solarization: of one view in two.
    byol = 2 * 2 * 3 + 1 + 3 / 2 if name == "cueco" else 0
    return resize + numbers * (jitter + other + byol)
