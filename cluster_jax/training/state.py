"""The state of a training: one pytree, checkpointed whole."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cluster_jax.core.checks import InputError
from cluster_jax.methods.base import Method

AXIS = "data"


class State(NamedTuple):
    """Everything that a training needs to go on.

    Attributes:
        step: int32 `[]`, the number of steps made.
        key: the key of the run; each step folds its number into it.
        params: what the optimizer moves.
        model_state: what survives a step and is not trained: BatchNorm statistics, target
            parameters, queues, centroids, pseudo-labels.
        opt: the optimizer's state.
    """

    step: Array
    key: Array
    params: Any
    model_state: Any
    opt: Any


def make_mesh(devices: int | None = None) -> Mesh:
    """A mesh of one axis, the batch, over the first `devices` devices of all hosts (None: all)."""
    chosen = jax.devices()[:devices]
    return jax.make_mesh((len(chosen),), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of values that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def sharded(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose rows are spread over the devices."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def initial(
    method: Method,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    shape: tuple[int, int, int],
) -> State:
    """The state before the first step, a pure function.

    Args:
        method: what to train.
        optimizer: moves its parameters.
        seed: of the initial parameters and of everything random that follows.
        shape: `[H, W, C]` of a network input.
    """
    key, init_key = jax.random.split(jax.random.key(seed))
    params, model_state = method.init(init_key, jnp.zeros((1, *shape)))
    return State(jnp.zeros((), jnp.int32), key, params, model_state, optimizer.init(params))


def create(
    method: Method,
    optimizer: optax.GradientTransformation,
    *,
    seed: int,
    shape: tuple[int, int, int],
    mesh: Mesh,
) -> State:
    """`initial` on every device of the mesh."""
    # Unoptimized: compiling the random kernels of every shape takes 15 s on a CPU otherwise.
    fast = {"xla_backend_optimization_level": 0}
    build = functools.partial(initial, method, optimizer, seed=seed, shape=shape)
    return jax.jit(build, out_shardings=replicated(mesh), compiler_options=fast)()


def check_batch(batch_size: int, mesh: Mesh) -> None:
    """Raises an `InputError` unless the batch divides over the devices."""
    if batch_size % mesh.size:
        raise InputError(
            f"train.batch_size {batch_size} does not divide over {mesh.size} devices; "
            f"use a multiple of {mesh.size}"
        )
