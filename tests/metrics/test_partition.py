"""Partition scores: cases by hand, brute force over all matchings, scikit-learn."""

import collections
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from cluster_jax.metrics import partition
from tests.rows import every_row


def _best_accuracy(labels, clusters):
    """Tries every one-to-one assignment of the smaller side into the larger."""
    a, b = sorted(set(labels)), sorted(set(clusters))
    pairs = list(zip(labels, clusters, strict=True))
    if len(a) > len(b):
        a, b, pairs = b, a, [(y, x) for x, y in pairs]
    hits = (
        sum(dict(zip(a, chosen, strict=True))[x] == y for x, y in pairs)
        for chosen in itertools.permutations(b, len(a))
    )
    return max(hits) / len(pairs)


sides = st.tuples(st.integers(1, 5), st.integers(1, 6))
cases = sides.flatmap(
    lambda s: st.lists(
        st.tuples(st.integers(-1, s[0] - 2), st.integers(0, s[1] - 1)), min_size=1, max_size=30
    )
)


@given(cases)
def test_accuracy_equals_brute_force(pairs):
    labels, clusters = map(list, zip(*pairs, strict=True))
    assert partition.accuracy(labels, clusters) == pytest.approx(_best_accuracy(labels, clusters))


@given(cases)
def test_matching_attains_the_accuracy(pairs):
    labels, clusters = map(np.array, zip(*pairs, strict=True))
    match = partition.matching(labels, clusters)
    assert len(set(match.values())) == len(match)
    right = [match.get(c) == y for y, c in zip(labels, clusters, strict=True)]
    assert np.mean(right) == pytest.approx(partition.accuracy(labels, clusters))
    assert all(((labels == y) & (clusters == c)).any() for c, y in match.items())


def test_contingency_counts():
    counts = partition.contingency([3, 3, -1, 3, 8], [2, 0, 0, 2, 2])
    np.testing.assert_array_equal(counts.classes, [-1, 3, 8])
    np.testing.assert_array_equal(counts.clusters, [0, 2])
    np.testing.assert_array_equal(counts.table, [[1, 0], [1, 2], [0, 1]])


def test_scores_equal_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    clusters = np.where(rng.random(500) < 0.7, labels * 2, rng.integers(0, 11, 500))
    ours = partition.scores(labels, clusters)
    assert ours["nmi"] == pytest.approx(metrics.normalized_mutual_info_score(labels, clusters))
    assert ours["ari"] == pytest.approx(metrics.adjusted_rand_score(labels, clusters))
    assert ours["ami"] == pytest.approx(metrics.adjusted_mutual_info_score(labels, clusters))
    assert (ours["n_clusters"], ours["n_classes"]) == (len(np.unique(clusters)), 4)
    # The averaging is the arithmetic one: 2 I / (H + H).
    mutual = metrics.mutual_info_score(labels, clusters)
    entropies = [metrics.mutual_info_score(x, x) for x in (labels, clusters)]
    assert ours["nmi"] == pytest.approx(2 * mutual / sum(entropies))
    assert ours["nmi"] != pytest.approx(mutual / np.sqrt(np.prod(entropies)), abs=1e-4)
    assert ours["homogeneity"] == pytest.approx(metrics.homogeneity_score(labels, clusters))
    assert ours["completeness"] == pytest.approx(metrics.completeness_score(labels, clusters))
    assert ours["homogeneity"] > ours["completeness"] + 0.05, "more clusters than classes"
    assert ours["matching"] == partition.matching(labels, clusters)
    assert ours["cluster_purity"] == partition.purity(labels, clusters)
    each = {"matching", "cluster_purity"}
    assert all(isinstance(ours[name], float | int) for name in set(ours) - each)
    assert json.loads(json.dumps(ours))["acc"] == ours["acc"], "plain numbers throughout"


@given(cases)
def test_purity_by_counting(pairs):
    labels, clusters = map(list, zip(*pairs, strict=True))
    members = {c: [y for y, other in pairs if other == c] for c in clusters}
    most = {c: collections.Counter(ys).most_common(1)[0][1] for c, ys in members.items()}
    ours = partition.purity(labels, clusters)
    assert ours == pytest.approx({c: most[c] / len(members[c]) for c in members})
    overall = partition.scores(labels, clusters)["purity"]
    assert overall == pytest.approx(sum(most.values()) / len(pairs))


@every_row(
    ("labels", "clusters", "message"),
    [
        ([0, 1], [0], "same length; got 2 and 1"),
        ([], [], "non-empty"),
        ([[0]], [[0]], "1-D"),
        ([0.5], [0], "must be integers; got float64"),
        (["a"], [0], "must be integers"),
    ],
)
def test_bad_input(labels, clusters, message):
    for function in (partition.accuracy, partition.matching, partition.purity, partition.scores):
        with pytest.raises(ValueError, match=message):
            function(labels, clusters)
