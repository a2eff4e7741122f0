"""Hard negative generation: easy entries of one queue mixed with random ones of another."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks, ops


class HardNegatives(NamedTuple):
    """Generated negatives of each anchor, represented only by their cosines.

    Attributes:
        similarities: cosine of each anchor with its negatives, the hardest first `[rows, k]`;
            differentiable with respect to the anchor, to which the negatives are constants.
        keep: which of them exist, boolean `[rows, k]`.
    """

    similarities: Array
    keep: Array


@functools.partial(jax.jit, static_argnames=("count", "rounds", "mixing", "entries", "partners"))
def hard_negatives(
    keys: Array,
    anchors: Array,
    queue: Array,
    filled: Array,
    labeled_queue: Array,
    labeled_filled: Array,
    *,
    count: int = 400,
    rounds: int = 5,
    mixing: tuple[float, ...] = (1 / 3, 2 / 3),
    entries: str = "easiest",
    partners: str = "random",
) -> HardNegatives:
    """The k_2 hardest of each anchor's mixtures `unit(mu u + (1 - mu) v)`.

    u runs over the anchor's k_2 least similar entries of the queue. In each round every u gets a
    partner v, drawn evenly and with replacement from the entries of the labeled queue, and is
    mixed with it by each mu. k_2 is at most the number of entries of the queue.

    Mixtures are never materialized. The cosine of one with an anchor z follows from <z, u>, <z, v>
    and <u, v>, so that the memory is that of the product of the two queues, `[Q, R]`, where the
    mixtures would need `[rows, k_2 * rounds * len(mixing), d]`.

    Args:
        keys: one key per row `[rows]`, made from the image's index so that a draw does not depend
            on the number of devices.
        anchors: rows z of unlabeled images `[rows, d]`, this device's part, of any length.
        queue: rows of earlier unlabeled images `[Q, d]`, of any length, the same on all devices;
            constants for the gradient.
        filled: how many of the queue's first rows hold an entry, int32 `[]`.
        labeled_queue: rows of earlier labeled images `[R, d]`, likewise.
        labeled_filled: how many of its first rows hold an entry, int32 `[]`.
        count: k_2, >= 1.
        rounds: N, >= 1.
        mixing: each mu, the unlabeled entry's part, 0 to 1.
        entries: which k_2 entries of the queue are mixed, the `"easiest"`, or `"random"` ones,
            drawn with replacement.
        partners: entries of the labeled queue from which v is drawn: all (`"random"`), or the k_2
            `"easiest"` or `"nearest"`, the least or most similar ones. With these choices and other
            queues in place of the two this gives the variants of Figure 4.

    Returns:
        Negatives `[rows, min(k_2, Q)]`; none exist while one of the queues is empty.

    Raises:
        ValueError: a value is out of range.

    Source: NCL (12)-(15), whose constants are the defaults. Rows are of length one before they
    are mixed, and a mixture of length zero has a cosine of 0. As in the authors' code both values
    of mu share a partner; the code draws the partners of a round without replacement, which fails
    if the queue has fewer than k_2 entries.

    Example:
        The mixture of the entries (-1, 0) and (0, 1) is at 45 degrees from the anchor:

        >>> import jax, jax.numpy as jnp
        >>> keys, one = jax.random.split(jax.random.key(0), 1), jnp.int32(1)
        >>> anchors, queue = jnp.array([[0.0, 1.0]]), jnp.array([[-1.0, 0.0]])
        >>> negatives = hard_negatives(keys, anchors, queue, one, anchors, one, mixing=(0.5,))
        >>> round(negatives.similarities.item(), 3), negatives.keep.item()
        (0.707, True)
    """
    checks.at_least("count", count, 1)
    checks.at_least("rounds", rounds, 1)
    if not mixing or not all(0 <= mu <= 1 for mu in mixing):
        raise ValueError(f"mixing must be one or more values from 0 to 1; got {mixing}")
    checks.one_of("entries", entries, ("easiest", "random"))
    checks.one_of("partners", partners, ("random", "easiest", "nearest"))
    z = ops.l2_normalize(anchors)
    u, v = (ops.l2_normalize(x) for x in lax.stop_gradient((queue, labeled_queue)))
    to_u, to_v, u_to_v = (ops.pairwise_dot(*pair) for pair in ((z, u), (z, v), (u, v)))
    of_u, of_v = (jnp.sum(x * x, axis=-1) for x in (u, v))
    count = min(count, queue.shape[0])
    exists = jnp.arange(count, dtype=jnp.int32) < filled

    def hardest(key: Array, to_u: Array, to_v: Array) -> tuple[Array, Array, Array, Array]:
        """Entries u and v and their weights in one anchor's hardest mixtures, each `[k]`.

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
        mu = jnp.asarray(mixing, to_u.dtype)[:, None, None]
        squared = mu**2 * of_u[easy][None, None] + (1 - mu) ** 2 * of_v[others][None]
        squared += 2 * mu * (1 - mu) * u_to_v[easy[None], others][None]
        # Opposite rows that cancel leave rounding errors, of no direction.
        has_direction = squared > jnp.finfo(squared.dtype).eps
        scale = jnp.where(has_direction, lax.rsqrt(jnp.where(has_direction, squared, 1)), 0)
        cosines = scale * (mu * to_u[easy][None, None] + (1 - mu) * to_v[others][None])
        cosines = jnp.where(exists[None, None], cosines, -jnp.inf)
        _, best = lax.top_k(cosines.reshape(-1), count)
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
    """Slots of the `count` lowest of the first `filled` values, then of others."""
    slots = jnp.arange(len(values), dtype=jnp.int32)
    return lax.top_k(jnp.where(slots < filled, -values, -jnp.inf), count)[1]
