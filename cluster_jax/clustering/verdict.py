"""The answer of `SmoothTree`: clusters of a representation, and what may be said about them.

`find` takes the clusters of `choose_k` and `levels`, and three steps more:

1. Apart (`_divided`, `_judged`). A cluster that has parts that are apart, by `separation`, is
   replaced by them, as long as there are such clusters. The answer is clear if all clusters are
   then apart, by the same test, and those with 95 % of the rows have no parts: the test needs eight
   rows to say that two parts are apart; six or seven may be a part, too, and up to seven must not
   hide that others are apart. With the cosine they must be apart by the Euclidean distance,
   too, since the directions of one long Gaussian are two clusters, and have no parts by it. It is
   one cluster if there is one, and at least two rows for each axis, with the cosine only if there
   are no parts by the Euclidean distance.
2. Best guess, of an answer that is not clear. If less than 75 % of the clusters, and of
   the rows, are apart, it is that of `choose_k` and `levels`, without the parts of step 1.
3. Too many (`_is_too_many`). More than 12 clusters of a best guess must have 14 rows on average,
   and a silhouette that exceeds that of as many clusters of rows whose columns are shuffled, each
   on its own, by 0.1 and by half of their own gap: columns with long tails have corners, as outputs
   of a softmax do, and a Gaussian has none. Otherwise the best number up to 12 is taken, or
   HDBSCAN's clusters are joined to 12 (not of micro-clusters).

What the steps gain is in `experiments/log.md`.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import choose_k, levels, representation, separation, tree
from cluster_jax.clustering.base import CLEAR, ONE, UNCLEAR
from cluster_jax.clustering.representation import Smoother

# Fewest rows among which clusters are searched for, and of a part that a cluster may have.
MIN_ROWS = 6
# Share of the clusters, or of the rows, that must be apart, so that parts that are apart become
# clusters.
MOST_APART = 0.75
# Numbers of parts into which a cluster is divided.
_PART_NUMBERS = (2, 3, 4)
# A best guess has so many clusters at most, unless it has so many rows for each.
_FEW, _ROWS_EACH = 12, 14


class Found(NamedTuple):
    """Clusters of n rows.

    Attributes:
        labels: int64 `[n]`, 0 to k - 1.
        gap: see `choose_k`, of the first clusters; infinite for clusters of HDBSCAN, NaN if there
            are fewer than 6 rows, or all are equal.
        verdict: one of `base.VERDICTS`.
        scores: score of each number of clusters that was tried.
        is_guess: whether less than 75 % of the clusters, and of the rows, are apart.
    """

    labels: NDArray
    gap: float
    verdict: str
    scores: dict[int, float]
    is_guess: bool = False


def find(x: NDArray, rows: Smoother, rng: np.random.Generator) -> Found:
    """Returns the clusters of features `[n, d]`, whose representation is `rows`.

    Fewer than 6 rows, or equal ones, are one cluster.

    Args:
        x: the features, one row for each of the n rows or micro-clusters of `rows`.
        rows: the result of `representation.fit` or `representation.fit_all`.
        rng: draws the sets without clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(300, 8)) + 9 * (np.arange(300) % 3)[:, None]
        >>> found = find(x, representation.fit(x, "euclidean"), np.random.default_rng(0))
        >>> np.bincount(found.labels).tolist(), found.verdict
        ([100, 100, 100], 'clear')
    """
    if len(x) < MIN_ROWS or not rows.sharp.any():
        return Found(np.zeros(len(x), np.int64), float("nan"), ONE, {})
    labels, scores = choose_k.search(rows)
    labels, gap = choose_k.split(x, rows, labels, rng)
    is_curved = np.isinf(gap)
    if labels.any() and not is_curved:
        labels = levels.deepest(x, rows, labels, rng)
    divided, is_sure = _divided(x, rows.metric, labels)
    share, verdict = _judged(x, rows, divided, is_curved)
    if verdict == CLEAR and rows.is_cosine:  # It may not see what the distance sees.
        is_sure &= _divided(x, "euclidean", divided)[0].max() == divided.max()
    if verdict != UNCLEAR:
        return Found(divided, gap, verdict if is_sure else UNCLEAR, scores)
    is_guess = share < MOST_APART and not is_curved
    guess = labels if is_guess else divided
    if _is_too_many(x, rows, guess, is_curved, rng):
        guess = _fewer(rows, guess, scores, is_curved)
    return Found(guess, gap, UNCLEAR, scores, is_guess)


def _divided(x: NDArray, metric: str, labels: NDArray) -> tuple[NDArray, bool]:
    """Returns labels in which clusters are replaced by their parts, while they have any.

    The second result is whether at most 5 % of the rows are in clusters that may have parts: by
    chance, some of many clusters always may.
    """
    labels = labels.copy()
    waiting = tree.members(labels)
    doubtful = 0
    while waiting:
        own = waiting.pop()
        parts, may_have_parts = _parts(x[own], metric)
        doubtful += len(own) if may_have_parts else 0
        if parts.any():
            # Part 0 keeps the label of the cluster.
            labels[own] = np.where(parts > 0, labels.max() + parts, labels[own])
            waiting += [own[part] for part in tree.members(parts)]
    return labels, doubtful <= (1 - levels.NEARLY_ALL) * len(labels)


def _parts(x: NDArray, metric: str) -> tuple[NDArray, bool]:
    """Returns the parts of a cluster that are apart, int64 `[m]`; all 0 if there are none.

    The second result is whether there may be two parts nevertheless: rows are rare between them,
    but only six or seven rows at one end say so, or at most seven rows are a part of their own,
    which is apart from neither.

    Args:
        x: `[m, d]`, the features of the rows of the cluster.
        metric: `"cosine"` or `"euclidean"`.
    """
    whole = np.zeros(len(x), np.int64)
    if len(x) < 2 * MIN_ROWS:
        return whole, False
    rows = representation.fit(x, metric)
    linkage = tree.ward(rows.smooth)
    # Both halves of a ring would be apart as a whole.
    compare = functools.partial(separation.compare, x, rows, is_curved=choose_k.is_flat(rows))
    tried = []
    for k in _PART_NUMBERS:
        tried.append(compare(choose_k.partition(rows, linkage, k)))
        if (parts := separation.unions(tried[-1])).any():
            return parts, False
    if separation.unions(tried[0], least_drop=np.sqrt(MIN_ROWS)).any():
        return whole, True
    for compared in tried:
        is_large = (np.bincount(compared.labels) >= separation.FEWEST)[compared.labels]
        apart = separation.unions(compared, least_rows=separation.FEWEST)[is_large]
        if (apart != apart[:1]).any():
            return whole, True
    return whole, False


def _judged(x: NDArray, rows: Smoother, labels: NDArray, is_curved: bool) -> tuple[float, str]:
    """Returns the share of clusters, or of rows if that is higher, that are apart; and a verdict.

    See step 1. No cluster has parts that are apart, which is not checked here.
    """
    if not labels.any():
        is_whole = separation.has_enough_rows(rows)
        if is_whole and rows.is_cosine:  # It may not see what the distance sees.
            is_whole = not _divided(x, "euclidean", labels)[0].any()
        return 1.0, ONE if is_whole else UNCLEAR
    together = separation.unions(separation.compare(x, rows, labels))
    if is_curved and together.max() < labels.max():  # Some may be round one another.
        together = separation.unions(separation.compare(x, rows, labels, is_curved=True))
    share, is_alone = separation.share_apart(together, labels)
    if share == 1 and rows.is_cosine:
        plain = representation.fit(x, "euclidean")
        again = separation.compare(x, plain, labels, is_curved=is_curved)
        is_alone &= separation.unions(again).max() == labels.max()
    return share, CLEAR if is_alone.all() else UNCLEAR


def _is_too_many(
    x: NDArray, rows: Smoother, labels: NDArray, is_curved: bool, rng: np.random.Generator
) -> bool:
    """Returns whether an unclear answer has more clusters than the rows can show, see step 3.

    The arguments are those of `find`, the clusters, and whether they are those of HDBSCAN.
    """
    n = len(labels)
    k = int(labels.max()) + 1
    if rows.counts is not None or k <= _FEW:
        return False
    if k * _ROWS_EACH > n:
        return True
    m = min(n, choose_k.MOST_NULL_ROWS)
    shuffled = np.stack([rng.permutation(column)[:m] for column in x.T], axis=1)
    null = representation.fit(shuffled, rows.metric, n_axes=rows.sharp.shape[1])
    parts = choose_k.partition(null, tree.ward(null.smooth), min(k, m // choose_k.PER_CLUSTER))
    gap = 0.0 if is_curved else choose_k.gap_of(x, rows, labels, rng)[0]
    least = max(choose_k.MIN_GAP, gap / 2)
    return choose_k.silhouette(rows, labels) - choose_k.silhouette(null, parts) < least


def _fewer(rows: Smoother, labels: NDArray, scores: dict[int, float], is_curved: bool) -> NDArray:
    """Returns at most twelve clusters, int64 `[n]`: the best ones, or unions of curved ones.

    The arguments are the representation, the clusters, the scores of `choose_k.search`, and whether
    the clusters are those of HDBSCAN.
    """
    if is_curved:
        return tree.cut_tree(tree.nested(rows.smooth, np.ones(len(labels)), labels), _FEW)
    few = max((k for k in scores if k <= _FEW), key=lambda k: scores[k])
    return choose_k.partition(rows, tree.ward(rows.smooth), few)
