"""CueCo: momentum contrast with a queue, and centroids that are updated online (CueCo (6))."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.clustering import online
from cluster_jax.core import checks, collectives, ops, schedules
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import create_queue, enqueue
from cluster_jax.losses import cueco, infonce
from cluster_jax.methods.base import Encoded, MethodContext, Tree, TwoView, spherical_clusters
from cluster_jax.methods.encoders import momentum
from cluster_jax.methods.moco import check_queue

WEIGHTS = ("instance", "centroid", "variance")


def make(
    context: MethodContext,
    *,
    clusters: int,
    temperature: float,
    queue: int,
    weights: Mapping[str, float],
    centroid_decay: float,
    variance_decay: float,
    assign_by: str,
    warmup: str,
    update_every: str,
    n_init: int,
    decay: float,
    final_decay: float,
) -> TwoView:
    """CueCo, both directions: each view is the other's query, over 2.

    L2 and L3 are off while the clusters are frozen. k-means on the queue starts the clusters at
    the end of that time and starts them anew after every further `update_every` steps; between, they
    follow view b's keys, which also enter the queue. Stated guesses where the paper is silent:
    the two decays, and k-means with k-means++ starts. Kept after training: the online network.

    Args:
        context: network with a predictor, augmentation and sizes.
        clusters: K, 2 to the length of the queue.
        temperature: tau of L1 and L2, > 0 (0.2).
        queue: number of keys, a multiple of the batch; best at most half the training images.
        weights: `{"instance", "centroid", "variance"}` of L1, L2, L3 (1, 0.1, 0.01).
        centroid_decay: beta_1, 0 to 1.
        variance_decay: beta_2, 0 to 1.
        assign_by: whether an image belongs to the centroid nearest to its `"key"` ((2), (7), (8))
            or to its `"query"` (as (3) prints).
        warmup: duration without clusters, `"313 steps"`.
        update_every: duration between two runs of k-means, `"1000 steps"`.
        n_init: runs of k-means each time, >= 1.
        decay: of the moving average at the first step (0.996).
        final_decay: at the last step (1), reached by half a cosine.

    Raises:
        InputError: a value is out of range, or the network has no predictor.
    """
    checks.positive("method.temperature", temperature)
    check_queue(queue, context)
    checks.at_least("method.clusters", clusters, 2)
    first = schedules.steps("method.warmup", warmup, context.steps_per_epoch)
    checks.at_least("method.warmup", first, 1)
    period = schedules.steps("method.update_every", update_every, context.steps_per_epoch)
    checks.at_least("method.update_every", period, 1)
    keys = min(queue, first * context.batch_size)
    if clusters > keys:
        raise InputError(
            f"method.clusters must be at most {keys}, the keys in the queue when k-means first "
            f"runs; got {clusters}"
        )
    if first >= context.total_steps:
        raise InputError(
            f"method.warmup is {first} steps, as long as the training of {context.total_steps} or "
            "longer, so that no cluster would ever be used; shorten it or raise train.duration"
        )
    if set(weights) != set(WEIGHTS):
        raise InputError(
            f"method.weights must have the keys {', '.join(WEIGHTS)}; got {', '.join(weights)}"
        )
    for name in WEIGHTS:
        checks.at_least(f"method.weights.{name}", weights[name], 0)
    for name, value in (("centroid_decay", centroid_decay), ("variance_decay", variance_decay)):
        if not 0 <= value <= 1:
            raise InputError(f"method.{name} must be between 0 and 1; got {value}")
    checks.one_of("method.assign_by", assign_by, ("key", "query"))
    checks.at_least("method.n_init", n_init, 1)

    def objective(
        params: Tree, encoded: Encoded, model_state: Tree, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, Tree, dict]:
        held, groups = model_state["queue"], model_state["clusters"]
        (query_a, query_b), (key_a, key_b) = encoded.predictions, encoded.targets

        def one(query: Array, own_key: Array) -> Array:
            instance = infonce.info_nce_queue(
                query, own_key, held.rows, held.filled, temperature=temperature
            )
            assigned = online.assign(own_key if assign_by == "key" else query, groups.centroids)
            centroid = cueco.centroid_contrast(
                query, groups.centroids, assigned, temperature=temperature
            )
            variance = cueco.variance_loss(query, groups.centroids, groups.variances, assigned)
            return jnp.stack([instance, centroid, variance])

        losses = (one(query_a, key_b) + one(query_b, key_a)) / 2
        active = (step >= first).astype(losses.dtype)
        scales = jnp.array([weights[name] for name in WEIGHTS], losses.dtype)
        scales *= jnp.stack([jnp.ones_like(active), active, active])
        gathered = collectives.gather(ops.l2_normalize(key_b), axis)
        by = gathered if assign_by == "key" else collectives.gather(query_a, axis)
        moved = online.update(
            groups,
            gathered,
            online.assign(by, groups.centroids),
            centroid_decay=centroid_decay,
            variance_decay=variance_decay,
        )
        groups = jax.tree.map(lambda new, old: jnp.where(step < first, old, new), moved, groups)
        model_state = {**model_state, "queue": enqueue(held, gathered), "clusters": groups}
        return jnp.sum(scales * losses), model_state, dict(zip(WEIGHTS, losses, strict=True))

    def start() -> Tree:
        d = context.network.projections
        # Distinct unit rows, so that a loss is finite while the clusters are frozen.
        centroids = ops.l2_normalize(jax.random.normal(jax.random.key(0), (clusters, d)))
        return {
            "queue": create_queue(queue, jnp.zeros(d)),
            "clusters": online.Clusters(centroids, jnp.ones(clusters)),
        }

    def refresh_at(step: int) -> bool:
        return step >= first and (step - first) % period == 0

    def refresh(model_state: Tree, embedding: Callable, key: Array, mesh: Mesh) -> Tree:
        held = model_state["queue"]
        rows = np.asarray(held.rows)[: int(held.filled)]
        found = spherical_clusters(rows, clusters, n_init=n_init, key=key, init=None, mesh=mesh)
        groups = online.start(rows, found.centers)
        held = jax.tree.map(
            lambda x, old: np.asarray(x, old.dtype), groups, model_state["clusters"]
        )
        return {**model_state, "clusters": held}

    made = momentum.two_view(
        context,
        objective,
        name="CueCo",
        decay=decay,
        final_decay=final_decay,
        predicts=True,
        kept="online",
        memory=start,
        perturb=None,
    )
    return made._replace(refresh_at=refresh_at, refresh=refresh)
