"""BYOL: match the prediction from one view to the target projection of the other."""

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import ops
from cluster_jax.losses.base import array_function


@array_function(predictions="float[rows, d]", targets="float[rows, d]")
def byol(predictions: Array, targets: Array) -> Array:
    """Computes BYOL's loss, the mean over rows of `2 - 2 cos(prediction, target)`, one direction.

    That is the squared distance of the unit vectors; a row of zeros counts 2.

    Args:
        predictions: predictor outputs `[rows, d]`, of any length.
        targets: target projections of the other view `[rows, d]`; constants for the gradient.

    Returns:
        Scalar, at least float32; its mean over devices is the loss of the global batch.

    Source: NRCC (4), a mean over the batch where the paper prints a sum
    (`test_nrcc_eq_4_gradient_of_byol`). The predictor is on the online branch; section 3.1 and
    Table 11 of the paper put it on the target, and (19) prints the target's Jacobian, whose
    gradient is stopped (`test_nrcc_eq_19_misprints_the_target_and_the_factor`).

    Example:
        >>> import jax.numpy as jnp
        >>> byol(jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 5.0]])).item()
        2.0
    """
    return jnp.mean(2 - 2 * ops.cosine(predictions, jax.lax.stop_gradient(targets)))


@array_function(predictions_pair="pair of float[rows, d]", targets_pair="pair of float[rows, d]")
def byol_views(predictions_pair: tuple[Array, Array], targets_pair: tuple[Array, Array]) -> Array:
    """Computes BYOL's loss of both directions, `1/(2n) sum_i (l_ia + l_ib)`.

    Args:
        predictions_pair: predictions of view a and of view b, each `[rows, d]`.
        targets_pair: target projections of view a and of view b, each `[rows, d]`. The pairs are
            crossed here: the prediction of a meets the target of b.

    Returns:
        Scalar, at least float32.

    Source: NRCC (4) with the prefactor 1/(2n) of (7), the gradient of its InfoNCE, which fixes the
    scale of the regularizer's weight. (12) is the gradient of this loss without a predictor, half
    of that of its own text, and (13) and (19) print half of (12)
    (`test_nrcc_eq_12_misprints_half_of_the_gradient_of_its_own_text`).

    Example:
        >>> import jax.numpy as jnp
        >>> a, b = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
        >>> byol_views((a, b), (a, b)).item(), byol_views((a, b), (b, a)).item()
        (2.0, 0.0)
    """
    prediction_a, prediction_b = predictions_pair
    target_a, target_b = targets_pair
    return (byol(prediction_a, target_b) + byol(prediction_b, target_a)) / 2
