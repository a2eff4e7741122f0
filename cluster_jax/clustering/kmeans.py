"""k-means, Euclidean and spherical, on the devices of a mesh.

Every device holds some of the rows and all centers. The functions below `kmeans` see the rows of
one device. Rows from number `layout.n` on are padding: they get a label, but enter no sum.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from cluster_jax.clustering import knn
from cluster_jax.core import arrays, checks, collectives, ops
from cluster_jax.core.arrays import Rows, numeric
from cluster_jax.core.checks import InputError

METRICS = ("euclidean", "spherical")
# Rows, and elements of features and scores, of a block at most: on a CPU they stay in the cache of
# a core (4 MB in float32); an accelerator needs many to be busy.
_CPU, _ACCELERATOR = (256, 2**20), (2**17, 2**26)
# Centers per group in the search for the highest score: first the best group by a plain maximum,
# then the center in it by an argmax, which is slower.
_GROUP = 20
# A CPU sums the rows in parts of at least this many rows in total and per cluster. The error
# grows with the rows of a part; the sums of all parts take 1/32 of the memory of the rows.
_PART, _PER_CLUSTER = 2**12, 32
_TIE_ULPS = 64  # Squares and their sums that differ by less count as ties.
# Rows of a sample that `kmeans_blocks` starts from: at least, and for each cluster; its updates.
_MIN_SAMPLE, _SAMPLE_PER_CLUSTER, _SAMPLE_ITERATIONS = 10_000, 64, 20
# `kmeans_blocks` ends when at most one row in this many changes its label. The last few rows would
# take most of the passes over the data.
_ROWS_PER_CHANGE = 10_000
# Rows that may become the centers of empty clusters: at least, and for each of these.
_CANDIDATES, _PER_EMPTY = 10_000, 16
_AXIS = "rows"
_ROWS, _ALL = PartitionSpec(_AXIS), PartitionSpec()


class KMeansResult(NamedTuple):
    """Clusters of `n` rows.

    Attributes:
        labels: int32 `[n]`, the nearest of `centers` to each row.
        centers: `[k, d]`; `kmeans` says of which dtype.
        inertia: sum of the squared distances of the rows to their centers; for spherical k-means
            2 - 2 cos each (a zero row adds 1).
        n_iter: number of center updates.
    """

    labels: NDArray
    centers: NDArray
    inertia: float
    n_iter: int


class Layout(NamedTuple):
    """Static sizes, and whether rows are compared by angle."""

    n: int  # rows in all
    k: int  # clusters
    local: int  # rows of one device, padding included
    chunk: int  # rows from which k-means++ draws together
    block: int  # rows that are scored at once
    scatter: bool  # sum members by scatter-add, else by products with one-hot labels
    spherical: bool


def kmeans(
    x: ArrayLike,
    n_clusters: int,
    *,
    metric: str = "euclidean",
    n_init: int = 10,
    max_iter: int = 300,
    seed: int = 0,
    init: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """Clusters rows by Lloyd's k-means; the best of `n_init` runs by inertia. The E-step of NCC.

    "spherical" scales the rows to length one (a zero row stays zero and gets an arbitrary label)
    and after each update the centers too; it maximizes the sum of <v_i, mu_y(i)>, which never
    decreases; with "euclidean" the inertia never increases. A run ends when no label changes.
    Initial centers are drawn by k-means++ with a few candidates for each center. Clusters that
    lose all their rows are moved to the rows farthest from their centers. With fewer distinct
    rows than `n_clusters` some clusters stay empty. Distances are computed block by block, never
    `n x k` at once. The mean is subtracted before and added after, so that an offset costs no
    precision; where float32 would round the rows this is done in float64 on the host. The result
    does not depend on the number of devices, up to rounding.

    Args:
        x: finite `[n, d]`. float32 stays float32; anything else becomes float64 if JAX has it
            enabled, else float32; the centers are float64 also where float32 cannot represent the
            dtype and metric is "euclidean", since float32 would round them far from zero.
        n_clusters: number of clusters k, 1 to n.
        metric: "euclidean" or "spherical".
        n_init: number of runs.
        max_iter: maximum number of center updates in a run.
        seed: of the k-means++ draws; the same seed gives the same result.
        init: initial centers `[k, d]` of the first run, or None to draw them as for the others.
        mesh: devices; None: the devices of this process. If they are of several processes, all
            must call this with the same arguments, and get the same result.

    Raises:
        ValueError, TypeError: an argument is out of range, or the rows cannot be clustered.

    References:
        NCC, Exploring non-contrastive representation learning for deep clustering, sections 4.3
        and C, has neither several runs nor given centers nor a treatment of empty clusters.
        Arthur & Vassilvitskii 2007, k-means++: the advantages of careful seeding.

    Example:
        >>> result = kmeans([[0.0], [1.0], [10.0], [11.0]], 2, init=[[0.0], [11.0]], n_init=1)
        >>> result.labels.tolist(), result.centers.tolist(), result.inertia
        ([0, 0, 1, 1], [[0.5], [10.5]], 1.0)
    """
    rows = numeric(x, "x")
    n, d = rows.shape
    _check_options(n, n_clusters, metric, n_init, max_iter, seed)
    k, spherical, mesh = int(n_clusters), metric == "spherical", _rows_mesh(mesh)
    layout = _make_layout(n, d, k, mesh.size, mesh.devices.flat[0].platform, spherical)
    cast, offset = _cast(rows, spherical)
    padded = np.pad(cast, ((0, layout.local * mesh.size - n), (0, 0)))
    sharding = NamedSharding(mesh, _ROWS)
    data = jax.make_array_from_callback(padded.shape, sharding, lambda index: padded[index])
    specs = (_ROWS,), (_ROWS, _ROWS, _ALL, _ALL)
    data, live, mean, mean_square = _on_mesh(_prepare, layout, mesh, specs, data)
    # A squared distance of two rows is at most four times the sum of all squares.
    limit = float(np.finfo(cast.dtype).max) / 4
    if not n * float(mean_square) <= limit:
        got = f"{cast.dtype}; got entries up to {np.abs(rows).max():g}: scale them down"
        raise InputError(f"x must be small enough for the sum of its squares to fit {got}")
    # Smaller numbers have squares with fewer digits, or none.
    size, info = np.abs(rows).max(), np.finfo(cast.dtype)
    if not spherical and 0 < size < np.sqrt(info.tiny / info.eps):
        got = f"{cast.dtype}; got entries of at most {size:g}: scale them up"
        raise InputError(f"x must be large enough for its squares to fit {got}")
    shift = np.asarray(mean, np.float64)
    mean = shift + (0 if offset is None else offset)
    if init is not None:
        init = np.asarray(init, np.float64)
        if init.shape != (k, d):
            raise InputError(f"init must have shape (n_clusters, d) = {k, d}; got {init.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            init = arrays.normalize_rows(init) if spherical else init - mean
            if not np.square(init).sum(axis=1).max() <= limit:
                size = np.abs(init + mean).max()
                raise InputError(f"init must be finite and near the rows; got entries to {size:g}")
        init = init.astype(cast.dtype)

    def assign(centers: NDArray) -> Iterator[tuple[slice, tuple[Array, ...]]]:
        specs = (_ROWS, _ALL), _ALL
        centers = centers.astype(cast.dtype)
        yield slice(0, n), _on_mesh(_assign_block, layout, mesh, specs, data, centers)

    def read(chosen: NDArray) -> NDArray:
        return cast[chosen] - shift

    def single_run(number: int) -> tuple[float, Run]:
        centers = init
        if centers is None or number > 0:
            key = np.asarray([int(seed) % 2**32, number], np.uint32)
            specs = (_ROWS, _ROWS, _ALL), _ALL
            centers = np.asarray(_on_mesh(_draw_centers, layout, mesh, specs, data, live, key))
        run = _lloyd(layout, assign, read, centers, max_iter)
        return float(run.squares.sum(dtype=np.float64)), run

    inertia, best = min(map(single_run, range(n_init)), key=lambda each: each[0])
    centers = (best.centers + mean).astype(cast.dtype if offset is None else np.float64)
    return KMeansResult(best.labels, centers, inertia, best.n_iter)


def kmeans_blocks(
    x: Rows,
    n_clusters: int,
    *,
    block_rows: int = 2**16,
    metric: str = "euclidean",
    n_init: int = 10,
    max_iter: int = 300,
    seed: int = 0,
    init: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """Clusters rows that do not fit into memory by k-means: each update reads them block by block.

    Lloyd's algorithm as in `kmeans`, which clusters a random sample, 64 rows for each cluster and
    10,000 at least, to start from; it ends when at most one row in 10,000 changes its label.
    Devices sum a block in float32, the host adds up the blocks in float64. In memory are a block,
    the labels, and one distance for each row. The result does not depend on the number of devices
    or on `block_rows`, up to rounding.

    Args:
        x: finite `[n, d]`, a memory map or `data.tables.Shards`. Of several processes, each reads
            the rows of its own devices.
        n_clusters: number of clusters k, 1 to n.
        block_rows: rows of a block.
        metric: "euclidean" or "spherical".
        n_init: number of runs in the sample, of which the best is the start.
        max_iter: maximum number of center updates.
        seed: of the sample and of its k-means.
        init: initial centers `[k, d]`, or None to find them in the sample.
        mesh: devices, see `kmeans`.

    Raises:
        InputError: an argument is out of range, or the rows cannot be clustered.

    Example:
        >>> rows = np.array([[0.0], [1.0], [10.0], [11.0]], np.float16)
        >>> result = kmeans_blocks(rows, 2, block_rows=3, init=[[0.0], [11.0]])
        >>> result.labels.tolist(), result.centers.tolist(), result.inertia
        ([0, 0, 1, 1], [[0.5], [10.5]], 1.0)
    """
    n, d = x.shape
    _check_options(n, n_clusters, metric, n_init, max_iter, seed)
    checks.whole("block_rows", block_rows, 1)
    k, spherical, mesh = int(n_clusters), metric == "spherical", _rows_mesh(mesh)
    if init is None:
        count = min(n, max(_MIN_SAMPLE, _SAMPLE_PER_CLUSTER * k))
        sample = np.sort(np.random.default_rng(seed).choice(n, count, replace=False))
        how: dict[str, Any] = {"metric": metric, "n_init": n_init, "seed": seed, "mesh": mesh}
        init = kmeans(x[sample], k, max_iter=_SAMPLE_ITERATIONS, **how).centers
    centers = np.asarray(init, np.float64)
    if centers.shape != (k, d) or not np.isfinite(centers).all():
        raise InputError(f"init must be finite and of shape {k, d}; got shape {centers.shape}")
    is_narrow = np.can_cast(x.dtype, np.float32)
    dtype = np.float32 if is_narrow else jax.dtypes.canonicalize_dtype(np.float64)
    # Any point near the rows serves: far from zero, float32 would round them.
    origin = np.zeros(d) if spherical else centers.mean(axis=0)
    origin = origin.astype(np.float32 if is_narrow else np.float64)
    centers = arrays.normalize_rows(centers) if spherical else centers - origin

    def read(rows: slice | NDArray) -> NDArray:
        part = (np.asarray(x[rows]) - origin).astype(dtype, copy=False)
        if not np.isfinite(part).all():
            raise InputError(f"x must be finite and fit {np.dtype(dtype)}; got other numbers")
        return part

    platform = mesh.devices.flat[0].platform
    layout = _make_layout(min(n, int(block_rows)), d, k, mesh.size, platform, spherical)
    shape, sharding = (layout.local * mesh.size, d), NamedSharding(mesh, _ROWS)

    def started(start: int, centers: NDArray) -> tuple[Array, ...]:
        def local(index: Any) -> NDArray:
            low, high, _ = index[0].indices(shape[0])
            part = read(slice(start + low, min(start + high, start + layout.n, n)))
            return np.pad(part, ((0, high - low - len(part)), (0, 0)))

        data = jax.make_array_from_callback(shape, sharding, local)
        block = layout._replace(n=min(layout.n, n - start))
        specs = (_ROWS, _ALL), _ALL
        return _on_mesh(_assign_block, block, mesh, specs, data, centers.astype(dtype))

    def assign(centers: NDArray) -> Iterator[tuple[slice, tuple[Array, ...]]]:
        blocks = [slice(start, min(start + layout.n, n)) for start in range(0, n, layout.n)]
        outputs = started(0, centers)
        for rows, following in itertools.pairwise(blocks):
            # The next block is read while the devices compute.
            before, outputs = outputs, started(following.start, centers)
            yield rows, before
        yield blocks[-1], outputs

    whole, allowed = layout._replace(n=n), n // _ROWS_PER_CHANGE
    run = _lloyd(whole, assign, read, centers.astype(dtype), max_iter, allowed)
    inertia = float(run.squares.sum(dtype=np.float64))
    wanted = dtype if is_narrow or spherical else np.float64
    return KMeansResult(run.labels, (run.centers + origin).astype(wanted), inertia, run.n_iter)


class Run(NamedTuple):
    """What a run has found: `KMeansResult`, and the squared distances of rows to their centers."""

    labels: NDArray
    centers: NDArray
    squares: NDArray
    n_iter: int


def _lloyd(
    layout: Layout,
    assign: Callable[[NDArray], Iterable[tuple[slice, tuple[Array, ...]]]],
    read: Callable[[NDArray], NDArray],
    centers: NDArray,
    max_iter: int,
    allowed: int = 0,
) -> Run:
    """Updates centers and labels in turn until hardly any label changes.

    Args:
        layout: with the number of all rows.
        assign: centers float64 `[k, d]` -> the rows of each block, and its `_assign_block`.
        read: numbers of rows -> these rows as they are assigned; spherical ones of any length.
        centers: `[k, d]` to begin with, of the type in which devices compute.
        max_iter: updates at most.
        allowed: labels that the last update may change, if no cluster is empty.
    """
    labels, squares = np.full(layout.n, -1, np.int32), np.empty(layout.n, centers.dtype)
    eps, step = float(np.finfo(centers.dtype).eps), 0
    centers = centers.astype(np.float64)
    for step in range(max_iter + 1):
        sums, counts, n_changed = np.zeros(centers.shape), np.zeros(layout.k, np.int64), 0
        for rows, outputs in assign(centers):
            new, block_sums, block_counts, apart = map(np.asarray, outputs)
            new = new[: rows.stop - rows.start]
            n_changed += int((new != labels[rows]).sum())
            labels[rows], squares[rows] = new, apart[: len(new)]
            sums, counts = sums + block_sums, counts + block_counts
        if not np.isfinite(squares.sum(dtype=np.float64)):
            fit = f"its squares to fit {squares.dtype}"
            raise InputError(f"x must be small enough for {fit}: scale it down")
        if step == max_iter or n_changed <= (allowed if counts.all() else 0):
            break
        means = sums / np.maximum(counts, 1)[:, None]
        # Members that cancel have no direction: any center serves them equally well.
        means = arrays.normalize_rows(sums) if layout.spherical else means
        stays = (means == 0).all(axis=1) if layout.spherical else counts == 0
        centers = np.where(stays[:, None], centers, means)
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            count = min(layout.n, max(_CANDIDATES, _PER_EMPTY * len(empty)))
            far = np.sort(np.argpartition(squares, layout.n - count)[layout.n - count :])
            candidates = read(far).astype(np.float64)
            if layout.spherical:
                candidates = arrays.normalize_rows(candidates[candidates.any(axis=1)])
            _reseed(centers, empty, candidates, eps)
    return Run(labels, centers, squares, step)


def _check_options(
    n: int, n_clusters: int, metric: str, n_init: int, max_iter: int, seed: int
) -> None:
    checks.whole("n_clusters", n_clusters, 1, n)
    checks.one_of("metric", metric, METRICS)
    checks.whole("n_init", n_init, 1, 2**31 - 1)
    checks.whole("max_iter", max_iter, 1, 2**31 - 1)
    checks.whole("seed", seed, 0)


def _rows_mesh(mesh: Mesh | None) -> Mesh:
    """Makes a mesh of one axis, of the same devices; None: those of this process."""
    devices = np.array(jax.local_devices()) if mesh is None else mesh.devices.ravel()
    return Mesh(devices, (_AXIS,), axis_types=(AxisType.Auto,))


def _make_layout(n: int, d: int, k: int, devices: int, platform: str, spherical: bool) -> Layout:
    """Lays out `n` rows of `d` numbers and `k` clusters over the devices."""
    # From `n` alone, so that the draws do not depend on the devices.
    chunk = max(8, round(n**0.5))
    local = -(-n // (chunk * devices)) * chunk
    rows, numbers = _CPU if platform == "cpu" else _ACCELERATOR
    # Matrix products run best at multiples of 64 rows.
    block = min(rows, max(64, numbers // (d + k) // 64 * 64), local)
    # Accelerators scatter in an order that varies from run to run.
    return Layout(n, k, local, chunk, block, platform == "cpu", spherical)


def _cast(rows: NDArray, spherical: bool) -> tuple[NDArray, NDArray | None]:
    """Returns rows in the dtype to compute in; the subtracted mean, float64 `[d]`, or None."""
    dtype = np.float32 if rows.dtype == np.float32 else jax.dtypes.canonicalize_dtype(np.float64)
    # Numbers too large for the dtype become infinity, which is refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == np.float64 or np.can_cast(rows.dtype, dtype):
            return rows.astype(dtype, copy=False), None
        if spherical:  # by powers of two, before directions are lost in too small or large numbers
            exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1]
            return np.ldexp(rows.astype(np.float64, copy=False), -exponents).astype(dtype), None
        mean = rows.mean(axis=0, dtype=np.float64)
        return (rows - mean).astype(dtype), mean


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _on_mesh(function: Callable, layout: Layout, mesh: Mesh, specs: tuple, *args: Any) -> Any:
    """Calls a function of the rows of one device on all devices."""
    body = functools.partial(function, layout)
    return jax.shard_map(body, mesh=mesh, in_specs=specs[0], out_specs=specs[1])(*args)


def _prepare(layout: Layout, x: Array) -> tuple[Array, Array, Array, Array]:
    """Subtracts the mean from the rows, or scales them to length one.

    Returns the rows; which of them may become centers; the mean; the mean square, maybe infinite.
    """
    live = _is_row(layout)
    mean = jnp.zeros(x.shape[1], x.dtype)
    if layout.spherical:
        x, largest = _shrink(x)
        live &= largest > 0
    else:
        # The second pass removes what rounding left of a mean far from zero.
        weights = (live / layout.n).astype(x.dtype)
        for _ in range(2):
            mean += _total(layout, (x - mean[None]) * weights[:, None])
        x = jnp.where(live[:, None], x - mean[None], 0)
    mean_square = collectives.total(jnp.sum(jnp.sum(x * x, axis=1) / layout.n), _AXIS)
    return ops.l2_normalize(x) if layout.spherical else x, live, mean, mean_square


def _total(layout: Layout, x: Array) -> Array:
    """Sums the rows of all devices, `[local, m] -> [m]`, rounded alike on any number of them.

    Rounding that differs would change a draw now and then, and with it all that follow.
    """
    sums = jnp.sum(x.reshape(-1, layout.chunk, x.shape[1]), axis=1)
    return jnp.sum(collectives.gather(sums, _AXIS)[: -(-layout.n // layout.chunk)], axis=0)


def _shrink(x: Array) -> tuple[Array, Array]:
    """Divides rows by their largest entries, for finite lengths; returns these entries too."""
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    return x / jnp.where(largest == 0, 1, largest), largest[:, 0]


def _draw_centers(layout: Layout, x: Array, live: Array, numbers: Array) -> Array:
    """Draws centers `[k, d]` by k-means++: rows with probability proportional to D^2.

    D is the distance to the nearest center so far. Of 2 + log k candidates drawn each time the one
    that leaves the lowest sum of D^2 is taken, which costs little. The same rows are drawn on any
    number of devices, up to ties within rounding. `live` are the rows that may be drawn; `numbers`,
    uint32 `[2]`, the seed and the run.
    """
    key = jax.random.wrap_key_data(numbers, impl="threefry2x32")
    lengths = jnp.sum(x * x, axis=1)
    trials = 2 + int(math.log(layout.k))

    def step(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        centers, nearest = carry
        weights = jnp.where(i == 0, live.astype(x.dtype), nearest)
        drawn = _draw(layout, jax.random.fold_in(key, i), weights, trials)
        rows = collectives.take(x, drawn, _AXIS)
        cross = 2 * ops.pairwise_dot(x, rows)
        squares = lengths[:, None] + jnp.sum(rows * rows, axis=1)[None] - cross
        closer = jnp.minimum(nearest[:, None], jnp.maximum(squares, 0))
        sums = _total(layout, closer)
        # Two rows nearer to each other than to all others give the same sum; the first is taken, so
        # that rounding, which differs with the number of devices, cannot decide.
        lowest = sums <= jnp.min(sums) * (1 + _TIE_ULPS * jnp.finfo(x.dtype).eps)
        best = jnp.where(i == 0, 0, jnp.argmax(lowest))
        return centers.at[i].set(rows[best]), closer[:, best]

    nearest = jnp.where(live, jnp.array(jnp.inf, x.dtype), 0)
    centers = jnp.zeros((layout.k, x.shape[1]), x.dtype)
    return lax.fori_loop(0, layout.k, step, (centers, nearest))[0]


def _draw(layout: Layout, key: Array, weights: Array, count: int) -> Array:
    """Draws global numbers `[count]` of rows by weight: first the chunk, then the row in it.

    Each is the argmax of log weight + Gumbel noise, which rounding hardly ever changes, unlike a
    search in cumulative weights. The noise belongs to chunks and places in them, not to devices.
    """
    chunks = -(-layout.n // layout.chunk)
    noise = jax.random.gumbel(key, (count, chunks + layout.chunk), weights.dtype)
    weights = weights.reshape(-1, layout.chunk)
    sums = collectives.gather(jnp.sum(weights, axis=1), _AXIS)[:chunks]
    chunk = jnp.argmax(jnp.log(sums)[None] + noise[:, :chunks], axis=1).astype(jnp.int32)
    scores = jnp.log(collectives.take(weights, chunk, _AXIS)) + noise[:, chunks:]
    return chunk * layout.chunk + jnp.argmax(scores, axis=1).astype(jnp.int32)


def _is_row(layout: Layout) -> Array:
    """Returns which of this device's rows are not padding, bool `[local]`."""
    return collectives.local_rows(layout.local, _AXIS) < layout.n


def _assign(layout: Layout, x: Array, centers: Array) -> tuple[Array, Array, Array]:
    """Assigns rows: labels int32 `[local]`; sums `[k, d]` and counts `[k]` over all devices."""
    k, block = layout.k, layout.block
    # On the sphere all are 1/2; left out, they cannot differ by rounding.
    half = jnp.zeros(k, x.dtype) if layout.spherical else jnp.sum(centers * centers, axis=1) / 2
    is_row, padding = _is_row(layout), -k % _GROUP if k > 2 * _GROUP else 0
    half = jnp.pad(half, (0, padding), constant_values=jnp.inf)
    scored = jnp.pad(centers, ((0, padding), (0, 0)))

    def assign_block(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        labels, sums, counts = carry
        # The last block starts early enough to be full; rows that overlap are counted once.
        start = jnp.minimum(i * block, layout.local - block)
        rows = lax.dynamic_slice_in_dim(x, start, block)
        new = _nearest(rows, scored, half)
        labels = lax.dynamic_update_slice_in_dim(labels, new, start, 0)
        if layout.scatter:
            return labels, sums, counts
        is_new = start + jnp.arange(block, dtype=jnp.int32) >= i * block
        is_member = is_new & lax.dynamic_slice_in_dim(is_row, start, block)
        one_hot = (new[None] == jnp.arange(k, dtype=jnp.int32)[:, None]) & is_member[None]
        sums += jnp.matmul(one_hot.astype(x.dtype), rows, precision=lax.Precision.HIGHEST)
        return labels, sums, counts + jnp.sum(one_hot, axis=1, dtype=jnp.int32)

    zeros = jnp.zeros(layout.local, jnp.int32), jnp.zeros_like(centers), jnp.zeros(k, jnp.int32)
    labels, sums, counts = lax.fori_loop(
        0, -(-layout.local // block), assign_block, collectives.varying(zeros, _AXIS)
    )
    if layout.scatter:
        # Each part of the rows has its own sums, so that no float32 adds up more rows than those.
        size = max(_PART, _PER_CLUSTER * k)
        parts = -(-layout.local // size)
        part = jnp.arange(layout.local, dtype=jnp.int32) // size
        places = jnp.where(is_row, part * k + labels, parts * k)
        sums = jnp.sum(jax.ops.segment_sum(x, places, parts * k).reshape(parts, k, -1), axis=0)
        counts = jax.ops.segment_sum(is_row.astype(jnp.int32), labels, k)
    return labels, *collectives.total((sums, counts), _AXIS)


def _nearest(x: Array, centers: Array, half: Array) -> Array:
    """Finds each row's nearest center, int32, by <x, c> - |c|^2 / 2 (`half`); ties: the first."""
    scores = ops.pairwise_dot(centers, x) - half[:, None]
    if len(centers) <= 2 * _GROUP:
        return _first_highest(scores)
    scores = scores.reshape(-1, _GROUP, len(x))
    # `jnp.max`, which propagates NaN, is slower on a CPU.
    least = scores.dtype.type(-np.inf)
    group = _first_highest(lax.reduce(scores, least, lambda a, b: lax.select(a > b, a, b), (1,)))
    inside = jnp.take_along_axis(scores, group[None, None], axis=0)[0]
    return group * _GROUP + _first_highest(inside)


def _first_highest(scores: Array) -> Array:
    """Computes `argmax` over axis 0 as two plain reductions, which are faster on a CPU."""
    numbers = jnp.arange(len(scores), dtype=jnp.int32)[:, None]
    return jnp.min(jnp.where(scores == jnp.max(scores, axis=0)[None], numbers, len(scores)), axis=0)


def _assign_block(layout: Layout, x: Array, centers: Array) -> tuple[Array, ...]:
    """Assigns a block: labels, sums and counts of clusters, squared distances to centers."""
    if layout.spherical:
        x = ops.l2_normalize(_shrink(x)[0])
    labels, sums, counts = _assign(layout, x, centers)
    squares = _squares(layout, x, centers, labels)
    return collectives.gather(labels, _AXIS), sums, counts, collectives.gather(squares, _AXIS)


def _reseed(centers: NDArray, empty: NDArray, rows: NDArray, eps: float) -> None:
    """Moves the centers of empty clusters to the farthest of rows far from all centers, one by one.

    Ties go to the first: both rows of a pair are equally far from their mean, and rounding, which
    differs with the number of devices, must not decide. Rows that lie on their center, up to
    rounding, are left out.

    Args:
        centers: float64 `[k, d]`, changed in place.
        empty: numbers of the empty clusters.
        rows: float64 `[m, d]`; on the sphere without zero rows, which have no direction.
        eps: relative rounding of the numbers.
    """
    lengths = np.square(rows).sum(axis=1)
    others = knn.nearest(rows, np.delete(centers, empty, axis=0), 1)
    apart = np.square(others.distances[:, 0])
    apart[apart <= (8 * eps) ** 2 * lengths] = 0
    for j in empty:
        if apart.max(initial=0) > 0:
            centers[j] = rows[(apart >= apart.max() * (1 - _TIE_ULPS * eps)).argmax()]
            apart = np.minimum(apart, np.square(rows - centers[j]).sum(axis=1))


def _squares(layout: Layout, x: Array, centers: Array, labels: Array) -> Array:
    """Computes each row's squared distance to its center `[local]`, from differences; padding: 0.

    Scores lose digits to cancellation, which matters for sums though not for comparing centers.
    """

    def block(i: Array, squares: Array) -> Array:
        start = jnp.minimum(i * layout.block, layout.local - layout.block)
        gaps = lax.dynamic_slice_in_dim(x, start, layout.block)
        gaps -= centers[lax.dynamic_slice_in_dim(labels, start, layout.block)]
        return lax.dynamic_update_slice_in_dim(squares, jnp.sum(gaps * gaps, axis=1), start, 0)

    zeros = collectives.varying(jnp.zeros(layout.local, x.dtype), _AXIS)
    squares = lax.fori_loop(0, -(-layout.local // layout.block), block, zeros)
    return jnp.where(_is_row(layout), squares, 0)
