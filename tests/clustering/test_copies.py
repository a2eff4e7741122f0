"""Copies of rows: which rows are copies, and that they change no cluster."""

import functools

import numpy as np
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import copies, tree_fit
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.data.arrays import Shards
from tests.rows import every_row


def kinds(n=8, each=15, d=40):
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(n), each)
    return 1.2 * rng.normal(size=(n, d))[truth] + rng.normal(size=(n * each, d)), truth


def with_copies(x, how, noise):
    """Rows with copies behind them, and the row that each is a copy of."""
    rng, n = np.random.default_rng(1), len(x)
    added = {
        "twice": np.arange(n),
        "three times": np.tile(np.arange(n), 2),
        "a fifth twice": rng.choice(n, n // 5, replace=False),
        "one kind twelve times": np.repeat(np.arange(15), 11),
    }[how]
    noisy = x[added] + noise * x.std(axis=0) * rng.normal(size=(len(added), x.shape[1]))
    return np.concatenate([x, noisy]), np.concatenate([np.arange(n), added])


@functools.cache
def fitted(metric):
    return SmoothTree(metric).fit(kinds()[0])


@every_row(
    ("how", "noise"),
    [("twice", 0), ("three times", 0), ("a fifth twice", 0), ("one kind twelve times", 0)],
)
@every_row("metric", ["cosine", "euclidean"])
def test_copies_change_no_cluster(how, noise, metric):
    (x, truth), model = kinds(), fitted(metric)
    assert adjusted_rand_score(truth, model.labels_) > 0.9
    copied, original = with_copies(x, how, noise)
    again = SmoothTree(metric).fit(copied)
    assert adjusted_rand_score(model.labels_, again.labels_[: len(x)]) >= 0.95
    np.testing.assert_array_equal(again.labels_, again.labels_[original])
    np.testing.assert_array_equal(again.probabilities_, again.probabilities_[original])
    assert len(again._fit_.sample) == len(x)


def test_most_rows_may_be_copies():
    """Four fifths of all rows: one kind of four twelve times."""
    x, _ = kinds(n=4)
    copied, original = with_copies(x, "one kind twelve times", 0)
    model = SmoothTree("cosine").fit(copied)
    np.testing.assert_array_equal(model.labels_, model.labels_[original])
    assert len(model._fit_.sample) == len(x)


def test_the_order_of_the_rows_does_not_matter():
    x, _ = with_copies(kinds()[0], "three times", 0)
    order = np.random.default_rng(2).permutation(len(x))
    first, group = copies.originals(x)
    other, moved = copies.originals(x[order])
    np.testing.assert_array_equal(x[first], x[order[other]])
    np.testing.assert_array_equal(group[order], moved)


def test_the_dtype_of_the_same_numbers_does_not_matter():
    """Of a rounded column, noise is added in an order that depends on the numbers alone."""
    x = np.round(kinds()[0])
    models = [SmoothTree("cosine").fit(x.astype(dtype)) for dtype in ("i2", "f4", "f8")]
    for model in models[1:]:
        np.testing.assert_array_equal(model.labels_, models[0].labels_)
        np.testing.assert_array_equal(model.linkage_, models[0].linkage_)


def test_rows_that_are_equal_by_chance_are_no_copies():
    """A thousand rows on a grid of a hundred points have a density, which copies would not."""
    grid = np.random.default_rng(0).integers(0, 10, size=(1000, 2))
    assert len(copies.originals(grid)[0]) == 1000
    rows = np.random.default_rng(0).normal(size=(1000, 2))
    assert len(copies.originals(np.tile(rows, (2, 1)))[0]) == 1000


@every_row("times", [10, 24, 25, 300])
def test_a_row_that_is_there_many_times_is_one_row(times):
    x, _ = kinds()
    first, group = copies.originals(np.concatenate([x, np.repeat(x[:1], times, axis=0)]))
    assert len(first) == len(x)
    assert (group[len(x) :] == group[0]).all()


@every_row("n", range(2, 6))
def test_few_rows_and_copies_of_them(n):
    x = np.random.default_rng(n).normal(size=(n, 7))
    for rows in (x, np.repeat(x, 3, axis=0)):
        model = SmoothTree("euclidean").fit(rows)
        assert (model.n_clusters_, model.verdict_) == (1, "one_cluster")
        assert len(model._fit_.sample) == n


def test_copies_among_more_rows_than_are_compared(monkeypatch):
    """A set of one cluster, all of it twice, is no set of hundreds of clusters of two rows."""
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 400)
    x = np.random.default_rng(0).normal(size=(500, 12))
    copied, original = with_copies(x, "twice", 0)
    model = SmoothTree("euclidean").fit(copied)
    assert (model.n_clusters_, model.verdict_) == (1, "one_cluster")
    np.testing.assert_array_equal(model._fit_.leaves, model._fit_.leaves[original])


def test_copies_in_shards(tmp_path):
    """Rows that are read a part at a time stay in their order, and equal ones are one."""
    x, _ = kinds()
    copied, original = with_copies(x, "three times", 0)
    np.save(tmp_path / "rows.npy", copied)
    first, group = copies.originals(Shards(tmp_path / "rows.npy"))
    np.testing.assert_array_equal(first, np.arange(len(x)))
    np.testing.assert_array_equal(group, original)
