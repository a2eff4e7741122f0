"""Clusters inside clusters: deeper levels, and rare kinds.

- Levels (`deepest`). The steps of `choose_k` are repeated inside each cluster. If clusters with
  95 % of the rows split, the parts of all are the next level, and so on. The clusters are those of
  the deepest level of which more than 5 % of the clusters, or of the rows, are apart, see
  `separation`, else those of the first: rows along a curve split again and again, and all their
  parts touch.
- Rare kinds (`with_rare`). The silhouette of all rows hardly changes with a cluster of few rows. So
  the parts of Ward's tree inside each cluster are compared, those of 6 rows to a sixth of the
  cluster of which 95 % of the links to nearest rows stay inside. The part of the highest mean
  silhouette becomes a cluster if it exceeds that of the best part of a Gaussian by 0.15.
"""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import choose_k, knn, representation, separation, tree
from cluster_jax.clustering.representation import Smoother

# Share of the rows that must be in clusters that split, for all parts to become the clusters; and
# of the links of a rare kind that must stay inside.
NEARLY_ALL = 0.95
# Fewest rows of a rare kind; the smallest excess of its silhouette.
_MIN_RARE, _RARE_GAP = 6, 0.15


def deepest(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> NDArray:
    """Returns the clusters of the deepest level, see the module, int64 `[n]`."""
    result = labels
    while (parts := _deeper(inside(x, rows, labels, rng), len(x))) is not None:
        labels = parts
        together = separation.joined(x, rows, labels)
        if separation.share_apart(together, labels)[0] > 1 - NEARLY_ALL:
            result = labels
    return result


@dataclasses.dataclass
class Inside:
    """The m rows of one cluster, in which clusters are searched for.

    Attributes:
        members: int64 `[m]`, the indices of these rows.
        x: `[n, d]`, features of all rows.
        metric: `"cosine"` or `"euclidean"`.
        rng: draws the rows without clusters.
    """

    members: NDArray
    x: NDArray
    metric: str
    rng: np.random.Generator

    @functools.cached_property
    def rows(self) -> Smoother:
        """The representation of the rows."""
        return representation.fit(self.x[self.members], self.metric)

    @functools.cached_property
    def parts(self) -> NDArray:
        """The clusters inside, int64 `[m]`; one if there are fewer than 20 rows."""
        if len(self.members) < choose_k.MIN_SPLIT:
            return np.zeros(len(self.members), np.int64)
        labels, _ = choose_k.search(self.rows)
        return choose_k.split(self.x[self.members], self.rows, labels, self.rng)[0]


def inside(x: NDArray, rows: Smoother, labels: NDArray, rng: np.random.Generator) -> list[Inside]:
    """Returns the rows of each cluster, in the order of the labels."""
    return [Inside(members, x, rows.metric, rng) for members in tree.members(labels)]


def _deeper(inside: list[Inside], n: int) -> NDArray | None:
    """Returns the parts of all clusters, int64 `[n]`; None unless clusters of 95 % of rows split.

    A cluster that does not split is one part.
    """
    whole = n_parts = 0
    result = np.zeros(n, np.int64)
    for cluster in sorted(inside, key=lambda each: len(each.members), reverse=True):
        parts = cluster.parts
        whole += 0 if parts.any() else len(parts)
        if whole > (1 - NEARLY_ALL) * n:
            return None
        result[cluster.members] = n_parts + parts
        n_parts += int(parts.max()) + 1
    return result


def with_rare(inside: list[Inside], labels: NDArray) -> NDArray:
    """Returns labels in which a small, well separated part of a cluster is one itself.

    At most one part of each cluster becomes a cluster. `inside` are the clusters of `labels`.
    """
    labels = labels.copy()
    for cluster in inside:
        if len(cluster.members) < _MIN_RARE**2:
            continue
        own, part = _part_apart(cluster.rows, NEARLY_ALL)
        if part:
            x = cluster.x[cluster.members]
            draw = functools.partial(choose_k.without_clusters, x, cluster.rows)
            nulls = [draw(choose_k.NULL_ROWS, cluster.rng) for _ in range(2)]
            expected = float(np.mean([_part_apart(null, 0)[0] for null in nulls]))
            if own - max(expected, 0.0) >= _RARE_GAP:
                labels[cluster.members[part]] = labels.max() + 1
    return labels


def _part_apart(rows: Smoother, least: float) -> tuple[float, list[int]]:
    """Returns the highest mean silhouette of a part of Ward's tree, and its rows.

    At least the share `least` of the links of its rows to their nearest rows must stay inside the
    part. Without such a part, the result is -1 and no rows.
    """
    n = len(rows.sharp)
    best = (-1.0, list[int]())
    near = knn.nearest(
        rows.sharp, rows.sharp, representation.MAX_NEIGHBORS, exclude_self=True
    ).indices
    parts = [[i] for i in range(n)]
    for first, second in tree.ward(rows.smooth)[:, :2].astype(np.int64):
        part = parts[first] + parts[second] if parts[first] and parts[second] else []
        parts.append(part if len(part) <= n / _MIN_RARE else [])
        if len(parts[-1]) >= _MIN_RARE:
            inside = np.isin(np.arange(n), part)
            if inside[near[part, : len(part) - 1]].mean() >= least:
                own = choose_k.silhouettes(
                    rows.sharp, inside.astype(np.int64), chosen=inside
                ).mean()
                best = max(best, (float(own), part))
    return best
