"""What readers found `SmoothTree` sure of, and was wrong: with other numbers than theirs."""

import jax
import numpy as np
import pytest
from scipy.cluster import hierarchy
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import choose_k, representation, tree_fit, verdict
from cluster_jax.clustering.base import CLEAR, ONE, UNCLEAR
from cluster_jax.clustering.smooth_tree import SmoothTree
from tests.clustering.blobs import fit
from tests.rows import every_row


def is_honest(model, truth):
    inside = truth >= 0
    score = adjusted_rand_score(truth[inside], model.labels_[inside])
    return model.verdict_ == UNCLEAR or score >= 0.95


def far_centers(rng, k, d, gap):
    centers = rng.normal(size=(k, d))
    apart = np.linalg.norm(centers[:, None] - centers, axis=2) + np.diag(np.full(k, np.inf))
    return gap / apart.min() * centers


@every_row(("k", "n", "d"), [(9, 300, 12), (20, 900, 80)])
def test_clusters_of_uneven_sizes_on_a_line(k, n, d):
    rng = np.random.default_rng(k)
    sizes = np.maximum(14, n * rng.dirichlet(np.full(k, 2.0))).astype(int)
    truth = np.repeat(np.arange(k), sizes)
    line = rng.normal(size=d)
    centers = np.cumsum(rng.uniform(9, 13, k))[:, None] * line / np.linalg.norm(line)
    assert is_honest(fit(centers[truth] + rng.normal(size=(len(truth), d))), truth)


@every_row(("k", "n", "d"), [(5, 200, 10), (16, 700, 20)])
def test_one_pair_of_clusters_is_nearer_than_the_others(k, n, d):
    rng, truth = np.random.default_rng(k), np.arange(n) % k
    centers = far_centers(rng, k, d, 20)
    apart = np.linalg.norm(centers - centers[0], axis=1)
    near = np.argsort(apart)[1]
    centers[near] = centers[0] + 8 * (centers[near] - centers[0]) / apart[near]
    assert is_honest(fit(centers[truth] + rng.normal(size=(n, d))), truth)


@pytest.mark.parametrize(
    ("n", "d", "apart", "seed"),
    [(10, 40, 6, 4), (40, 40, 5, 3), (60, 8, 4.5, 1), (40, 2, 4, 0), (200, 20, 4, 5)],
)
def test_rounding_and_the_order_of_columns_change_no_cluster(n, d, apart, seed):
    """Such as that of another processor, or of photos that are embedded in another batch."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[:, 0] += apart * (np.arange(n) % 2)
    found = SmoothTree().fit(x)
    rounded = [x * (1 + 1e-9 * rng.normal(size=x.shape)) for _ in range(4)]
    for other in (*rounded, x[:, rng.permutation(d)]):
        again = SmoothTree().fit(other)
        np.testing.assert_array_equal(again.labels_, found.labels_)
        assert again.verdict_ == found.verdict_


@every_row(("k", "d", "many", "few"), [(7, 44, 33, 7), (9, 60, 46, 6)])
def test_six_rows_near_each_cluster_are_too_few_to_tell(k, d, many, few):
    """Nine deviations from it, on a line."""
    rng, truth = np.random.default_rng(k), np.repeat(np.arange(2 * k), [many, few] * k)
    line = rng.normal(size=d)
    centers = 9.0 * np.arange(2 * k)[:, None] * line / np.linalg.norm(line)
    assert is_honest(fit(centers[truth] + rng.normal(size=(len(truth), d))), truth)


@every_row("extra", ["one outlier", "outliers", "one row often"])
@every_row(("k", "n", "d"), [(3, 120, 3), (5, 260, 12)])
def test_what_is_not_in_a_cluster_changes_none(k, n, d, extra):
    rng, truth = np.random.default_rng(k), np.arange(n) % k
    x = far_centers(rng, k, d, 11)[truth] + rng.normal(size=(n, d))
    count = {"one outlier": 1, "outliers": n // 30, "one row often": n // 3}[extra]
    far = 5 * np.abs(x).max() / np.sqrt(d) * rng.normal(size=(count, d))
    more = np.repeat(x[:1], count, axis=0) if extra == "one row often" else far
    of_more = np.full(count, truth[0] if extra == "one row often" else -1)
    model, every = fit(np.concatenate([x, more])), np.concatenate([truth, of_more])
    assert is_honest(model, every)
    if extra == "one row often":
        assert (model.n_clusters_, model.verdict_) == (k, CLEAR)


@every_row("rows", [12, 25], slow=[24, 36])
def test_tight_groups_of_any_number_of_rows(rows):
    rng = np.random.default_rng(1)
    truth = np.repeat(np.arange(7), [400, *[rows] * 6])
    centers = np.concatenate([np.zeros((1, 10)), 15 * np.eye(6, 10)])
    x = centers[truth] + np.where(truth, 0.15, 1.0)[:, None] * rng.normal(size=(len(truth), 10))
    model = fit(x)
    assert (model.n_clusters_, model.verdict_) == (7, CLEAR)
    assert adjusted_rand_score(truth, model.labels_) > 0.99


@every_row("rows", [12], slow=[25, 36])
def test_tight_groups_of_directions(rows):
    """Beside a wide one, whose rows have the length of the others."""
    rng = np.random.default_rng(4)
    truth = np.repeat(np.arange(7), [400, *[rows] * 6])
    directions = rng.normal(size=(7, 24))
    centers = 15 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    x = centers[truth] + np.where(truth, 0.15, 1.0)[:, None] * rng.normal(size=(len(truth), 24))
    model = SmoothTree("cosine").fit(x)
    assert model.n_clusters_ == 7
    assert adjusted_rand_score(truth, model.labels_) > 0.99


@every_row("metric", representation.METRICS)
@every_row("share", [0.1], slow=[0.5])
def test_equal_rows_are_one_row(metric, share):
    x = np.random.default_rng(2).normal(size=(400, 12)) + 1
    alone = SmoothTree(metric).fit(x)
    x[: int(400 * share)] = x[0]
    model = SmoothTree(metric).fit(x)
    assert (model.n_clusters_, model.verdict_) == (alone.n_clusters_, ONE) == (1, ONE)


def rows_without_clusters(kind, d):
    rng = np.random.default_rng(d)
    x = rng.normal(size=(500, d))
    if kind == "correlated":
        return 0.3 * x + rng.normal(size=(500, 1))
    if kind == "softmax":
        return np.exp(2.5 * x) / np.exp(2.5 * x).sum(axis=1, keepdims=True)
    for t in range(1, 500):
        x[t] = 0.9 * x[t - 1] + 0.436 * x[t]
    return x + 2


@every_row("d", [6], slow=[30])
@every_row("kind", ["correlated", "softmax", "series"])
def test_by_default_rows_without_clusters_are_not_called_clear(kind, d):
    assert SmoothTree().fit(rows_without_clusters(kind, d)).verdict_ != CLEAR


@every_row("metric", representation.METRICS)
@every_row(("n", "d"), [(900, 3)], slow=[(1000, 20)])
def test_corners_of_a_continuum_are_at_most_twelve(n, d, metric):
    """Each column alone has as long a tail."""
    x = np.exp(2 * np.random.default_rng(d).normal(size=(n, d)))
    model = SmoothTree(metric).fit(x / x.sum(axis=1, keepdims=True))
    assert (model.verdict_ != CLEAR, model.n_clusters_ <= 12) == (True, True)


def test_clusters_that_are_too_many_are_joined():
    """HDBSCAN finds more along a thin strip, and none of them is cut."""
    rng = np.random.default_rng(8)
    x = np.stack([30 * rng.random(900), 0.01 * rng.normal(size=900)], axis=1)
    rows = representation.fit(x, "euclidean")
    many = choose_k.split_curved(rows.sharp)
    found = verdict.find(x, rows, np.random.default_rng(0))
    assert many.max() + 1 > 12
    assert (found.labels.max() + 1, found.verdict) == (12, UNCLEAR)
    assert len(np.unique(np.stack([many, found.labels]), axis=1).T) == many.max() + 1


@every_row(("groups", "kinds", "d", "n"), [(6, 4, 24, 1000)], slow=[(5, 5, 20, 1000)])
def test_kinds_in_far_groups_are_not_too_many(groups, kinds, d, n):
    """They overlap, so that the answer is not clear; the groups are far more apart."""
    rng, k = np.random.default_rng(groups), groups * kinds
    truth = np.arange(n) % k
    far = 30 / np.sqrt(d) * rng.normal(size=(groups, d))
    centers = far[np.arange(k) % groups] + rng.normal(size=(k, d))
    model = fit(centers[truth] + rng.normal(size=(n, d)))
    assert adjusted_rand_score(truth, model.labels_) > 0.9


def test_a_cluster_of_nine_tenths_is_not_the_only_one():
    rng = np.random.default_rng(3)
    truth = np.repeat(np.arange(9), [1260, *[18] * 8])
    x = 1.3 * rng.normal(size=(9, 50))[truth] + rng.normal(size=(len(truth), 50))
    model = SmoothTree().fit(x)
    assert model.verdict_ != ONE
    assert adjusted_rand_score(truth, model.labels_) > 0.85
    alone = fit(x)
    assert (alone.n_clusters_, alone.verdict_) == (9, CLEAR)


def test_the_tree_is_one_of_scipy():
    rng = np.random.default_rng(0)
    x = 9 * np.eye(3, 5)[np.arange(90) % 3] + rng.normal(size=(90, 5))
    linkage = fit(np.concatenate([x, x[:7]])).linkage_
    assert hierarchy.is_valid_linkage(linkage, throw=True)
    assert len(hierarchy.dendrogram(linkage, no_plot=True)["leaves"]) == len(linkage) + 1 == 90
    assert len(np.unique(hierarchy.fcluster(linkage, 3, "maxclust"))) == 3


def test_a_cut_is_the_same_after_rows_have_come():
    """Of four clusters the last two are near each other; no label changes."""
    rng, truth = np.random.default_rng(0), np.repeat(np.arange(4), [30, 40, 50, 35])
    centers = np.array([[15.0, 15.0], [70, 70], [70, 15], [74, 15]])
    x = centers[truth] + 0.4 * rng.normal(size=(155, 2))
    model = SmoothTree().fit(x)
    before, labels = model.cut(n_clusters=3), model.labels_
    assert set(before) <= set(labels)
    assert len(np.unique(before[truth >= 2])) == 1
    assert before[truth == 2][0] == labels[truth == 2][0]  # the larger of the two
    model.partial_fit(x[:4] + 0.05)
    np.testing.assert_array_equal(model.labels_[:155], labels)
    np.testing.assert_array_equal(model.cut(n_clusters=3)[:155], before)


def test_four_single_rows_change_no_cluster():
    rng, truth = np.random.default_rng(1), np.arange(240) % 4
    x = 9 * np.eye(4, 8)[truth] + rng.normal(size=(240, 8))
    model = SmoothTree("euclidean").fit(x)
    labels = model.labels_
    for row in x[:4] + 0.2 * rng.normal(size=(4, 8)):
        model.partial_fit(row[None])
    np.testing.assert_array_equal(model.labels_[:240], labels)
    assert model.verdict_ == CLEAR


def test_clusters_that_are_not_those_of_the_fit_are_not_clear():
    """The first fit sees one cluster of both; three updates pass before it splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    model = SmoothTree("euclidean").fit(x)
    assert model.verdict_ == ONE
    far = rng.normal(size=(4, 6)) + 40
    model.partial_fit(np.concatenate([far, far + 0.1, far - 0.1]))
    is_of_fit = (
        len(np.unique(model.labels_)) == tree_fit.fit(model._fit_.known, "euclidean").ids.size
    )
    assert is_of_fit or model.verdict_ == UNCLEAR


def test_overlapping_classes_above_the_limit_are_those_of_a_sample(monkeypatch):
    """Every row has the cluster that the sample predicts, also after rows have come."""
    rng, truth = np.random.default_rng(1), np.arange(3000) % 5
    x = 1.1 * rng.normal(size=(5, 16))[truth] + rng.normal(size=(3000, 16))
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 600)
    model = fit(x)
    alone = fit(x[:600])
    score = adjusted_rand_score(truth, model.labels_)
    assert score > adjusted_rand_score(truth, alone.predict(x)) - 0.02
    assert model.n_clusters_ <= 12
    np.testing.assert_array_equal(np.bincount(model._fit_.leaves) > 0, True)
    assert np.mean(model.predict(x) == model.labels_) > 0.99
    model.partial_fit(x[:2] + 0.01)
    assert adjusted_rand_score(truth, model.labels_[:3000]) > score - 0.02


def test_a_new_fit_of_micro_clusters_keeps_their_number_and_weights(monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 300)
    rng, truth = np.random.default_rng(0), np.arange(1000) % 4
    x = 9 * np.eye(4, 6)[truth] + rng.normal(size=(1000, 6))
    model = fit(x)
    for _ in range(3):
        model.partial_fit(x[:1] + 0.1)
    rows = model._fit_.smoother
    assert len(rows.sharp) >= 250
    assert rows.counts.sum() == 1003


def test_only_devices_of_this_process_are_used(monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 100)
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("devices of other processes"))
    assert fit(np.random.default_rng(0).normal(size=(300, 5))).n_clusters_ >= 1
