"""k-nearest-neighbor accuracy of features."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import collectives, hosts
from cluster_jax.core.arrays import normalize_rows, numeric, one_per_row
from cluster_jax.core.checks import InputError
from cluster_jax.core.hosts import Spread

_AXIS = "rows"
# Scores that a device computes at once (float32: 256 MB).
_SCORES = 2**26


def knn_accuracy(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    n_neighbors: Sequence[int] = (20,),
    queries: ArrayLike | None = None,
    query_labels: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> dict[int, float | None]:
    """Returns the share of rows whose class wins the vote of the nearest rows by cosine.

    Every neighbor has one vote; of classes with equally many votes the smallest wins.

    Args:
        features: finite float `[n, d]`, the rows that vote.
        labels: their classes, integers `[n]`.
        n_neighbors: numbers of voters, at least one.
        queries: finite float `[m, d]` to classify; None for the voters themselves, each without
            its own vote (leave-one-out).
        query_labels: integers `[m]`, with `queries`.
        mesh: devices of all processes, see `hosts.on_all`; None: those of this process.

    Returns:
        Number of voters -> accuracy, or None where there are not that many voters.

    Raises:
        ValueError: shapes that do not match, or a number of voters below 1.

    Example:
        >>> knn_accuracy([[1.0, 0.0], [9.0, 1.0], [0.0, 2.0]], [0, 0, 1], n_neighbors=(1, 5))
        {1: 0.6666666666666666, 5: None}
    """
    if (queries is None) != (query_labels is None):
        raise InputError("queries and query_labels must be given together; got only one of them")
    from sklearn.neighbors import NearestNeighbors  # Not before: a service needs none.

    if not n_neighbors or min(n_neighbors) < 1:
        raise InputError(f"n_neighbors must be numbers of at least 1; got {n_neighbors}")
    voters, classes = _checked(features, labels)
    asked, true_labels = (None, classes) if queries is None else _checked(queries, query_labels)
    if asked is not None and asked.shape[1] != voters.shape[1]:
        must = f"queries must have as many columns as features, {voters.shape[1]}"
        raise InputError(f"{must}; got {asked.shape[1]}")
    possible = [k for k in n_neighbors if k <= len(voters) - (asked is None)]
    if not possible:
        return dict.fromkeys(n_neighbors)
    if mesh is None and jax.default_backend() == "cpu":
        # Of unit rows the nearest by Euclidean distance have the highest cosine similarity.
        search = NearestNeighbors(n_neighbors=max(possible), algorithm="brute").fit(voters)
        nearest = search.kneighbors(asked, return_distance=False)
    else:
        queries = () if asked is None else (asked,)
        nearest, _ = hosts.on_all(nearest_of_all, mesh, voters, *queries, k=max(possible))
    names, codes = np.unique(classes, return_inverse=True)
    accuracies: dict[int, float | None] = dict.fromkeys(n_neighbors)
    for k in possible:
        # The first of the highest counts is that of the smallest class.
        won = [np.bincount(ballot).argmax() for ballot in codes[nearest[:, :k]]]
        accuracies[k] = float(np.mean(names[won] == true_labels))
    return accuracies


def nearest_voters(
    asked: NDArray | Spread, voters: NDArray, *, k: int, mesh: Mesh | None
) -> tuple[NDArray, NDArray]:
    """Returns `nearest_of_all` of rows that one process alone may have, among a few voters.

    Example:
        >>> rows, voters = np.eye(2), np.array([[0.0, 1.0], [0.6, 0.8]])
        >>> nearest_voters(rows, voters, k=1, mesh=None)[0].tolist()
        [[1], [0]]
    """
    return nearest_of_all(voters, asked, k=k, mesh=mesh)


def nearest_of_all(
    voters: NDArray | Spread, asked: NDArray | Spread | None = None, *, k: int, mesh: Mesh | None
) -> tuple[NDArray, NDArray]:
    """Returns rows of highest cosine, int32 `[m, k]`, and their cosines; devices share the voters.

    Args:
        voters: `[n, d]`, of length one, n at least k.
        asked: `[m, d]`, of length one; None: the voters, each without itself.
        k: number of rows.
        mesh: the devices; None: those of this process.

    Example:
        >>> found, cosines = nearest_of_all(np.array([[1.0, 0.0], [0.5, 0.8]]), k=1, mesh=None)
        >>> found.tolist(), cosines.tolist()
        ([[1], [0]], [[0.5], [0.5]])
    """
    if mesh is None:
        mesh = Mesh(jax.local_devices(), (_AXIS,))
    n = len(voters)
    queries = voters if asked is None else asked
    numbers = np.arange(n) if asked is None else np.full(len(queries), -1)
    shard, whole = PartitionSpec(_AXIS), PartitionSpec()
    placed = hosts.placed(voters, mesh)
    body = functools.partial(_highest, n=n, k=k)
    search = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(shard, whole, whole), out_specs=whole)
    )
    rows = min(len(queries), max(1, _SCORES * mesh.size // n))
    found = []
    for start in range(0, len(queries), rows):
        # The last block starts early enough to be full, so that all are one program.
        first = min(start, len(queries) - rows)
        some = np.arange(first, first + rows)
        outputs = search(placed, queries[some], numbers[some])
        found.append([np.asarray(output)[start - first :] for output in outputs])
    rows_found, cosines = map(np.concatenate, zip(*found, strict=True))
    return rows_found, cosines


def _highest(
    voters: Array, queries: Array, own_numbers: Array, *, n: int, k: int
) -> tuple[Array, Array]:
    """Returns the k voters of all devices nearest to each query, of equally near ones the first.

    And their cosines, `[m, k]` as well.
    """
    numbers = collectives.local_rows(len(voters), _AXIS)
    scores = jnp.matmul(queries, voters.T, precision=lax.Precision.HIGHEST)
    is_other = (numbers[None] < n) & (numbers[None] != own_numbers[:, None])
    scores, places = lax.top_k(jnp.where(is_other, scores, -jnp.inf), min(k, len(voters)))
    scores, rows = (collectives.gather(x.T, _AXIS).T for x in (scores, numbers[places]))
    highest, order = lax.top_k(scores, k)
    return jnp.take_along_axis(rows, order, axis=1), highest


def _checked(features: ArrayLike, labels: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """Returns rows of length one (zeros stay), float32 unless given as float64; and labels."""
    rows = numeric(features, "features")
    unit = normalize_rows(rows if rows.dtype == np.float64 else rows.astype(np.float32))
    return unit, one_per_row(np.asarray(labels), "labels", len(rows))
