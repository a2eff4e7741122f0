"""k-means++: initial centers drawn far from each other."""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.clustering import lloyd
from cluster_jax.core import collectives, ops
from cluster_jax.core.collectives import Axis


def kmeans_plus_plus(
    x: Array, live: Array, key: Array, k: int, *, tiling: lloyd.Tiling, axis: Axis
) -> Array:
    """Rows drawn one after the other with probability proportional to the squared distance D^2.

    D is the distance to the nearest center so far. Of 2 + log k candidates drawn each time the one
    that leaves the lowest sum of D^2 is taken; this costs little, as reading the rows takes most
    of the time, and gives better centers than a single candidate.

    Runs inside `jax.shard_map`; the same rows are drawn on any number of devices, up to ties
    within rounding.

    Args:
        x: this device's rows `[tiling.local, d]`.
        live: bool `[tiling.local]`, rows that may be drawn; not the padding.
        key: of the draws.
        k: number of centers.
        tiling: sizes.
        axis: mesh axis of the rows.

    Returns:
        Centers `[k, d]`, distinct as long as rows at some distance are left.

    References:
        Arthur & Vassilvitskii 2007, k-means++: the advantages of careful seeding.

    Example:
        >>> x, live = jnp.repeat(jnp.array([[0.0], [5.0]]), 4, axis=0), jnp.ones(8, bool)
        >>> tiling = lloyd.make_tiling(8, 1, 2, devices=1, platform="cpu")
        >>> centers = kmeans_plus_plus(x, live, jax.random.key(0), 2, tiling=tiling, axis=None)
        >>> sorted(centers[:, 0].tolist())
        [0.0, 5.0]
    """
    lengths = jnp.sum(x * x, axis=1)
    n_local_trials = 2 + int(math.log(k))

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        centers, nearest = carry
        weights = jnp.where(i == 0, live.astype(x.dtype), nearest)
        drawn = draw(jax.random.fold_in(key, i), weights, n_local_trials, tiling=tiling, axis=axis)
        rows = lloyd.fetch(x, drawn, axis)
        squares = (
            lengths[:, None] + jnp.sum(rows * rows, axis=1)[None] - 2 * ops.pairwise_dot(x, rows)
        )
        closer = jnp.minimum(nearest[:, None], jnp.maximum(squares, 0))
        sums = jnp.sum(jnp.sum(closer.reshape(-1, tiling.chunk, n_local_trials), axis=1), axis=0)
        sums = collectives.total(sums, axis)
        # Two rows nearer to each other than to all others give the same sum; the first is taken, so
        # that rounding, which differs with the number of devices, cannot decide.
        lowest = sums <= jnp.min(sums) * (1 + lloyd.TIE_TOLERANCE_ULPS * jnp.finfo(x.dtype).eps)
        best = jnp.where(i == 0, 0, jnp.argmax(lowest))
        return centers.at[i].set(rows[best]), closer[:, best]

    nearest = jnp.where(live, jnp.array(jnp.inf, x.dtype), 0)
    return lax.fori_loop(0, k, step, (jnp.zeros((k, x.shape[1]), x.dtype), nearest))[0]


def draw(key: Array, weights: Array, count: int, *, tiling: lloyd.Tiling, axis: Axis) -> Array:
    """Global numbers `[count]` of rows drawn by weight: first the chunk, then the row in it.

    Each is the argmax of log weight + Gumbel noise (the Gumbel-max trick), which rounding hardly
    ever changes, unlike a search in cumulative weights. The noise belongs to chunks and places in
    them, not to devices.

    Example:
        >>> tiling = lloyd.make_tiling(8, 1, 1, devices=1, platform="cpu")
        >>> weights = jnp.zeros(8).at[5].set(1.0)
        >>> draw(jax.random.key(0), weights, 3, tiling=tiling, axis=None).tolist()
        [5, 5, 5]
    """
    chunks = -(-tiling.n // tiling.chunk)
    noise = jax.random.gumbel(key, (count, chunks + tiling.chunk), weights.dtype)
    weights = weights.reshape(-1, tiling.chunk)
    sums = collectives.gather(jnp.sum(weights, axis=1), axis)[:chunks]
    chunk = jnp.argmax(jnp.log(sums)[None] + noise[:, :chunks], axis=1).astype(jnp.int32)
    scores = jnp.log(lloyd.fetch(weights, chunk, axis)) + noise[:, chunks:]
    return chunk * tiling.chunk + jnp.argmax(scores, axis=1).astype(jnp.int32)
