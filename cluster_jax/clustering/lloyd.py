"""Lloyd's algorithm on the devices of a mesh; every device holds some rows and all centers.

The functions run inside `jax.shard_map`. Rows from number `tiling.n` on are padding: they get a
label like any other row, but enter no sum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import collectives, ops
from cluster_jax.core.collectives import Axis

# Maximum rows, and elements of features and scores, per block. On a CPU they stay
# in the cache of a core (4 MB in float32); an accelerator needs many to be busy. Blocks are
# multiples of 64 rows, at which matrix products run best.
_CPU, _ACCELERATOR = (256, 2**20), (2**17, 2**26)
# Centers per group in the search for the highest score: first the best group by a plain maximum,
# then the center in it by an argmax, which is slower.
_GROUP = 20
# A CPU sums the rows in parts of at least this many rows in total and per cluster. The error
# grows with the rows of a part; the sums of all parts take 1/32 of the memory of the rows.
_PART, _PER_CLUSTER = 2**12, 32
# Squares and their sums that differ by less than this many ulps count as ties.
TIE_TOLERANCE_ULPS = 64


# Step, centers, labels, sums, counts, whether it has converged.
_Carry = tuple[Array, Array, Array, Array, Array, Array]


class Tiling(NamedTuple):
    """Static sizes.

    Attributes:
        n: rows in all.
        local: rows of one device, padding included.
        chunk: rows that `seeding.draw` draws from together.
        block: rows that are scored at once.
        part: rows that are added up one after the other, if `scatter`.
        scatter: sum members by scatter-add, else by products with one-hot labels.
    """

    n: int
    local: int
    chunk: int
    block: int
    part: int
    scatter: bool


class Run(NamedTuple):
    """Result of a run, the same on every device.

    Attributes:
        labels: int32 `[devices * local]`, padding included.
        centers: `[k, d]`.
        squares: sums of squared distances of each chunk, `[chunks]`.
        n_iter: number of updates, int32.
    """

    labels: Array
    centers: Array
    squares: Array
    n_iter: Array


def make_tiling(n: int, d: int, k: int, devices: int, platform: str) -> Tiling:
    """Sizes for `n` rows of `d` numbers and `k` clusters.

    `chunk` follows from `n` alone, so that the draws do not depend on the devices.

    Example:
        >>> make_tiling(100, 2, 3, devices=2, platform="cpu")
        Tiling(n=100, local=50, chunk=10, block=50, part=4096, scatter=True)
    """
    chunk = max(8, round(n**0.5))
    local = -(-n // (chunk * devices)) * chunk
    rows, numbers = _CPU if platform == "cpu" else _ACCELERATOR
    block = min(rows, max(64, numbers // (d + k) // 64 * 64), local)
    # Accelerators scatter in an order that varies from run to run.
    return Tiling(n, local, chunk, block, max(_PART, _PER_CLUSTER * k), platform == "cpu")


def run(
    x: Array,
    centers: Array,
    max_iter: Array,
    min_move: Array,
    *,
    tiling: Tiling,
    spherical: bool,
    axis: Axis,
) -> Run:
    """Updates centers and labels in turn until convergence.

    Args:
        x: this device's rows `[tiling.local, d]`.
        centers: initial centers `[k, d]`.
        max_iter: maximum number of updates, int32.
        min_move: an update that moves no center by more than this is the last.
        tiling: sizes.
        spherical: scale the centers to length one.
        axis: mesh axis of the rows.

    Example:
        >>> x, centers = jnp.array([[0.0], [1.0], [10.0], [11.0]]), jnp.array([[0.0], [1.0]])
        >>> tiling = Tiling(n=4, local=4, chunk=4, block=4, part=4, scatter=True)
        >>> result = run(x, centers, 9, 0.0, tiling=tiling, spherical=False, axis=None)
        >>> result.labels.tolist(), result.centers.tolist(), int(result.n_iter)
        ([0, 0, 1, 1], [[0.5], [10.5]], 2)
    """

    def body(carry: _Carry) -> _Carry:
        step, centers, labels, sums, counts, _ = carry
        moved = _update(x, centers, labels, sums, counts, tiling, spherical, axis)
        new, sums, counts = _assign(x, moved, tiling, spherical, axis)
        is_unchanged = collectives.total(jnp.sum(new != labels, dtype=jnp.int32), axis) == 0
        done = is_unchanged | (jnp.max(jnp.linalg.norm(moved - centers, axis=1)) <= min_move)
        return step + 1, moved, new, sums, counts, done

    def keeps_going(carry: _Carry) -> Array:
        return (carry[0] < max_iter) & ~carry[-1]

    first = _assign(x, centers, tiling, spherical, axis)
    zero, not_converged = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    step, centers, labels, *_ = lax.while_loop(
        keeps_going, body, (zero, centers, *first, not_converged)
    )
    squares = _squares(x, centers, labels, tiling, axis).reshape(-1, tiling.chunk).sum(1)
    return Run(collectives.gather(labels, axis), centers, collectives.gather(squares, axis), step)


def fetch(x: Array, rows: Array, axis: Axis) -> Array:
    """The rows of the given global numbers `[r]`, on every device: `[r, ...]`.

    Example:
        >>> fetch(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([2, 0]), axis=None).tolist()
        [[3.0], [1.0]]
    """
    local = rows - collectives.rank(axis) * len(x)
    is_local = (local >= 0) & (local < len(x))
    values = x[jnp.clip(local, 0, len(x) - 1)]
    return collectives.total(jnp.where(is_local.reshape(-1, *[1] * (x.ndim - 1)), values, 0), axis)


def _assign(
    x: Array, centers: Array, tiling: Tiling, spherical: bool, axis: Axis
) -> tuple[Array, Array, Array]:
    """Labels int32 `[local]`, and of all devices sums of members `[k, d]` and counts `[k]`."""
    k = len(centers)
    # On the sphere all are 1/2; left out, they cannot differ by rounding.
    half = jnp.zeros(k, x.dtype) if spherical else jnp.sum(centers * centers, axis=1) / 2
    if k > 2 * _GROUP:
        padding = -k % _GROUP
        half = jnp.pad(half, (0, padding), constant_values=jnp.inf)
        scored = jnp.pad(centers, ((0, padding), (0, 0)))
    else:
        scored = centers

    def label(i: Array, labels: Array) -> Array:
        start = jnp.minimum(i * tiling.block, tiling.local - tiling.block)
        new = _nearest(lax.dynamic_slice_in_dim(x, start, tiling.block), scored, half)
        return lax.dynamic_update_slice_in_dim(labels, new, start, 0)

    labels = collectives.varying(jnp.zeros(tiling.local, jnp.int32), axis)
    labels = lax.fori_loop(0, -(-tiling.local // tiling.block), label, labels)

    real = collectives.local_rows(tiling.local, axis) < tiling.n
    sums = (_sum_by_scatter if tiling.scatter else _sum_by_one_hot)(
        x, jnp.where(real, labels, k), k, tiling, axis
    )
    return labels, *collectives.total(sums, axis)


def _nearest(x: Array, centers: Array, half: Array) -> Array:
    """Number of the nearest center of each row, int32; ties go to the lowest.

    The nearest is the one of highest <x, c> - |c|^2 / 2, which is `half`.
    """
    scores = ops.pairwise_dot(centers, x) - half[:, None]
    if len(centers) <= 2 * _GROUP:
        return _first_highest(scores)
    scores = scores.reshape(-1, _GROUP, len(x))
    group = _first_highest(_highest(scores, 1))
    inside = jnp.take_along_axis(scores, group[None, None], axis=0)[0]
    return group * _GROUP + _first_highest(inside)


def _first_highest(scores: Array) -> Array:
    """`argmax` over axis 0 as two plain reductions, which are faster on a CPU."""
    numbers = jnp.arange(len(scores), dtype=jnp.int32)[:, None]
    highest = jnp.max(scores, axis=0)
    return jnp.min(jnp.where(scores == highest[None], numbers, len(scores)), axis=0)


def _highest(scores: Array, axis: int) -> Array:
    """`max` of finite numbers; `jnp.max`, which propagates NaN, is slower on a CPU."""

    def higher(a: Array, b: Array) -> Array:
        return lax.select(a > b, a, b)

    return lax.reduce(scores, jnp.array(-jnp.inf, scores.dtype), higher, (axis,))


def _sum_by_scatter(
    x: Array, labels: Array, k: int, tiling: Tiling, axis: Axis
) -> tuple[Array, Array]:
    """Sums of the rows of each label `[k, d]` and their counts; label k is left out.

    Each part of the rows has its own sums, so that no float32 adds up more rows than those.
    `axis` is unused: the signature is that of `_sum_by_one_hot`.
    """
    parts = -(-tiling.local // tiling.part)
    part = jnp.arange(tiling.local, dtype=jnp.int32) // tiling.part
    places = jnp.where(labels < k, part * k + labels, parts * k)
    sums = jax.ops.segment_sum(x, places, parts * k).reshape(parts, k, -1)
    return jnp.sum(sums, axis=0), jax.ops.segment_sum(jnp.ones_like(labels), labels, k)


def _sum_by_one_hot(
    x: Array, labels: Array, k: int, tiling: Tiling, axis: Axis
) -> tuple[Array, Array]:
    """`_sum_by_scatter` by products with one-hot labels, block by block."""

    def add(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # The last block starts early enough to be full; rows that overlap are counted once.
        start = jnp.minimum(i * tiling.block, tiling.local - tiling.block)
        new = start + jnp.arange(tiling.block, dtype=jnp.int32) >= i * tiling.block
        members = jnp.where(new, lax.dynamic_slice_in_dim(labels, start, tiling.block), k)
        one_hot = members[None] == jnp.arange(k, dtype=jnp.int32)[:, None]
        rows = lax.dynamic_slice_in_dim(x, start, tiling.block)
        more = jnp.matmul(one_hot.astype(x.dtype), rows, precision=lax.Precision.HIGHEST)
        return carry[0] + more, carry[1] + jnp.sum(one_hot, axis=1, dtype=jnp.int32)

    zeros = jnp.zeros((k, x.shape[1]), x.dtype), jnp.zeros(k, jnp.int32)
    blocks = -(-tiling.local // tiling.block)
    return lax.fori_loop(0, blocks, add, collectives.varying(zeros, axis))


def _update(
    x: Array,
    centers: Array,
    labels: Array,
    sums: Array,
    counts: Array,
    tiling: Tiling,
    spherical: bool,
    axis: Axis,
) -> Array:
    """New centers: the means of the members; empty clusters get new centers."""
    empty = counts == 0
    if spherical:
        # Members that cancel have no direction: any center serves them equally well.
        means = ops.l2_normalize(sums)
        stays = jnp.all(means == 0, axis=1)
    else:
        means = sums / jnp.maximum(counts, 1)[:, None].astype(sums.dtype)
        stays = empty
    means = jnp.where(stays[:, None], centers, means)
    return lax.cond(
        jnp.any(empty),
        lambda: _reseed(x, means, labels, empty, tiling, spherical, axis),
        lambda: means,
    )


def _reseed(
    x: Array,
    centers: Array,
    labels: Array,
    empty: Array,
    tiling: Tiling,
    spherical: bool,
    axis: Axis,
) -> Array:
    """Moves the centers of empty clusters to the farthest rows.

    Each is the farthest from all centers, those placed before it included, so that no two land
    in one place. Ties go to the first: both rows of a pair are equally far from their mean,
    and rounding, which differs with the number of devices, must not decide. Rows that lie on their
    center, up to rounding, are left out; so are zero rows on the sphere, which have no direction.
    """
    lengths = jnp.sum(x * x, axis=1)
    squares = _squares(x, centers, labels, tiling, axis)
    squares = jnp.where(squares > (8 * jnp.finfo(x.dtype).eps) ** 2 * lengths, squares, 0)
    if spherical:
        squares = jnp.where(lengths > 0, squares, 0)
    rows = collectives.local_rows(tiling.local, axis)

    def place(j: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        def move() -> tuple[Array, Array]:
            centers, squares = carry
            most = jnp.max(collectives.gather(jnp.max(squares)[None], axis))
            is_farthest = squares >= most * (1 - TIE_TOLERANCE_ULPS * jnp.finfo(x.dtype).eps)
            first = jnp.min(jnp.where(is_farthest, rows, tiling.n))
            row = fetch(x, jnp.min(collectives.gather(first[None], axis))[None], axis)
            squares = jnp.minimum(squares, jnp.sum((x - row) ** 2, axis=1))
            return centers.at[j].set(jnp.where(most > 0, row[0], centers[j])), squares

        return lax.cond(empty[j], move, lambda: carry)

    return lax.fori_loop(0, len(centers), place, (centers, squares))[0]


def _squares(x: Array, centers: Array, labels: Array, tiling: Tiling, axis: Axis) -> Array:
    """Squared distance of each row to its center `[local]`, 0 for padding.

    Computed from differences: the scores lose digits to cancellation, which matters for sums though
    not for comparing centers.
    """

    def block(i: Array, squares: Array) -> Array:
        start = jnp.minimum(i * tiling.block, tiling.local - tiling.block)
        gaps = lax.dynamic_slice_in_dim(x, start, tiling.block)
        gaps -= centers[lax.dynamic_slice_in_dim(labels, start, tiling.block)]
        return lax.dynamic_update_slice_in_dim(squares, jnp.sum(gaps * gaps, axis=1), start, 0)

    zeros = collectives.varying(jnp.zeros(tiling.local, x.dtype), axis)
    squares = lax.fori_loop(0, -(-tiling.local // tiling.block), block, zeros)
    return jnp.where(collectives.local_rows(tiling.local, axis) < tiling.n, squares, 0)
