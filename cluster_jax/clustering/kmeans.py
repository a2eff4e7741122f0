"""k-means, Euclidean and spherical, on the devices of a mesh."""

import functools
import numbers
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from cluster_jax.clustering import lloyd, seeding
from cluster_jax.core import collectives, ops
from cluster_jax.core.arrays import normalize_rows

METRICS = ("euclidean", "spherical")

# Elements of a block of rows in float64 on the host (8 MB).
_BLOCK = 2**20


class KMeansResult(NamedTuple):
    """Clusters of `n` rows.

    Attributes:
        labels: int32 `[n]`, the nearest of `centers` to each row.
        centers: `[k, d]`; `kmeans` says of which dtype.
        inertia: sum of the squared distances of the rows to their centers; for spherical k-means
            of the rows scaled to length one, so 2 - 2 cos each (a zero row adds 1).
        n_iter: number of center updates.
    """

    labels: NDArray
    centers: NDArray
    inertia: float
    n_iter: int


class _Rows(NamedTuple):
    """Preprocessed rows on the devices, sharded by row.

    Attributes:
        x: centered or scaled rows `[devices * local, d]`, zero in the padding.
        live: bool `[devices * local]`, rows that may become centers.
        mean: `[d]`, what was subtracted.
        mean_square: mean square of the rows; not finite if an entry is not finite or too large.
    """

    x: Array
    live: Array
    mean: Array
    mean_square: Array


def kmeans(
    x: ArrayLike,
    n_clusters: int,
    *,
    metric: str = "euclidean",
    n_init: int = 10,
    max_iter: int = 300,
    tol: float = 0.0,
    seed: int = 0,
    init: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> KMeansResult:
    """k-means by Lloyd's algorithm, the best of `n_init` runs by inertia; the E-step of NCC.

    "spherical" scales the rows to length one (a zero row stays zero and gets an arbitrary label)
    and after each update the centers too; it maximizes the sum of <v_i, mu_y(i)>, which never
    decreases; with "euclidean" the inertia never increases.

    Initial centers are drawn by k-means++ with a few candidates for each center. Clusters that
    lose all their rows are moved to the rows farthest from their centers. With fewer distinct
    rows than `n_clusters` some clusters stay empty. Distances are computed block by block, never
    `n x k` at once. The mean is subtracted before and added after, so that an offset costs no
    precision; where float32 would round the rows this is done in float64 on the host. The result
    does not depend on the number of devices, up to rounding.

    Args:
        x: finite `[n, d]`. float32 stays float32; anything else becomes float64 if JAX has it
            enabled, else float32. In that last case, if metric is "euclidean" and float32
            cannot represent the dtype (float64, integers of 32 bits and more), the returned
            centers are float64, since float32 would round them far from zero.
        n_clusters: number of clusters k, 1 to n.
        metric: "euclidean" or "spherical".
        n_init: number of runs, at least 1.
        max_iter: maximum number of center updates in a run, at least 1.
        tol: a run has converged when no label changes, or when an update moves no center by more
            than this fraction of the root mean square distance of the rows to their mean
            (spherical: to 0, which is 1). With 0 only the labels decide.
        seed: of the k-means++ draws; the same seed gives the same result.
        init: initial centers `[k, d]` of the first run, or None to draw them as for the others.
        mesh: devices, on one axis; None: those of this process. If it spans several processes,
            all processes must call this with the same arguments, and get the same result.

    Returns:
        The run of lowest inertia, the first in case of ties.

    Raises:
        ValueError: an argument is out of range, or the rows cannot be clustered.

    References:
        NCC, Exploring non-contrastive representation learning for deep clustering, sections 4.3
        and C: spherical k-means from a k-means++ start. Several runs, given initial centers and
        the treatment of empty clusters are not in the paper.
        Arthur & Vassilvitskii 2007, k-means++: the advantages of careful seeding.

    Example:
        >>> result = kmeans([[0.0], [1.0], [10.0], [11.0]], 2, init=[[0.0], [11.0]], n_init=1)
        >>> result.labels.tolist(), result.centers.tolist(), result.inertia
        ([0, 0, 1, 1], [[0.5], [10.5]], 1.0)
    """
    rows = _as_matrix(x)
    n, d = rows.shape
    n_clusters, seed = _integer("n_clusters", n_clusters), _integer("seed", seed)
    n_init, max_iter = _integer("n_init", n_init), _integer("max_iter", max_iter)
    _check(n, n_clusters, metric, n_init, max_iter, tol)
    spherical = metric == "spherical"
    casted, offset = _cast(rows, spherical)
    initial = None if init is None else _check_init(init, (n_clusters, d))
    if mesh is None:
        devices = jax.local_devices()
        mesh = jax.make_mesh(
            (len(devices),), ("rows",), axis_types=(AxisType.Auto,), devices=devices
        )
    tiling = lloyd.make_tiling(n, d, n_clusters, mesh.size, mesh.devices.flat[0].platform)
    data = _prepare(_shard(casted, tiling, mesh), tiling=tiling, spherical=spherical, mesh=mesh)
    # A squared distance of two rows is at most four times the sum of all squares.
    if not 4 * n * float(data.mean_square) <= float(np.finfo(casted.dtype).max):
        _raise_unusable(rows, casted.dtype)
    mean = np.asarray(data.mean, np.float64) + (0 if offset is None else offset)
    if initial is not None:
        initial = _l2_normalize(initial) if spherical else _shift(initial, mean, casted.dtype)
    scale = 1.0 if spherical else float(data.mean_square) ** 0.5
    min_move = np.asarray(tol * scale, casted.dtype)

    def single_run(number: int) -> tuple[float, lloyd.Run]:
        if number == 0 and initial is not None:
            centers = _replicate(initial.astype(casted.dtype), mesh)
        else:
            key = np.asarray([seed % 2**32, number], np.uint32)
            centers = _draw_centers(data, key, k=n_clusters, tiling=tiling, mesh=mesh)
        result = _run(
            data.x, centers, np.int32(max_iter), min_move,
            tiling=tiling, spherical=spherical, mesh=mesh,
        )  # fmt: skip
        return float(np.asarray(result.squares).sum(dtype=np.float64)), result

    inertia, best = single_run(0)
    for number in range(1, n_init):
        candidate = single_run(number)
        if candidate[0] < inertia:
            inertia, best = candidate
    final = np.asarray(best.centers, np.float64) + mean
    final = final.astype(casted.dtype if offset is None else np.float64)
    return KMeansResult(np.asarray(best.labels)[:n], final, inertia, int(best.n_iter))


def _as_matrix(x: ArrayLike) -> NDArray:
    if hasattr(x, "toarray"):
        raise ValueError("x must be a dense array; got a sparse matrix: pass x.toarray()")
    rows = np.asarray(x)
    # JAX's issubdtype also knows bfloat16.
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(rows.dtype, kind) for kind in kinds):
        raise ValueError(f"x must hold real numbers; got an array of {rows.dtype}")
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"x must be a non-empty 2-D array; got shape {rows.shape}")
    return rows


def _cast(rows: NDArray, spherical: bool) -> tuple[NDArray, NDArray | None]:
    """Rows in the dtype to compute in; and the mean that was subtracted, float64 `[d]`, or None."""
    if rows.dtype == np.float32:
        return rows, None
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    # Numbers too large for the dtype become infinity, which is refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        if spherical or dtype == np.float64 or np.can_cast(rows.dtype, dtype):
            return rows.astype(dtype), None
        step = max(1, _BLOCK // rows.shape[1])
        blocks = [slice(start, start + step) for start in range(0, len(rows), step)]
        mean = np.zeros(rows.shape[1])
        for block in blocks:
            mean += rows[block].sum(0, dtype=np.float64)
        mean /= len(rows)
        centered = np.empty(rows.shape, dtype)
        for block in blocks:
            centered[block] = rows[block] - mean
    return centered, mean


def _integer(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be an integer; got {value!r}")
    return int(value)


def _check(n: int, n_clusters: int, metric: str, n_init: int, max_iter: int, tol: float) -> None:
    if not 1 <= n_clusters <= n:
        raise ValueError(f"n_clusters must be 1 to {n}, the number of rows; got {n_clusters}")
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
    for name, value in (("n_init", n_init), ("max_iter", max_iter)):
        if not 1 <= value < 2**31:
            raise ValueError(f"{name} must be 1 to {2**31 - 1}; got {value}")
    if not 0 <= tol < np.inf:
        raise ValueError(f"tol must be finite and at least 0; got {tol}")


def _check_init(init: ArrayLike, shape: tuple[int, int]) -> NDArray:
    initial = np.asarray(init, np.float64)
    if initial.shape != shape:
        raise ValueError(f"init must have shape (n_clusters, d) = {shape}; got {initial.shape}")
    if not np.isfinite(initial).all():
        raise ValueError("init must be finite; got NaN or infinity")
    return initial


def _shift(initial: NDArray, mean: NDArray, dtype: np.dtype) -> NDArray:
    """Initial centers less the mean; an error if they are so far that scores would overflow."""
    with np.errstate(over="ignore"):
        shifted = initial - mean
        too_far = not np.square(shifted).sum(1).max() <= float(np.finfo(dtype).max) / 4
    if too_far:
        raise ValueError(
            f"init must be near the rows; got entries up to {np.abs(initial).max():g}, whose "
            f"squared distance to the mean of the rows overflows {dtype}"
        )
    return shifted


def _l2_normalize(initial: NDArray) -> NDArray:
    # Divided by its largest entry first, a row of any size has a finite, nonzero length.
    largest = np.abs(initial).max(1, keepdims=True)
    return normalize_rows(initial / np.where(largest > 0, largest, 1))


def _raise_unusable(rows: NDArray, dtype: np.dtype) -> NoReturn:
    if np.isfinite(rows).all():
        raise ValueError(
            f"x must be small enough for the sum of its squares to fit {dtype}; got entries up to "
            f"{float(np.abs(rows).max()):g}: scale them down"
        )
    raise ValueError("x must be finite; got NaN or infinity: drop or fill those rows")


def _shard(rows: NDArray, tiling: lloyd.Tiling, mesh: Mesh) -> Array:
    """The rows on the devices, padded with zeros after the last."""
    (axis,) = mesh.axis_names

    def local_part(index: tuple[slice, ...] | None) -> NDArray:
        local = rows if index is None else rows[index[0]]
        if len(local) == tiling.local:
            return local
        padded = np.zeros((tiling.local, rows.shape[1]), rows.dtype)
        padded[: len(local)] = local
        return padded

    shape = (tiling.local * mesh.size, rows.shape[1])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(axis)), local_part)


def _replicate(centers: NDArray, mesh: Mesh) -> Array:
    """The array replicated on every device."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_callback(centers.shape, sharding, lambda index: centers[index])


@functools.partial(jax.jit, static_argnames=("tiling", "spherical", "mesh"))
def _prepare(x: Array, *, tiling: lloyd.Tiling, spherical: bool, mesh: Mesh) -> _Rows:
    """Subtracts the mean, or scales the rows to length one."""
    (axis,) = mesh.axis_names

    def body(x: Array) -> tuple[Array, Array, Array, Array]:
        live = collectives.local_rows(tiling.local, axis) < tiling.n
        mean = jnp.zeros(x.shape[1], x.dtype)
        if spherical:
            # Divided by its largest entry first, a row of any size has a finite, nonzero length.
            largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
            x = x / jnp.where(largest == 0, 1, largest)
            mean_square = mean_square_of(jnp.sum(x * x, axis=1))
            return ops.l2_normalize(x), live & (largest[:, 0] > 0), mean, mean_square
        # The second pass removes what rounding left of a mean far from zero.
        weights = (live / tiling.n).astype(x.dtype)
        for _ in range(2):
            mean += collectives.total(jnp.sum((x - mean[None]) * weights[:, None], axis=0), axis)
        x = jnp.where(live[:, None], x - mean[None], 0)
        return x, live, mean, mean_square_of(jnp.sum(x * x, axis=1))

    def mean_square_of(squared_lengths: Array) -> Array:
        return collectives.total(jnp.sum(squared_lengths / tiling.n), axis)

    rows, replicated = PartitionSpec(axis), PartitionSpec()
    out = rows, rows, replicated, replicated
    return _Rows(*jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=out)(x))


@functools.partial(jax.jit, static_argnames=("k", "tiling", "mesh"))
def _draw_centers(
    data: _Rows, numbers: Array, *, k: int, tiling: lloyd.Tiling, mesh: Mesh
) -> Array:
    """k-means++ centers; `numbers` uint32 `[2]` are the seed and the number of the run."""
    (axis,) = mesh.axis_names

    def body(x: Array, live: Array, numbers: Array) -> Array:
        key = jax.random.wrap_key_data(numbers, impl="threefry2x32")
        return seeding.kmeans_plus_plus(x, live, key, k, tiling=tiling, axis=axis)

    rows, replicated = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(body, mesh=mesh, in_specs=(rows, rows, replicated), out_specs=replicated)(
        data.x, data.live, numbers
    )


@functools.partial(jax.jit, static_argnames=("tiling", "spherical", "mesh"))
def _run(
    x: Array, centers: Array, max_iter: Array, min_move: Array,
    *, tiling: lloyd.Tiling, spherical: bool, mesh: Mesh,
) -> lloyd.Run:  # fmt: skip
    (axis,) = mesh.axis_names
    body = functools.partial(lloyd.run, tiling=tiling, spherical=spherical, axis=axis)
    rows, replicated = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(
        body, mesh=mesh, in_specs=(rows, replicated, replicated, replicated), out_specs=replicated
    )(x, centers, max_iter, min_move)
