"""NCC: neighbors as positives, and prototypes of the batch that align and spread (ProtoCL).

NCC's alignment (6) is BYOL's loss of the prediction from a `positive_samples` row; see `byol`. The
`mse` of its pseudo-code would be the mean over the dimensions, not the squared distance
(`test_ncc_eq_5_and_6_gradient_of_the_alignment_of_samples`).
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import base
from cluster_jax.losses.base import array_function

PARTS = ("whole", "alignment", "uniformity")


@array_function(projections="float[rows, d]", keys="key[rows]", by_rows=True)
def positive_samples(keys: Array, projections: Array, *, scale: Array | float = 0.001) -> Array:
    """Draws a neighbor of every row, `z + sigma eps`; it passes the gradient to z as it is.

    Args:
        keys: one key per row `[rows]`, made from the image's index so that a draw does not depend
            on the number of devices.
        projections: online projections `[rows, d]`, not normalized.
        scale: sigma, by default the paper's; 0 for the rows themselves. It may be a schedule's
            value.

    Returns:
        `[rows, d]`, the predictor's input.

    Source: NCC (4), (5). The paper leaves open whether z is normalized; as in the authors' code
    it is not (`test_ncc_eq_5_and_6_gradient_of_the_alignment_of_samples`).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> keys, z = jax.random.split(jax.random.key(0), 2), jnp.ones((2, 1000))
        >>> round((positive_samples(keys, z) - z).std().item(), 4)
        0.001
    """
    shape = projections.shape[1:]
    dtype = projections.dtype
    noise = jax.vmap(lambda key: jax.random.normal(key, shape, dtype))(keys)
    return projections + jnp.asarray(scale, dtype) * noise


@array_function(
    features="float[rows, d]",
    labels="int[rows] or float[rows, k]",
    static=("n_clusters", "axis"),
)
def prototypes(
    features: Array, labels: Array, *, n_clusters: int, axis: Axis = None
) -> tuple[Array, Array]:
    """Computes cluster centers in the global batch: unit vectors along sums of unit members.

    Where there are more clusters than images, the slots hold the labels that occur in the
    batch, in ascending order, and not all clusters: neither memory nor time depends on their
    number.

    Args:
        features: `[rows, d]`, this device's part, of any length.
        labels: cluster of each row, int32 `[rows]`, 0 to `n_clusters - 1`; a row with another
            number, such as -1, is in no cluster and left out. Or the posterior p(k|x), float
            `[rows, n_clusters]`, at least 0: the weights of each row, constants for the gradient.
        n_clusters: K, at least 2.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Centers `[m, d]` with m the smaller of `n_clusters` and the global batch (of a posterior
        `n_clusters`), and which of them
        have members, boolean `[m]`; a center without is zero. Both are equal on all devices.

    Raises:
        ValueError: fewer than two clusters, or a posterior of another number.

    Source: NCC, below (8), where p(k|x) weights the sum; k-means makes it 0 or 1. The text at (A12)
    swaps the two networks (`test_ncc_eq_7_gradient_of_proto_cl_at_the_rows`). The official code
    judges by the images of one device which clusters are empty, and on several devices gives images
    the labels of others and divides the gradient by the number of devices
    (`test_prototypes_of_foreign_labels`).

    Example:
        >>> import jax.numpy as jnp
        >>> features, labels = jnp.array([[2.0, 0.0], [0.0, 3.0], [5.0, 0.0]]), jnp.array([0, 1, 0])
        >>> centers, filled = prototypes(features, labels, n_clusters=3)
        >>> centers.tolist(), filled.tolist()
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [True, True, False])
    """
    checks.at_least("n_clusters", n_clusters, 2)
    if labels.ndim == 2:
        if labels.shape[1] != n_clusters:
            must = f"labels must have a column for each of the {n_clusters} clusters"
            raise InputError(f"{must}; got {labels.shape[1]}")
        weights = lax.stop_gradient(labels)
        return _centers(features, weights, axis), collectives.total(weights.sum(0), axis) > 0
    slots = collectives.gather(labels, axis)
    _, in_cluster = base.in_range(slots, n_clusters)
    slot_count = min(n_clusters, slots.shape[0])
    if slot_count < n_clusters:
        _, slots = jnp.unique(slots, return_inverse=True, size=slot_count)
    is_member = slots[:, None] == jnp.arange(slot_count, dtype=slots.dtype)[None, :]
    is_member &= in_cluster[:, None]
    centers = _centers(features, collectives.scatter(is_member, axis), axis)
    return centers, jnp.any(is_member, axis=0)


def _centers(features: Array, weights: Array, axis: Axis) -> Array:
    """Computes unit vectors along weighted sums `[m, d]` of unit rows; weights `[rows, m]`."""
    z = ops.l2_normalize(features)
    # A product with the weights, not a scatter: its sums have one order on every machine.
    sums = collectives.total(ops.pairwise_dot(weights.astype(z.dtype).T, z.T), axis)
    return ops.l2_normalize(sums)


@array_function(
    centers="float[m, d]", target_centers="float[m, d]", filled="bool[m]", static=("part",)
)
def proto_cl(
    centers: Array,
    target_centers: Array,
    filled: Array,
    *,
    part: str = "whole",
    temperature: Array | float = 0.5,
) -> Array:
    """Computes ProtoCL: each center attracted to its target, repelled by the others; one direction.

    Mean over the clusters with members, k, of `-<mu_k, mu'_k> / tau + log(exp(<mu_k, mu'_k> /
    tau) + sum_{j != k} exp(<mu_k, mu_j> / tau))`; j runs over the clusters with members too. A
    batch of a single cluster has no negatives: 0 for the whole and for the uniformity.

    Args:
        centers: online centers mu, unit rows `[m, d]`.
        target_centers: target centers mu', unit rows `[m, d]`; constants for the gradient.
        filled: which clusters have members, boolean `[m]`.
        part: `"whole"` (7), or one term of (8): `"alignment"` `-<mu_k, mu'_k> / tau` or
            `"uniformity"` `log sum_{j != k} exp(<mu_k, mu_j> / tau)` (Table 4).
        temperature: tau, positive; the default is the paper's.

    Returns:
        Scalar, at least float32.

    Raises:
        ValueError: no such part.

    Source: NCC (7), (8). The pseudo-code fills the logits of empty clusters with -10; at a
    temperature of 0.1 that is a possible logit, so they are left out here
    (`test_ncc_appendix_d_gives_empty_clusters_a_logit_of_minus_10`).

    Example:
        >>> import jax.numpy as jnp
        >>> centers, filled = jnp.eye(2), jnp.array([True, True])
        >>> round(proto_cl(centers, centers, filled).item(), 4)  # log(1 + exp(-2))
        0.1269
    """
    checks.one_of("part", part, PARTS)
    centers, target_centers = ops.upcast(centers), ops.upcast(target_centers)
    attraction = jnp.sum(centers * lax.stop_gradient(target_centers), axis=-1) / temperature
    if part == "alignment":
        return _mean(-attraction, filled)
    logits = ops.pairwise_dot(centers, centers) / temperature
    keep = filled[None, :] & ~jnp.eye(len(filled), dtype=bool)
    if part == "uniformity":
        has_negatives = filled & (jnp.sum(filled) > 1)
        return _mean(ops.logsumexp(logits, keep), has_negatives)
    candidates = jnp.concatenate([attraction[:, None], logits], axis=1)
    keep = jnp.concatenate([jnp.ones_like(keep[:, :1]), keep], axis=1)
    return _mean(ops.logsumexp(candidates, keep) - attraction, filled)


@array_function(
    projections_pair="pair of float[rows, d]",
    targets_pair="pair of float[rows, d]",
    labels="int[rows] or float[rows, k]",
    static=("part", "n_clusters", "axis"),
)
def proto_cl_views(
    projections_pair: tuple[Array, Array],
    targets_pair: tuple[Array, Array],
    labels: Array,
    *,
    n_clusters: int,
    part: str = "whole",
    temperature: Array | float = 0.5,
    axis: Axis = None,
) -> Array:
    """Computes ProtoCL of both directions, over 2: a view's online centers, the other's targets.

    Args:
        projections_pair: online rows of view a and of view b, each `[rows, d]`, this device's
            part, of any length: projections, or predictions for `part="alignment"`, which
            collapses without a predictor.
        targets_pair: target projections of view a and of view b, each `[rows, d]`; constants.
        labels: cluster of each image, int32 `[rows]`, or its posterior, see `prototypes`.
        n_clusters: K, at least 2; it may exceed the batch.
        part: see `proto_cl`.
        temperature: tau, positive; the default is the paper's.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, the loss of the global batch, equal on all devices.

    Raises:
        ValueError: a value is out of range.

    Source: NCC (7), (8); the paper writes one direction.

    Example:
        >>> import jax.numpy as jnp
        >>> views, labels = (jnp.eye(2), jnp.eye(2)), jnp.array([0, 1])
        >>> round(proto_cl_views(views, views, labels, n_clusters=2).item(), 4)
        0.1269
    """
    online, target = (
        [prototypes(x, labels, n_clusters=n_clusters, axis=axis) for x in pair]
        for pair in (projections_pair, lax.stop_gradient(targets_pair))
    )
    (mu_a, filled), (mu_b, _) = online
    (target_a, _), (target_b, _) = target
    direction = functools.partial(proto_cl, part=part, temperature=temperature)
    return (direction(mu_a, target_b, filled) + direction(mu_b, target_a, filled)) / 2


def _mean(values: Array, keep: Array) -> Array:
    """Averages the entries kept; 0 if there are none."""
    return jnp.sum(jnp.where(keep, values, 0)) / jnp.maximum(jnp.sum(keep), 1)
