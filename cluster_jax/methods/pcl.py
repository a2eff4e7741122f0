"""PCL: MoCo, and contrast with the prototypes of several clusterings of all images."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Duration, Fraction, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.core.queue import Queue
from cluster_jax.losses import infonce, pcl
from cluster_jax.methods import base, encoders, moco
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, Refresh, TwoView, Watched
from cluster_jax.methods.encoders import Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Hyper-parameters of PCL.

    Attributes:
        temperature: tau of InfoNCE and the mean of the concentrations, > 0 (0.2).
        queue: number of keys, a multiple of the batch size; see `moco.Config`.
        prototypes: K of each clustering, each 2 to the number of training images; many more than
            there are classes (25,000, 50,000 and 100,000 on ImageNet).
        weight: of ProtoNCE's prototypes beside InfoNCE, >= 0 (1; NCC's experiments with PCL: 0.01).
        warmup: duration without prototypes, `"20 epochs"`.
        update_every: duration between two clusterings, `"1 epoch"`.
        n_init: runs of k-means, >= 1 (5).
        decay: decay of the moving average at the first step (0.999).
        final_decay: decay at the last step, approached by half a cosine.
    """

    temperature: Positive
    queue: Count
    prototypes: tuple[base.Clusters, ...]
    weight: NonNegative
    warmup: Duration
    update_every: Duration
    n_init: Count
    decay: Fraction
    final_decay: Fraction


class Clustering(NamedTuple):
    """One clustering of the training images.

    Attributes:
        labels: cluster of each image, int32 `[images]`; zeros before the first clustering.
        prototypes: unit rows `[K, d]`; zeros before the first clustering.
        concentrations: temperature of each prototype `[K]`.
    """

    labels: Array | np.ndarray
    prototypes: Array | np.ndarray
    concentrations: Array | np.ndarray


class PCLState(NamedTuple):
    """State of PCL.

    Attributes:
        batch_stats: running BatchNorm statistics of the online network.
        target: the target network.
        queue: unit keys of view b of earlier batches `[Q, d]`.
        clusterings: one for each number of prototypes.
    """

    batch_stats: PyTree
    target: Target
    queue: Queue
    clusterings: tuple[Clustering, ...]


def make(context: MethodContext, config: Config) -> TwoView[PCLState]:
    """PCL: MoCo and, after the warm-up, `weight` times the mean of `losses.prototype_contrast`.

    Li et al. (2021), "Prototypical Contrastive Learning of Unsupervised Representations". The
    target projections of all training images, not augmented, are clustered by k-means, once for
    each number of prototypes. The online network is kept after training.
    Deviations: both views are queries, as in `moco`, and k-means is spherical, so that it minimizes
    the distances to the unit prototypes; the paper scales the means to length one afterward.

    Raises:
        InputError: the queue, a number of prototypes or a duration does not suit the training.
    """
    checks.at_least("the number of method.prototypes", len(config.prototypes), 1)
    for k in config.prototypes:
        checks.at_most("method.prototypes", k, context.images, "training images")
    warmup, is_due = base.refresh_schedule(context, config.warmup, config.update_every)
    loss = functools.partial(infonce.info_nce_queue, temperature=config.temperature)
    decays = config.decay, config.final_decay
    # MoCo's functions leave the fields of its state alone that it does not know.
    instances: TwoView[Any] = moco.with_queue(
        context, loss, name="PCL", length=config.queue, decays=decays
    )

    def init(key: Array, images: Array) -> tuple[PyTree, PCLState]:
        params, state = instances.init(key, images)
        n, d = context.images, context.network.projections
        clusterings = (
            Clustering(jnp.zeros(n, jnp.int32), jnp.zeros((k, d)), jnp.ones(k))
            for k in config.prototypes
        )
        return params, PCLState(state.batch_stats, state.target, state.queue, tuple(clusterings))

    def objective(
        params: PyTree, encoded: Encoded, state: PCLState, step: Array, key: Array, axis: Axis
    ) -> tuple[Array, PCLState, dict[str, Array]]:
        instance, state, _ = instances.objective(params, encoded, state, step, key, axis)
        terms = [
            pcl.prototype_contrast(
                z,
                jnp.asarray(own.prototypes),
                own.labels[encoded.image_index],
                jnp.asarray(own.concentrations),
            )
            for z in encoded.projections
            for own in state.clusterings
        ]
        prototype = jnp.mean(jnp.stack(terms))
        active = jnp.where(step < warmup, 0, config.weight).astype(prototype.dtype)
        metrics = {"instance": instance, "prototype": prototype}
        return instance + active * prototype, state, metrics

    return instances._replace(
        init=init,
        objective=objective,
        refresh=Refresh(
            is_due,
            functools.partial(cluster, config),
            base.embedder(context, encoders.target_network),
        ),
        watched=Watched(
            chance=("instance", math.log(config.queue + 1)),
            pseudo_labels=lambda model_state: model_state.clusterings[0].labels,
        ),
    )


def cluster(
    config: Config, state: PCLState, embedding: base.Embedding, key: Array, mesh: Mesh
) -> PCLState:
    """Clusterings of the target projections of all images, see `base.Refresh.update`."""
    rows = np.asarray(embedding()["projection"])

    def update(i: int, old: Clustering) -> Clustering:
        k = len(old.prototypes)
        found = base.spherical_kmeans(rows, k, jax.random.fold_in(key, i), mesh, config.n_init)
        phi = pcl.concentrations(rows, found.centers, found.labels, mean=config.temperature)
        new = Clustering(found.labels, found.centers, phi)
        return jax.tree.map(lambda x, y: np.asarray(x, y.dtype), new, old)

    return state._replace(
        clusterings=tuple(update(i, old) for i, old in enumerate(state.clusterings))
    )
