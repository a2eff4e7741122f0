"""The level that is the answer: modes of clusters, groups of clusters, curved clusters."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import adjusted_rand_score, silhouette_score

from cluster_jax.clustering import answer, basins, levels, membership, separation
from cluster_jax.clustering.levels import Tree


def _nested(outer, inner, gap, distance, rows=60, d=6, seed=0):
    """Rows of `outer` groups of `inner` each, and both truths."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(d, d)))[0]
    fine = np.arange(outer * inner * rows) % (outer * inner)
    coarse = fine // inner
    centers = distance * directions[coarse] + gap * directions[::-1][fine % inner]
    return centers + rng.normal(size=(len(fine), d)), coarse, fine


def _waves():
    rng = np.random.default_rng(3)
    truth = np.arange(1200) % 3
    across = rng.uniform(0, 4, 1200)
    x = np.stack([across, 1.2 * truth + 0.8 * np.sin(1.5 * across + 0.2 * truth)], axis=1)
    return x + rng.normal(size=x.shape) * 0.07, truth


def _answer(x):
    tree = levels.build(x, x)
    return tree, answer.choose(tree, x)


def test_modes_of_a_cluster_are_not_counted():
    x, classes, modes = _nested(outer=4, inner=2, gap=7, distance=40)
    tree, k = _answer(x)
    assert tree.n_clusters == 8
    assert k == 4
    assert adjusted_rand_score(classes, levels.cut(tree, k=4)) == 1
    assert adjusted_rand_score(modes, levels.cut(tree, k=8)) == 1


def test_clusters_of_few_groups_are_counted():
    x, groups, clusters = _nested(outer=2, inner=4, gap=9, distance=30)
    tree, k = _answer(x)
    assert k == 8
    assert adjusted_rand_score(clusters, levels.cut(tree, k=8)) == 1
    assert adjusted_rand_score(groups, levels.cut(tree, k=2)) == 1


def test_curved_clusters_are_all_counted():
    x, truth = _waves()
    assert _answer(x)[1] == 3
    assert separation.roundness(x, truth) < 0.7
    every = np.ones(3, bool)
    assert separation.silhouettes(x, truth, np.array([[0, 1], [2, 3]]), every)[0] < 0.3


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        ("_WITHIN", 0.57),
        ("_WITHIN", 0.62),
        ("_GAIN", 0.002),
        ("_GAIN", 0.007),
        ("_ROUND", 0.7),
        ("_ROUND", 0.95),
    ],
)
def test_the_answer_does_not_hang_on_the_constants(monkeypatch, constant, value):
    monkeypatch.setattr(answer, constant, value)
    for x, k in (
        (_nested(outer=4, inner=2, gap=7, distance=40)[0], 4),
        (_nested(outer=2, inner=4, gap=9, distance=30)[0], 8),
        (_waves()[0], 3),
    ):
        assert _answer(x)[1] == k


@pytest.mark.parametrize(("evidence", "k"), [(-1.0, 2), (0.5, 2), (12.0, 2)])
def test_a_split_must_pay_in_silhouette(evidence, k):
    x, truth, _ = _nested(outer=2, inner=1, gap=0, distance=30)
    above = x[:, 1] > np.median(x[truth == 0, 1])
    leaves = np.where(truth == 1, 1, 2 * above)
    tree = Tree(leaves, np.array([[0, 2], [1, 3]]), np.array([evidence, 13.0]))
    assert answer.choose(tree, x) == k


def test_small_clusters_are_counted():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 3], [600, 600, 60, 60])
    centers = np.array([[0.0, 0.0], [40.0, 0.0], [0.0, 40.0], [40.0, 40.0]])
    x = centers[truth] + rng.normal(size=(len(truth), 2))
    assert _answer(x)[1] == 4


def test_of_separate_groups_the_small_one_joins_first():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 3], [300, 300, 60, 300])
    centers = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0], [60.0, 60.0]])
    tree, _ = _answer(centers[truth] + rng.normal(size=(len(truth), 2)))
    assert tree.n_clusters == 4
    joined = np.array([0, 1, 0, 3])[truth]
    assert adjusted_rand_score(joined, levels.cut(tree, k=3)) > 0.95


def test_silhouettes_are_those_of_all_pairs():
    x, coarse, fine = _nested(outer=2, inner=2, gap=3, distance=5, rows=20)
    x = np.concatenate([x, [[50.0] * 6]])  # one row alone
    fine, coarse = np.append(fine, 4), np.append(coarse, 2)
    merges = np.array([[0, 1], [2, 3], [5, 4], [6, 7]])
    found = separation.silhouettes(x, fine, merges, np.ones(5, bool))
    for labels, score in ((fine, found[0]), (coarse, found[2])):
        expected = silhouette_score(x, labels, metric="sqeuclidean")
        assert score == pytest.approx(expected)


@pytest.mark.parametrize("silent", [1, 4])
def test_groups_that_do_not_count_have_no_part_in_silhouettes(silent):
    """Whichever of two merges first: the scores are those of the other rows alone."""
    x, _, fine = _nested(outer=2, inner=2, gap=3, distance=5, rows=20)
    small = x[:3] + 2.0
    for merges in ([[4, 1], [0, 5], [2, 3], [6, 7]], [[1, 4], [5, 0], [2, 3], [7, 6]]):
        groups = np.append(fine, [4] * 3)
        if silent == 1:  # the small one has another number
            groups = np.where(groups == 4, 1, np.where(groups == 1, 4, groups))
        found = separation.silhouettes(
            np.concatenate([x, small]), groups, np.array(merges), np.arange(5) != silent
        )
        alone = separation.silhouettes(
            x, fine, np.array([[0, 1], [2, 3], [4, 5]]), np.ones(4, bool)
        )
        np.testing.assert_allclose(found, [alone[0], *alone], rtol=1e-9)


@pytest.mark.parametrize("small", [[8, 7, 6], [24, 20, 16, 14]], ids=str)
def test_small_groups_do_not_lower_the_level(small):
    """To rows of large groups small ones are the nearest others; no less real."""
    rng = np.random.default_rng(0)
    sizes = np.array([*(np.array([8, 6, 4]) * (50 if max(small) < 10 else 300)), *small])
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centers = 1.75 * rng.normal(size=(len(sizes), 30))
    x = centers[truth] + rng.normal(size=(len(truth), 30))
    k, means = len(sizes), np.stack([x[truth == i].mean(axis=0) for i in range(len(sizes))])
    tree = Tree(truth, separation.ward(sizes, means), np.linspace(1, 2, k - 1))
    assert answer.choose(tree, x) == k


def test_where_most_rows_are_in_small_groups_those_count():
    """100 modes of ten rows, in 50 clusters of two, beside two clusters of 400."""
    x, classes, modes = _nested(outer=50, inner=2, gap=7, distance=40, rows=10, d=52)
    large = np.repeat([[90.0], [-90.0]], 400, axis=0) + np.random.default_rng(1).normal(
        size=(800, 52)
    )
    x = np.concatenate([x, large])
    classes = np.append(classes, np.repeat([50, 51], 400))
    modes = np.append(modes, np.repeat([100, 101], 400))
    means = np.stack([x[modes == mode].mean(axis=0) for mode in range(102)])
    merges = separation.ward(np.bincount(modes), means)
    tree = Tree(modes, merges, np.linspace(1, 2, 101))
    assert answer.choose(tree, x) == 52
    assert adjusted_rand_score(classes, levels.cut(tree, k=52)) == 1


def test_ward_counts_the_rows_of_groups():
    x = np.random.default_rng(0).normal(size=(12, 3))
    expected = hierarchy.linkage(x, "ward")
    merges = separation.ward(np.ones(12, np.int64), x)
    assert np.array_equal(merges, expected[:, :2].astype(np.int64))
    # A group of rows that coincide is those rows.
    sizes = np.array([1, 4, 2, 3])
    grouped = separation.ward(sizes, x[:4])
    linkage = hierarchy.linkage(np.repeat(x[:4], sizes, axis=0), "ward")
    owner = np.repeat(np.arange(4), sizes)
    for k in (3, 2):
        labels = hierarchy.fcluster(linkage, k, "maxclust")
        tree = Tree(owner, grouped, np.arange(3.0))
        assert adjusted_rand_score(labels, levels.cut(tree, k=k)) == 1


def test_certainties_rise_with_the_levels():
    x, _, _ = _nested(outer=3, inner=2, gap=4.5, distance=9, rows=150)
    tree, _ = _answer(x)
    assert (np.diff(tree.evidence) >= 0).all()
    assert tree.n_clusters == (tree.certainties >= 0.5).sum() + 1


def test_rows_stay_where_the_model_of_clusters_drifts(monkeypatch):
    x, labels = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    _, neighbors = basins.nearest_rows(x, membership.NEIGHBORS)
    assert np.array_equal(membership.assign(x, labels, neighbors).labels, labels)
    monkeypatch.setattr(membership, "_DRIFT", np.inf)
    assert not np.array_equal(membership.assign(x, labels, neighbors).labels, labels)


@pytest.mark.parametrize("rows", [11, 15, 20, 30])
def test_groups_of_few_rows_are_counted(rows):
    """Their nearest rows are in other groups too, which look like a curve."""
    angle = 2 * np.pi * (np.arange(4 * rows) % 4) / 4
    x = 10 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x += np.random.default_rng(0).normal(size=x.shape) / 10
    assert levels.build(x, x).n_clusters == 4
