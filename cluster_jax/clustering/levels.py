"""A tree of groups of rows: nested cuts, each split with its certainty.

The peaks of the density in a map are merged, the least separate pair first. Two witnesses say how
separate two groups are: the map, in which the lower peak rises above the pass between them, and the
features, which a valley crosses on rows held out. Groups that are all separate merge by distance in
the features. The constants were set on the choosing half of the sets in
`experiments/number_of_clusters`.
"""

import heapq
import numbers
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from cluster_jax.clustering import basins, islands, outliers, separation
from cluster_jax.clustering.basins import Landscape
from cluster_jax.core.checks import InputError

# Neighbors of the two densities: many for groups of at least `_LARGE` rows, few for small ones.
_FEW, _MANY, _LARGE = 10, 20, 40
# Peaks that rise less than this above a pass are not looked at.
_LEAST_PROMINENCE = 1.0
# Prominence from which nothing more is gained: in the map, and in the features.
_MAX_IN_MAP, _MAX_IN_FEATURES, _MAX_VALLEY = 4.0, 3.0, 12.0
# Weights of the features' prominence and of the valley, and the evidence from which two groups are
# separate. Along a curve (fewer than 1.85 dimensions) the only way between two peaks crosses every
# gap of chance, so that it takes more.
_FEATURES, _VALLEY, _SEPARATE = 0.3, 0.05, 1.65
_THIN, _THIN_WEIGHT = 1.85, 3.0
# Evidence of the densities from which the valley is not looked for.
_CLEARLY = 1.0
# Rows on a line are separate too from a gap of so many standard errors; up to so many it says more
# (experiments/number_of_clusters/one_column.md).
_GAP, _MAX_GAP, _GAP_WEIGHT = 5.0, 25.0, 0.15
# Prominence of groups that no graph connects.
_UNCONNECTED = 10.0
# Certainty from evidence: logistic, its scale fitted on the choosing half.
_SCALE = 3.0


class Tree(NamedTuple):
    """Nested groups of rows, like a linkage of SciPy but of groups.

    Attributes:
        leaves: int64 `[n]`, leaf of each row, 0 to m - 1.
        merges: int64 `[m - 1, 2]`, nodes that merge, the least separate first; node m + i is
            merge i.
        evidence: float64 `[m - 1]`, ascending: how separate the two are; from 0 on they are.
    """

    leaves: NDArray
    merges: NDArray
    evidence: NDArray

    @property
    def certainties(self) -> NDArray:
        """How sure it is that the two are separate, float64 `[m - 1]`, 0 to 1."""
        return special.expit(_SCALE * self.evidence)

    @property
    def n_clusters(self) -> int:
        """Number of groups that are separate, at the level of a certainty of 1/2."""
        return int((self.evidence >= 0).sum()) + 1

    def linkage(self, k: int) -> NDArray:
        """The tree above the cut into k groups as a linkage of SciPy, float64 `[k - 1, 4]`.

        Leaf i is group i of `cut(tree, k=k)`; the distance is the evidence, at least 0.
        """
        groups = cut(self, k=k)
        m = len(self.merges) + 1
        node_group = np.full(2 * m - 1, -1)
        node_group[self.leaves] = groups
        sizes = np.ones(2 * k - 1)
        rows: list[tuple[int, int, float, float]] = []
        for i, (first, second) in enumerate(self.merges.tolist()):
            a, b = int(node_group[first]), int(node_group[second])
            if i < m - k:
                node_group[m + i] = a
                continue
            merged = k + len(rows)
            node_group[m + i] = merged
            sizes[merged] = sizes[a] + sizes[b]
            rows.append((a, b, max(float(self.evidence[i]), 0.0), float(sizes[merged])))
        return np.array(rows, np.float64).reshape(-1, 4)


def cut(tree: Tree, *, k: int | None = None, level: float | None = None) -> NDArray:
    """The groups at one cut of the tree, int64 `[n]`, the largest first.

    Args:
        tree: from `build`.
        k: number of groups, 1 to the number of leaves.
        level: certainty from which splits are kept, 0 to 1; None with no `k`: 1/2.

    Raises:
        InputError: both are given, or one is out of range.

    Example:
        >>> tree = Tree(np.array([0, 1, 2, 2]), np.array([[0, 1], [2, 3]]), np.array([-1.0, 2.0]))
        >>> cut(tree).tolist(), cut(tree, k=3).tolist()
        ([0, 0, 1, 1], [1, 2, 0, 0])
    """
    m = len(tree.merges) + 1
    if k is not None and level is not None:
        raise InputError(f"k or level must be given, not both; got {k} and {level}")
    if k is None:
        threshold = 0.5 if level is None else level
        if not isinstance(threshold, numbers.Real) or not 0 <= threshold <= 1:
            raise InputError(f"level must be a number between 0 and 1; got {level!r}")
        count = int((tree.certainties < threshold).sum())
    elif isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise InputError(f"k must be a whole number; got {k!r}")
    elif not 1 <= k <= m:
        raise InputError(f"k must be between 1 and {m}, the finest groups; got {k}")
    else:
        count = m - int(k)
    group = np.arange(2 * m - 1)
    # From the top down, so that every node has its ancestor's group.
    for i in range(count - 1, -1, -1):
        group[tree.merges[i]] = group[m + i]
    labels = group[tree.leaves]
    ids, first, codes, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.empty(len(ids), np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(ids))
    return rank[codes]


def build(rows: NDArray, points: NDArray) -> Tree:
    """The tree of the groups of rows.

    Args:
        rows: float64 `[n, r]`, the features in which distances are meaningful, see `signal`.
        points: float64 `[n, c]`, their map, or the same.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 2)) + 9 * (np.arange(300) % 3)[:, None]
        >>> tree = build(x, x)
        >>> tree.n_clusters, np.bincount(cut(tree, k=2)).tolist()
        (3, [200, 100])
    """
    n = len(points)
    if n < 4 or not np.ptp(points, axis=0).any():
        return Tree(np.zeros(n, np.int64), np.empty((0, 2), np.int64), np.empty(0))
    return _Builder(rows, points).merge_all()


class _Builder:
    """The groups that are left, and the evidence between adjacent ones."""

    def __init__(self, rows: NDArray, points: NDArray) -> None:
        n = len(rows)
        self.rows, self.line = rows, separation.on_a_line(rows)
        self.is_training = np.random.default_rng(1).permutation(n) % 2 == 0
        distances, indices = basins.nearest_rows(rows, min(2 * _MANY, n - 1))
        self.inverse_dimensions = [
            basins.inverse_dimension(near) for near in (distances, distances[:, :_FEW])
        ]
        in_features = _landscapes(distances, indices)
        in_map = in_features
        if not np.array_equal(rows, points):
            in_map = _landscapes(*basins.nearest_rows(points, min(_MANY, n - 1)))
        leaves = basins.basins(in_map[0], _LEAST_PROMINENCE)
        self.leaves, self.alone = islands.divide(leaves, distances, indices, _SEPARATE)
        m = int(self.leaves.max()) + 1
        self.members = dict(enumerate(outliers.members(self.leaves)))
        core = outliers.core_groups(rows, self.leaves) >= 0
        self.core = {i: rows_[core[rows_]] for i, rows_ in self.members.items()}
        self.neighbors: dict[int, set[int]] = {i: set() for i in range(m)}
        # Of the three densities: few and many neighbors in the map, many in the features.
        self.lands = (*in_map, in_features[1])
        self.peaks = {
            i: [float(land.log_density[rows_].max()) for land in self.lands]
            for i, rows_ in self.members.items()
        }
        self.passes: dict[tuple[int, int], list[float]] = {}
        for which, land in enumerate(self.lands):
            found = basins.saddles(land, self.leaves)
            for (i, j), height in zip(found.pairs.tolist(), found.heights.tolist(), strict=True):
                self.passes.setdefault((i, j), [-np.inf] * len(self.lands))[which] = height
        for i, j in self.passes:
            self.neighbors[i].add(j)
            self.neighbors[j].add(i)

    def merge_all(self) -> Tree:
        """Merges the least separate pair until one group is left."""
        m = len(self.members)
        merges: list[tuple[int, int]] = []
        evidence: list[float] = []
        known = {(i, j): self.evidence(i, j) for i, j in self.passes}
        heap = [(value, *pair) for pair, value in known.items()]
        heapq.heapify(heap)
        while heap and heap[0][0] < 0:
            value, i, j = heapq.heappop(heap)
            if i not in self.members or j not in self.members:
                continue
            merged = m + len(merges)
            merges.append((i, j))
            evidence.append(value)
            self.merge(i, j, merged)
            for other in self.neighbors[merged]:
                known[other, merged] = new = self.evidence(other, merged)
                heapq.heappush(heap, (new, other, merged))
        # A later merge can be less separate than an earlier one: nested cuts need an order.
        inseparable = np.maximum.accumulate(np.array(evidence)) if evidence else np.empty(0)
        above = self.levels(known, m + len(merges))
        separate = np.minimum.accumulate([value for value, _, _ in above[::-1]])[::-1]
        merges += [(i, j) for _, i, j in above]
        return Tree(
            self.leaves,
            np.array(merges, np.int64).reshape(-1, 2),
            np.concatenate([inseparable, separate]),
        )

    def merge(self, i: int, j: int, merged: int) -> None:
        """Replaces groups i and j by one, with the higher of their peaks and passes."""
        for of_node in (self.members, self.core):
            of_node[merged] = np.concatenate([of_node.pop(i), of_node.pop(j)])
        self.peaks[merged] = [max(p) for p in zip(self.peaks[i], self.peaks[j], strict=True)]
        self.neighbors[merged] = (self.neighbors.pop(i) | self.neighbors.pop(j)) - {i, j}
        for other in self.neighbors[merged]:
            ways = [
                self.passes[pair]
                for pair in ((min(a, other), max(a, other)) for a in (i, j))
                if pair in self.passes
            ]
            self.passes[other, merged] = [max(heights) for heights in zip(*ways, strict=True)]
            self.neighbors[other] -= {i, j}
            self.neighbors[other].add(merged)

    def levels(
        self, known: dict[tuple[int, int], float], first: int
    ) -> list[tuple[float, int, int]]:
        """Merges of the groups that are separate, by Ward's linkage of the features.

        The levels above the answer are a matter of distance, not of density.

        Args:
            known: evidence between adjacent groups.
            first: number of the first node.

        Returns:
            Evidence, the mean of what is known of the parts, and the two nodes, of each merge.
        """
        nodes = sorted(self.members)
        sizes = np.array([len(self.core[node]) for node in nodes])
        means = np.stack([self.rows[self.core[node]].mean(axis=0) for node in nodes])
        merges = []
        for merged, (a, b) in enumerate(separation.ward(sizes, means).tolist(), first):
            i, j = nodes[a], nodes[b]
            merges.append((known.get((i, j), _UNCONNECTED), i, j))
            self.merge(i, j, merged)
            nodes.append(merged)
            for other in self.neighbors[merged]:
                pairs = ((min(a, other), max(a, other)) for a in (i, j))
                before = [known[pair] for pair in pairs if pair in known]
                known[other, merged] = sum(before) / len(before)
        return merges

    def inverse(self, members: NDArray) -> float:
        """1 / dimension; many neighbors of a small group are in others, and look like a curve."""
        is_small = len(members) <= 2 * _MANY
        return min(float(x[members].mean()) for x in self.inverse_dimensions[: 1 + is_small])

    def evidence(self, i: int, j: int) -> float:
        """How separate two groups are; from 0 on they are."""
        if i in self.alone or j in self.alone:
            return _MAX_IN_MAP - _SEPARATE
        heights = self.passes[min(i, j), max(i, j)]
        peaks = zip(self.peaks[i], self.peaks[j], heights, strict=True)
        few, many, in_features = (
            min(a, b) - height if height > -np.inf else _UNCONNECTED for a, b, height in peaks
        )
        first, second = self.members[i], self.members[j]
        largeness = min(1.0, min(len(first), len(second)) / _LARGE)
        in_map = largeness * min(many, _MAX_IN_MAP) + (1 - largeness) * min(few, _MAX_IN_MAP)
        inverse = (self.inverse(first) + self.inverse(second)) / 2
        thinness = max(0.0, _THIN - 1 / max(inverse, 1e-9))
        density = (
            in_map
            + _FEATURES * min(in_features, _MAX_IN_FEATURES)
            - _SEPARATE
            - largeness * _THIN_WEIGHT * thinness
        )
        if density >= _CLEARLY:  # No valley is needed.
            return density
        valley = separation.valley(self.rows, self.core[i], self.core[j], self.is_training)
        evidence = density + _VALLEY * min(valley, _MAX_VALLEY)
        if self.line is not None:
            gap = separation.gap(self.line[self.core[i]], self.line[self.core[j]])
            if gap >= _GAP:
                evidence = max(evidence, _GAP_WEIGHT * (min(gap, _MAX_GAP) - _GAP))
        return evidence


def _landscapes(distances: NDArray, indices: NDArray) -> tuple[Landscape, Landscape]:
    """Densities from few and from many neighbors."""
    few, many = (basins.landscape(distances[:, :k], indices[:, :k]) for k in (_FEW, _MANY))
    return few, many
