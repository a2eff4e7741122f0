"""CC: contrast of clusters, which are the columns of a batch's assignments."""

import jax.numpy as jnp
from jax import Array

from cluster_jax.core import collectives, ops
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.losses.base import array_function


@array_function(a="float[rows, K]", b="float[rows, K]", static=("axis",))
def cluster_contrast(
    a: Array, b: Array, *, temperature: Array | float = 1.0, axis: Axis = None
) -> Array:
    """Computes NT-Xent of clusters: a cluster's column in one view against the 2K - 1 others.

    The positive is the column of the same cluster in the other view, compared by the cosine over
    all images; the loss is the mean over the 2K columns.

    Args:
        a: probabilities of the clusters in the first view `[rows, K]`, this device's part.
        b: those in the second view, same images in the same order `[rows, K]`.
        temperature: tau_C, positive; the default is the paper's.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, the loss of the global batch, equal on all devices.

    Source: Li et al. (2021), "Contrastive Clustering", the cluster-level loss without its entropy.

    Example:
        >>> import jax.numpy as jnp
        >>> round(cluster_contrast(jnp.eye(2), jnp.eye(2)).item(), 4)  # log(1 + 2 exp(-1))
        0.5514
    """
    a, b = collectives.gather(a, axis), collectives.gather(b, axis)
    return infonce.info_nce_views(a.T, b.T, temperature=temperature)


@array_function(probabilities="float[rows, K]", static=("axis",))
def entropy_deficit(probabilities: Array, *, axis: Axis = None) -> Array:
    """Computes `log K - H(p)`, p the mean row: 0 if all clusters are used alike, at most log K.

    Args:
        probabilities: of the clusters `[rows, K]`, rows that sum to 1, this device's part.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar of at least float32, the value of the global batch, equal on all devices.

    Source: Li et al. (2021), "Contrastive Clustering"; the official code adds the constant log K
    (`test_other_losses_of_a_temperature`).

    Example:
        >>> import jax.numpy as jnp
        >>> round(entropy_deficit(jnp.array([[1.0, 0.0], [1.0, 0.0]])).item(), 4)  # log 2
        0.6931
    """
    mean = collectives.mean(jnp.mean(ops.upcast(probabilities), axis=0), axis)
    # The logarithm of a share that rounds to 0 must have no infinite slope.
    tiny = jnp.finfo(mean.dtype).tiny
    return jnp.log(len(mean)) + jnp.sum(mean * jnp.log(jnp.maximum(mean, tiny)))
