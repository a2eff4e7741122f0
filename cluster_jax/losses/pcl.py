"""PCL: contrast of rows with the prototypes of a clustering, each at a temperature of its own.

ProtoNCE is `infonce.info_nce_queue` plus the mean of `prototype_contrast` over several clusterings.
"""

import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from cluster_jax.core import arrays, checks, ops
from cluster_jax.losses import infonce
from cluster_jax.losses.base import array_function

SMOOTHING = 10  # the paper's alpha
PERCENTILES = 10, 90  # of the official code, to which the concentrations are clipped
ROUNDING = 1e-5  # a row is equal to its prototype at this distance of unit float32 rows


@array_function(
    anchors="float[rows, d]",
    prototypes="float[K, d]",
    assigned="int[rows]",
    concentrations="float[K]",
)
def prototype_contrast(
    anchors: Array, prototypes: Array, assigned: Array, concentrations: Array
) -> Array:
    """Computes the mean over the rows z of `-<z, c_s> / phi_s + log sum_k exp(<z, c_k> / phi_k)`.

    Args:
        anchors: online rows `[rows, d]`, this device's part, of any length.
        prototypes: unit rows c `[K, d]`; constants for the gradient.
        assigned: s, the cluster of each row, int32 `[rows]`; a row with a number outside 0 to
            K - 1, such as -1, is in no cluster and adds 0 to the mean.
        concentrations: phi, the temperature of each prototype `[K]`, positive; constants.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: Li et al. (2021), "Prototypical Contrastive Learning of Unsupervised Representations",
    section 3.2. Deviation: the sum runs over all prototypes, as the paper derives it. ProtoNCE and
    the official code estimate it from r sampled prototypes and from those of the other rows, which
    count as often as there are rows (`test_other_losses`).

    Example:
        >>> import jax.numpy as jnp
        >>> anchors, prototypes, phi = jnp.array([[1.0, 0.0]]), jnp.eye(2), jnp.array([0.5, 0.2])
        >>> loss = prototype_contrast(anchors, prototypes, jnp.array([0]), phi)
        >>> round(loss.item(), 4)  # log(1 + exp(-1 / 0.5))
        0.1269
    """
    prototypes, concentrations = lax.stop_gradient((prototypes, concentrations))
    anchors = ops.l2_normalize(anchors)
    return infonce.info_nce(anchors, prototypes, assigned, temperature=concentrations[None, :])


def concentrations(
    rows: NDArray, prototypes: NDArray, assigned: NDArray, *, mean: float = 0.2
) -> NDArray:
    """Computes each cluster's concentration phi, small where rows are many and close; in NumPy.

    phi is the mean distance of the rows to their prototype over `log(rows + 10)`. Clusters of fewer
    than two distinct rows get the largest phi. All are then clipped to their 10th and 90th
    percentile and scaled to a mean of `mean`.

    Args:
        rows: clustered rows `[n, d]`, of any length.
        prototypes: unit rows `[K, d]`.
        assigned: cluster of each row, int `[n]`.
        mean: tau, positive; the default is that of the official code's command for ImageNet.

    Returns:
        float64 `[K]`, positive.

    Raises:
        InputError: `mean` is not positive.

    Source: Li et al. (2021), section 3.3, and the official code for all but the first sentence.
    Deviation: the official code leaves out singletons alone; here a cluster of equal rows, whose
    phi would be 0, is one too
    (`test_concentrations_of_copies_are_those_of_singletons_whatever_is_rounded`).

    Example:
        The third row is alone, and gets what the wider one of the other clusters has:

        >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [-1.0, 0.1], [0.0, -1.0]])
        >>> assigned = np.array([0, 0, 1, 1, 2])
        >>> prototypes = arrays.normalize_rows(np.array([[1.0, 1.0], [-1.0, 0.1], [0.0, -1.0]]))
        >>> concentrations(rows, prototypes, assigned).round(3).tolist()
        [0.266, 0.067, 0.266]
    """
    checks.positive("mean", mean)
    distances = arrays.distances_to_centers(arrays.normalize_rows(rows), prototypes, assigned)
    distances[distances < ROUNDING] = 0
    counts = np.bincount(assigned, minlength=len(prototypes))
    sums = np.bincount(assigned, distances, minlength=len(prototypes))
    phi = sums / np.maximum(counts, 1) / np.log(counts + SMOOTHING)
    phi[counts < 2] = 0
    if not phi.any():
        return np.full(len(phi), mean)
    phi = np.where(phi > 0, phi, phi.max())
    phi = np.clip(phi, *np.percentile(phi, PERCENTILES))
    return mean * phi / phi.mean()
