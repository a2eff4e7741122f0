"""CueCo's online clustering: centroids and variances updated by each batch.

Pure functions through which no gradient passes. Rows are those of the global batch
(`collectives.gather`), so that the clusters are the same on all devices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import ops


class Clusters(NamedTuple):
    """Centroids and variances of K clusters.

    Attributes:
        centroids: rows of length one `[K, d]`.
        variances: mean squared distance of the members to their centroid `[K]`.
    """

    centroids: Array
    variances: Array


def assign(features: Array, centroids: Array) -> Array:
    """Returns the nearest centroid of each row, int32 `[n]`; of equally near ones the first.

    Distances are Euclidean. The rows of `features` `[n, d]` are scaled to length one before, the
    `centroids` `[K, d]` are not.

    Source: CueCo (3), which uses the query z; (2), (7) and (8) use the keys z'. Pass either.

    Example:
        >>> rows, centroids = jnp.array([[9.0, 1.0], [-1.0, 5.0]]), jnp.eye(2)
        >>> assign(rows, centroids).tolist()
        [0, 1]
    """
    x, centroids = lax.stop_gradient((features, centroids))
    # ||x - c||^2 without ||x||^2, the same for all c.
    distances = jnp.sum(centroids**2, axis=-1)[None, :] - 2 * ops.pairwise_dot(
        ops.l2_normalize(x), centroids
    )
    return jnp.argmin(distances, axis=1).astype(jnp.int32)


@jax.jit
def start(features: Array, centroids: Array) -> Clusters:
    """Returns the initial clusters: the centroids, with the variance of the rows nearest to each.

    A cluster with at most one row gets the mean squared distance of all rows to their nearest
    centroid: with a variance of 0 it would attract the first row assigned to it with infinite
    weight.

    Args:
        features: `[n, d]`, the filled part of the queue; rows are scaled to length one here.
        centroids: `[K, d]`, k-means centers of these rows, scaled to length one here.

    Source: CueCo (2).

    Example:
        >>> rows = jnp.array([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
        >>> clusters = start(rows, jnp.array([[2.0, 0.0], [0.0, 1.0]]))
        >>> clusters.centroids.tolist(), clusters.variances.tolist()
        ([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    """
    x = ops.l2_normalize(lax.stop_gradient(features))
    centroids = ops.l2_normalize(centroids)
    assigned = assign(x, centroids)
    member = jax.nn.one_hot(assigned, len(centroids), dtype=x.dtype)
    squared = _squared_distances(x, centroids[assigned], member)
    counts = jnp.sum(member, axis=0)
    variances = squared / jnp.maximum(counts, 1)
    return Clusters(centroids, jnp.where(counts > 1, variances, jnp.sum(squared) / len(x)))


@jax.jit
def update(
    clusters: Clusters,
    features: Array,
    assigned: Array,
    *,
    centroid_decay: float,
    variance_decay: float,
) -> Clusters:
    """Returns the clusters moved toward their members in a batch; those without members stay.

    A centroid whose update has length 0, as of opposite members, stays too; its variance is
    updated.

    Args:
        clusters: the clusters before the update.
        features: keys of the global batch `[n, d]`, rows of any length.
        assigned: cluster of each row, int32 `[n]`.
        centroid_decay: beta_1, from 0 to 1.
        variance_decay: beta_2, from 0 to 1.

    Source: CueCo (7), (8). Centroids are scaled to length one after each update. The variance is
    taken about the centroid that the rows were assigned to, the one before the update: about the
    batch's own mean, mu_i in (8), a cluster with one member has variance 0, and L3 explodes
    (`test_cueco_eq_8_about_the_mean_of_the_batch_has_singletons_of_variance_zero`).

    Example:
        >>> clusters = Clusters(jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0.5, 0.5]))
        >>> keys, assigned = jnp.array([[0.0, -2.0]]), jnp.array([0])
        >>> moved = update(clusters, keys, assigned, centroid_decay=0.0, variance_decay=0.5)
        >>> moved.centroids.tolist(), moved.variances.tolist()
        ([[0.0, -1.0], [0.0, 1.0]], [1.25, 0.5])
    """
    centroids, variances = clusters
    x = ops.l2_normalize(lax.stop_gradient(features)).astype(centroids.dtype)
    member = jax.nn.one_hot(assigned, len(centroids), dtype=x.dtype)
    counts = jnp.sum(member, axis=0)
    has_members = counts > 0
    divisor = jnp.maximum(counts, 1)
    means = ops.pairwise_dot(member.T, x.T) / divisor[:, None]
    moved = ops.l2_normalize(centroid_decay * centroids + (1 - centroid_decay) * means)
    # Opposite vectors may cancel; a centroid of length 0 would be near every row.
    has_direction = has_members & jnp.any(moved != 0, axis=1)
    batch_variances = _squared_distances(x, centroids[assigned], member) / divisor
    updated = variance_decay * variances + (1 - variance_decay) * batch_variances
    return Clusters(
        jnp.where(has_direction[:, None], moved, centroids),
        jnp.where(has_members, updated, variances),
    )


def _squared_distances(x: Array, centroids: Array, member: Array) -> Array:
    """Sums over each cluster's members the squared distance to their centroid: `[K]`.

    Args:
        x: `[n, d]`.
        centroids: `[n, d]`, for each row that of its cluster.
        member: `[n, K]`, 1 where the row is in the cluster, else 0.
    """
    return jnp.sum(jnp.sum((x - centroids) ** 2, axis=-1, keepdims=True) * member, axis=0)
