"""k-means, Euclidean and spherical, on the devices of a mesh.

Every device has some of the rows and all centers; `_assign_local` computes with the rows of one
device. Rows from number `layout.n` on are padding: they get a label, and enter no sum.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import arrays, checks, collectives, ops
from cluster_jax.core.arrays import Rows, numeric
from cluster_jax.core.checks import InputError
from cluster_jax.core.hosts import Spread

METRICS = ("euclidean", "spherical")
# Rows of a block, and elements of its features and scores, at most: on a CPU they stay in the cache
# of a core (4 MB in float32), an accelerator needs many to be busy.
_CPU, _ACCELERATOR = (256, 2**20), (2**17, 2**26)
# A CPU sums rows in parts of at least so many rows, in total and for each cluster: the error grows
# with the rows of a part, and the sums of all parts take 1/32 of the memory of the rows.
_PART, _PER_CLUSTER = 2**12, 32
_TIE_ULPS = 64  # Squares and their sums that differ by less count as ties.
# Largest numbers whose squares and their sums fit float64; and, in the unit of the rows, float32.
_LARGEST, _FARTHEST = 1e150, 1e15
# Rows of a block if the rows need not fit into memory.
_BLOCK_ROWS = 2**16
# Rows of the sample from which initial centers are drawn: at least, and for each cluster; updates
# of the k-means of that sample in `kmeans_blocks`.
_MIN_SAMPLE, _SAMPLE_PER_CLUSTER, _SAMPLE_ITERATIONS = 10_000, 64, 20
# `kmeans_blocks` ends when at most one row in so many changes its label: the last few rows would
# take most of the passes over the data.
_ROWS_PER_CHANGE = 10_000
# Rows that may become the centers of empty clusters: at least, and for each empty cluster.
_CANDIDATES, _PER_EMPTY = 10_000, 16
_AXIS = "rows"
_ROWS, _ALL = PartitionSpec(_AXIS), PartitionSpec()


class KMeansResult(NamedTuple):
    """Clusters of `n` rows.

    Attributes:
        labels: int32 `[n]`, the index of the nearest of the `centers`.
        centers: `[k, d]`, see `kmeans` for their dtype. After `max_iter` updates they need not be
            the means of their rows.
        inertia: sum of the squared distances of the rows to their centers; for spherical k-means
            the sum of 2 - 2 cos (a row of zeros adds 1).
        n_iter: number of center updates.
    """

    labels: NDArray
    centers: NDArray
    inertia: float
    n_iter: int


def kmeans(
    x: ArrayLike | Spread,
    n_clusters: int | ArrayLike,
    *,
    metric: str = "euclidean",
    n_init: int = 10,
    max_iter: int = 300,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """Returns k clusters of rows by Lloyd's algorithm: of `n_init` runs, that of lowest inertia.

    Initial centers are drawn by k-means++, with a few candidates for each center, from a sample of
    64 rows for each cluster and at least 10,000 rows. A run ends when no label changes. The center
    of an empty cluster moves to the row farthest from its own center; with fewer distinct rows than
    clusters, some clusters stay empty. `"spherical"` scales the rows to length one, and the centers
    after each update; it is the E-step of NCC.

    Distances are computed in blocks, of centered rows in a unit near their size, so that an offset
    costs no precision. The result does not depend on the number of devices, up to rounding.

    Args:
        x: finite `[n, d]`. Dtypes that fit float32 are computed in float32, others in float64 if
            JAX has it enabled. Euclidean centers of other dtypes are always float64, because
            float32 would round them far from zero. A `hosts.Spread` if one process alone has them.
        n_clusters: number of clusters k, 1 to n; or, as in SciPy's `kmeans2`, the initial centers
            `[k, d]` of the first run. All further runs draw centers by k-means++.
        metric: `"euclidean"` or `"spherical"`; with the latter a row of zeros stays zero and gets
            an arbitrary label.
        n_init: number of runs.
        max_iter: maximum number of center updates in a run.
        seed: random seed of k-means++; the same seed gives the same result.
        mesh: devices; None: the devices of this process. If they are of several processes, all
            must call this with the same arguments, and get the same result.

    Raises:
        ValueError: an argument is out of range; initial centers have another shape or are far from
            the rows; or `x` has no rows, is not finite, or, for Euclidean k-means, has numbers
            beyond 1e150.
        TypeError: `x` cannot be converted to an array of numbers, such as a sparse matrix.

    References:
        NCC, Exploring non-contrastive representation learning for deep clustering, sections 4.3
        and C: one run, without initial centers and without a rule for empty clusters.
        Arthur & Vassilvitskii 2007, k-means++: the advantages of careful seeding.

    Example:
        >>> result = kmeans([[0.0], [1.0], [10.0], [11.0]], [[0.0], [11.0]], n_init=1)
        >>> result.labels.tolist(), result.centers.tolist(), result.inertia
        ([0, 0, 1, 1], [[0.5], [10.5]], 1.0)
    """
    if not isinstance(x, Spread):
        x = numeric(x, "x", _LARGEST if metric == "euclidean" else np.inf)
    n = len(x)
    init = np.asarray(n_clusters)
    k: Any = len(init) if init.ndim else n_clusters
    checks.whole("n_clusters", k, 1, n)
    checks.one_of("metric", metric, METRICS)
    checks.whole("n_init", n_init, 1, 2**31 - 1)
    checks.whole("max_iter", max_iter, 1, 2**31 - 1)
    checks.whole("seed", seed, 0)
    rows = _Rows(x, x, int(k), n, metric == "spherical", mesh)
    some = rows.read(_sample(n, int(k), seed))
    # Rows without a direction are never drawn.
    weights = np.where(some.any(axis=1) | (metric == "euclidean"), _FARTHEST, 0)
    runs = []
    for number in range(n_init):
        if number == 0 and init.ndim:
            start = rows.placed_centers(init)
        else:
            key = np.asarray([int(seed) % 2**32, number], np.uint32)
            start = np.asarray(_draw_centers(some, weights.astype(some.dtype), key, rows.layout.k))
        runs.append(_lloyd(rows, start, max_iter))
    return rows.result(min(runs, key=lambda run: run.inertia))


def kmeans_blocks(
    x: Rows,
    n_clusters: int,
    *,
    metric: str = "euclidean",
    n_init: int = 10,
    max_iter: int = 300,
    seed: int = 0,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """Returns k clusters of rows that need not fit into memory; each update reads them in blocks.

    The initial centers come from `kmeans` of a random sample, which has 64 rows for each cluster,
    but at least 10,000 rows, or all rows if there are fewer. Then one run updates them with all
    rows; the run ends when at most one row in 10,000 changes its label and no cluster is empty, or
    when no label changes. Devices sum a block in float32, or in float64 if JAX has it enabled and
    the dtype does not fit float32; the host adds the blocks in float64. The sample, a block of 2^16
    rows, the labels and one distance for each row are in memory. The result does not depend on the
    number of devices, up to rounding.

    Args:
        x: finite `[n, d]`, an array, a memory map or `data.arrays.Shards`. Of several processes,
            each reads the rows of its own devices.
        n_clusters: number of clusters k, 1 to n; an array of initial centers is not accepted.
        metric: "euclidean" or "spherical".
        n_init: number of k-means runs on the sample, the best of which gives the initial centers.
        max_iter: maximum number of center updates with all rows; a run on the sample has 20.
        seed: random seed of the sample and of its k-means, 0 or more.
        mesh: devices, see `kmeans`.

    Raises:
        ValueError: as of `kmeans`, or numbers are beyond 1e15 times the scale of the sample.
        TypeError: `n_clusters` is not a number.

    Example:
        >>> rows = np.array([[0.0], [1.0], [10.0], [11.0]], np.float16)
        >>> result = kmeans_blocks(rows, 2)
        >>> sorted(result.centers.ravel().tolist()), result.inertia
        ([0.5, 10.5], 1.0)
    """
    n = x.shape[0]
    checks.whole("max_iter", max_iter, 1)
    sample = np.asarray(x[_sample(n, n_clusters, seed)])
    how: dict[str, Any] = {"metric": metric, "n_init": n_init, "seed": seed, "mesh": mesh}
    start = kmeans(sample, n_clusters, max_iter=_SAMPLE_ITERATIONS, **how).centers
    rows = _Rows(x, sample, len(start), _BLOCK_ROWS, metric == "spherical", mesh)
    run = _lloyd(rows, rows.placed_centers(start), max_iter, n // _ROWS_PER_CHANGE)
    return rows.result(run)


def _sample(n: int, k: int, seed: int) -> NDArray:
    """Returns the indices of the rows from which k initial centers are drawn, int64, ascending."""
    count = min(n, max(_MIN_SAMPLE, _SAMPLE_PER_CLUSTER * k))
    return np.sort(np.random.default_rng(seed).choice(n, count, replace=False))


class Layout(NamedTuple):
    """Sizes of a block of rows, which are constants of the compiled program."""

    n: int  # rows of all devices, without padding
    k: int  # clusters
    local: int  # rows of one device, padding included
    block: int  # rows that are scored at once
    scatter: bool  # sum members by scatter-add, else by products with one-hot labels
    spherical: bool  # compare unit rows by their cosine


class _Rows:
    """Rows as devices compute with them: of length one, or with a mean near 0 and a size near 1.

    Attributes:
        x: `[n, d]`, the rows as they were passed.
        layout: the layout of one block.
        dtype: dtype of the computations of devices.
    """

    def __init__(
        self,
        x: Rows,
        sample: NDArray | Spread,
        k: int,
        block_rows: int,
        spherical: bool,
        mesh: Mesh | None,
    ) -> None:
        """Prepares the rows for the devices; none of `x` is read or checked yet.

        Args:
            x: the rows `[n, d]`.
            sample: some of them, which give mean and scale; not used if `spherical`.
            k: number of clusters.
            block_rows: rows that are on the devices at once.
            spherical: whether rows are compared by their directions.
            mesh: the devices; None: the local ones.
        """
        devices = np.array(jax.local_devices()) if mesh is None else mesh.devices.ravel()
        self.x = x
        self._mesh = Mesh(devices, (_AXIS,), axis_types=(AxisType.Auto,))
        shape = min(x.shape[0], block_rows), x.shape[1], k
        self.layout = _make_layout(*shape, devices.size, devices[0].platform, spherical)
        is_narrow = np.can_cast(x.dtype, np.float32)
        self.dtype = np.float32 if is_narrow else jax.dtypes.canonicalize_dtype(np.float64)
        # Any point near the rows serves as the origin: far from zero, float32 would round them.
        self._exact = np.float32 if is_narrow else np.float64
        self._origin = np.zeros(x.shape[1], self._exact)
        self._exponent = 0
        if not spherical:
            self._origin = sample.mean(axis=0, dtype=np.float64).astype(self._exact)
            ends = np.stack([sample.min(axis=0), sample.max(axis=0)]) - self._origin
            self._exponent = int(np.frexp(np.abs(ends).max())[1])
        # Rows of one block stay on the devices.
        is_one = self.layout.n == x.shape[0]
        self._block = functools.cache(self._placed) if is_one else self._placed

    def read(self, rows: slice | NDArray) -> NDArray:
        """Returns rows as devices compute with them: of length one if spherical, else scaled.

        Args:
            rows: a slice, or indices.

        Returns:
            `[m, d]` of the dtype `self.dtype`.

        Raises:
            InputError: NaN, infinity, or values beyond 1e15 times the scale of the sample.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.asarray(self.x[rows])
            if self.layout.spherical:
                part = arrays.normalize_rows(part.astype(self._exact, copy=False))
            else:
                part = np.ldexp(part - self._origin, -self._exponent)
        if not np.abs(part).max(initial=0) <= _FARTHEST:
            raise InputError("x must be finite and of one size; got NaN, infinity, or far rows")
        return part.astype(self.dtype, copy=False)

    def placed_centers(self, centers: ArrayLike) -> NDArray:
        """Returns initial centers float64 `[k, d]` in the unit of `read`.

        Raises:
            ValueError: the shape is not `[k, d]`, or the centers are not finite or more than 1e15
                times as far from the rows as the rows from each other.
        """
        centers = np.asarray(centers, np.float64)
        shape = (self.layout.k, len(self._origin))
        if centers.shape != shape:
            raise InputError(f"initial centers must have shape {shape}; got {centers.shape}")
        if self.layout.spherical and np.isfinite(centers).all():
            return arrays.normalize_rows(centers)
        placed = np.ldexp(centers - self._origin, -self._exponent)
        if not np.abs(placed).max() <= _FARTHEST:
            got = f"got entries to {np.abs(centers).max():g}"
            raise InputError(f"initial centers must be finite and near the rows; {got}")
        return placed

    def result(self, run: KMeansResult) -> KMeansResult:
        """Returns the result of `_lloyd` in the unit of `x`."""
        centers = np.ldexp(run.centers, self._exponent) + self._origin
        dtype = self.dtype if self.layout.spherical else self._exact
        inertia = float(np.ldexp(run.inertia, 2 * self._exponent))
        return KMeansResult(run.labels, centers.astype(dtype), inertia, run.n_iter)

    def assigned(self, centers: NDArray) -> Iterator[tuple[slice, tuple[Array, ...]]]:
        """Yields the slice of each block, and the result of `_assign` for it.

        The labels and squared distances of a block have padding at their end.

        Args:
            centers: `[k, d]`, in the unit of `read`.
        """
        n = self.x.shape[0]
        size = self.layout.n
        centers = centers.astype(self.dtype)
        for start in range(0, n, size):
            layout = self.layout._replace(n=min(size, n - start))
            outputs = _assign(layout, self._mesh, self._block(start), centers)
            yield slice(start, start + layout.n), outputs

    def _placed(self, start: int) -> Array:
        """Returns the block that begins at row `start`, on the devices, with zeros as padding."""
        local = self.layout.local
        stop = min(start + self.layout.n, self.x.shape[0])

        def of_device(index: Any) -> NDArray:
            low, high, _ = index[0].indices(local * self._mesh.size)
            part = self.read(slice(start + low, min(start + high, stop)))
            return np.pad(part, ((0, high - low - len(part)), (0, 0)))

        shape = local * self._mesh.size, self.x.shape[1]
        return jax.make_array_from_callback(shape, NamedSharding(self._mesh, _ROWS), of_device)


def _lloyd(rows: _Rows, centers: NDArray, max_iter: int, allowed: int = 0) -> KMeansResult:
    """Returns the clusters after updates of centers and labels in turn, in the unit of `rows.read`.

    Args:
        rows: the rows.
        centers: initial centers `[k, d]`, in the same unit.
        max_iter: maximum number of updates.
        allowed: the run ends when no more labels than this change and no cluster is empty, or when
            no label changes.
    """
    n = rows.x.shape[0]
    layout = rows.layout
    labels = np.full(n, -1, np.int32)
    squares = np.empty(n, rows.dtype)
    centers = centers.astype(np.float64)
    step = 0
    for step in range(max_iter + 1):
        sums = np.zeros(centers.shape)
        counts = np.zeros(layout.k, np.int64)
        n_changed = 0
        for part, outputs in rows.assigned(centers):
            new, block_sums, block_counts, apart = map(np.asarray, outputs)
            new = new[: part.stop - part.start]
            n_changed += int((new != labels[part]).sum())
            labels[part] = new
            squares[part] = apart[: len(new)]
            sums = sums + block_sums
            counts = counts + block_counts
        if step == max_iter or n_changed <= (allowed if counts.all() else 0):
            break
        means = sums / np.maximum(counts, 1)[:, None]
        # A sum of zero has no direction, and any center is equally good: it stays.
        means = arrays.normalize_rows(sums) if layout.spherical else means
        stays = (means == 0).all(axis=1) if layout.spherical else counts == 0
        centers = np.where(stays[:, None], centers, means)
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            count = min(n, max(_CANDIDATES, _PER_EMPTY * len(empty)))
            far = np.sort(np.argpartition(squares, n - count)[n - count :])
            candidates = rows.read(far).astype(np.float64)
            # On the sphere a row of zeros is at 1 from all centers.
            is_row = candidates.any(axis=1) | (not layout.spherical)
            eps = float(np.finfo(rows.dtype).eps)
            _reseed(centers, empty, candidates, np.where(is_row, squares[far], 0), eps)
    return KMeansResult(labels, centers, float(squares.sum(dtype=np.float64)), step)


def _make_layout(n: int, d: int, k: int, devices: int, platform: str, spherical: bool) -> Layout:
    """Returns the layout of `n` rows of `d` numbers and `k` clusters over a number of devices.

    `platform` is that of the devices, as JAX has it, such as "cpu".
    """
    local = -(-n // devices)
    rows, numbers = _CPU if platform == "cpu" else _ACCELERATOR
    # Matrix products run best at multiples of 64 rows.
    block = min(rows, max(64, numbers // (d + k) // 64 * 64), local)
    # Accelerators scatter in an order that varies from run to run.
    return Layout(n, k, local, block, platform == "cpu", spherical)


@functools.partial(jax.jit, static_argnums=3)
def _draw_centers(x: Array, weights: Array, numbers: Array, k: int) -> Array:
    """Returns centers `[k, d]` by k-means++: rows drawn with probabilities proportional to D^2.

    D is the distance to the nearest center so far. Each time 2 + log k candidates are drawn, and
    that with the lowest sum of D^2 is taken.

    Args:
        x: `[n, d]`.
        weights: `[n]`, 0 for rows that are never drawn, else more than any D^2.
        numbers: uint32 `[2]`, the seed and the run.
        k: number of centers.
    """
    key = jax.random.wrap_key_data(numbers, impl="threefry2x32")
    lengths = jnp.sum(x * x, axis=1)
    trials = 2 + int(math.log(k))

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        centers, nearest = carry
        logits = jnp.log(nearest)
        drawn = jax.random.categorical(jax.random.fold_in(key, i), logits, shape=(trials,))
        rows = x[drawn]
        squares = lengths[:, None] + lengths[drawn][None] - 2 * ops.pairwise_dot(x, rows)
        closer = jnp.minimum(nearest[:, None], jnp.maximum(squares, 0))
        best = jnp.argmin(jnp.sum(closer, axis=0))
        return centers.at[i].set(rows[best]), closer[:, best]

    centers = jnp.zeros((k, x.shape[1]), x.dtype)
    return lax.fori_loop(0, k, step, (centers, weights))[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _assign(layout: Layout, mesh: Mesh, x: Array, centers: Array) -> tuple[Array, ...]:
    """Returns the result of `_assign_local` for the rows `x` of all devices, with padding."""
    body = functools.partial(_assign_local, layout)
    return jax.shard_map(body, mesh=mesh, in_specs=(_ROWS, _ALL), out_specs=_ALL)(x, centers)


def _assign_local(layout: Layout, x: Array, centers: Array) -> tuple[Array, ...]:
    """Returns the nearest centers of rows, of equally near ones the first, and sums of clusters.

    Args:
        layout: the layout of the block.
        x: `[layout.local, d]`, the rows of this device.
        centers: `[k, d]`.

    Returns:
        Of the m rows of all devices, padding included: labels int32 `[m]`; sums `[k, d]` and counts
        int32 `[k]` of the clusters, without padding; and squared distances to the nearest centers
        `[m]`, 0 for padding. The distances are computed from differences: scores, by which centers
        are compared, lose digits to cancellation.
    """
    k, block = layout.k, layout.block
    is_row = collectives.local_rows(layout.local, _AXIS) < layout.n
    # On the sphere all are 1/2, and left out, so that they do not differ by rounding.
    half = jnp.zeros(k, x.dtype) if layout.spherical else jnp.sum(centers * centers, axis=1) / 2

    def assign_block(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        labels, squares, sums, counts = carry
        # The last block starts early enough to be full; rows that overlap are counted once.
        start = jnp.minimum(i * block, layout.local - block)
        rows = lax.dynamic_slice_in_dim(x, start, block)
        new = _first_highest(ops.pairwise_dot(centers, rows) - half[:, None])
        gaps = rows - centers[new]
        apart = jnp.sum(gaps * gaps, axis=1)
        labels = lax.dynamic_update_slice_in_dim(labels, new, start, 0)
        squares = lax.dynamic_update_slice_in_dim(squares, apart, start, 0)
        if layout.scatter:
            return labels, squares, sums, counts
        is_new = start + jnp.arange(block, dtype=jnp.int32) >= i * block
        is_member = is_new & lax.dynamic_slice_in_dim(is_row, start, block)
        one_hot = (new[None] == jnp.arange(k, dtype=jnp.int32)[:, None]) & is_member[None]
        sums += jnp.matmul(one_hot.astype(x.dtype), rows, precision=lax.Precision.HIGHEST)
        return labels, squares, sums, counts + jnp.sum(one_hot, axis=1, dtype=jnp.int32)

    labels = jnp.zeros(layout.local, jnp.int32)
    squares = jnp.zeros(layout.local, x.dtype)
    zeros = labels, squares, jnp.zeros_like(centers), jnp.zeros(k, jnp.int32)
    n_blocks = -(-layout.local // block)
    labels, squares, sums, counts = lax.fori_loop(
        0, n_blocks, assign_block, collectives.varying(zeros, _AXIS)
    )
    if layout.scatter:
        # Each part of the rows has its own sums, so that no float32 adds up more rows than those.
        size = max(_PART, _PER_CLUSTER * k)
        parts = -(-layout.local // size)
        part = jnp.arange(layout.local, dtype=jnp.int32) // size
        places = jnp.where(is_row, part * k + labels, parts * k)
        sums = jnp.sum(jax.ops.segment_sum(x, places, parts * k).reshape(parts, k, -1), axis=0)
        counts = jax.ops.segment_sum(is_row.astype(jnp.int32), labels, k)
    squares = jnp.where(is_row, squares, 0)
    labels, squares = (collectives.gather(each, _AXIS) for each in (labels, squares))
    return labels, *collectives.total((sums, counts), _AXIS), squares


def _first_highest(scores: Array) -> Array:
    """Returns `argmax` over axis 0, by two plain reductions, which are faster on a CPU."""
    numbers = jnp.arange(len(scores), dtype=jnp.int32)[:, None]
    return jnp.min(jnp.where(scores == jnp.max(scores, axis=0)[None], numbers, len(scores)), axis=0)


def _reseed(centers: NDArray, empty: NDArray, rows: NDArray, squares: NDArray, eps: float) -> None:
    """Moves the centers of empty clusters, one by one, to the row farthest from all centers.

    Of equally far rows the first is taken: both rows of a pair are equally far from their mean, and
    rounding, which differs with the number of devices, must not decide. Rows that are equal to
    their center, up to rounding, are left out; without other rows, a center stays where it is.

    Args:
        centers: float64 `[k, d]`, changed in place.
        empty: numbers of the empty clusters.
        rows: float64 `[m, d]`, the candidates.
        squares: `[m]`, squared distances of the candidates to the nearest centers.
        eps: relative rounding of the dtype in which `squares` were computed.
    """
    lengths = np.square(rows).sum(axis=1)
    apart = np.where(squares > (8 * eps) ** 2 * lengths, squares, 0).astype(np.float64)
    for j in empty:
        if apart.max(initial=0) > 0:
            centers[j] = rows[(apart >= apart.max() * (1 - _TIE_ULPS * eps)).argmax()]
            apart = np.minimum(apart, np.square(rows - centers[j]).sum(axis=1))
