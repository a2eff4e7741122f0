"""Barlow Twins: the cross-correlation of two views' features is pulled to the identity."""

import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.base import array_function

EPSILON = 1e-5  # added to each variance, as BatchNorm does


@array_function(a="float[rows, d]", b="float[rows, d]", static=("off_diagonal", "axis"))
def barlow_twins(a: Array, b: Array, *, off_diagonal: float = 0.005, axis: Axis = None) -> Array:
    """Computes Barlow Twins' loss, `sum_i (1 - C_ii)^2 + lambda sum_i sum_{j != i} C_ij^2`.

    C is the correlation, over the global batch, of feature i of view a with feature j of view b.

    Args:
        a: projections of the first view `[rows, d]`, this device's part, not normalized.
        b: projections of the second view, same images in the same order `[rows, d]`.
        off_diagonal: lambda, >= 0; the default is the paper's.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, the loss of the global batch, equal on all devices.

    Raises:
        ValueError: lambda is negative.

    Source: Zbontar et al. (2021), "Barlow Twins: Self-Supervised Learning via Redundancy
    Reduction", (1), (2). A feature that hardly varies would be divided by next to nothing: its
    variance is raised by 1e-5, as in the authors' code (a BatchNorm). Their code also multiplies
    the loss by 0.024; here `scale` of `methods.barlow` does (`test_other_losses`).

    Example:
        Two features that are equal in both views cost 2 * 0.005 beyond their decorrelation:

        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 1.0], [-1.0, -1.0]])
        >>> round(barlow_twins(a, a).item(), 4)
        0.01
    """
    checks.at_least("off_diagonal", off_diagonal, 0)
    a, b = _standardized(a, axis), _standardized(b, axis)
    local = jnp.matmul(a.T, b, precision=lax.Precision.HIGHEST) / a.shape[0]
    correlation = collectives.mean(local, axis)
    diagonal = jnp.diagonal(correlation)
    redundant = jnp.where(jnp.eye(len(diagonal), dtype=bool), 0, correlation)
    return jnp.sum((1 - diagonal) ** 2) + off_diagonal * jnp.sum(redundant**2)


def _standardized(x: Array, axis: Axis) -> Array:
    """Scales columns to mean 0 and variance just below 1 over the global batch."""
    x = ops.upcast(x)
    x = x - collectives.mean(jnp.mean(x, axis=0, keepdims=True), axis)
    variance = collectives.mean(jnp.mean(x * x, axis=0, keepdims=True), axis)
    return x * lax.rsqrt(variance + EPSILON)
