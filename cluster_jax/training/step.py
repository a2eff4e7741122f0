"""The training step, the same for all methods; the only place that reduces gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from jax.stages import Wrapped

from cluster_jax.core import collectives
from cluster_jax.core.mesh import AXIS
from cluster_jax.data import batches
from cluster_jax.methods.base import Method
from cluster_jax.training.state import State


def make_step(method: Method, optimizer: optax.GradientTransformation, mesh: Mesh) -> Wrapped:
    """Makes the jitted step `(state, batch, resident) -> state, metrics` for the devices of a mesh.

    Args:
        method: its `loss` and `after` make the step.
        optimizer: updates the parameters.
        mesh: devices over which the batch is split.

    Returns:
        A function of

        - `state`, which is donated: do not use it again;
        - `batch`, `{"index": int32 [B], "image": uint8 [B, H, W, C]}` sharded by rows, or two such
          parts, `{"labeled": {..., "label": int32 [L]}, "unlabeled": {...}}`;
        - `resident`, the whole data set uint8 `[N, H, W, C]` on every device, from which the images
          of the batch are taken by index, or None.

        It returns the next state and scalar metrics: those of the method and `gradient_norm`.
    """

    def body(
        state: State, batch: batches.Batch, resident: Array | None
    ) -> tuple[State, dict[str, Array]]:
        if resident is not None:
            batch = batches.with_images(batch, resident)
        key = jax.random.fold_in(state.key, state.step)

        def loss(params: Any) -> tuple[Array, Any]:
            value, aux = method.loss(params, state.model_state, batch, state.step, key, AXIS)
            # A loss of gathered rows alone is equal on all devices, and without this its gradient
            # would be divided by their number.
            return collectives.varying(value, AXIS), aux

        # Typed as device-varying, so that each device differentiates its own loss and JAX inserts
        # no sum. The mean of these losses is the loss of the global batch: a single mean over the
        # devices then reduces gradients, statistics and metrics.
        params = collectives.varying(state.params, AXIS)
        (_, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        outputs = gradient, aux.model_state, dict(aux.metrics)
        gradient, model_state, metrics = collectives.replicate(outputs, AXIS)
        # Optax raises floats to integer powers, which strict promotion of JAX would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt = optimizer.update(gradient, state.opt, state.params)
        params = optax.apply_updates(state.params, updates)
        if isinstance(opt, optax.MultiStepsState):
            averaged = method.after(params, model_state, state.opt.gradient_step)
            between = params, model_state  # two updates, of which only the gradients are added up
            params, model_state = optax.tree.where(opt.mini_step == 0, averaged, between)
        else:
            params, model_state = method.after(params, model_state, state.step)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        # A step that is not finite changes nothing but the count of steps. The optimizer's count
        # stays as it was, so that the learning rate lags behind the logged one by that step.
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
        new = params, model_state, opt
        old = state.params, state.model_state, state.opt
        return State(state.step + 1, state.key, *optax.tree.where(finite, new, old)), metrics

    rows, whole = PartitionSpec(AXIS), PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(whole, rows, whole), out_specs=(whole, whole))
    return jax.jit(mapped, donate_argnums=0)
