"""Balanced assignment of rows to clusters: optimal transport with an entropy term."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError


def sinkhorn(scores: ArrayLike, *, epsilon: float = 0.05, max_iter: int = 1000) -> NDArray:
    """Returns probabilities of clusters for each row, such that all clusters have equal sums.

    The probabilities Q maximize `<Q, scores> + epsilon entropy(Q)` over all Q of row sums 1 and
    column sums n / k. Rows and columns are scaled in turn until each column sum is n / k within a
    relative 1e-6, or for `max_iter` steps, without a warning.

    Args:
        scores: finite float `[n, k]`, for example cosines to the centers of k clusters.
        epsilon: weight of the entropy, > 0; the smaller, the harder the assignment.
        max_iter: maximum number of scalings.

    Returns:
        float64 `[n, k]`, rows sum to one. If each row gets its most probable cluster, sizes are
        only about equal.

    Raises:
        ValueError: scores that are not finite numbers, not a matrix or empty, or epsilon is not
            above 0 or so small that scores / epsilon overflows.

    Source: Cuturi (2013), Algorithm 1; Asano et al. (2020) use it for self-labelling.

    Example:
        >>> sinkhorn([[1.0, 0.0], [1.0, 0.8]]).round(2)
        array([[1., 0.],
               [0., 1.]])
    """
    checks.positive("epsilon", epsilon)
    logits = np.asarray(scores, np.float64) / epsilon
    if logits.ndim != 2 or not logits.size or not np.isfinite(logits).all():
        raise InputError(f"scores must be finite [n, k]; got shape {list(logits.shape)}")
    target = np.log(len(logits) / logits.shape[1])
    for _ in range(max_iter):
        logits = special.log_softmax(logits, axis=1)
        excess = special.logsumexp(logits, axis=0) - target
        if np.abs(excess).max() < 1e-6:
            break
        logits = logits - excess[None, :]
    return special.softmax(logits, axis=1)
