"""CueCo's clustering losses: attract a row to its own centroid (L2), reduce its variance (L3).

The third loss, L1 (1), is `infonce.info_nce_queue`; the clusters are those of `clustering.online`.
"""

import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, ops
from cluster_jax.losses import base, infonce
from cluster_jax.losses.base import array_function

EPSILON = 1e-6  # (5)'s own


@array_function(anchors="float[rows, d]", centroids="float[K, d]", assigned="int[rows]")
def centroid_contrast(
    anchors: Array, centroids: Array, assigned: Array, *, temperature: Array | float = 0.2
) -> Array:
    """Computes L2: InfoNCE of each row with its own centroid against the other centroids.

    Args:
        anchors: online rows `[rows, d]`, this device's part, of any length.
        centroids: unit rows `[K, d]`, K at least 2; constants for the gradient.
        assigned: cluster of each row, int32 `[rows]`; a row with a number outside 0 to K - 1, such
            as -1, is in no cluster and adds 0 to the mean.
        temperature: tau, positive; the default is the paper's.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: fewer than two clusters.

    Source: CueCo (4), with the own centroid once in the denominator: the printed sum over all l
    counts it twice, where the text below it says "the other clusters"
    (`test_cueco_eq_4_misprints_the_own_centroid_twice`).

    Example:
        >>> import jax.numpy as jnp
        >>> loss = centroid_contrast(jnp.array([[1.0, 0.0]]), jnp.eye(2), jnp.array([0]))
        >>> round(loss.item(), 4)  # log(1 + exp(-1 / 0.2))
        0.0067
    """
    checks.at_least("the number of centroids", centroids.shape[0], 2)
    return infonce.info_nce(
        ops.l2_normalize(anchors),
        lax.stop_gradient(centroids),
        assigned,
        temperature=temperature,
        positive_in_denominator=True,
    )


@array_function(
    anchors="float[rows, d]",
    centroids="float[K, d]",
    variances="float[K]",
    assigned="int[rows]",
)
def variance_loss(anchors: Array, centroids: Array, variances: Array, assigned: Array) -> Array:
    """Computes L3: mean of `||z - c||^2 / (2 sigma^2 + 1e-6)`, c, sigma^2 of the row's own cluster.

    Args:
        anchors: online rows `[rows, d]`, this device's part, of any length.
        centroids: unit rows `[K, d]`; constants for the gradient.
        variances: mean squared distance of each cluster's members to its centroid `[K]`, >= 0;
            constants.
        assigned: cluster of each row, int32 `[rows]`, see `centroid_contrast`.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: CueCo (5).

    Example:
        >>> import jax.numpy as jnp
        >>> anchors, centroids = jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]])
        >>> loss = variance_loss(anchors, centroids, jnp.array([0.5]), jnp.array([0]))
        >>> round(loss.item(), 3)
        2.0
    """
    centroids, variances = lax.stop_gradient((centroids, variances))
    assigned, in_cluster = base.in_range(assigned, len(centroids))
    squared = jnp.sum((ops.l2_normalize(anchors) - centroids[assigned]) ** 2, axis=-1)
    losses = squared / (2 * variances[assigned] + EPSILON)
    return jnp.mean(jnp.where(in_cluster, losses, 0))
