"""The algorithm of `SmoothTree` as functions: from rows to their clusters and a tree.

It takes five steps:

1. Of equal rows one is kept; the others get its cluster, see `copies`.
2. Rows are denoised and whitened ("sharp rows"), and then averaged over their nearest neighbors
   ("smooth rows"), see `representation`. More than 16,000 distinct rows are condensed by k-means
   into at most as many micro-clusters before, as BIRCH condenses rows by a tree [2]. If most
   clusters of these are not apart, and those of a sample of 16,000 rows have a larger gap, see
   `choose_k`, the clusters of the sample are the answer: every other row gets one as a new row
   does.
3. The number of clusters is chosen by silhouettes, and compared with rows that have no clusters,
   see `choose_k`, `levels` and `verdict`. If the number is set, the clusters are a cut of the tree
   or those of k-means, whichever have the higher score.
4. The tree has Ward's merges of the rows of each cluster, and above them those of the clusters. So
   the clusters are one of its cuts.
5. The probability of a cluster is its share among a row and its neighbors, after two rounds of
   averaging as in label spreading [1], see `membership`.

The order of the rows does not matter. Of up to 16,000 distinct rows rounding does not either,
unless two answers are equally good, nor does the order of the columns, unless they are rounded
values, which get noise (`representation.dequantize`). Each constant is explained where it is
defined; `experiments/log.md` has what each rule gains.

References:
    [1] Zhou et al. 2004, Learning with local and global consistency.
    [2] Zhang, Ramakrishnan and Livny 1996, BIRCH: an efficient data clustering method for very
        large databases.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cluster_jax.clustering import (
    choose_k,
    copies,
    membership,
    placing,
    representation,
    stable_ids,
    tree,
    verdict,
)
from cluster_jax.clustering.base import NO_CLUSTER, UNCLEAR
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByTree
from cluster_jax.clustering.representation import FEW_AXES, Smoother
from cluster_jax.clustering.stable_ids import Repeated
from cluster_jax.clustering.verdict import Found
from cluster_jax.core import checks
from cluster_jax.core.arrays import Rows, blocks, numeric

METRICS = ("auto", *representation.METRICS)
# Distinct rows above which they are condensed into at most as many micro-clusters: all pairs are
# compared. Rows of the sample from which the axes are then learned.
MAX_ROWS, SAMPLE = 16_000, 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class TreeFit:
    """Clusters of n rows, and a tree of m leaves: distinct rows, micro-clusters, or a sample.

    Attributes:
        labels: int64 `[n]`, the clusters, -1 for none; by size, if they are a cut of the tree.
        leaves: int64 `[n]`, the leaf of each row; it has no meaning for a row in no cluster.
        sample: int64 `[m]`, the index of one row of each leaf.
        known: the n rows; of more than 16,000, in place of each row one row of its leaf.
        smoother: the representation of the leaves.
        linkage: float64 `[m - 1, 4]`, the tree as in SciPy.
        n_clusters, seed: with which the rows were fitted.
        verdict, gap, scores: see `SmoothTree`.
        earlier: float64 `[k - 1, 4]`, the tree of the same clusters before rows were added, which
            stays theirs; None without one.
    """

    labels: NDArray
    leaves: NDArray
    sample: NDArray
    known: Repeated
    smoother: Smoother
    linkage: NDArray
    n_clusters: int | None
    seed: int
    verdict: str
    gap: float
    scores: Mapping[int, float]
    earlier: NDArray | None = None

    @property
    def ids(self) -> NDArray:
        """The clusters of the leaves, int64 `[k]`, ascending."""
        return np.unique(self.labels[self.sample])

    @functools.cached_property
    def shares(self) -> sparse.csr_array:
        """The shares of the k clusters around each leaf, `[m, k]`, see `membership.shares`."""
        return membership.shares(self.smoother, self._places)

    @functools.cached_property
    def membership(self) -> Membership:
        """The clusters of the n rows and their probabilities."""
        return membership.of_known_rows(self.ids, self.labels, self.shares[self.leaves])

    @functools.cached_property
    def placer(self) -> ByTree:
        """What assigns new rows to the clusters, and measures their novelty."""
        voters = placing.voters(self.known[self.sample], self.smoother.metric)
        return ByTree(self.smoother, self.labels, self.sample, self.leaves, voters)

    @property
    def _places(self) -> NDArray:
        """The index in `ids` of the cluster of each leaf, int64 `[m]`."""
        return np.searchsorted(self.ids, self.labels[self.sample])

    def place(self, x: NDArray) -> NDArray:
        """Returns the clusters of new rows float `[l, d]`, int64 `[l]`, without their novelty."""
        how = (self.smoother, self.ids, self._places, self.shares)
        placed = membership.of_new_rows(*how, x).labels
        return np.where(self.smoother.has_direction(x), self.ids[placed], NO_CLUSTER)

    def smooth_rows(self, x: NDArray) -> NDArray:
        """Returns the smooth rows `[n, r]` of the n rows `x`, which copies share.

        Above 16,000 distinct rows they are those of new rows, see `Smoother.transform`.
        """
        if self.smoother.counts is not None:
            return self.smoother.transform(x)
        return self.smoother.smooth[self.leaves]

    @functools.cached_property
    def merges(self) -> NDArray:
        """The tree of the k clusters, float64 `[k - 1, 4]`, see `tree.linkage_of_clusters`.

        Ward's criterion joins them, by their means of smooth rows, as in the tree of the leaves. A
        new fit whitens anew, and may join nearly equal pairs in another order: so clusters that
        have stayed the same keep the tree that they have.
        """
        if self.earlier is not None:
            return self.earlier
        is_in = self.labels != NO_CLUSTER
        rows, leaves = self.smoother.smooth, self.leaves[is_in]
        return tree.linkage_of_clusters(rows, leaves, self.labels[is_in])

    def unions(self, count: int) -> NDArray:
        """Returns the clusters of the n rows, joined to `count` unions, see `tree.unions`."""
        return tree.unions(self.merges, self.labels, count)


def fit(
    x: Rows,
    metric: str = "auto",
    n_clusters: int | None = None,
    seed: int = 0,
    originals: NDArray | None = None,
) -> TreeFit:
    """Returns the clusters of rows that need not fit into memory, or have known copies.

    Known copies and, with the cosine, rows of zeros are left out: they get the cluster of their
    original, and none. If an original is zero, its first copy that is not zero replaces it. If
    fewer rows than `n_clusters` are left, known copies are clustered too.

    Args:
        x: finite numbers `[n, d]`, read in blocks. Unless they are an array or `Repeated`, the
            order of the rows matters, and rows of zeros are in clusters.
        metric: see `SmoothTree`.
        n_clusters: number of clusters; None: it is found.
        seed: seed of everything that is drawn.
        originals: int `[n]`, the index of the row that each row is a copy of, or of the row
            itself: copies that are known by other means than their features. An original is no
            copy. None: there are no known copies.

    Raises:
        InputError: see the `ValueError` of `SmoothTree.fit`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> len(fit(x, "euclidean").ids)
        3
    """
    checks.one_of("metric", metric, METRICS)
    n, d = x.shape
    if metric == "auto":
        metric = "euclidean" if d <= FEW_AXES else "cosine"
    least = n_clusters or 1
    if n_clusters is not None:
        checks.whole("n_clusters", n_clusters, 1, n)
    kept, place = _represented(x, metric, least, originals)
    is_whole = len(kept) == n and not isinstance(x, Repeated)
    some = x if is_whole else np.asarray(x[kept])
    first, group = copies.originals(some)
    checks.at_most("n_clusters", least, len(first), "distinct rows")
    is_in = place != NO_CLUSTER
    m = len(first)
    was_condensed = isinstance(x, Repeated) and n > MAX_ROWS
    if m <= MAX_ROWS and not was_condensed:
        rows = numeric(some[first], "X", representation.LARGEST)
        order = copies.outwards(rows)
        rows = representation.dequantize(rows[order], seed)
        sample = first[order]
        leaves = np.argsort(order)[group]
        smoother = representation.fit(rows, metric)
    else:
        n_groups, weights = min(MAX_ROWS, m // 2), None
        if was_condensed:  # Most rows are those of micro-clusters already.
            n_groups, weights = min(MAX_ROWS, m), np.bincount(group[place[is_in]], minlength=m)
        how = (min(SAMPLE, m), n_groups, metric, seed, weights)
        smoother, groups = representation.fit_all(some, first, *how)
        leaves = groups[group]
        sample = first[np.unique(groups, return_index=True)[1]]
        rows = np.asarray(some[sample])
        checks.at_most("n_clusters", least, len(rows), f"micro-clusters of {m:,} rows")
    found = _found(rows, smoother, np.bincount(leaves[place[is_in]]), n_clusters, seed)
    if smoother.counts is not None and found.is_guess:
        other = _of_sample(some, first, metric, seed)
        if other.found.gap > found.gap:
            smoother, found, sample = other.smoother, other.found, first[other.chosen]
            leaves = _nearest(some, first, other)[group]
    leaf = np.where(is_in, leaves[place], 0)
    linkage = tree.nested(smoother.smooth, np.bincount(leaf[is_in]), found.labels)
    labels = tree.cut(linkage, place, leaf, int(found.labels.max()) + 1)
    if n <= MAX_ROWS:  # A copy, because a caller may write into the array.
        known = Repeated(np.array(x[:]), np.arange(n))
    else:  # A row of zeros stands for all that are in no cluster.
        features = np.asarray(some[sample])
        features = np.concatenate([features, np.zeros_like(features[:1])])
        known = Repeated(features, np.where(is_in, leaf, len(sample)))
    result = (n_clusters, seed, found.verdict, found.gap, found.scores)
    return TreeFit(labels, leaf, kept[sample], known, smoother, linkage, *result)


def _found(
    rows: NDArray, smoother: Smoother, sizes: NDArray, n_clusters: int | None, seed: int
) -> Found:
    """Returns the clusters of leaves; see `fit` and, for a given number, `choose_k.of_number`."""
    if n_clusters is None:
        return verdict.find(rows, smoother, np.random.default_rng(seed))
    labels = choose_k.of_number(smoother, sizes, n_clusters)
    return Found(labels, float("nan"), UNCLEAR, {})


class _Sample(NamedTuple):
    """Clusters of a sample of rows: places `[l]` among the rows, representation, clusters."""

    chosen: NDArray
    smoother: Smoother
    found: Found


def _of_sample(x: Rows, distinct: NDArray, metric: str, seed: int) -> _Sample:
    """Returns the clusters of a sample of at most 16,000 rows, which are not called clear.

    Args:
        x: `[n, d]`, see `fit`.
        distinct: int `[m]`, the indices of the rows that are clustered.
        metric: `"cosine"` or `"euclidean"`.
        seed: random seed.
    """
    m = len(distinct)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(m, min(MAX_ROWS, m), replace=False))
    some = np.asarray(x[distinct[chosen]])
    rows = representation.fit(some, metric)
    found = verdict.find(some, rows, rng)._replace(verdict=UNCLEAR)
    # Each stands for many rows, but they are as dense as the rows are, and weigh alike.
    return _Sample(chosen, rows._replace(counts=np.ones(len(chosen), np.float32)), found)


def _nearest(x: Rows, distinct: NDArray, sample: _Sample) -> NDArray:
    """Returns for each of m rows a row of the sample, which has the cluster that is predicted.

    The arguments are those of `_of_sample`, and its result; the places are int64 `[m]`.
    """
    labels = sample.found.labels
    around = membership.shares(sample.smoother, labels)
    nearest = np.empty(len(distinct), np.int64)
    for part in blocks(len(distinct), x.shape[1]):
        rows = np.asarray(x[distinct[part]])
        nearest[part] = membership.nearest_of_cluster(sample.smoother, labels, around, rows)
    nearest[sample.chosen] = np.arange(len(sample.chosen))
    return nearest


def _represented(
    x: Rows, metric: str, least: int, originals: NDArray | None
) -> tuple[NDArray, NDArray]:
    """Returns which rows are clustered, and which of them represents each row.

    Args:
        x: see `fit`.
        metric: `"cosine"` or `"euclidean"`.
        least: number of clusters; if fewer rows would be left, known copies are clustered, too.
        originals: see `fit`.

    Returns:
        int64 `[m]`, ascending indices of the m rows that are clustered; and int64 `[n]`, for each
        row the place of the one that represents it among them, -1 for a row in no cluster.
    """
    has_direction = _have_direction(x, metric)
    itself = np.arange(len(has_direction))
    stands = itself
    if isinstance(x, Repeated):
        _, first, leaves = np.unique(x.leaves, return_index=True, return_inverse=True)
        originals = first[leaves]
    if originals is not None:
        first = itself.copy()
        backwards = np.flatnonzero(has_direction)[::-1]
        first[originals[backwards]] = backwards
        stands = np.where(has_direction[originals], originals, first[originals])
    is_in = has_direction[stands]
    kept = np.unique(stands[is_in])
    if len(kept) < least:
        stands = np.where(has_direction, itself, stands)
        kept = np.flatnonzero(has_direction)
    place = np.full(len(itself), NO_CLUSTER)
    place[is_in] = np.searchsorted(kept, stands[is_in])
    return kept, place


def _have_direction(x: Rows, metric: str) -> NDArray:
    """Returns which rows can be clustered, bool `[n]`: with the cosine, those that are not zero.

    Rows that are all zero, and those that are read in blocks, can be.
    """
    every = np.ones(x.shape[0], bool)
    if metric != "cosine" or not isinstance(x, np.ndarray | Repeated):
        return every
    rows = x.rows if isinstance(x, Repeated) else x
    result = np.asarray(rows.any(axis=1))
    if isinstance(x, Repeated):
        result = result[x.leaves]
    return result if result.any() else every


def numbered(
    state: stable_ids.State,
    x: Rows,
    fitted: TreeFit,
    is_fixed: NDArray | None = None,
) -> stable_ids.State:
    """Returns the state of the rows `x` in which clusters keep their ids.

    Copies stay together, and rows in no cluster of the fit are in none, but for fixed rows.

    Args:
        state: the state of the n old rows.
        x: all rows `[m, d]`, the old ones in their order, then the new ones.
        fitted: the fit of these rows.
        is_fixed: see `stable_ids.update`.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> state = stable_ids.start(np.arange(200) % 3)
        >>> numbered(state, x, fit(x, "euclidean")).ids[200:].tolist() == [2, 0, 1] * 33 + [2]
        True
    """

    def look(some: NDArray) -> stable_ids.Look:
        found = fitted
        if len(some) < x.shape[0]:
            found = fit(some, fitted.smoother.metric, fitted.n_clusters, fitted.seed)
        rows = found.smoother

        def place(new: NDArray) -> tuple[NDArray, NDArray]:
            return found.place(new), rows.project(new)

        return stable_ids.Look(found.labels, rows.sharp[found.leaves], place)

    after = stable_ids.update(state, x, look, is_fixed)
    is_free = np.ones(len(after.ids), bool)
    if is_fixed is not None:
        is_free[: len(is_fixed)] = ~is_fixed
    ids = _together(fitted, after.ids, is_free)
    born = {event.id for event in after.events if event.kind == stable_ids.EMERGED}
    return after._replace(ids=ids, events=stable_ids.events(state.ids, ids, born))


def _together(fitted: TreeFit, ids: NDArray, is_free: NDArray) -> NDArray:
    """Returns ids int64 `[n]` in which free copies have the id that most of them have.

    Free rows that are in no cluster of the fit get -1. Rows of a micro-cluster are no copies.
    """
    result = np.where(is_free & (fitted.labels == NO_CLUSTER), NO_CLUSTER, ids)
    rows = np.flatnonzero(is_free & (fitted.labels != NO_CLUSTER))
    if fitted.smoother.counts is not None or not len(rows):
        return result
    known, codes = np.unique(result[rows], return_inverse=True)
    leaves = fitted.leaves[rows]
    shape = (len(fitted.sample), len(known))
    votes = sparse.csr_array((np.ones(len(rows)), (leaves, codes)), shape=shape)
    result[rows] = known[np.asarray(votes.argmax(axis=1)).ravel()[leaves]]
    return result
