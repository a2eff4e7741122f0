"""How sure each row is of its cluster; rows between clusters go to the likelier one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Neighbors whose clusters are candidates; passes over the rows in doubt.
NEIGHBORS, _PASSES = 20, 6
# A model of round clusters is believed if it confirms this fraction of the rows not in doubt.
_CONFIRMED = 0.97
# Rows of the common spread that are added to those of each cluster.
_PRIOR_ROWS = 20


class Membership(NamedTuple):
    """Clusters of rows and their certainty.

    Attributes:
        labels: int64 `[n]`.
        probabilities: float64 `[n]`, of the label.
        runners_up: int64 `[n]`, the second likeliest cluster; the label where there is only one.
        runner_up_probabilities: float64 `[n]`.
    """

    labels: NDArray
    probabilities: NDArray
    runners_up: NDArray
    runner_up_probabilities: NDArray


class _Model(NamedTuple):
    """Round clusters in whitened columns: log density up to a constant."""

    whiten: NDArray
    means: NDArray
    scales: NDArray
    sizes: NDArray

    def squares(self, x: NDArray) -> NDArray:
        """Squared distances of rows `[m, r]` to the means, float64 `[m, k]`."""
        rows = x @ self.whiten
        squares = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ self.means.T
        return np.maximum(squares + np.square(self.means).sum(axis=1)[None, :], 0)

    def log_density(self, x: NDArray) -> NDArray:
        """Float64 `[m, k]` of rows `[m, r]`."""
        log_scale = x.shape[1] / 2 * np.log(self.scales)
        exponent = self.squares(x) / self.scales[None, :] / 2
        return (np.log(self.sizes) - log_scale)[None, :] - exponent


def assign(rows: NDArray, labels: NDArray, neighbors: NDArray) -> Membership:
    """Labels and their probabilities.

    Clusters are adjacent where a row of one has a row of the other among its nearest. If normal
    clusters of one common shape confirm the labels of nearly all rows that have no such neighbor,
    they decide about every row, among its cluster and the adjacent ones. Curved clusters do not
    confirm; there the neighbors' votes tell how sure a label is, and no label changes.

    Args:
        rows: float64 `[n, r]`.
        labels: int64 `[n]`, 0 to k - 1.
        neighbors: int64 `[n, m]`, nearest other rows.

    Example:
        >>> x = np.array([[0.0], [1.0], [8.0], [9.0]])
        >>> member = assign(x, np.array([0, 0, 1, 1]), np.array([[1], [0], [3], [2]]))
        >>> member.labels.tolist(), member.probabilities.tolist()
        ([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0])
    """
    neighbors = neighbors[:, :NEIGHBORS]
    every, k = np.arange(len(labels)), int(labels.max()) + 1
    share = np.eye(k)[labels]
    for step in range(_PASSES):
        votes = _votes(labels, neighbors, k)
        is_sure = votes[every, labels] == votes.sum(axis=1)
        if is_sure.all():
            break
        model = _fit(rows, share)
        log_density = model.log_density(rows)
        if step == 0:
            agrees = log_density[is_sure].argmax(axis=1) == labels[is_sure]
            if not is_sure.any() or agrees.mean() < _CONFIRMED:
                return _memberships(labels, votes / votes.sum(axis=1, keepdims=True))
        is_adjacent = (np.eye(k)[labels].T @ votes) > 0
        log_density[~is_adjacent[labels]] = -np.inf
        # Shares, not labels, are what the next fit sees: cut off at their borders, clusters would
        # look smaller than they are.
        share = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        before, labels = labels, share.argmax(axis=1)
        sizes, sizes_before = (np.bincount(x, minlength=k) for x in (labels, before))
        if (2 * sizes < sizes_before).any():  # A cluster that the model does not describe.
            return _memberships(before, votes / votes.sum(axis=1, keepdims=True))
        if step and np.array_equal(labels, before):
            break
    return _memberships(labels, share)


def certain(labels: NDArray) -> Membership:
    """Labels int64 `[n]` without any doubt.

    Example:
        >>> certain(np.array([0, 1])).probabilities.tolist()
        [1.0, 1.0]
    """
    return Membership(labels, np.ones(len(labels)), labels.copy(), np.zeros(len(labels)))


def _votes(labels: NDArray, neighbors: NDArray, k: int) -> NDArray:
    """Neighbors of each row in each cluster, its own label counted once, `[n, k]`."""
    n = len(labels)
    votes = np.zeros((n, k), np.int32)
    for column in labels[neighbors].T:
        votes[np.arange(n), column] += 1
    votes[np.arange(n), labels] += 1
    return votes


def _fit(rows: NDArray, share: NDArray) -> _Model:
    """Means, a common shape, and sizes of clusters whose rows count by their `share` `[n, k]`."""
    n, r = rows.shape
    sizes = np.maximum(share.sum(axis=0), 0.5)
    means = share.T @ rows / sizes[:, None]
    covariance = (rows.T @ rows - (means * sizes[:, None]).T @ means) / n
    shrinkage = min(1.0, (r + 2) / n)
    spread = max(float(np.trace(covariance)) / r, np.finfo(float).tiny)
    covariance = (1 - shrinkage) * covariance + (shrinkage + 1e-9) * spread * np.eye(r)
    values, vectors = np.linalg.eigh(covariance)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    model = _Model(whiten, means @ whiten, np.ones(len(sizes)), sizes)
    squares = (share * model.squares(rows)).sum(axis=0) / r
    return model._replace(scales=(squares + _PRIOR_ROWS) / (sizes + _PRIOR_ROWS))


def _memberships(labels: NDArray, share: NDArray) -> Membership:
    """The label's share `[n, k]` and the largest of the others."""
    every = np.arange(len(labels))
    others = share.copy()
    others[every, labels] = -1
    second = others.argmax(axis=1) if share.shape[1] > 1 else labels
    is_doubtful = others[every, second] > 0
    return Membership(
        labels,
        share[every, labels],
        np.where(is_doubtful, second, labels),
        np.where(is_doubtful, others[every, second], 0.0),
    )
