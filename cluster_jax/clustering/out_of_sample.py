"""Clusters of new rows by the rows that were clustered: for maps that are not kept.

A UMAP object cannot be stored without pickle, takes minutes to rebuild for large sets, and places
a row differently alone and in a batch. The nearest training rows answer as well (measured:
`experiments/placement.md`), at once, and give each training row its own label.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Elements of one block of similarities (float32: 64 MB).
_BLOCK = 2**24
# Rows whose nearest other row is looked up for `novelty_threshold`, at most: the share of rows beyond the
# 0.99 quantile of 5,000 is known to 0.14 %.
_SAMPLE = 5_000
# This share of the training rows has another training row within reach.
_WITHIN = 0.99


class Neighbors(NamedTuple):
    """Nearest training rows: `index` int64 `[m, k]` and `distance` float64 `[m, k]`, ascending."""

    index: NDArray
    distance: NDArray


def neighbors(rows: NDArray, features: NDArray, k: int) -> Neighbors:
    """The `k` training rows nearest to each row, by 1 - cosine; ties go to the lower index.

    A row's answer does not depend on the other rows, to the last bit: a matrix product, whose
    rounding does depend on its shape, only picks candidates within its error bound.

    Args:
        rows: float `[m, d]`, of length one or zero.
        features: float `[n, d]`, likewise: the training rows.
        k: how many; capped at n.

    Raises:
        ValueError: rows of another dimension than the features, or not finite.
    """
    rows, features = np.asarray(rows, np.float32), np.asarray(features, np.float32)
    n, d = features.shape
    if rows.ndim != 2 or rows.shape[1] != d:
        raise ValueError(f"rows must have {d} columns like the training rows; got {rows.shape}")
    if not np.isfinite(rows).all():
        raise ValueError("rows contain NaN or infinity; the network may not fit the images")
    k = min(k, n)
    index, distance = np.empty((len(rows), k), np.int64), np.empty((len(rows), k))
    # A float32 sum of d products of unit rows is off by at most about d / 2^24, either way.
    margin = (d + 8) * 2.0**-23
    lengths = np.square(features).sum(axis=1) / 2
    step = max(1, _BLOCK // n)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        # Half the squared distance, up to a constant for each row: 1 - cosine of unit rows.
        rough = lengths[None, :] - block @ features.T
        bound = np.partition(rough, k - 1, axis=1)[:, k - 1] + margin
        for i, row in enumerate(block):
            near = np.flatnonzero(rough[i] <= bound[i])
            apart = features[near].astype(np.float64) - row.astype(np.float64)[None, :]
            exact = np.square(apart).sum(axis=1) / 2
            order = np.argsort(exact, kind="stable")[:k]
            index[start + i], distance[start + i] = near[order], exact[order]
    return Neighbors(index, distance)


def vote(found: Neighbors, labels: NDArray) -> NDArray:
    """Label of each row by its neighbors' votes, each weighted by 1 / distance; int64 `[m]`.

    Neighbors at distance 0 outvote all others: a training row gets its own label, copies of it
    with different labels the commonest of theirs. Ties go to the lower label.
    """
    own, weights = labels.astype(np.int64)[found.index], _weights(found)
    votes = np.zeros(own.shape)
    for label, weight in zip(own.T, weights.T, strict=True):
        votes += np.where(own == label[:, None], weight[:, None], 0)
    ahead = votes == votes.max(axis=1, keepdims=True)
    return np.where(ahead, own, np.iinfo(np.int64).max).min(axis=1)


def position(found: Neighbors, labels: NDArray, chosen: NDArray, points: NDArray) -> NDArray:
    """Where rows stand in the map, float64 `[m, c]`: the mean of their neighbors' points.

    Weighted like the votes, over the neighbors that have the row's own label: the mean of two
    clusters is in neither. A training row stands at its own point.

    Args:
        found: the nearest training rows.
        labels: int `[n]` of the training rows.
        chosen: int `[m]`, what `vote` said.
        points: float `[n, c]`, the map of the training rows.
    """
    weights = _weights(found) * (labels[found.index] == chosen[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights[:, :, None] * points[found.index]).sum(axis=1)


def novelty_threshold(features: NDArray) -> float:
    """How far a training row's nearest other one is at most, for 99 % of them, by 1 - cosine.

    A new row farther than this from every training row is unlike anything seen. On digits the
    rule fires on 0.3 to 2.5 % of held-out rows; what it finds of foreign images is in
    `experiments/placement.md`. At most 5,000 evenly spaced rows are looked up.

    Args:
        features: float `[n, d]`, of length one or zero.
    """
    n = len(features)
    count = min(n, _SAMPLE)
    found = neighbors(features[np.arange(count) * n // count], features, 2)
    # The smaller of the two distances is that of the row to itself.
    return float(np.quantile(found.distance[:, -1], _WITHIN))


def _weights(found: Neighbors) -> NDArray:
    """1 / distance in units of the nearest's; where that is 0, one for each copy of the row."""
    nearest = np.broadcast_to(found.distance[:, :1], found.distance.shape)
    ones = np.ones_like(found.distance)
    return np.divide(nearest, found.distance, out=ones, where=found.distance > 0)
