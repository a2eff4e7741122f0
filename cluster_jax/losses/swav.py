"""SwAV: predict from one view the cluster assignment, balanced over the batch, of another."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.base import array_function


@array_function(scores="float[rows, K]", static=("iterations", "axis"), by_rows=True)
def sinkhorn_codes(
    scores: Array, *, epsilon: Array | float = 0.05, iterations: int = 3, axis: Axis = None
) -> Array:
    """Assigns rows softly to prototypes such that all prototypes are used about alike.

    Sinkhorn and Knopp's algorithm on `exp(scores / epsilon)`, in logarithms: each iteration scales
    the columns to one sum, over all devices, then the rows to the sum 1.

    Args:
        scores: cosines of rows and prototypes `[rows, K]`, this device's part; constants.
        epsilon: weight of the entropy, positive, by default the paper's; the smaller, the harder
            the assignment.
        iterations: at least 1, by default the paper's; after few the columns are about alike only.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Codes `[rows, K]`, at least float32, constants; rows sum to 1.

    Raises:
        ValueError: a value is out of range.

    Source: Caron et al. (2020), "Unsupervised Learning of Visual Features by Contrasting Cluster
    Assignments", (3)-(5). `clustering.sinkhorn` iterates in NumPy until the columns are equal.

    Example:
        Both rows are nearest to the first prototype; the one nearer to the second is for it:

        >>> import jax.numpy as jnp
        >>> codes = sinkhorn_codes(jnp.array([[1.0, 0.0], [1.0, 0.8]]))
        >>> [round(q, 2) for q in codes[:, 1].tolist()]
        [0.0, 0.86]
    """
    checks.whole("iterations", iterations, 1)
    logits = ops.upcast(lax.stop_gradient(scores)) / epsilon
    for _ in range(iterations):
        columns = collectives.gather(ops.logsumexp(logits.T)[None], axis)
        logits -= ops.logsumexp(columns.T)[None]
        logits -= ops.logsumexp(logits)[:, None]
    return jnp.exp(logits)


@array_function(scores="views of float[rows, K]", static=("iterations", "axis"))
def swapped_prediction(
    scores: Sequence[Array],
    *,
    temperature: Array | float = 0.1,
    epsilon: Array | float = 0.05,
    iterations: int = 3,
    axis: Axis = None,
) -> Array:
    """Computes SwAV's loss, the mean of `-sum_k q_k log softmax(s / tau)_k` over pairs of views.

    The codes q are those of one of the first two views, `sinkhorn_codes`; the scores s those of
    any other view, the small crops included.

    Args:
        scores: cosines of the rows of each view with the prototypes, each `[rows, K]`, this
            device's part, of the same images in the same order; two views or more.
        temperature: tau, positive; the default is the paper's.
        epsilon: see `sinkhorn_codes`.
        iterations: see `sinkhorn_codes`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: a value is out of range.

    Source: Caron et al. (2020), (1), (2) and (6), a mean where (6) prints a sum. Deviation: there
    is no queue of earlier rows, which the paper uses with batches smaller than K
    (`test_other_losses_of_a_temperature`).

    Example:
        >>> import jax.numpy as jnp
        >>> scores = jnp.eye(2)
        >>> round(swapped_prediction((scores, scores), temperature=0.5).item(), 4)
        0.1269
    """
    predicted = [jax.nn.log_softmax(ops.upcast(view) / temperature) for view in scores]
    terms = []
    for i in (0, 1):
        codes = sinkhorn_codes(scores[i], epsilon=epsilon, iterations=iterations, axis=axis)
        others = [view for j, view in enumerate(predicted) if j != i]
        terms += [-jnp.mean(jnp.sum(codes * view, axis=-1)) for view in others]
    return jnp.mean(jnp.stack(terms))
