"""NCL: losses that discover novel classes among unlabeled images, given labeled ones.

Hard negative generation mixes easy entries of one queue with random ones of another.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from cluster_jax.core import checks, collectives, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import base
from cluster_jax.losses.base import array_function

# Least distance of a predicted similarity from 0 and 1; float32 can represent 1 - 1e-7.
EPSILON = 1e-7


@array_function(logits="float[rows, classes]", labels="int[rows]")
def cross_entropy(logits: Array, labels: Array) -> Array:
    """Computes the cross-entropy, the mean of `-log softmax(logits)[label]`.

    Args:
        logits: `[rows, classes]`, this device's part.
        labels: class of each row, int32 `[rows]`, 0 to `classes - 1`; a row with another number,
            such as -1, has no class and adds 0 to the mean.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: NCL (1) without its factor of 1 / classes, as in the authors' code
    (`test_ncl_eq_1_gradient_of_the_cross_entropy`).

    Example:
        >>> import jax.numpy as jnp
        >>> round(cross_entropy(jnp.zeros((1, 4)), jnp.array([2])).item(), 4)  # log 4
        1.3863
    """
    logits = ops.upcast(logits)
    labels, has_class = base.in_range(labels, logits.shape[1])
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(jnp.where(has_class, losses, 0))


@array_function(features="float[rows, d]", static=("n_classes", "axis"), by_rows=True)
def similar(
    features: Array, *, n_classes: int, threshold: float | None = 0.95, axis: Axis = None
) -> Array:
    """Returns which pairs of images in the global batch are taken to be of one class.

    Args:
        features: `[rows, d]`, this device's part, of any length; constants for the gradient.
        n_classes: C^u, 2 or more; not used with a threshold.
        threshold: lambda, the least cosine of two features of one class, by default the paper's.
            None: the quantile that 1 / `n_classes` of the ordered pairs reach, as with balanced
            classes. Features change while they are trained, and with them the share of pairs
            that a fixed lambda takes.
        axis: mesh axis that holds the batch, or None.

    Returns:
        bool `[rows, rows of all devices]`; an image is similar to itself.

    Source: NCL (2), where lambda is fixed; None is our addition
    (`test_one_pair_in_so_many_classes_is_similar`).

    Example:
        >>> import jax.numpy as jnp
        >>> similar(jnp.array([[1.0, 0.0], [5.0, 1.0]]), n_classes=2).tolist()
        [[True, True], [True, True]]
    """
    z = ops.l2_normalize(lax.stop_gradient(features))
    cosines = ops.pairwise_dot(z, collectives.gather(z, axis))
    if threshold is None:
        return cosines >= _reached_by_one_in(n_classes, collectives.gather(cosines, axis))
    # A row of zeros, or a cosine that is rounded, may be below the threshold.
    rows = collectives.local_rows(len(z), axis)
    itself = rows[:, None] == jnp.arange(cosines.shape[1])[None]
    return (cosines >= threshold) | itself


def _reached_by_one_in(n_classes: int, cosines: Array) -> Array:
    """Computes a threshold that about `n^2 / n_classes` of the cosines `[n, n]` exceed."""
    n = len(cosines)
    # The diagonal, and pairs with their mirrors: between these two only rounding would choose.
    above = n + 2 * max(0, (n * n // n_classes - n) // 2)
    ordered = jnp.sort(cosines.reshape(-1), descending=True)
    return (ordered[above - 1] + ordered[min(above, n * n - 1)]) / 2


@array_function(
    targets="bool[rows, n]",
    probabilities="float[rows, classes]",
    other_probabilities="float[rows, classes]",
    static=("axis",),
)
def pairwise_bce(
    targets: Array, probabilities: Array, other_probabilities: Array, *, axis: Axis = None
) -> Array:
    """Computes the binary cross-entropy of `<p_i, p'_j>`; the target: i and j are of one class.

    Mean over all ordered pairs of images in the global batch, an image with itself included.

    Args:
        targets: bool `[rows, rows of all devices]`, from `similar`.
        probabilities: outputs p of the softmax `[rows, classes]`, this device's part.
        other_probabilities: outputs p' for the second factor, same images in the same order
            `[rows, classes]`: those of the other view, or `probabilities` again. The gradient
            passes through both.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: NCL (3). It prints one view for both factors; the authors' code takes the second from
    the other view (`test_ncl_eq_2_and_3_gradient_of_the_binary_cross_entropy` has both).
    Predictions are clipped to [EPSILON, 1 - EPSILON], and pass no gradient beyond
    (`test_ncl_eq_3_gradient_at_the_logits_of_soft_and_of_certain_outputs`); the code adds EPSILON
    inside the logarithm.

    Example:
        >>> import jax.numpy as jnp
        >>> p = jnp.full((1, 2), 0.5)
        >>> round(pairwise_bce(jnp.array([[True]]), p, p).item(), 4)  # -log 0.5
        0.6931
    """
    predicted = ops.pairwise_dot(probabilities, collectives.gather(other_probabilities, axis))
    predicted = jnp.clip(predicted, EPSILON, 1 - EPSILON)
    return -jnp.mean(jnp.where(targets, jnp.log(predicted), jnp.log1p(-predicted)))


@array_function(probabilities="float[rows, classes]", other_probabilities="float[rows, classes]")
def consistency(probabilities: Array, other_probabilities: Array) -> Array:
    """Computes the squared difference of one head's outputs for two views, mean of all entries.

    Args:
        probabilities: outputs of the softmax `[rows, classes]`, this device's part.
        other_probabilities: of the other view, the same images in the same order. The
            gradient passes through both.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: NCL (4), one of its two terms; which images a head sees is the caller's choice.

    Example:
        >>> import jax.numpy as jnp
        >>> consistency(jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]])).item()
        0.25
    """
    return jnp.mean((ops.upcast(probabilities) - ops.upcast(other_probabilities)) ** 2)


def ramp(step: Array | int, *, length: int, consistency_weight: float = 5.0) -> Array:
    """Computes the consistency's weight omega at step t, `consistency_weight exp(-5 (1 - t/T)^2)`.

    Args:
        step: t, counted from 0, int32 `[]`.
        length: T in steps; with 0 the weight is `consistency_weight` from the start.
        consistency_weight: the value from step T on, by default the paper's for CIFAR-10.

    Returns:
        Scalar.

    Raises:
        ValueError: a negative length.

    Source: NCL (5) and Section 4.1. The paper leaves the function to Han et al. (2020), whose
    code counts whole epochs; here it rises at every step
    (`test_ncl_eq_5_ramp_of_the_consistency`).

    Example:
        >>> [round(ramp(step, length=10).item(), 3) for step in (0, 5, 10, 20)]
        [0.034, 1.433, 5.0, 5.0]
    """
    checks.at_least("length", length, 0)
    if length == 0:
        return jnp.asarray(consistency_weight, jnp.result_type(float))
    progress = jnp.clip(jnp.asarray(step, jnp.result_type(float)) / length, 0, 1)
    return consistency_weight * jnp.exp(-5 * (1 - progress) ** 2)


class HardNegatives(NamedTuple):
    """Generated negatives of each anchor, represented only by their cosines.

    Attributes:
        similarities: cosine of each anchor with its negatives, the hardest first `[rows, k]`;
            differentiable with respect to the anchor, to which the negatives are constants; None:
            none are generated.
        keep: which of them exist, boolean `[rows, k]`; None with the similarities.
        left_out: number of each anchor's least similar entries of the queue that are left out of
            the denominator, unless they are neighbors (Figure 4, V1 and V2), int32 `[]`; None: 0.
    """

    similarities: Array | None = None
    keep: Array | None = None
    left_out: Array | int | None = None


@dataclasses.dataclass(frozen=True)
class Mixing:
    """How `hard_negatives` mixes; the defaults are the paper's.

    Attributes:
        count: k_2, >= 1.
        rounds: N, >= 1.
        mu: each mu, the unlabeled entry's part, 0 to 1.
        entries: which k_2 entries of the queue are mixed, the `"easiest"`, or `"random"` ones,
            drawn with replacement.
        partners: entries of the labeled queue from which v is drawn: all (`"random"`), or the k_2
            `"easiest"` or `"nearest"`, the least or most similar ones. With these choices and other
            queues in place of the two this gives the variants of Figure 4.
    """

    count: int = 400
    rounds: int = 5
    mu: tuple[float, ...] = (1 / 3, 2 / 3)
    entries: str = "easiest"
    partners: str = "random"


class Targets(NamedTuple):
    """Weights of the positives of `neighborhood_contrast`, see `target_weights`.

    Attributes:
        neighbors: k_1, 1 to the length of the queue.
        alpha: weight of the augmented view, 0 to 1, by default the paper's.
    """

    neighbors: int
    alpha: float = 0.2


_OF_THE_PAPER = Mixing()


@array_function(
    anchors="float[rows, d]",
    keys="key[rows]",
    queue="float[Q, d]",
    filled="int[]",
    labeled_queue="float[R, d]",
    labeled_filled="int[]",
    static=("mixing",),
    by_rows=True,
)
def hard_negatives(
    keys: Array,
    anchors: Array,
    queue: Array,
    filled: Array,
    labeled_queue: Array,
    labeled_filled: Array,
    mixing: Mixing = _OF_THE_PAPER,
) -> HardNegatives:
    """Finds the k_2 hardest of each anchor's mixtures `unit(mu u + (1 - mu) v)`.

    u runs over the anchor's k_2 least similar entries of the queue. In each round every u gets a
    partner v, drawn evenly and with replacement from the entries of the labeled queue, and is
    mixed with it by each mu. k_2 is at most the number of entries of the queue.

    Mixtures are never materialized. The cosine of one with an anchor z follows from <z, u>, <z, v>
    and <u, v>, so that the memory is that of the product of the two queues, `[Q, R]`, where the
    mixtures would need `[rows, k_2 * rounds * len(mu), d]`.

    Args:
        keys: one key per row `[rows]`, made from the image's index so that a draw does not depend
            on the number of devices.
        anchors: rows z of unlabeled images `[rows, d]`, this device's part, of any length.
        queue: rows of earlier unlabeled images `[Q, d]`, of any length, the same on all devices;
            constants for the gradient.
        filled: how many of the queue's first rows hold an entry, int32 `[]`.
        labeled_queue: rows of earlier labeled images `[R, d]`, likewise.
        labeled_filled: how many of its first rows hold an entry, int32 `[]`.
        mixing: k_2, N, mu and the entries that are mixed.

    Returns:
        Negatives `[rows, min(k_2, Q)]`; none exist while one of the queues is empty.

    Raises:
        ValueError: a value is out of range.

    Source: NCL (12)-(15), whose constants are the defaults. Rows are of length one before they
    are mixed, and a mixture of length zero has a cosine of 0. As in the authors' code both values
    of mu share a partner; the code draws the partners of a round without replacement, which fails
    if the queue has fewer than k_2 entries
    (`test_ncl_eq_12_to_14_cosines_and_slopes_of_the_mixtures`).

    Example:
        The mixture of the entries (-1, 0) and (0, 1) is at 45 degrees from the anchor:

        >>> import jax, jax.numpy as jnp
        >>> keys, one = jax.random.split(jax.random.key(0), 1), jnp.int32(1)
        >>> anchors, queue = jnp.array([[0.0, 1.0]]), jnp.array([[-1.0, 0.0]])
        >>> how = Mixing(mu=(0.5,))
        >>> negatives = hard_negatives(keys, anchors, queue, one, anchors, one, how)
        >>> round(negatives.similarities.item(), 3), negatives.keep.item()
        (0.707, True)
    """
    count, rounds, parts, entries, partners = dataclasses.astuple(mixing)
    checks.at_least("count", count, 1)
    checks.at_least("rounds", rounds, 1)
    if not parts or not all(0 <= mu <= 1 for mu in parts):
        raise InputError(f"mu must be one or more values from 0 to 1; got {parts}")
    checks.one_of("entries", entries, ("easiest", "random"))
    checks.one_of("partners", partners, ("random", "easiest", "nearest"))
    z = ops.l2_normalize(anchors)
    queues = (queue, filled), (labeled_queue, labeled_filled)
    u, v = (ops.l2_normalize(lax.stop_gradient(base.entries(*x))) for x in queues)
    to_u, to_v, u_to_v = (ops.pairwise_dot(*pair) for pair in ((z, u), (z, v), (u, v)))
    of_u, of_v = (jnp.sum(x * x, axis=-1) for x in (u, v))
    count = min(count, queue.shape[0])
    exists = jnp.arange(count, dtype=jnp.int32) < filled

    def hardest(key: Array, to_u: Array, to_v: Array) -> tuple[Array, Array, Array, Array]:
        """Finds entries u and v and their weights in one anchor's hardest mixtures, each `[k]`.

        Entries of the queue that do not exist come last.
        """
        easy = _lowest(to_u, filled, count)
        if entries == "random":
            drawn = jax.random.fold_in(key, 1)
            easy = jax.random.randint(drawn, (count,), 0, jnp.maximum(filled, 1))
        n_partners = jnp.maximum(labeled_filled, 1)
        if partners != "random":
            n_partners = jnp.minimum(n_partners, min(count, len(to_v)))
        others = jax.random.randint(key, (rounds, count), 0, n_partners)
        if partners != "random":
            order = -to_v if partners == "nearest" else to_v
            others = _lowest(order, labeled_filled, min(count, len(to_v)))[others]
        mu = jnp.asarray(parts, to_u.dtype)[:, None, None]
        squared = mu**2 * of_u[easy][None, None] + (1 - mu) ** 2 * of_v[others][None]
        squared += 2 * mu * (1 - mu) * u_to_v[easy[None], others][None]
        # Opposite rows that cancel leave rounding errors, of no direction.
        has_direction = squared > jnp.finfo(squared.dtype).eps
        scale = jnp.where(has_direction, lax.rsqrt(jnp.where(has_direction, squared, 1)), 0)
        cosines = scale * (mu * to_u[easy][None, None] + (1 - mu) * to_v[others][None])
        cosines = jnp.where(exists[None, None], cosines, -jnp.inf)
        best = _highest(cosines.reshape(-1), count)
        mu_index, pair = jnp.divmod(best, rounds * count)
        mu, scale = mu.reshape(-1)[mu_index], scale.reshape(-1)[best]
        return easy[pair % count], others.reshape(-1)[pair], mu * scale, (1 - mu) * scale

    # Which mixtures are the hardest is a constant; the gradient passes through their cosines.
    chosen_u, chosen_v, u_weight, v_weight = jax.vmap(hardest)(
        keys, *lax.stop_gradient((to_u, to_v))
    )
    similarities = u_weight * jnp.take_along_axis(to_u, chosen_u, axis=1)
    similarities += v_weight * jnp.take_along_axis(to_v, chosen_v, axis=1)
    keep = exists & (labeled_filled > 0)
    return HardNegatives(similarities, jnp.broadcast_to(keep[None, :], similarities.shape))


def _lowest(values: Array, filled: Array, count: int) -> Array:
    """Finds the slots of the `count` lowest of the first `filled` values, then of others."""
    slots = jnp.arange(len(values), dtype=jnp.int32)
    return _highest(jnp.where(slots < filled, -values, -jnp.inf), count)


def _highest(values: Array, count: int) -> Array:
    """Finds the slots of the `count` highest, last axis; NaN, which a loss must show, is first."""
    return lax.top_k(jnp.where(jnp.isnan(values), jnp.inf, values), count)[1]


@array_function(
    similarities="float[rows, Q]",
    filled="int[]",
    static=("neighbors", "alpha"),
    by_rows=True,
)
def target_weights(
    similarities: Array, filled: Array, *, neighbors: int, alpha: float = 0.2
) -> Array:
    """Weights candidates as positives: alpha the augmented view, the rest the neighbors.

    Every one of an anchor's k nearest entries of the queue weighs `(1 - alpha) / k`. A queue with
    fewer entries shares `1 - alpha` among those; with an empty queue the view gets all the weight.

    Args:
        similarities: of each row with the entries of the queue `[rows, Q]`; constants.
        filled: how many of the queue's first rows hold an entry, int32 `[]`.
        neighbors: k_1, 1 to Q.
        alpha: weight of the augmented view, 0 to 1, by default the paper's.

    Returns:
        `[rows, 1 + Q]`, the augmented view first; every row sums to one.

    Raises:
        ValueError: a value is out of range.

    Source: NCL (7)-(9). In the authors' code the augmented view can take a neighbor's place;
    it is then left with k - 1 neighbors and weights that do not sum to one (`test_neighborhoods`).

    Example:
        >>> import jax.numpy as jnp
        >>> weights = target_weights(jnp.array([[0.1, 0.9, 0.5]]), jnp.int32(3), neighbors=2)
        >>> [round(weight, 3) for weight in weights[0].tolist()]
        [0.2, 0.0, 0.4, 0.4]
    """
    rows, length = similarities.shape
    checks.between("neighbors", neighbors, 1, length)
    checks.between("alpha", alpha, 0, 1)
    entries = jnp.arange(length, dtype=jnp.int32) < filled
    filled_similarities = jnp.where(entries[None, :], lax.stop_gradient(similarities), -jnp.inf)
    nearest = _highest(filled_similarities, neighbors)
    count = jnp.minimum(neighbors, filled)
    # Sorted: where the queue has fewer than k entries, they come before its empty slots.
    share = jnp.where(jnp.arange(neighbors) < count, (1 - alpha) / jnp.maximum(count, 1), 0)
    share = jnp.broadcast_to(share.astype(filled_similarities.dtype)[None, :], nearest.shape)
    of_queue = jnp.put_along_axis(
        jnp.zeros_like(filled_similarities), nearest, share, axis=1, inplace=False
    )
    of_view = jnp.where(filled > 0, alpha, 1).astype(filled_similarities.dtype)
    return jnp.concatenate([jnp.full((rows, 1), of_view), of_queue], axis=1)


@array_function(
    anchors="float[rows, d]",
    views="float[rows, d]",
    queue="float[Q, d]",
    filled="int[]",
    static=("targets",),
)
def neighborhood_contrast(
    anchors: Array,
    views: Array,
    queue: Array,
    filled: Array,
    negatives: HardNegatives | None,
    targets: Targets,
    *,
    temperature: Array | float = 0.05,
) -> Array:
    """Computes NCL: pulls each anchor to its augmented view and its nearest entries of a queue.

    Cross-entropy between `target_weights` and the softmax over the view, the queue's entries and
    the generated negatives, of cosines over tau. With an empty queue and no negatives it is 0.

    Args:
        anchors: rows z of the unlabeled images `[rows, d]`, this device's part, of any length.
        views: rows of the other view of the same images `[rows, d]`; constants for the gradient.
        queue: rows of earlier unlabeled images `[Q, d]`, the same on all devices; constants.
        filled: how many of the queue's first rows hold an entry, int32 `[]`.
        negatives: of these anchors, from `hard_negatives`, or None. They are in the
            denominator only, never neighbors.
        targets: k_1 and alpha, the weights of the positives.
        temperature: tau, positive, by default the paper's.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: a value is out of range.

    Source: NCL (6)-(9), (15). Both views come from one network and the paper does not say whether
    the gradient passes through the positive; in the authors' code it does not
    (`test_ncl_eq_6_to_9_gradient_of_the_neighborhood_contrast`).

    Example:
        >>> import jax.numpy as jnp
        >>> z, queue = jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> loss = neighborhood_contrast(z, z, queue, jnp.int32(2), None, Targets(1))
        >>> round(loss.item(), 4)  # two candidates at the anchor share the softmax
        0.6931
    """
    generated, exist, left_out = negatives or HardNegatives()
    base.check_shapes(
        {
            "anchors": (anchors, "float[rows, d]"),
            "negatives.similarities": (generated, "float[rows, k]"),
            "negatives.keep": (exist, "bool[rows, k]"),
            "negatives.left_out": (left_out, "int[]"),
        }
    )
    similarities, keep = _similarities(anchors, views, queue, filled)
    weights = target_weights(similarities[:, 1:], filled, **targets._asdict())
    if left_out is not None:
        entries = jnp.where(keep, similarities, jnp.inf)[:, 1:]
        easy = jnp.argsort(jnp.argsort(entries, axis=1), axis=1) < left_out
        keep &= ~jnp.pad(easy, ((0, 0), (1, 0))) | (weights > 0)
    if generated is not None and exist is not None:
        similarities = jnp.concatenate([similarities, generated], axis=1)
        keep = jnp.concatenate([keep, exist], axis=1)
        weights = jnp.pad(weights, ((0, 0), (0, exist.shape[1])))
    return _soft_cross_entropy(similarities / temperature, keep, weights)


@array_function(
    anchors="float[rows, d]",
    views="float[rows, d]",
    labels="int[rows]",
    queue="float[Q, d]",
    queue_labels="int[Q]",
    filled="int[]",
)
def supervised_contrast(
    anchors: Array,
    views: Array,
    labels: Array,
    queue: Array,
    queue_labels: Array,
    filled: Array,
    *,
    temperature: Array | float = 0.05,
) -> Array:
    """Computes SCL: pulls each anchor to its augmented view and all entries of its class, equally.

    Args:
        anchors: rows z of the labeled images `[rows, d]`, this device's part, of any length.
        views: rows of the other view of the same images `[rows, d]`; constants for the gradient.
        labels: class of each row, int32 `[rows]`.
        queue: rows of earlier labeled images `[Q, d]`, the same on all devices; constants.
        queue_labels: their classes, int32 `[Q]`.
        filled: how many of the queue's first rows hold an entry, int32 `[]`.
        temperature: tau, positive, by default the paper's.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Source: NCL (10), (11).

    Example:
        >>> import jax.numpy as jnp
        >>> z, label, queue = jnp.array([[1.0, 0.0]]), jnp.array([3]), jnp.array([[0.0, 1.0]])
        >>> loss = supervised_contrast(z, z, label, queue, label, jnp.int32(1), temperature=0.5)
        >>> round(loss.item(), 4)  # log(exp(2) + 1) - (2 + 0) / 2
        1.1269
    """
    similarities, keep = _similarities(anchors, views, queue, filled)
    same = labels[:, None] == queue_labels[None, :]
    positive = keep & jnp.pad(same, ((0, 0), (1, 0)), constant_values=True)
    weights = positive / jnp.sum(positive, axis=1, keepdims=True).astype(similarities.dtype)
    return _soft_cross_entropy(similarities / temperature, keep, weights)


def _similarities(anchors: Array, views: Array, queue: Array, filled: Array) -> tuple[Array, Array]:
    """Computes cosines with the other view, then the queue, `[rows, 1 + Q]`, and which exist."""
    z = ops.l2_normalize(anchors)
    queue = base.entries(queue, filled)
    views, queue = (ops.l2_normalize(x) for x in lax.stop_gradient((views, queue)))
    to_view = jnp.sum(z * views, axis=-1, keepdims=True)
    similarities = jnp.concatenate([to_view, ops.pairwise_dot(z, queue)], axis=1)
    columns = jnp.arange(similarities.shape[1], dtype=jnp.int32)
    return similarities, jnp.broadcast_to((columns <= filled)[None, :], similarities.shape)


def _soft_cross_entropy(logits: Array, keep: Array, weights: Array) -> Array:
    """Computes the mean over rows of `-sum_m w_m log softmax(logits)_m`; weights sum to one.

    By hand: optax has no mask for soft labels, and -inf in its place makes 0 * -inf.
    """
    return jnp.mean(ops.logsumexp(logits, keep) - jnp.sum(weights * logits, axis=-1))
