"""Exact k-nearest neighbors of rows, and their votes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.arrays import blocks, normalize_rows

# Elements of one block of scores (float32: 64 MB).
_BLOCK = 2**24
# Rows of a group in the search for the lowest scores.
_GROUP = 16
# Candidates beyond k for the cosine, enough for the near copies of a row.
_SPARE = 16
# Squares of numbers between this and its inverse fit float32.
_TINY = 1e-15


class Neighbors(NamedTuple):
    """Nearest rows of `m` queries.

    Attributes:
        indices: int64 `[m, k]`, indices of the rows, in ascending order of distance.
        distances: float64 `[m, k]`, from the query to these rows.
    """

    indices: NDArray
    distances: NDArray


def nearest(
    queries: NDArray,
    rows: NDArray,
    k: int,
    *,
    metric: str = "euclidean",
    exclude_self: bool = False,
) -> Neighbors:
    """Returns the k rows nearest to each query.

    A product of matrices finds 2 k candidates (for the cosine k + 16). Their distances are computed
    from differences in float64, so that the result of a query does not depend on the other queries;
    of equally near candidates the one of the lower index comes first. scikit-learn's
    `NearestNeighbors` promises neither. If more rows than candidates are equally near, the result
    may have any of these rows.

    Args:
        queries: finite float `[m, r]`.
        rows: finite float `[n, r]`, n at least 1.
        k: number of neighbors, capped at the number of rows, with `exclude_self` at n - 1.
        metric: `"euclidean"`, or `"cosine"` for 1 - cosine. With the cosine, a row of zeros is at
            distance 1/2 from other rows, and at 0 from another row of zeros.
        exclude_self: `queries` and `rows` are the same rows, and no row is its own neighbor.

    Example:
        >>> rows = np.array([[0.0], [1.0], [5.0]], np.float32)
        >>> found = nearest(rows, rows, 1, exclude_self=True)
        >>> found.indices[:, 0].tolist(), found.distances[:, 0].tolist()
        ([1, 0, 1], [1.0, 1.0, 4.0])
        >>> nearest(np.float32([[1, 0]]), np.float32([[0, 1], [1, 0], [0, -1]]), 2, metric="cosine")
        Neighbors(indices=array([[1, 0]]), distances=array([[0., 1.]]))
    """
    n = len(rows)
    k = min(k, n - exclude_self)
    if metric == "cosine":
        queries, rows = _directions(queries), _directions(rows)
    exponent = _exponent(queries, rows)
    if exponent:
        queries, rows = np.ldexp(queries, -exponent), np.ldexp(rows, -exponent)
    # Far from the origin, rounding would decide which score is lowest.
    dtype = np.result_type(rows, np.float32)
    some = rows[:: -(-n // 1000)].astype(np.float64) if k else np.zeros((1, rows.shape[1]))
    origin = np.median(some, axis=0).astype(dtype)
    # Near copies differ by less than a product is rounded by.
    count = min(k + (_SPARE if metric == "cosine" else k), n - exclude_self)
    indices = np.empty((len(queries), k), np.int64)
    squares = np.empty((len(queries), k))
    factors, lengths = _factors(rows, origin)
    step = max(1, _BLOCK // n)
    for start in range(0, len(queries) if k else 0, step):
        block = queries[start : start + step]
        stop = start + len(block)
        exact = block.astype(np.float64)
        # The squared distance less a constant for each query.
        scores = (block - origin) @ factors
        scores += lengths
        if exclude_self:
            scores[np.arange(len(block)), np.arange(start, stop)] = np.inf
        candidates = np.sort(_lowest(scores, count), axis=1)
        gaps = np.empty(candidates.shape)
        for j, column in enumerate(candidates.T):
            gaps[:, j] = np.square(rows[column] - exact).sum(axis=1)
        order = np.argsort(gaps, axis=1, kind="stable")[:, :k]
        indices[start:stop] = np.take_along_axis(candidates, order, axis=1)
        squares[start:stop] = np.take_along_axis(gaps, order, axis=1)
    # Of unit rows, half the squared distance is 1 - cosine.
    distances = squares / 2 if metric == "cosine" else np.ldexp(np.sqrt(squares), exponent)
    return Neighbors(indices, distances)


def _factors(rows: NDArray, origin: NDArray) -> tuple[NDArray, NDArray]:
    """Returns rows less the origin, times -2, `[r, p]`, and their squared lengths `[p]`.

    p is the number of rows n, rounded up to whole groups; the others are infinitely far. Nothing
    but the result has the size of the rows.
    """
    n, r = rows.shape
    p = n + -n % _GROUP
    factors = np.zeros((r, p), origin.dtype)
    lengths = np.full(p, np.inf, origin.dtype)
    for part in blocks(n, r):
        near = rows[part] - origin
        factors[:, part] = -2 * near.T
        lengths[part] = np.square(near).sum(axis=1)
    return factors, lengths


def _directions(rows: NDArray) -> NDArray:
    """Returns rows scaled to length one; a row of zeros stays zero.

    The rows themselves are returned if each of them is zero or has length one, up to rounding.
    """
    squares = np.einsum("ij,ij->i", rows, rows)
    is_unit = (np.abs(squares - 1) <= 1e-5) | ~rows.any(axis=1)
    if is_unit.all():
        return rows
    return normalize_rows(rows.astype(np.result_type(rows, np.float32)))


def _exponent(queries: NDArray, rows: NDArray) -> int:
    """Returns the power of two of a unit in which squares neither overflow nor vanish.

    It is 0, a unit of 1, unless the largest number is beyond 1e15 or below 1e-15.
    """
    largest = max((float(np.abs(x).max()) for x in (queries, rows) if x.size), default=1.0)
    if _TINY < largest < 1 / _TINY or largest == 0:
        return 0
    return int(np.frexp(largest)[1])


def _lowest(scores: NDArray, count: int) -> NDArray:
    """Returns the columns of each row's `count` lowest scores, int64 `[m, count]`, unordered.

    The lowest scores are in the groups with the `count` lowest minima, which is faster than
    `argpartition` of all. A group is every n-th column, so that minima are taken over contiguous
    memory.

    Args:
        scores: `[m, 16 n]`; the number of columns is a multiple of 16.
        count: 1 to the number of columns.
    """
    n = scores.shape[1] // _GROUP
    if n <= 2 * count:
        return np.argpartition(scores, count - 1, axis=1)[:, :count]
    minima = scores.reshape(len(scores), _GROUP, n).min(axis=1)
    groups = np.argpartition(minima, count - 1, axis=1)[:, :count]
    columns = (groups[:, :, None] + n * np.arange(_GROUP)).reshape(len(scores), -1)
    inside = np.argpartition(np.take_along_axis(scores, columns, axis=1), count - 1, axis=1)
    return np.take_along_axis(columns, inside[:, :count], axis=1)


def weights(neighbors: Neighbors) -> NDArray:
    """Returns weights of neighbors, float64 `[m, k]`: smallest distance / own distance.

    So the nearest neighbor has the weight 1. If it is at distance 0, all neighbors at distance 0
    have the weight 1, and all others 0.

    Example:
        >>> weights(Neighbors(np.array([[0, 1]]), np.array([[1.0, 4.0]])))
        array([[1.  , 0.25]])
    """
    distances = neighbors.distances
    smallest = np.broadcast_to(distances[:, :1], distances.shape)
    return np.divide(smallest, distances, out=np.ones_like(distances), where=distances > 0)


def vote(neighbors: Neighbors, labels: NDArray) -> NDArray:
    """Returns the share of each label among the neighbors, weighted by `weights`: float64 `[m, c]`.

    A neighbor counts by 1 / distance. If there are neighbors at distance 0, as for a query that is
    itself one of the rows, only these count, all alike: of copies with different labels, the most
    frequent label has the highest share.

    Args:
        neighbors: the neighbors of m queries, at least one of each.
        labels: int `[n]`, 0 to c - 1, of the rows; -1 is not allowed.

    Example:
        >>> vote(Neighbors(np.array([[0, 1]]), np.array([[1.0, 3.0]])), np.array([1, 0]))
        array([[0.25, 0.75]])
    """
    votes = weights(neighbors)
    shares = np.zeros((len(votes), int(labels.max()) + 1))
    every = np.arange(len(votes))
    for label, weight in zip(labels[neighbors.indices].T, votes.T, strict=True):
        shares[every, label] += weight
    return shares / votes.sum(axis=1, keepdims=True)
