"""How sure each row is of its cluster; rows between clusters go to the likelier one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import distance

from cluster_jax.clustering import outliers

# Neighbors whose clusters are candidates.
NEIGHBORS = 20
# A model of round clusters is believed if it confirms this fraction of the rows not in doubt, and
# its second fit moves no more than this many times as many rows as the first.
_CONFIRMED, _DRIFT = 0.97, 0.75
# Rows of the common spread that are added to those of each cluster.
_PRIOR_ROWS = 20


class Membership(NamedTuple):
    """Clusters of rows and their certainty.

    Attributes:
        labels: int64 `[n]`.
        probabilities: float64 `[n]`, of the label.
        runners_up: int64 `[n]`, the second likeliest cluster; -1 where no other is likely.
        runner_up_probabilities: float64 `[n]`.
    """

    labels: NDArray
    probabilities: NDArray
    runners_up: NDArray
    runner_up_probabilities: NDArray


class _Model(NamedTuple):
    """Round clusters of one common shape.

    Attributes:
        whiten: float64 `[r, r]`, of columns in which that shape is round.
        means: whitened, `[k, r]`.
        scales: variance of each cluster `[k]`; 1 on average.
        sizes: shares of rows `[k]`.
        evidence: part of the common covariance that is due to a row's squared offset.
    """

    whiten: NDArray
    means: NDArray
    scales: NDArray
    sizes: NDArray
    evidence: float

    def squares(self, x: NDArray) -> NDArray:
        """Squared distances of rows `[m, r]` to the means, float64 `[m, k]`."""
        rows = x @ self.whiten
        squares = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ self.means.T
        return np.maximum(squares + np.square(self.means).sum(axis=1)[None, :], 0)

    def squares_without(self, x: NDArray, share: NDArray) -> NDArray:
        """As `squares`, each row as if it had no `share` `[m, k]` in the means and the shape.

        The mean moves away from the row, and the covariance loses the row's own offset; the inverse
        of what is left is that of Sherman and Morrison. In the shape only the largest share counts.
        """
        every, own = np.arange(len(x)), share.argmax(axis=1)
        # Of a cluster of one row nothing is left.
        away = self.sizes / np.maximum(self.sizes - share, 0.5)
        part = (self.evidence * share * away)[every, own][:, None]
        squares = self.squares(x)
        nearest = squares[every, own][:, None]
        between = distance.cdist(self.means, self.means, "sqeuclidean")
        # Products of a row's offset from its own mean and from each.
        products = (nearest + squares - between[own]) / 2
        inverse = part / np.maximum(1 - part * nearest, 1e-3)
        return np.square(away) * (squares + inverse * np.square(products))

    def log_density(self, squares: NDArray) -> NDArray:
        """Up to a constant, float64 `[m, k]` of squared distances."""
        log_scale = self.whiten.shape[0] / 2 * np.log(self.scales)
        return (np.log(self.sizes) - log_scale)[None, :] - squares / self.scales[None, :] / 2


def assign(rows: NDArray, labels: NDArray, neighbors: NDArray) -> Membership:
    """Labels and their probabilities.

    Clusters are adjacent where a row of one has a row of the other among its nearest. If normal
    clusters of one common shape confirm the labels of nearly all rows that have no such neighbor,
    and two fits of them nearly agree, they decide about every row, among its cluster and the
    adjacent ones. Clusters of another shape do not confirm, or the fits drift; there the neighbors'
    votes tell how sure a label is, and no label changes.

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
    k = int(labels.max()) + 1
    votes = _votes(labels, neighbors[:, :NEIGHBORS], k)
    inside = votes[np.arange(len(labels)), labels] == votes.sum(axis=1)
    voted = _memberships(labels, votes / votes.sum(axis=1, keepdims=True))
    if inside.all() or not inside.any():
        return voted
    is_core = outliers.core_groups(rows, labels) >= 0

    first_fit = _fit(rows[is_core], np.eye(k)[labels[is_core]])
    log_density = first_fit.log_density(first_fit.squares(rows))
    if (log_density.argmax(axis=1) == labels)[inside].mean() < _CONFIRMED:
        return voted
    is_far = ((np.eye(k)[labels].T @ votes) == 0)[labels]
    first = _shares(log_density, is_far)
    # Shares, not labels, are what the second fit sees: cut off at their borders, clusters look
    # smaller than they are.
    second_fit = _fit(rows[is_core], first[is_core])
    second = _shares(second_fit.log_density(second_fit.squares(rows)), is_far)
    between, after = first.argmax(axis=1), second.argmax(axis=1)
    if (after != between).sum() > _DRIFT * (between != labels).sum():
        return voted
    # A row is near to a mean that it is part of, and would be too sure of it.
    without = second_fit.squares_without(rows, first * is_core[:, None])
    share = _shares(second_fit.log_density(without), is_far)
    sizes = np.bincount(labels, minlength=k)
    for found in (after, share.argmax(axis=1)):
        if (2 * np.bincount(found, minlength=k) < sizes).any():  # The model does not describe it.
            return voted
    return _memberships(share.argmax(axis=1), share)


def certain(labels: NDArray) -> Membership:
    """Labels int64 `[n]` without any doubt.

    Example:
        >>> certain(np.array([0, 1])).probabilities.tolist()
        [1.0, 1.0]
    """
    n = len(labels)
    return Membership(labels, np.ones(n), np.full(n, -1), np.zeros(n))


def _votes(labels: NDArray, neighbors: NDArray, k: int) -> NDArray:
    """Neighbors of each row in each cluster, its own label counted once, `[n, k]`.

    As many are asked as its cluster has other rows, at most.
    """
    n = len(labels)
    votes = np.zeros((n, k), np.int32)
    n_others = np.bincount(labels)[labels] - 1
    for rank, column in enumerate(labels[neighbors].T):
        votes[np.arange(n), column] += rank < n_others
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
    model = _Model(whiten, means @ whiten, np.ones(len(sizes)), sizes, (1 - shrinkage) / n)
    squares = (share * model.squares(rows)).sum(axis=0) / r
    return model._replace(scales=(squares + _PRIOR_ROWS) / (sizes + _PRIOR_ROWS))


def _shares(log_density: NDArray, is_far: NDArray) -> NDArray:
    """Probability of each cluster `[n, k]`, 0 where it is far."""
    log_density = np.where(is_far, -np.inf, log_density)
    share = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    return share / share.sum(axis=1, keepdims=True)


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
        np.where(is_doubtful, second, -1),
        np.where(is_doubtful, others[every, second], 0.0),
    )
