"""Probabilities of clusters: one rule for training rows and for new rows.

A training row has the shares of the clusters around it: the label of the row and those of its
neighbors in the representation of `smooth`, averaged twice. A row of a small cluster has no more
neighbors than there are other rows in the cluster, since more would be of other clusters. A new row
has the mean of the shares of the nearest training rows, weighted by 1 / distance; for a training
row these are its own shares.

Clusters of GridShift and k-means have no probabilities: GridShift finds them in a map, k-means by
the nearest center, and neither in the representation of `smooth`.

On photos 39 to 44 % of the rows have a probability of 0.9 or more; 73 to 94 % of these are right
(`experiments/number_of_clusters/probabilities.md`).
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import representation
from cluster_jax.clustering.base import NO_CLUSTER, Membership
from cluster_jax.clustering.representation import Smoother
from cluster_jax.core import knn


def shares(rows: Smoother, labels: NDArray) -> sparse.csr_array:
    """Returns the shares of the clusters around each training row, sparse float64 `[n, k]`.

    The shares of a row sum to 1.

    Args:
        rows: the representation of the n training rows, or of the leaves in their place.
        labels: int `[n]`, the clusters of these rows, 0 to k - 1; -1 is not allowed.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40) % 2)[:, None]
        >>> shares(representation.fit(x, "euclidean"), np.arange(40) % 2).toarray()[:2].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    n, k = rows.neighbors.shape
    others = np.bincount(labels)[labels] - 1
    weights = rows.weights.astype(np.float64)
    weights[:, 1:] *= np.arange(k) < others[:, None]
    columns = np.concatenate([np.arange(n)[:, None], rows.neighbors], axis=1)
    shape = (n, int(labels.max()) + 1)
    result = sparse.csr_array((np.ones(n), labels, np.arange(n + 1)), shape=shape)
    for _ in range(representation.N_ROUNDS):
        result = _means(columns, weights, result)
    return result


def membership(labels: NDArray, around: sparse.csr_array) -> Membership:
    """Returns the clusters of rows, and the most probable other ones, with their probabilities.

    Of equally probable other clusters, the second label is that of the lowest number.

    Args:
        labels: int `[n]`, the clusters, 0 to k - 1; any other label, such as -1, has probability 0.
        around: `[n, k]`, see `shares`.

    Example:
        >>> membership(np.array([1]), sparse.csr_array([[0.25, 0.75, 0.0]])).second_labels
        array([0])
    """
    n = around.shape[0]
    row = np.repeat(np.arange(n), np.diff(around.indptr))
    is_own = around.indices == labels[row]
    probabilities = np.bincount(row[is_own], around.data[is_own], n)
    row = row[~is_own]
    cluster = around.indices[~is_own]
    share = around.data[~is_own]
    # The last of each row is its largest share, of equal ones that of the lowest number.
    order = np.lexsort((-cluster, share, row))
    last = order[np.flatnonzero(np.diff(row[order], append=-1))]
    last = last[share[last] > 0]
    second = np.full(n, -1)
    second[row[last]] = cluster[last]
    largest = np.zeros(n)
    largest[row[last]] = share[last]
    return Membership(labels, probabilities, second, largest)


def of_known_rows(ids: NDArray, labels: NDArray, around: sparse.csr_array) -> Membership:
    """Returns the clusters of training rows and their probabilities.

    Rows in no cluster have probability 0 and second label -1, and no share among their neighbors.
    A label that is not in `ids` has probability 0.

    Args:
        ids: int `[k]`, the label of each column of `around`.
        labels: int `[n]`, the clusters of the rows, -1 for none.
        around: `[n, k]`, the `shares` of each row's leaf.

    Example:
        >>> around = sparse.csr_array([[0.25, 0.75], [1.0, 0.0]])
        >>> of_known_rows(np.array([3, 7]), np.array([7, -1]), around).second_labels.tolist()
        [3, -1]
    """
    place = {cluster: i for i, cluster in enumerate(ids.tolist())}
    own = np.array([place.get(label, -1) for label in labels.tolist()])
    known = of_ids(ids, membership(own, in_clusters(ids, around)), labels != NO_CLUSTER)
    return known._replace(labels=labels)


def in_clusters(ids: NDArray, around: sparse.csr_array) -> sparse.csr_array:
    """Returns shares of clusters that sum to 1 without the share of rows in no cluster.

    The shares of a row that has rows in no cluster around it alone are 0.

    Args:
        ids: int `[k]`, the label of each column, which may be -1.
        around: `[n, k]`, shares of the labels.

    Example:
        >>> in_clusters(np.array([3, -1]), sparse.csr_array([[0.2, 0.8], [0.0, 1.0]])).toarray()
        array([[1., 0.],
               [0., 0.]])
    """
    if NO_CLUSTER not in ids:
        return around
    result = around.copy()
    result.data = result.data * (ids != NO_CLUSTER)[result.indices]
    total = np.asarray(result.sum(axis=1)).ravel()
    result.data /= np.repeat(np.where(total > 0, total, 1), np.diff(result.indptr))
    return result


def of_ids(ids: NDArray, places: Membership, is_in: NDArray) -> Membership:
    """Returns a membership with the labels of clusters in place of their indices in `ids`.

    Args:
        ids: int `[k]`, the label of each cluster.
        places: the clusters of n rows, 0 to k - 1.
        is_in: bool `[n]`; a row for which it is False is in no cluster, with probability 0, as one
            whose label is -1.

    Example:
        >>> places = membership(np.array([1, 0]), sparse.csr_array([[0.25, 0.75], [1.0, 0.0]]))
        >>> of_ids(np.array([3, 7]), places, np.array([True, False])).labels.tolist()
        [7, -1]
    """
    is_in = is_in & (ids[places.labels] != NO_CLUSTER)
    has_second = is_in & (places.second_labels >= 0)
    return Membership(
        np.where(is_in, ids[places.labels], NO_CLUSTER),
        np.where(is_in, places.probabilities, 0.0),
        np.where(has_second, ids[places.second_labels], NO_CLUSTER),
        np.where(is_in, places.second_probabilities, 0.0),
    )


def of_new_rows(
    rows: Smoother, ids: NDArray, labels: NDArray, around: sparse.csr_array, x: NDArray
) -> Membership:
    """Returns the clusters of new rows and their probabilities; rows do not affect each other.

    A new row gets its most probable cluster. But if the nearest training row weighs more than all
    others together, as for a copy of a training row, the new row gets the label of that row.

    Args:
        rows: the representation of the training rows, or of the leaves in their place.
        ids: int `[k]`, the label of each cluster; probabilities are those `in_clusters`.
        labels: int `[n]`, the clusters of these rows, 0 to k - 1.
        around: `[n, k]`, the `shares` of these rows.
        x: finite features `[m, d]`. A row of zeros gets a cluster like any other.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40) % 2)[:, None]
        >>> rows, labels = representation.fit(x, "euclidean"), np.arange(40) % 2
        >>> around = shares(rows, labels)
        >>> of_new_rows(rows, np.arange(2), labels, around, x[:2] + 1).labels.tolist()
        [0, 1]
    """
    near, weights = _near(rows, x)
    means = _means(near, weights, around)
    is_copy = weights[:, 0] > weights[:, 1:].sum(axis=1)
    likeliest = np.asarray(means.argmax(axis=1)).ravel()
    return membership(np.where(is_copy, labels[near[:, 0]], likeliest), in_clusters(ids, means))


def nearest_of_cluster(
    rows: Smoother, labels: NDArray, around: sparse.csr_array, x: NDArray
) -> NDArray:
    """Returns the nearest training row of the most probable cluster of new rows, int64 `[m]`.

    The arguments are those of `of_new_rows`. Of a row whose neighbors are all of other clusters, it
    is the nearest training row.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40) % 2)[:, None]
        >>> rows, labels = representation.fit(x, "euclidean"), np.arange(40) % 2
        >>> nearest_of_cluster(rows, labels, shares(rows, labels), x[:3] + 1e-6).tolist()
        [0, 1, 2]
    """
    near, weights = _near(rows, x)
    likeliest = np.asarray(_means(near, weights, around).argmax(axis=1)).ravel()
    first = (labels[near] == likeliest[:, None]).argmax(axis=1)
    return near[np.arange(len(x)), first]


def probabilities(rows: Smoother, ids: NDArray, around: sparse.csr_array, x: NDArray) -> NDArray:
    """Returns the probabilities of all clusters for new rows `[m, d]`, float64 `[m, k]`.

    The arguments are those of `of_new_rows`. The most probable cluster of a row may not be the one
    that `of_new_rows` gives it.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 9 * (np.arange(40) % 2)[:, None]
        >>> rows, labels = representation.fit(x, "euclidean"), np.arange(40) % 2
        >>> probabilities(rows, np.arange(2), shares(rows, labels), x[:2] + 1).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return in_clusters(ids, _means(*_near(rows, x), around)).toarray()


def _near(rows: Smoother, x: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the training rows int64 `[m, c]` nearest to new rows, and their `knn.weights`."""
    count = max(1, representation.n_neighbors(len(rows.sharp)))
    neighbors = knn.nearest(rows.project(x), rows.sharp, count)
    return neighbors.indices, knn.weights(neighbors)


def _means(columns: NDArray, weights: NDArray, values: sparse.csr_array) -> sparse.csr_array:
    """Returns weighted means of rows of a sparse matrix, float64 `[m, k]`.

    Row i is the mean of `values[columns[i]]` with the weights `weights[i]`.

    Args:
        columns: int `[m, c]`, the indices of the c rows of `values` in each mean.
        weights: float `[m, c]`, not all 0 in a row.
        values: `[n, k]`.
    """
    m, c = columns.shape
    starts = np.arange(0, m * c + 1, c)
    shape = (m, values.shape[0])
    means = sparse.csr_array((weights.ravel(), columns.ravel(), starts), shape=shape) @ values
    # Divided last: whole numbers have exact sums, and a share of all is 1.
    means.data /= np.repeat(weights.sum(axis=1), np.diff(means.indptr))
    return means
