"""Density on a graph of nearest rows: basins of its peaks, and the saddles between them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

# Columns up to which a k-d tree is faster than comparing all rows.
_TREE_COLUMNS = 8
# Estimates of the dimension are kept within these limits.
_DIMENSIONS = (1.0, 15.0)
# Distances of equal rows count as this fraction of the median.
_SMALLEST = 1e-3


class Landscape(NamedTuple):
    """Log density of rows and the graph on which it rises and falls.

    Attributes:
        log_density: float64 `[n]`, up to a constant.
        graph: symmetric bool `[n, n]`, sparse: rows that are among the nearest of each other.
    """

    log_density: NDArray
    graph: sparse.csr_array


class Saddles(NamedTuple):
    """Highest passes between adjacent groups of rows.

    Attributes:
        pairs: int64 `[p, 2]`, groups, the lower number first.
        heights: float64 `[p]`, log density of the highest pass.
    """

    pairs: NDArray
    heights: NDArray


def nearest_rows(x: NDArray, k: int) -> tuple[NDArray, NDArray]:
    """Distances float64 `[n, k]`, ascending, and indices int64 `[n, k]` of the nearest other rows.

    Of rows that are all equal, more than k, each may be among its own.

    Args:
        x: float64 `[n, d]`.
        k: less than n.

    Example:
        >>> distances, indices = nearest_rows(np.array([[0.0], [1.0], [3.0]]), 1)
        >>> distances.tolist(), indices.tolist()
        ([[1.0], [1.0], [2.0]], [[1], [0], [1]])
    """
    distances, indices = nearest_to(x, x, k + 1)
    return distances[:, 1:], indices[:, 1:]


def nearest_to(queries: NDArray, x: NDArray, k: int) -> tuple[NDArray, NDArray]:
    """Distances float64 `[m, k]`, ascending, and indices int64 `[m, k]` of the nearest rows of `x`.

    Args:
        queries: float64 `[m, d]`.
        x: float64 `[n, d]`.
        k: at most n.

    Example:
        >>> nearest_to(np.array([[0.9]]), np.array([[0.0], [1.0]]), 1)[1].tolist()
        [[1]]
    """
    if x.shape[1] <= _TREE_COLUMNS:
        distances, indices = cKDTree(x).query(queries, k)
        return distances.reshape(-1, k), indices.reshape(-1, k)
    # One thread: ties are broken in an order that depends on the number of threads.
    with threadpool_limits(1):
        search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(x)
        return search.kneighbors(queries)


def landscape(distances: NDArray, indices: NDArray) -> Landscape:
    """Density from the distances to the nearest rows, in as many dimensions as they fill.

    The density is that of the ball of the root mean square distance. Its dimension is estimated
    from all distances (Levina and Bickel 2004): along a curve density falls with the first power
    of the distance, in how many columns it may lie.

    Args:
        distances: float64 `[n, k]`, ascending.
        indices: int64 `[n, k]`.

    Example:
        >>> x = np.array([[0.0], [1.0], [2.0], [9.0]])
        >>> land = landscape(*nearest_rows(x, 1))
        >>> int(land.log_density.argmin()), land.graph.toarray()[3].tolist()
        (3, [False, False, True, False])
    """
    n, k = indices.shape
    radius = np.sqrt(np.square(distances).mean(axis=1))
    positive = radius[radius > 0]
    smallest = np.median(positive) * _SMALLEST if len(positive) else 1.0
    log_density = -dimension(distances) * np.log(np.maximum(radius, smallest))
    rows = np.repeat(np.arange(n), k)
    graph = sparse.csr_array((np.ones(n * k, bool), (rows, indices.ravel())), shape=(n, n))
    return Landscape(log_density, (graph + graph.T).tocsr())


def inverse_dimension(distances: NDArray) -> NDArray:
    """1 / dimension around each row from its `[n, k]` ascending distances, float64 `[n]`.

    Example:
        >>> line = np.arange(1.0, 21.0)[None, :]
        >>> inverse_dimension(line).round(2), inverse_dimension(np.sqrt(line)).round(2)
        (array([0.98]), array([0.49]))
    """
    k = distances.shape[1]
    if k < 3:
        return np.full(len(distances), 0.5)
    last = distances[:, -1:]
    safe = np.maximum(distances, 1e-12 * last + np.finfo(float).tiny)
    return np.log(np.maximum(last, np.finfo(float).tiny) / safe[:, :-1]).sum(axis=1) / (k - 2)


def dimension(distances: NDArray) -> float:
    """Number of dimensions that rows fill, 1 to 15, from their `[n, k]` ascending distances.

    Example:
        >>> round(dimension(np.sqrt(np.arange(1.0, 21.0))[None, :]), 1)
        2.0
    """
    rows = distances[distances[:, 0] > 0]
    if not len(rows):
        return 2.0
    mean = float(inverse_dimension(rows).mean())
    return float(np.clip(1 / max(mean, 1e-9), *_DIMENSIONS))


def basins(land: Landscape, prominence: float) -> NDArray:
    """The peak that each row rises to, int64 `[n]` from 0.

    Rows join in descending order of density; where two basins meet, the lower peak's joins the
    other if it rises less than `prominence` above the pass (ToMATo, Chazal et al. 2013).

    Example:
        >>> distances = np.array([[1.0], [1.0], [2.0], [1.0], [1.0]])
        >>> land = landscape(distances, np.array([[1], [0], [1], [4], [3]]))
        >>> basins(land, 0.1).tolist()
        [0, 0, 0, 1, 1]
    """
    order = np.argsort(-land.log_density, kind="stable")
    rank_of = np.empty(len(order), np.int64)
    rank_of[order] = np.arange(len(order))
    # Plain lists: a loop over rows reads single numbers.
    rank, density = rank_of.tolist(), land.log_density.tolist()
    starts, neighbors = land.graph.indptr.tolist(), land.graph.indices.tolist()
    parent = list(range(len(rank)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for row in order.tolist():
        higher = [j for j in neighbors[starts[row] : starts[row + 1]] if rank[j] < rank[row]]
        if not higher:
            continue
        parent[row] = own = root(min(higher, key=rank.__getitem__))
        for j in higher:
            other = root(j)
            if other != own:
                high, low = (other, own) if rank[other] < rank[own] else (own, other)
                if density[low] - density[row] < prominence:
                    parent[low] = own = high
    roots = np.array([root(i) for i in range(len(rank))])
    return np.unique(roots, return_inverse=True)[1]


def saddles(land: Landscape, labels: NDArray) -> Saddles:
    """The highest pass between each two adjacent groups `labels` int `[n]`.

    Example:
        >>> x = np.array([[0.0], [1.0], [2.5], [3.5]])
        >>> found = saddles(landscape(*nearest_rows(x, 2)), np.array([0, 0, 1, 1]))
        >>> found.pairs.tolist(), found.heights.shape
        ([[0, 1]], (1,))
    """
    edges = land.graph.tocoo()
    first, second = labels[edges.row], labels[edges.col]
    crossing = first < second
    i, j = first[crossing].astype(np.int64), second[crossing].astype(np.int64)
    density = land.log_density
    heights = np.minimum(density[edges.row[crossing]], density[edges.col[crossing]])
    key = i * (int(labels.max()) + 1) + j
    order = np.lexsort((-heights, key))
    _, highest = np.unique(key[order], return_index=True)
    best = order[highest]
    return Saddles(np.stack([i[best], j[best]], axis=1), heights[best])
