"""k-means, Euclidean and spherical, on the devices of a mesh."""

import functools
import numbers
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from cluster_jax.clustering import lloyd, seeding
from cluster_jax.core import collectives, ops

METRICS = ("euclidean", "spherical")

# Numbers of a block of rows in float64 on the host (8 MB).
_BLOCK = 2**20


class KMeans(NamedTuple):
    """Clusters of `n` rows.

    Attributes:
        labels: int32 `[n]`, the nearest of `centers` to each row.
        centers: `[k, d]`, of the type that `kmeans` says.
        inertia: sum of the squared distances of the rows to their centers; for spherical k-means
            of the rows scaled to length one, so 2 - 2 cos each (a zero row adds 1).
        n_iter: updates of the centers made.
    """

    labels: NDArray
    centers: NDArray
    inertia: float
    n_iter: int


class _Data(NamedTuple):
    """Rows as they are clustered, `[devices * local, d]`; `live` rows may become centers.

    `spread` is the mean square of the rows, not finite if one of them is not.
    """

    x: Array
    live: Array
    mean: Array
    spread: Array


def kmeans(
    features: ArrayLike,
    k: int,
    *,
    metric: str,
    n_init: int,
    max_iter: int,
    tol: float,
    seed: int,
    init: ArrayLike | None,
    mesh: Mesh | None,
) -> KMeans:
    """Best of several runs of Lloyd's iterations, by inertia; the E-step of NCC.

    "spherical" scales the rows to length one (a zero row stays zero and gets some label) and
    after each update the centers too; it maximizes the sum of <v_i, mu_y(i)>, which no
    assignment and no update lowers. In "euclidean" none raises the inertia.

    Starts are k-means++ with a few candidates for each center. Clusters that lose all their rows
    are put on the rows farthest from their centers. With fewer distinct rows than `k` some stay
    empty. Distances are computed block by block, never `n x k` at once; the mean is subtracted
    before and added after, so that an offset costs no precision; of features that float32 would
    round this is done in float64 on the host. The result does not depend on
    the number of devices, up to rounding.

    Args:
        features: finite `[n, d]`. float32 stays float32; anything else becomes float64 if JAX has
            it enabled, else float32. In that last case, if metric is "euclidean" and float32
            cannot hold the type (float64, integers of 32 bits and more), the centers returned are
            float64, since float32 would round them far from zero.
        k: number of clusters, 1 to n.
        metric: "euclidean" or "spherical".
        n_init: number of runs, at least 1.
        max_iter: updates of the centers in a run at most, at least 1.
        tol: a run ends with an update that moves no center by more than this part of the
            root mean square distance of the rows to their mean (spherical: to 0, which is 1), and
            when no label changes. 0 leaves the second alone.
        seed: of the starts; the same seed gives the same result.
        init: centers `[k, d]` that one of the runs starts from, or None; with `n_init=1` the
            only one.
        mesh: devices, on one axis; None: those of this process. If it spans several processes,
            all of them call this together with the same arguments, and get the same result.

    Returns:
        The run of lowest inertia, the earliest of several.

    Raises:
        ValueError: an argument is not usable.

    References:
        NCC, Exploring non-contrastive representation learning for deep clustering, sections 4.3
        and C: spherical k-means from a k-means++ start. Restarts, the given start and what becomes
        of empty clusters are not in the paper.
        Arthur & Vassilvitskii 2007, k-means++: the advantages of careful seeding.
    """
    given = _given(features)
    n, d = given.shape
    k, n_init, max_iter, seed = (
        _whole(name, value)
        for name, value in (
            ("k", k), ("n_init", n_init), ("max_iter", max_iter), ("seed", seed)
        )
    )  # fmt: skip
    _check(n, k, metric, n_init, max_iter, tol)
    features, shift = _cast(given, metric)
    start = None if init is None else _start(init, (k, d))
    if mesh is None:
        devices = jax.local_devices()
        mesh = jax.make_mesh(
            (len(devices),), ("rows",), axis_types=(AxisType.Auto,), devices=devices
        )
    tiling = lloyd.make_tiling(n, d, k, mesh.size, mesh.devices.flat[0].platform)
    spherical = metric == "spherical"
    data = _prepare(_place(features, tiling, mesh), tiling=tiling, spherical=spherical, mesh=mesh)
    # A squared distance of two rows is at most four times the sum of all squares.
    if not 4 * n * float(data.spread) <= float(np.finfo(features.dtype).max):
        _refuse(given, features.dtype)
    mean = np.asarray(data.mean, np.float64) + (0 if shift is None else shift)
    if start is not None:
        start = _unit(start) if spherical else _moved(start, mean, features.dtype)
    scale = 1.0 if spherical else float(data.spread) ** 0.5
    least = np.asarray(tol * scale, features.dtype)
    best, lowest = None, np.inf
    for restart in range(n_init):
        if restart == 0 and start is not None:
            centers = _share(start.astype(features.dtype), mesh)
        else:
            numbers = np.asarray([seed % 2**32, restart], np.uint32)
            centers = _seed(data, numbers, k=k, tiling=tiling, mesh=mesh)
        found = _run(
            data.x,
            centers,
            np.int32(max_iter),
            least,
            tiling=tiling,
            spherical=spherical,
            mesh=mesh,
        )
        inertia = float(np.asarray(found.squares).sum(dtype=np.float64))
        if inertia < lowest:
            best, lowest = found, inertia
    centers = np.asarray(best.centers, np.float64) + mean
    centers = centers.astype(features.dtype if shift is None else np.float64)
    return KMeans(np.asarray(best.labels)[:n], centers, lowest, int(best.n_iter))


def _given(features: ArrayLike) -> NDArray:
    if hasattr(features, "toarray"):
        raise ValueError("features are a sparse matrix: give a dense array, .toarray() makes one")
    x = np.asarray(features)
    if not any(jnp.issubdtype(x.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)):
        raise ValueError(f"features must be real numbers; got an array of {x.dtype}")
    if x.ndim != 2 or not x.size:
        raise ValueError(f"features must be a non-empty 2-D array; got shape {x.shape}")
    return x


def _cast(x: NDArray, metric: str) -> tuple[NDArray, NDArray | None]:
    """Rows in the type to compute in, and what was subtracted, float64 `[d]`, or None."""
    if x.dtype == np.float32:
        return x, None
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    # Numbers too large for the type become infinity, which is refused later.
    with np.errstate(over="ignore", invalid="ignore"):
        if metric == "spherical" or dtype == np.float64 or np.can_cast(x.dtype, dtype):
            return x.astype(dtype), None
        rows = max(1, _BLOCK // x.shape[1])
        blocks = [slice(start, start + rows) for start in range(0, len(x), rows)]
        mean = sum(x[block].sum(0, dtype=np.float64) for block in blocks) / len(x)
        near = np.empty(x.shape, dtype)
        for block in blocks:
            near[block] = x[block] - mean
    return near, mean


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be an integer; got {value!r}")
    return int(value)


def _check(n: int, k: int, metric: str, n_init: int, max_iter: int, tol: float) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"the number of clusters must be 1 to {n} (rows); got {k}")
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}; got {metric!r}")
    for name, value in (("n_init", n_init), ("max_iter", max_iter)):
        if not 1 <= value < 2**31:
            raise ValueError(f"{name} must be 1 to {2**31 - 1}; got {value}")
    if not 0 <= tol < np.inf:
        raise ValueError(f"tolerance must be a finite number of at least 0; got {tol}")


def _start(init: ArrayLike, shape: tuple[int, int]) -> NDArray:
    start = np.asarray(init, np.float64)
    if start.shape != shape:
        raise ValueError(f"init must have shape {shape}, clusters x dimensions; got {start.shape}")
    if not np.isfinite(start).all():
        raise ValueError("init contains NaN or infinity")
    return start


def _moved(start: NDArray, mean: NDArray, dtype: np.dtype) -> NDArray:
    """Start less the mean; so near to it that no score of a row overflows."""
    with np.errstate(over="ignore"):
        moved = start - mean
        far = not np.square(moved).sum(1).max() <= float(np.finfo(dtype).max) / 4
    if far:
        raise ValueError(
            f"init reaches {np.abs(start).max():g}, whose squared distance to the mean of the "
            f"features {dtype} cannot hold: give centers near the features"
        )
    return moved


def _unit(start: NDArray) -> NDArray:
    # Divided by its largest entry first, a row of any size has a length.
    largest = np.abs(start).max(1, keepdims=True)
    start = start / np.where(largest > 0, largest, 1)
    norms = np.linalg.norm(start, axis=1, keepdims=True)
    return start / np.where(norms > 0, norms, 1)


def _refuse(features: NDArray, dtype: np.dtype) -> None:
    if np.isfinite(features).all():
        raise ValueError(
            f"features reach {float(np.abs(features).max()):g}, and {dtype} cannot hold the sum of "
            "their squares: scale them down"
        )
    raise ValueError("features contain NaN or infinity: drop or fill those rows")


def _place(features: NDArray, tiling: lloyd.Tiling, mesh: Mesh) -> Array:
    """The rows on the devices, with zeros after the last."""
    (axis,) = mesh.axis_names

    def part(index: tuple[slice, ...]) -> NDArray:
        rows = features[index[0]]
        if len(rows) == tiling.local:
            return rows
        whole = np.zeros((tiling.local, features.shape[1]), features.dtype)
        whole[: len(rows)] = rows
        return whole

    shape = (tiling.local * mesh.size, features.shape[1])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(axis)), part)


def _share(centers: NDArray, mesh: Mesh) -> Array:
    """The same array whole on every device."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_callback(centers.shape, sharding, lambda index: centers[index])


@functools.partial(jax.jit, static_argnames=("tiling", "spherical", "mesh"))
def _prepare(x: Array, *, tiling: lloyd.Tiling, spherical: bool, mesh: Mesh) -> _Data:
    """Subtracts the mean, or scales the rows to length one."""
    (axis,) = mesh.axis_names

    def body(x: Array) -> _Data:
        live = collectives.local_rows(tiling.local, axis) < tiling.n
        mean = jnp.zeros(x.shape[1], x.dtype)
        if spherical:
            # Divided by its largest entry first, a row of any size has a length.
            largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
            x = x / jnp.where(largest == 0, 1, largest)
            spread = _spread(jnp.sum(x * x, axis=1))
            return _Data(ops.l2_normalize(x), live & (largest[:, 0] > 0), mean, spread)
        # The second round takes away what rounding left of a mean far from zero.
        weights = (live / tiling.n).astype(x.dtype)
        for _ in range(2):
            mean += collectives.total(jnp.sum((x - mean[None]) * weights[:, None], axis=0), axis)
        x = jnp.where(live[:, None], x - mean[None], 0)
        return _Data(x, live, mean, _spread(jnp.sum(x * x, axis=1)))

    def _spread(lengths: Array) -> Array:
        return collectives.total(jnp.sum(lengths / tiling.n), axis)

    rows, whole = PartitionSpec(axis), PartitionSpec()
    out = _Data(rows, rows, whole, whole)
    return jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=out)(x)


@functools.partial(jax.jit, static_argnames=("k", "tiling", "mesh"))
def _seed(data: _Data, numbers: Array, *, k: int, tiling: lloyd.Tiling, mesh: Mesh) -> Array:
    """k-means++ centers for a seed and a restart."""
    (axis,) = mesh.axis_names

    def body(x: Array, live: Array, numbers: Array) -> Array:
        key = jax.random.wrap_key_data(numbers, impl="threefry2x32")
        return seeding.plus_plus(x, live, key, k, tiling=tiling, axis=axis)

    rows, whole = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(body, mesh=mesh, in_specs=(rows, rows, whole), out_specs=whole)(
        data.x, data.live, numbers
    )


@functools.partial(jax.jit, static_argnames=("tiling", "spherical", "mesh"))
def _run(
    x: Array,
    centers: Array,
    max_iter: Array,
    least: Array,
    *,
    tiling: lloyd.Tiling,
    spherical: bool,
    mesh: Mesh,
) -> lloyd.Run:
    (axis,) = mesh.axis_names
    body = functools.partial(lloyd.run, tiling=tiling, spherical=spherical, axis=axis)
    rows, whole = PartitionSpec(axis), PartitionSpec()
    return jax.shard_map(body, mesh=mesh, in_specs=(rows, whole, whole, whole), out_specs=whole)(
        x, centers, max_iter, least
    )
