"""A training: its settings and parts, and its state, one pytree that is checkpointed as a whole."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh

from cluster_jax.core import checks, ops
from cluster_jax.core import mesh as meshes
from cluster_jax.core.checks import Count, Duration
from cluster_jax.core.schedules import Schedule
from cluster_jax.data.datasets import Dataset
from cluster_jax.methods import base as methods
from cluster_jax.methods.base import Features, Method, ModelState, PyTree
from cluster_jax.nets.network import Network

Optimizer: TypeAlias = optax.GradientTransformation


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Section `train`.

    Attributes:
        batch_size: images per step, over all devices.
        accumulate: steps whose mean gradient makes one update of the parameters, as that of a
            larger batch would, except that the images of a step meet only each other: in losses
            with negatives and in BatchNorm. Durations go on counting steps; the schedules of the
            learning rate and of moving averages count updates. Steps left at the end make none.
        remat: whether gradients compute the blocks of the network again instead of keeping their
            activations: the same numbers, up to rounding, of less memory in more time.
        labeled_batch_size: number of labeled images among them, see `data.batches.parts`; None:
            batches have no labels.
        duration: length of the training, "1500 steps" or "200 epochs".
        log_every: steps between lines of the log; a line has the means over its steps.
        checkpoint_every: steps between checkpoints; the last step is always saved.
        keep_checkpoints: number of checkpoints to keep.
        prefetch: number of batches to prepare ahead.
        on_collapse: what happens where the embedding collapses, see `training.watch`: "warn" tells
            in the log, the report and the results, "stop" also ends the training.
    """

    batch_size: Annotated[int, functools.partial(checks.whole, least=2)]
    accumulate: Count
    remat: bool
    labeled_batch_size: Count | None
    duration: Duration
    log_every: Count
    checkpoint_every: Count
    keep_checkpoints: Count
    prefetch: Count
    on_collapse: Literal["warn", "stop"]


class TrainingRun(NamedTuple):
    """Everything that a training needs, except its state.

    Attributes:
        method: what is trained.
        optimizer: updates its parameters.
        learning_rate: as a function of the step, for the log.
        seed: of the initial parameters, the order of the images and all other randomness.
        total_steps: length of the whole training.
        train: sizes and intervals.
        dataset: the images.
        mesh: all devices of all processes.
        shape: `[H, W, C]` of a network input.
        network: backbone, projector and predictor.
        clean: makes an image ready for the network, see `data.views.Augment`.
        embed: features of images by the network that is kept, see `methods.base.embed`; one
            function for a run, which JAX compiles once.
    """

    method: Method
    optimizer: Optimizer
    learning_rate: Schedule
    seed: int
    total_steps: int
    train: TrainConfig
    dataset: Dataset
    mesh: Mesh
    shape: tuple[int, ...]
    network: Network
    clean: Callable[[Array], Array]
    embed: Callable[[PyTree, ModelState, Array], Features]

    def with_method(self, method: Method) -> "TrainingRun":
        """Returns the run with another method, or the same with another network to keep."""
        of = functools.partial(methods.embed, method, self.network, self.clean)
        return self._replace(method=method, embed=of)


class State(NamedTuple):
    """Everything needed to resume a training.

    Attributes:
        step: int32 `[]`, number of completed steps.
        key: random key of the run; each step folds its number into it.
        params: parameters that the optimizer updates.
        model_state: the method's other state: BatchNorm statistics, target parameters, queues,
            centroids, pseudo-labels.
        opt: state of the optimizer.
    """

    step: Array
    key: Array
    params: PyTree
    model_state: ModelState
    opt: optax.OptState


def initial(method: Method, optimizer: Optimizer, *, seed: int, shape: tuple[int, ...]) -> State:
    """Returns the state before the first step; a pure function.

    Args:
        method: method to train.
        optimizer: optimizer of its parameters.
        seed: seed of the initial parameters and of all later randomness.
        shape: `[H, W, C]` of a network input; `[d]` of features.
    """
    key, init_key = jax.random.split(jax.random.key(seed))
    params, model_state = method.init(init_key, jnp.zeros((1, *shape)))
    return State(jnp.zeros((), jnp.int32), key, params, model_state, optimizer.init(params))


def create(
    method: Method, optimizer: Optimizer, *, seed: int, shape: tuple[int, ...], mesh: Mesh
) -> State:
    """Creates `initial`, replicated on every device of the mesh."""
    # No optimization: compiling the random initializers of all shapes takes 15 s on a CPU with it.
    fast = {"xla_backend_optimization_level": 0}
    build = functools.partial(initial, method, optimizer, seed=seed, shape=shape)
    return jax.jit(build, out_shardings=meshes.replicated(mesh), compiler_options=fast)()


def checksum(values: Any) -> str:
    """Returns a hash of names, dtypes, shapes and bits of all arrays of a pytree.

    The bits of an array are mixed with their place and summed up on its devices, so that nothing
    large is copied to the host. A single changed word always changes the sum.
    """
    leaves = sorted(ops.named(values).items())
    # A program for each shape compiles in a fraction of the time of one for all arrays.
    sums = jax.device_get([_sum(x) for _, x in leaves])
    about = [
        f"{name} {x.dtype} {x.shape} {total}" for (name, x), total in zip(leaves, sums, strict=True)
    ]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()


@jax.jit
def _sum(x: Array) -> Array:
    """Returns the sum of the mixed words of an array, uint32 `[]`.

    Each word is mixed by MurmurHash3's last steps, which no two words have in common. A sum of
    words that are only weighted misses a change of all of them, such as a factor of two.
    """
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = x.astype(jnp.uint8) if x.dtype == bool else x
    word = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    words = lax.bitcast_convert_type(x, word).reshape(-1).astype(jnp.uint32)
    words ^= lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B9)
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(words ^ (words >> 16), dtype=jnp.uint32)
