"""InfoNCE: pull each anchor to its positive, push it from the other candidates.

One function serves every contrastive loss of the package: in-batch negatives with or without the
positive in the denominator, a queue of keys, and two modalities (CLIP's form is `info_nce` of the
rows of A against those of B, and back).
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax import collectives, ops
from cluster_jax.collectives import Axis


@functools.partial(jax.jit, static_argnames=("positive_in_denominator",))
def info_nce(
    anchors: Array,
    candidates: Array,
    positives: Array,
    *,
    temperature: float,
    positive_in_denominator: bool,
    excluded: Array | None = None,
) -> Array:
    """Mean over the anchors of `-<x, positive> / tau + log sum_k exp(<x, candidate_k> / tau)`.

    Args:
        anchors: unit rows `[m, d]`.
        candidates: unit rows `[N, d]`.
        positives: the row of `candidates` that is each anchor's positive, int32 `[m]`.
        temperature: tau, positive.
        positive_in_denominator: whether the sum runs over the positive too: True in SimCLR,
            Kernel-InfoNCE (8), CueCo (1) and NCL (6), False in NRCC (1)-(3).
        excluded: candidates that an anchor's sum leaves out, boolean `[m, N]`, or None. A positive
            that is excluded still attracts.

    Returns:
        Scalar, at least float32. An anchor whose sum is empty makes it -inf.

    Source: NRCC (1)-(3); Kernel-InfoNCE (8) and Theorem 4.2 (separate anchors and candidates).
    """
    logits = ops.products(anchors, candidates) / temperature
    columns = jnp.arange(candidates.shape[0], dtype=positives.dtype)
    own = positives[:, None] == columns[None, :]
    keep = jnp.ones_like(own) if positive_in_denominator else ~own
    if excluded is not None:
        keep &= ~excluded
    attraction = jnp.sum(jnp.where(own, logits, 0), axis=-1)
    return jnp.mean(ops.logsumexp(logits, keep) - attraction)


@functools.partial(jax.jit, static_argnames=("positive_in_denominator", "axis"))
def info_nce_views(
    a: Array, b: Array, *, temperature: float, positive_in_denominator: bool, axis: Axis
) -> Array:
    """InfoNCE of two views of a batch, `1/(2n) sum_i (l_ia + l_ib)` after the mean over devices.

    Candidates are both views of all images on all devices; a row is never its own candidate.
    With `positive_in_denominator` this is SimCLR's NT-Xent, without it NRCC (1)-(3).

    Args:
        a: projections of the first view `[rows, d]`, this device's part, of any length.
        b: projections of the second view, same images in the same order `[rows, d]`.
        temperature: tau, positive.
        positive_in_denominator: see `info_nce`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: one image in the global batch and no positive in the denominator.

    Source: NRCC (1)-(3). The paper's gradient, (7) and (9), prints `l != i` in the second
    denominator; the gradient of this loss has `l != j` there.
    """
    rows = a.shape[0]
    n = rows * collectives.size(axis)
    if n < 2 and not positive_in_denominator:
        raise ValueError(
            "InfoNCE without the positive in the denominator has no negatives in a batch of 1 "
            "image; use at least 2"
        )
    a, b = ops.unit(a), ops.unit(b)
    candidates = jnp.concatenate([collectives.gather(a, axis), collectives.gather(b, axis)])
    own_a = collectives.local_rows(rows, axis)
    itself = jnp.concatenate([own_a, own_a + n])
    partner = jnp.concatenate([own_a + n, own_a])
    return info_nce(
        jnp.concatenate([a, b]),
        candidates,
        partner,
        temperature=temperature,
        positive_in_denominator=positive_in_denominator,
        excluded=itself[:, None] == jnp.arange(2 * n, dtype=itself.dtype)[None, :],
    )
