"""InfoNCE: pull each anchor to its positive, push it from the other candidates.

One family serves every contrastive loss of the package: in-batch negatives with or without the
positive in the denominator, a queue of keys, and two modalities. The losses differ in their
candidates (`contrast`, `contrast_views`, `contrast_queue`, `contrast_pairs`) and in the logit
of a pair: the cosine over a temperature here, the log of another kernel in `kernel_infonce`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import base
from cluster_jax.losses.base import array_function


class Logits(NamedTuple):
    """Logits of rows and rows.

    Attributes:
        pairwise: rows `[m, d]` and `[n, d]` to the logit of every pair `[m, n]`.
        paired: rows `[m, d]` and `[m, d]` to the logit of each row with its partner `[m]`, for
            positive pairs, where `pairwise` is too inexact for these; None: it is not.
    """

    pairwise: Callable[[Array, Array], Array]
    paired: Callable[[Array, Array], Array] | None = None


def contrast(
    logits: Array,
    positives: Array,
    *,
    attraction: Array | None = None,
    positive_in_denominator: bool = True,
    excluded: Array | None = None,
) -> Array:
    """Computes the mean over the anchors of `-logit_positive + log sum_k exp(logit_k)`.

    Args:
        logits: of every anchor with every candidate `[m, N]`.
        positives: the column that is each anchor's positive, int32 `[m]`. An anchor with another
            number, such as -1, has none and adds 0 to the mean.
        attraction: logit of each anchor with its positive `[m]`; None: the one in `logits`.
        positive_in_denominator: whether the sum runs over the positive too.
        excluded: candidates that an anchor's sum leaves out, boolean `[m, N]`, or None. A positive
            that is excluded still attracts.

    Returns:
        Scalar. An anchor whose sum is empty makes it -inf.

    Example:
        >>> import jax.numpy as jnp
        >>> logits, positives = jnp.array([[2.0, 0.5]]), jnp.array([0])
        >>> contrast(logits, positives, positive_in_denominator=False).item()
        -1.5
    """
    columns = jnp.arange(logits.shape[1], dtype=positives.dtype)
    is_positive = positives[:, None] == columns[None, :]
    keep = jnp.ones_like(is_positive) if positive_in_denominator else ~is_positive
    if excluded is not None:
        keep &= ~excluded
    if attraction is None:
        attraction = jnp.sum(jnp.where(is_positive, logits, 0), axis=-1)
    else:
        logits = jnp.where(is_positive, attraction[:, None], logits)
    losses = ops.logsumexp(logits, keep) - attraction
    return jnp.mean(jnp.where(jnp.any(is_positive, axis=-1), losses, 0))


def contrast_views(
    a: Array,
    b: Array,
    logits: Logits,
    *,
    positive_in_denominator: bool = True,
    axis: Axis = None,
) -> Array:
    """Computes `contrast` of two views of a batch, `1/(2n) sum_i (l_ia + l_ib)` over all devices.

    Candidates are both views of all images on all devices; a row is never its own candidate.

    Args:
        a: rows of the first view `[rows, d]`, this device's part, normalized by the caller.
        b: rows of the second view, same images in the same order `[rows, d]`.
        logits: of rows and rows.
        positive_in_denominator: see `contrast`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: one image in the global batch and no positive in the denominator.

    Example:
        Each of the 4 rows has 3 candidates of equal logits:

        >>> import jax.numpy as jnp
        >>> a, b = jnp.zeros((2, 3)), jnp.zeros((2, 3))
        >>> round(contrast_views(a, b, Logits(ops.pairwise_dot)).item(), 4)  # log 3
        1.0986
    """
    rows = a.shape[0]
    n = rows * collectives.size(axis)
    if not positive_in_denominator:
        checks.at_least("images of a batch without the positive in the denominator", n, 2)
    candidates = jnp.concatenate([collectives.gather(a, axis), collectives.gather(b, axis)])
    # Rows of view a are the first n candidates, their partners of view b the last n.
    local_rows = collectives.local_rows(rows, axis)
    anchor = jnp.concatenate([local_rows, local_rows + n])
    partner = jnp.concatenate([local_rows + n, local_rows])
    anchors, partners = jnp.concatenate([a, b]), jnp.concatenate([b, a])
    return contrast(
        logits.pairwise(anchors, candidates),
        partner,
        attraction=None if logits.paired is None else logits.paired(anchors, partners),
        positive_in_denominator=positive_in_denominator,
        excluded=anchor[:, None] == jnp.arange(2 * n, dtype=anchor.dtype)[None, :],
    )


def contrast_queue(
    anchors: Array, keys: Array, queue: Array, filled: Array, logits: Logits
) -> Array:
    """Computes `contrast` of each anchor with its own key against a queue of older keys.

    The positive is in the denominator. Slots of the queue that were never filled have a logit of
    -inf; with none filled the loss is 0.

    Args:
        anchors: rows `[rows, d]`, this device's part, normalized by the caller.
        keys: the anchors' positives `[rows, d]`; constants for the gradient.
        queue: keys of earlier steps `[Q, d]`, the same on all devices; constants.
        filled: how many of the queue's first rows hold a key, int32 `[]`.
        logits: of rows and rows.

    Returns:
        Scalar whose mean over the devices is the loss of the global batch.

    Example:
        A key of logit 0 against one entry of logit 0; the second slot is empty:

        >>> import jax.numpy as jnp
        >>> anchors, keys, queue = jnp.ones((1, 2)), jnp.zeros((1, 2)), jnp.zeros((2, 2))
        >>> logits = Logits(ops.pairwise_dot)
        >>> loss = contrast_queue(anchors, keys, queue, jnp.int32(1), logits)
        >>> round(loss.item(), 4)  # log 2
        0.6931
    """
    keys, queue = lax.stop_gradient((keys, base.entries(queue, filled)))
    pairwise = logits.pairwise
    paired = logits.paired or jax.vmap(lambda x, key: pairwise(x[None], key[None])[0, 0])
    attraction, repulsion = paired(anchors, keys), pairwise(anchors, queue)
    keep = jnp.arange(queue.shape[0], dtype=jnp.int32) < filled
    candidates = jnp.concatenate([attraction[:, None], repulsion], axis=1)
    keep = jnp.concatenate([jnp.ones(1, bool), keep])[None, :]
    return jnp.mean(ops.logsumexp(candidates, keep) - attraction)


def contrast_pairs(a: Array, b: Array, logits: Logits, *, axis: Axis = None) -> Array:
    """Computes `contrast` of two modalities: A's rows against all of B's and back, over 2.

    Args:
        a: rows of one modality `[rows, d]`, this device's part, normalized by the caller.
        b: rows of the other, the partners in the same order `[rows, d]`.
        logits: of rows and rows.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar whose mean over the devices is the loss of the global batch.

    Example:
        >>> import jax.numpy as jnp
        >>> round(contrast_pairs(jnp.eye(2), jnp.eye(2), Logits(ops.pairwise_dot)).item(), 4)
        0.3133
    """
    partners = collectives.local_rows(a.shape[0], axis)

    def from_rows(x: Array, y: Array) -> Array:
        attraction = None if logits.paired is None else logits.paired(x, y)
        all_pairs = logits.pairwise(x, collectives.gather(y, axis))
        return contrast(all_pairs, partners, attraction=attraction)

    return (from_rows(a, b) + from_rows(b, a)) / 2


@array_function(
    anchors="float[m, d]",
    candidates="float[N, d]",
    positives="int[m]",
    excluded="bool[m, N]",
    static=("positive_in_denominator",),
)
def info_nce(
    anchors: Array,
    candidates: Array,
    positives: Array,
    *,
    temperature: Array | float = 0.5,
    positive_in_denominator: bool = True,
    excluded: Array | None = None,
) -> Array:
    """Computes InfoNCE, the mean of `-<x, positive> / tau + log sum_k exp(<x, candidate_k> / tau)`.

    Args:
        anchors: unit rows `[m, d]`.
        candidates: unit rows `[N, d]`.
        positives: the row of `candidates` that is each anchor's positive, int32 `[m]`. An anchor
            with another number, such as -1, has none and adds 0 to the mean.
        temperature: tau, positive; the default is SimCLR's on CIFAR-10 (Chen et al. 2020).
        positive_in_denominator: whether the sum runs over the positive too: True in SimCLR,
            Kernel-InfoNCE (8), CueCo (1) and NCL (6), False in NRCC (1)-(3).
        excluded: candidates that an anchor's sum leaves out, boolean `[m, N]`, or None. A positive
            that is excluded still attracts.

    Returns:
        Scalar, at least float32. An anchor whose sum is empty makes it -inf.

    Source: NRCC (1)-(3); NCC (1), (2); Kernel-InfoNCE (1), (10), whose sum leaves the row itself
    out, where the Lemma 2.3 that it follows from prints it
    (`test_kernel_infonce_lemma_2_3_misprints_the_row_itself_in_the_sum`), and Theorem 4.2 (separate
    anchors and candidates).

    Example:
        >>> import jax.numpy as jnp
        >>> round(info_nce(jnp.eye(2), jnp.eye(2), jnp.array([0, 1])).item(), 4)
        0.1269
    """
    return contrast(
        _cosine(temperature).pairwise(anchors, candidates),
        positives,
        positive_in_denominator=positive_in_denominator,
        excluded=excluded,
    )


@array_function(a="float[rows, d]", b="float[rows, d]", static=("positive_in_denominator", "axis"))
def info_nce_views(
    a: Array,
    b: Array,
    *,
    temperature: Array | float = 0.5,
    positive_in_denominator: bool = True,
    axis: Axis = None,
) -> Array:
    """Computes InfoNCE of two views, `1/(2n) sum_i (l_ia + l_ib)` after the mean over devices.

    Candidates are both views of all images on all devices; a row is never its own candidate.
    With `positive_in_denominator` this is SimCLR's NT-Xent, without it NRCC (1)-(3).

    Args:
        a: projections of the first view `[rows, d]`, this device's part, of any length.
        b: projections of the second view, same images in the same order `[rows, d]`.
        temperature: tau, positive; the default is SimCLR's on CIFAR-10 (Chen et al. 2020).
        positive_in_denominator: see `info_nce`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: one image in the global batch and no positive in the denominator.

    Source: NRCC (1)-(3). The paper's gradient, (7) and (9), prints `l != i` in the second
    denominator; the gradient of this loss has `l != j` there
    (`test_nrcc_eq_7_and_9_misprint_the_second_denominator`).

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[2.0, 0.0], [0.0, 3.0]])
        >>> round(info_nce_views(a, a).item(), 4)  # log(1 + 2 exp(-2))
        0.2395
    """
    return contrast_views(
        ops.l2_normalize(a),
        ops.l2_normalize(b),
        _cosine(temperature),
        positive_in_denominator=positive_in_denominator,
        axis=axis,
    )


@array_function(
    anchors="float[rows, d]", keys="float[rows, d]", queue="float[Q, d]", filled="int[]"
)
def info_nce_queue(
    anchors: Array,
    keys: Array,
    queue: Array,
    filled: Array,
    *,
    temperature: Array | float = 0.07,
) -> Array:
    """Computes InfoNCE with a queue of negatives, one direction: MoCo's loss and CueCo's L1.

    The positive is in the denominator; the official code of Kernel-InfoNCE's MoCo leaves it out
    (`test_positive_missing_from_the_denominator_of_moco`).

    Args:
        anchors: online rows `[rows, d]`, this device's part, of any length.
        keys: target rows of the other view of the same images `[rows, d]`, of any length;
            constants for the gradient.
        queue: unit keys of earlier steps `[Q, d]`, the same on all devices; constants.
        filled: how many of the queue's first rows hold a key, int32 `[]`.
        temperature: tau, positive; the default is MoCo's, CueCo's is 0.2.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: He et al. (2020), "Momentum Contrast for Unsupervised Visual Representation Learning",
    (1), their sum over one positive and K negatives; CueCo (1).

    Example:
        >>> import jax.numpy as jnp
        >>> a, queue = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
        >>> loss = info_nce_queue(a, a, queue, jnp.int32(1), temperature=0.2)
        >>> round(loss.item(), 4)  # log(1 + exp(-1 / 0.2))
        0.0067
    """
    return contrast_queue(
        ops.l2_normalize(anchors), ops.l2_normalize(keys), queue, filled, _cosine(temperature)
    )


@array_function(a="float[rows, d]", b="float[rows, d]", static=("axis",))
def clip(a: Array, b: Array, *, temperature: Array | float = 0.07, axis: Axis = None) -> Array:
    """Computes CLIP's loss: cross-entropy of rows, then of columns, of one matrix of cosines.

    Args:
        a: embeddings of one modality `[rows, d]`, this device's part, of any length.
        b: embeddings of the other modality, partners in the same order `[rows, d]`.
        temperature: tau, positive; it may be a parameter that is trained, as in CLIP, from the
            default on.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: Kernel-InfoNCE Theorem 4.2 (its proof adds the 2N losses up; here their mean). The
    default is that of Radford et al. (2021), "Learning Transferable Visual Models From Natural
    Language Supervision", section 2.5.

    Example:
        >>> import jax.numpy as jnp
        >>> round(clip(jnp.eye(2), jnp.eye(2), temperature=0.5).item(), 4)
        0.1269
    """
    return contrast_pairs(ops.l2_normalize(a), ops.l2_normalize(b), _cosine(temperature), axis=axis)


def _cosine(temperature: Array | float) -> Logits:
    """Returns the logits of unit rows: their inner products over the temperature."""
    return Logits(lambda x, y: ops.pairwise_dot(x, y) / temperature)
