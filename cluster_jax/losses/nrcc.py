"""NRCC's regularizer: attract to the positives' neighborhood, repel from a third, sampled view.

In a loop of one's own it is a term of the loss. With projections `za` and `zb` of two views `a` and
`b` by a network `apply`:

    potential = samplers.similarity_potential(lambda x: apply(params, x), zb)
    c, _ = samplers.sample(samplers.sghmc(potential), jax.random.split(key, len(a)), a)
    regularizer = losses.nrcc_views(za, zb, apply(params, c))
    loss = losses.info_nce_views(za, zb) + 0.5 * regularizer

The docstring of `cluster_jax.losses` has a whole training step, `experiments/tutorials/loop.md` a
training.
"""

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.collectives import Axis
from cluster_jax.losses.base import array_function


@array_function(
    anchors="float[rows, d]",
    positives="float[rows, d]",
    negatives="float[rows, d]",
    static=("include_own_view", "axis"),
)
def nrcc(
    anchors: Array,
    positives: Array,
    negatives: Array,
    *,
    temperature: Array | float = 0.1,
    include_own_view: bool = False,
    axis: Axis = None,
) -> Array:
    """Computes NRCC, mean of `log sum_j exp(<x_i, c_j> / tau) - log sum_j exp(<x_i, y_j> / tau)`.

    One direction; `nrcc_views` computes both.

    Args:
        anchors: x, projections of one view `[rows, d]`, this device's part, of any length.
        positives: y, projections of the other view of the same images `[rows, d]`. The gradient
            passes through them; pass constants if they come from a target network.
        negatives: c, embeddings of the sampled third view of the same images `[rows, d]`;
            constants for the gradient.
        temperature: tau, positive; the default is the paper's.
        include_own_view: whether the first sum has the anchor's own sampled view, j = i.
        axis: mesh axis that holds the batch, or None. The sums run over all devices.

    Returns:
        Scalar, at least float32, whose mean over the devices is the value of the global batch.

    Raises:
        ValueError: one image in the global batch and its own view left out.

    Source: NRCC (5), (6), with these deviations.
      - (5) and (6) print the ratio upside down, which would push a view from its own positive. The
        sign here is that of the paper's gradients (10)-(14), its text and its code
        (`test_nrcc_eq_5_and_6_misprint_the_ratio_upside_down`).
      - tau divides the inner products, as in (10)-(14); (5) omits it
        (`test_nrcc_eq_5_misprints_no_temperature`).
      - Of the gradients, (10) prints 2 P_ii where this loss has P_ii + Q_ii, (13) and (20) lack
        the factor 1/tau and (11) lacks 1/(2n), both of which (14) has
        (`test_nrcc_eq_10_misprints_one_softmax_twice`,
        `test_nrcc_eq_13_misprints_each_of_three_factors`,
        `test_nrcc_eq_13_and_14_misprint_factors_and_one_denominator`).
      - `include_own_view=False` follows Algorithms 2 and 3, which pair x_i with c_j for i != j.
        The printed (11) leaves j = i out of the sum but keeps it in the denominator, the gradient
        of neither choice (`test_nrcc_eq_11_misprints_the_factor_and_one_denominator`); the
        authors' code masks nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)
        >>> round(nrcc(x, x, x, temperature=0.5).item(), 4)  # 0 - log(exp(2) + 1)
        -2.1269
        >>> nrcc(x, x, x, include_own_view=True).item()
        0.0
    """
    negatives = _constant_rows(negatives, axis)
    return _regularizer(anchors, positives, negatives, temperature, include_own_view, axis)


@array_function(
    a="float[rows, d]",
    b="float[rows, d]",
    c="float[rows, d]",
    keys="pair of float[rows, d]",
    static=("include_own_view", "axis"),
)
def nrcc_views(
    a: Array,
    b: Array,
    c: Array,
    *,
    keys: tuple[Array, Array] | None = None,
    temperature: Array | float = 0.1,
    include_own_view: bool = False,
    axis: Axis = None,
) -> Array:
    """Computes NRCC in both directions, `1/(2n) sum_i [R(a_i; keys[1], c) + R(b_i; keys[0], c)]`.

    With InfoNCE the keys are the live projections `(a, b)` themselves and the gradient passes
    through both roles. With BYOL they are the target network's projections of the views a and b,
    given as constants: then (20)'s claim that the repulsion stays as in (14) does not hold, the
    part of the gradient that comes through the keys is gone
    (`test_nrcc_eq_20_misprints_factors_and_keeps_the_repulsion_of_eq_14`). There the configs take
    the projections before the predictor as anchors, and the target network's projections as `c`;
    for other choices see `methods.nrcc.NRCCConfig`.

    Args:
        a: anchors of the first view `[rows, d]`.
        b: anchors of the second view `[rows, d]`.
        c: embeddings of the sampled view `[rows, d]`, constants.
        keys: embeddings of the first and of the second view, `[rows, d]` each, to which the anchors
            of the other view are attracted; None: `(a, b)`.
        temperature: tau, positive; the default is the paper's.
        include_own_view: see `nrcc`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar whose mean over the devices is the value of the global batch.

    Raises:
        ValueError: one image in the global batch and its own view left out.

    Source: NRCC (5), (6); the deviations are those of `nrcc`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)
        >>> round(nrcc_views(x, x, x, temperature=0.5).item(), 4)
        -2.1269
    """
    negatives = _constant_rows(c, axis)
    keys_a, keys_b = (a, b) if keys is None else keys
    from_a = _regularizer(a, keys_b, negatives, temperature, include_own_view, axis)
    from_b = _regularizer(b, keys_a, negatives, temperature, include_own_view, axis)
    return (from_a + from_b) / 2


def _constant_rows(c: Array, axis: Axis) -> Array:
    return collectives.gather(ops.l2_normalize(jax.lax.stop_gradient(c)), axis)


def _regularizer(
    anchors: Array,
    positives: Array,
    negatives: Array,
    temperature: Array | float,
    include_own_view: bool,
    axis: Axis,
) -> Array:
    """Computes one direction; `negatives` are the unit rows of all devices."""
    anchors, positives = ops.l2_normalize(anchors), ops.l2_normalize(positives)
    positives = collectives.gather(positives, axis)
    rows = anchors.shape[0]
    n = negatives.shape[0]
    keep = None
    if not include_own_view:
        checks.at_least("images of a batch with include_own_view = False", n, 2)
        local_rows = collectives.local_rows(rows, axis)
        keep = local_rows[:, None] != jnp.arange(n, dtype=local_rows.dtype)[None, :]
    repulsion = ops.logsumexp(ops.pairwise_dot(anchors, negatives) / temperature, keep)
    attraction = ops.logsumexp(ops.pairwise_dot(anchors, positives) / temperature)
    return jnp.mean(repulsion - attraction)
