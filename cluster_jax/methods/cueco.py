"""CueCo: MoCo with centroids that are updated online by each batch (CueCo (6))."""

import dataclasses
import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.clustering import online
from cluster_jax.clustering.online import Clusters
from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import Count, Duration, Fraction, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import Queue, create_queue, enqueue
from cluster_jax.losses import cueco, infonce
from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, Refresh, TwoView, Watched
from cluster_jax.methods.encoders import Target
from cluster_jax.methods.moco import check_queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """Weights of CueCo's losses, each >= 0.

    Attributes:
        instance: weight of L1 (1).
        centroid: weight of L2 (0.1).
        variance: weight of L3 (0.01).
    """

    instance: NonNegative
    centroid: NonNegative
    variance: NonNegative


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(encoders.AverageConfig):
    """Hyper-parameters of CueCo: those of the moving average of the parameters, and more.

    Attributes:
        n_clusters: K, 2 to the length of the queue.
        temperature: tau of L1 and L2, > 0 (0.2).
        queue: number of keys, a multiple of the batch size; see `moco.Config`.
        weights: weights of L1, L2 and L3.
        centroid_decay: beta_1, decay of the moving average of the centroids, 0 to 1.
        variance_decay: beta_2, decay of the moving average of the variances, 0 to 1.
        assign_by: whether an image belongs to the centroid nearest to its `"key"` ((2), (7), (8))
            or to its `"query"` (as (3) prints; `test_cueco_eq_6_gradient_of_the_total`).
        warmup: duration without clusters, `"313 steps"`.
        update_every: duration between two runs of k-means, `"1000 steps"`.
        n_init: number of runs of k-means, >= 1.
    """

    n_clusters: base.Clusters
    temperature: Positive
    queue: Count
    weights: WeightsConfig
    centroid_decay: Fraction
    variance_decay: Fraction
    assign_by: Literal["key", "query"]
    warmup: Duration
    update_every: Duration
    n_init: Count


class CueCoState(NamedTuple):
    """State of CueCo.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
        queue: unit keys of view b of earlier batches `[Q, d]`.
        clusters: centroids and variances; random centroids until the warm-up is over.
    """

    batch_stats: PyTree
    target: Target
    queue: Queue
    clusters: Clusters


def make(context: MethodContext, config: Config) -> TwoView[CueCoState]:
    """Builds CueCo, both directions: each view is the other's query, over 2.

    L2 and L3 have no weight during the warm-up. At its end, and every `update_every` after it,
    k-means on the queue initializes the clusters; between, the keys of view b update them. The keys
    of view b also enter the queue. The paper does not specify the two decays of the clusters nor
    the initialization of k-means, which is k-means++ here. The online network is kept after
    training.

    Raises:
        InputError: the queue, the number of clusters or a duration does not suit the training, or
            the network has no predictor.
    """
    check_queue(config.queue, context)
    warmup, is_due = base.refresh_schedule(context, config.warmup, config.update_every)
    checks.at_least("method.warmup", warmup, 1)
    keys = min(config.queue, warmup * context.batch_size)
    of = "keys in the queue after the warm-up"
    checks.at_most("method.n_clusters", config.n_clusters, keys, of)

    def initial_state(batch_stats: PyTree, target: Target) -> CueCoState:
        d = context.network.projections
        # Distinct unit rows, so that the losses are finite until k-means replaces them after the
        # warm-up. The losses have no weight before, so that no seed needs to move the rows.
        centroids = ops.l2_normalize(jax.random.normal(jax.random.key(0), (config.n_clusters, d)))
        clusters = Clusters(centroids, jnp.ones(config.n_clusters))
        return CueCoState(batch_stats, target, create_queue(config.queue, jnp.zeros(d)), clusters)

    two_view = encoders.momentum(
        context,
        _objective(config, warmup),
        name="CueCo",
        decays=config.decays,
        predicts=True,
        initial_state=initial_state,
    )
    return two_view._replace(
        refresh=Refresh(is_due, functools.partial(refresh_clusters, config)),
        watched=Watched(chance=("instance", math.log(config.queue + 1))),
    )


def _objective(config: Config, warmup: int) -> base.Objective[CueCoState]:
    """Builds the objective: L1 and, after the warm-up, L2 and L3."""

    def objective(
        params: PyTree, encoded: Encoded, state: CueCoState, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, CueCoState, dict[str, Array]]:
        (query_a, query_b), (key_a, key_b) = encoded.predictions, encoded.targets
        terms = functools.partial(_terms, config, state.queue, state.clusters)
        losses = (terms(query_a, key_b) + terms(query_b, key_a)) / 2
        active = (step >= warmup).astype(losses.dtype)
        weights = dataclasses.asdict(config.weights)
        scales = jnp.array(list(weights.values()), losses.dtype)
        scales *= jnp.stack([jnp.ones_like(active), active, active])
        keys = collectives.gather(ops.l2_normalize(key_b), axis)
        assigned_by = keys if config.assign_by == "key" else collectives.gather(query_a, axis)
        moved = online.update(
            state.clusters,
            keys,
            online.assign(assigned_by, state.clusters.centroids),
            centroid_decay=config.centroid_decay,
            variance_decay=config.variance_decay,
        )
        kept = functools.partial(jnp.where, step < warmup)
        clusters = jax.tree.map(kept, state.clusters, moved)
        state = state._replace(queue=enqueue(state.queue, keys), clusters=clusters)
        return jnp.sum(scales * losses), state, dict(zip(weights, losses, strict=True))

    return objective


def _terms(config: Config, queue: Queue, clusters: Clusters, query: Array, key: Array) -> Array:
    """Computes L1, L2, L3 of one direction, `[3]`, in the order of `WeightsConfig`."""
    instance = infonce.info_nce_queue(
        query, key, queue.rows, queue.filled, temperature=config.temperature
    )
    assigned = online.assign(key if config.assign_by == "key" else query, clusters.centroids)
    centroid = cueco.centroid_contrast(
        query, clusters.centroids, assigned, temperature=config.temperature
    )
    variance = cueco.variance_loss(query, clusters.centroids, clusters.variances, assigned)
    return jnp.stack([instance, centroid, variance])


def refresh_clusters(
    config: Config, state: CueCoState, embedding: base.Embedding, key: Array, mesh: Mesh
) -> CueCoState:
    """Clusters the queue by k-means, see `base.Refresh.update`; `embedding` is unused."""
    rows = np.asarray(state.queue.rows)[: int(state.queue.filled)]
    result = base.spherical_kmeans(rows, config.n_clusters, key, mesh, config.n_init)
    started = online.start(rows, result.centers)
    clusters = jax.tree.map(lambda new, old: np.asarray(new, old.dtype), started, state.clusters)
    return state._replace(clusters=clusters)
