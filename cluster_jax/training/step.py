"""One training step for every method: the only place where gradients are reduced."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from cluster_jax.core import collectives
from cluster_jax.data import batches
from cluster_jax.methods.base import Method
from cluster_jax.training.state import AXIS, State

Step = Callable[[State, dict[str, Array], Array | None], tuple[State, dict[str, Array]]]


def make_step(method: Method, optimizer: optax.GradientTransformation, mesh: Mesh) -> Step:
    """`(state, batch, resident) -> state, metrics`, jitted over the devices of the mesh.

    The parameters are typed as different on each device, so that each differentiates a loss of
    its own; the mean of these losses over the devices is the loss of the global batch, and one
    mean over the devices reduces loss, gradients, statistics and metrics. A loss that happens to
    be equal on all devices (everything in it gathered) is typed as different too: its gradient
    would come out divided by the number of devices.

    `batch` is `{"index": int32 [B], "image": uint8 [B, H, W, C]}`, sharded by rows, or has such
    parts, `{"labeled": {..., "label": int32 [L]}, "unlabeled": {...}}`; where
    `resident` `[N, H, W, C]`, the whole data set on every device, is given, the images are
    gathered from it. The old state is donated: do not use it again.

    Metrics are scalars: those of the method, and `gradient_norm`.
    """

    def body(state: State, batch: Any, resident: Any) -> tuple[State, dict[str, Array]]:
        if resident is not None:
            batch = batches.with_images(batch, resident)
        key = jax.random.fold_in(state.key, state.step)

        def loss(params: Any) -> tuple[Array, Any]:
            value, aux = method.loss(params, state.model_state, batch, state.step, key, AXIS)
            return collectives.varying(value, AXIS), aux

        params = collectives.varying(state.params, AXIS)
        (_, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        gradient, model_state, metrics = collectives.replicate(
            (gradient, aux.model_state, dict(aux.metrics)), AXIS
        )
        updates, opt = optimizer.update(gradient, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        model_state = method.after(params, model_state, state.step)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        return State(state.step + 1, state.key, params, model_state, opt), metrics

    rows, whole = PartitionSpec(AXIS), PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(whole, rows, whole), out_specs=(whole, whole))
    return jax.jit(mapped, donate_argnums=0)
