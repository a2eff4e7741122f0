"""PCL: MoCo, and contrast with the prototypes of several clusterings of all images."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Duration, NonNegative, Positive
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import infonce, pcl
from cluster_jax.methods import base, encoders, moco
from cluster_jax.methods.base import Encoded, MethodContext, PyTree, Refresh, Term, TwoView


@dataclasses.dataclass(frozen=True, kw_only=True)
class TermConfig:
    """Hyper-parameters of PCL's contrast with prototypes.

    Attributes:
        temperature: mean of the concentrations, > 0 (0.2); in PCL also tau of InfoNCE.
        n_prototypes: K of each clustering, each 2 to the number of training images; many more than
            there are classes (25,000, 50,000 and 100,000 on ImageNet).
        weight: of ProtoNCE's prototypes beside InfoNCE, >= 0 (1; NCC's experiments with PCL: 0.01).
        warmup: duration without prototypes, `"20 epochs"`.
        update_every: duration between two clusterings, `"1 epoch"`.
        n_init: runs of k-means, >= 1 (5).
    """

    temperature: Positive
    n_prototypes: tuple[base.Clusters, ...]
    weight: NonNegative
    warmup: Duration
    update_every: Duration
    n_init: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TermConfig, encoders.AverageConfig):
    """Hyper-parameters of PCL: those of `TermConfig` and of the moving average, and one more.

    Attributes:
        queue: number of keys, a multiple of the batch size; see `moco.Config`.
    """

    queue: Count


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


class Prototypes(NamedTuple):
    """State of the contrast with prototypes.

    Attributes:
        clusterings: one for each number of prototypes.
    """

    clusterings: tuple[Clustering, ...]


def make(context: MethodContext, config: Config) -> TwoView[Any]:
    """Builds PCL: MoCo and `term`.

    Li et al. (2021), "Prototypical Contrastive Learning of Unsupervised Representations". The
    target network's projections are clustered; the online network is kept after training.
    Deviation: both views are queries, as in `moco` (`test_bare`).

    Raises:
        InputError: the queue, a number of prototypes or a duration does not suit the training.
    """
    loss = functools.partial(infonce.info_nce_queue, temperature=config.temperature)
    instances = moco.with_queue(
        context, loss, name="PCL", length=config.queue, decays=config.decays
    )
    two_view = base.with_term(instances, term(context, config))
    assert two_view.refresh is not None
    by_target = two_view.refresh._replace(kept=encoders.target_network)
    return two_view._replace(refresh=by_target)


def term(context: MethodContext, config: TermConfig) -> Term:
    """Builds the term: after the warm-up, `weight` times the mean of `losses.prototype_contrast`.

    The projections of all training images, not augmented, by the network that the method keeps, are
    clustered by k-means, once for each number of prototypes. What NCC's Table 4 adds to BYOL.
    Deviation: k-means is spherical, so that it minimizes the distances to the unit prototypes
    (`test_bare`); the paper scales the means to length one afterward.

    Raises:
        InputError: a number of prototypes or a duration does not suit the training.
    """
    checks.at_least("the number of method.n_prototypes", len(config.n_prototypes), 1)
    for k in config.n_prototypes:
        checks.at_most("method.n_prototypes", k, context.images, "training images")
    warmup, is_due = base.refresh_schedule(context, config.warmup, config.update_every)

    def init(key: Array) -> tuple[PyTree, Prototypes]:
        n = context.images
        d = context.network.projections
        clusterings = (
            Clustering(jnp.zeros(n, jnp.int32), jnp.zeros((k, d)), jnp.ones(k))
            for k in config.n_prototypes
        )
        return {}, Prototypes(tuple(clusterings))

    def value(
        params: PyTree, encoded: Encoded, state: Any, step: Array, axis: Axis
    ) -> tuple[Array, dict[str, Array]]:
        terms = [
            pcl.prototype_contrast(
                z,
                jnp.asarray(clustering.prototypes),
                clustering.labels[encoded.image_index],
                jnp.asarray(clustering.concentrations),
            )
            for z in encoded.projections
            for clustering in state.clusterings
        ]
        prototype = jnp.mean(jnp.stack(terms))
        active = jnp.where(step < warmup, 0, config.weight).astype(prototype.dtype)
        return active * prototype, {"prototype": prototype}

    return Term(
        init,
        value,
        refresh=Refresh(is_due, functools.partial(cluster, config), needs=("projection",)),
        pseudo_labels=lambda model_state: model_state.clusterings[0].labels,
    )


def cluster(
    config: TermConfig, state: Any, embedding: base.Embedding, key: Array, mesh: Mesh
) -> Any:
    """Clusters the projections of all images, see `base.Refresh.update`."""
    rows = np.asarray(embedding()["projection"])

    def update(i: int, old: Clustering) -> Clustering:
        k = len(old.prototypes)
        clustering = base.spherical_kmeans(rows, k, jax.random.fold_in(key, i), mesh, config.n_init)
        phi = pcl.concentrations(
            rows, clustering.centers, clustering.labels, mean=config.temperature
        )
        new = Clustering(clustering.labels, clustering.centers, phi)
        return jax.tree.map(lambda x, y: np.asarray(x, y.dtype), new, old)

    clusterings = tuple(update(i, old) for i, old in enumerate(state.clusterings))
    return state._replace(clusterings=clusterings)
