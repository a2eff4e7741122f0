"""The number of clusters: blobs, curved shapes, levels, few rows, and verdicts."""

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score, silhouette_samples

from cluster_jax.clustering import choose_k, representation, tree, verdict
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core import arrays
from tests.clustering.blobs import blobs, fit
from tests.rows import every_row


@every_row("metric", representation.METRICS)
@every_row("sizes", [(100, 100), (300, 100, 30), (40,) * 15], slow=[(150,) * 6])
def test_separate_blobs_are_found(metric, sizes):
    x, truth = blobs(sizes)
    model = SmoothTree(metric).fit(x)
    assert model.n_clusters_ == len(sizes)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert model.verdict_ == "clear"
    assert (np.diff(np.bincount(model.labels_)) <= 0).all()  # the largest first
    assert model.probabilities_.mean() > 0.98


@every_row("metric", representation.METRICS)
@every_row(("d", "seed"), [(4, 0), (400, 2)], slow=[(30, 1)])
def test_one_gaussian_is_one_cluster(seed, metric, d):
    x = np.random.default_rng(seed).normal(size=(500, d)) + 1
    model = SmoothTree(metric).fit(x)
    assert (model.n_clusters_, model.verdict_) == (1, "one_cluster")
    assert not model.labels_.any()
    assert (model.probabilities_ == 1).all()


@every_row("seed", [0], slow=[1, 2])
def test_uniform_rows_are_one_cluster(seed):
    for d in (1, 3, 16):
        x = np.random.default_rng(seed).uniform(size=(700, d))
        assert fit(x).n_clusters_ == 1


def test_between_one_cluster_and_clear_ones_there_is_no_clear_answer():
    x, _ = blobs((100,) * 6, gap=0.7, seed=1)
    model = fit(x)
    assert model.gap_ > choose_k.MIN_GAP
    assert (model.n_clusters_, model.verdict_) == (5, "unclear")


@every_row("seed", [0], slow=[2])
def test_heavy_tails_are_no_clear_clusters(seed):
    """They have a silhouette far above that of Gaussians, but rows are nowhere rare in between."""
    rng = np.random.default_rng(seed)
    for x in (np.exp(rng.normal(size=(600, 10))), rng.normal(size=(600, 8))):
        x *= np.exp(rng.normal(size=(600, 1)))
        found = verdict.find(x, representation.fit(x, "euclidean"), np.random.default_rng(0))
        assert (found.gap > 2 * choose_k.MIN_GAP, found.verdict) == (True, "unclear")


@every_row(("n", "seed"), [(300, 0), (600, 1)], slow=[(2000, 2)])
def test_ages_in_years_are_one_cluster(n, seed):
    """Of a few rows each, which are no copies: a year is no cluster."""
    ages = np.round(50 + 15 * np.random.default_rng(seed).normal(size=(n, 1)))
    assert SmoothTree().fit(ages).n_clusters_ == 1


def test_clusters_in_one_column_can_be_clear():
    """The silhouette of uniform rows on a line is 0.75, so that no gap exceeds 0.25."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1)) + 1000 * np.repeat(range(3), 100)[:, None]
    model = fit(x)
    assert (model.n_clusters_, model.verdict_) == (3, "clear")
    assert model.gap_ < 0.3


@pytest.mark.parametrize(
    ("x", "truth"),
    [make_moons(600, noise=0.05, random_state=1), make_circles(800, factor=0.4, random_state=1)],
)
@pytest.mark.parametrize("columns", [2, 9])
def test_curved_clusters_stay_whole(x, truth, columns):
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(columns, columns)))[0][:2]
    wide = x @ turn + 0.03 * rng.normal(size=(len(x), columns))
    assert adjusted_rand_score(truth, fit(wide).labels_) > 0.98


def test_a_curved_sheet_is_one_cluster():
    """The surface of a ball: groups tile it, but cut through links between neighbors."""
    x = np.random.default_rng(0).normal(size=(1000, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    model = fit(x)
    assert (model.n_clusters_, model.verdict_) == (1, "one_cluster")
    assert model.gap_ > choose_k.MIN_GAP


@every_row(("gap", "verdict"), [(0.0, "unclear"), (0.3, "clear")])
def test_curved_clusters_are_clear_if_they_do_not_touch(gap, verdict):
    """Two squares side by side, corner to corner."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(800, 2)) @ np.array([[1, 1], [1, -1]]) / 2
    x[400:, 0] += 2.0 + gap
    model = fit(x)
    assert model.gap_ == np.inf
    assert model.verdict_ == verdict
    assert not gap or adjusted_rand_score(np.arange(800) < 400, model.labels_) > 0.98


def test_levels():
    """Clusters within clusters: the parts are found, and the tree has their groups above them."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(12), 60))
    outer, inner = 40 * rng.normal(size=(3, 16)), 4 * rng.normal(size=(12, 16))
    x = outer[truth // 4] + inner[truth] + rng.normal(size=(720, 16))
    model = fit(x)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert adjusted_rand_score(truth // 4, model.cut(n_clusters=3)) == 1


@every_row("seed", [12], slow=[13])
def test_rows_along_closed_curves_are_not_divided_into_levels(seed):
    """The parts of a curve touch, however often it is divided."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(6), 250)
    t = rng.uniform(0, 2 * np.pi, (len(truth), 1)) * np.arange(1, 4)
    circles = np.concatenate([np.cos(t), np.sin(t)], axis=1)
    x = 0.1 * rng.normal(size=(len(truth), 20))
    for cluster in range(6):
        axes = np.linalg.qr(rng.normal(size=(20, 6)))[0]
        x[truth == cluster] += circles[truth == cluster] @ axes.T + 0.8 * rng.normal(size=20)
    labels = SmoothTree(random_state=0).fit(x).labels_
    assert adjusted_rand_score(truth, labels) > 0.9


@pytest.mark.parametrize(("split", "found"), [(9, 19), (10, 20)])
def test_parts_that_are_apart_become_clusters(split, found):
    """Ten clusters, of which so many have two parts."""
    rng = np.random.default_rng(1)
    truth = np.repeat(np.arange(20), 20)
    outer, inner = 60 * rng.normal(size=(10, 16)), 2 * rng.normal(size=(20, 16))
    inner[2 * split :] = 0
    x = outer[truth // 2] + inner[truth] + rng.normal(size=(400, 16))
    assert fit(x).n_clusters_ == found


@pytest.mark.parametrize(("each", "few", "columns"), [(20, 5, 6), (16, 5, 24), (30, 6, 6)])
def test_a_few_rows_do_not_hide_that_others_are_apart(each, few, columns):
    """Four times two clusters ten deviations apart, and a few rows beside both."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), [each, each, few] * 4)
    centers = 200 * np.eye(4, columns)[np.arange(12) // 3]
    centers[0::3, 4] += 10
    centers[2::3, 5] += 30
    model = SmoothTree("euclidean").fit(centers[y] + rng.normal(size=(len(y), columns)))
    assert model.verdict_ != "clear" or model.n_clusters_ in (8, 12)


@pytest.mark.parametrize("seed", [4, 5])
def test_far_rows_do_not_hide_that_others_are_apart(seed):
    """Seven clusters among 6 % of rows that are ten times as far away in all directions."""
    rng = np.random.default_rng(seed)
    y = np.arange(406) % 7
    centers = rng.normal(size=(7, 5))
    gaps = np.linalg.norm(centers[:, None] - centers, axis=2) + np.diag([np.inf] * 7)
    x = 10 / gaps.min() * centers[y] + rng.normal(size=(406, 5))
    model = SmoothTree("euclidean").fit(np.concatenate([x, 100 * rng.normal(size=(24, 5))]))
    assert model.verdict_ != "clear" or adjusted_rand_score(y, model.labels_[:406]) > 0.95


def test_fewer_rows_than_twice_the_axes_are_not_said_to_be_one_cluster():
    """Six clusters nine deviations apart, in many more columns than rows."""
    rng = np.random.default_rng(0)
    y = np.arange(66) % 6
    x = 9 / np.sqrt(3000) * rng.normal(size=(6, 1500))[y] + rng.normal(size=(66, 1500))
    model = SmoothTree("euclidean").fit(x)
    assert model.verdict_ == "unclear" or adjusted_rand_score(y, model.labels_) == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_clusters_in_one_direction_are_not_clear_if_they_are_apart(seed):
    """By default directions are clustered, and two of these clusters have one."""
    rng = np.random.default_rng(seed)
    centers = 25.0 * np.array([[1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]])
    y = np.arange(160) % 4
    model = SmoothTree().fit(centers[y] + rng.normal(size=(160, 5)))
    assert model.verdict_ != "clear" or model.n_clusters_ == 4


def test_silhouettes_of_means_are_those_of_their_rows():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 3)), np.repeat([0, 1, 2], 20)
    groups = np.arange(60) // 5
    counts, means = np.bincount(groups).astype(np.float32), arrays.cluster_means(x, groups)
    squares = arrays.cluster_means(np.square(x).sum(axis=1, keepdims=True), groups)[:, 0]
    found = choose_k.silhouettes(means, labels[::5], counts, squares)
    apart = np.square(x[:, None] - x[None]).sum(axis=2)
    for leaf in range(12):
        rows = apart[5 * leaf : 5 * leaf + 5]
        to = [rows[:, labels == c].mean() for c in range(3)]
        own = labels[5 * leaf]
        a, b = to[own] * 20 / 19, min(to[:own] + to[own + 1 :])
        assert found[leaf] == pytest.approx((b - a) / max(a, b), abs=1e-5)


def test_silhouettes_are_those_of_squared_distances():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(60, 3)), rng.integers(0, 4, 60)
    labels[labels == 3] = 2
    labels[0] = 3  # a cluster of one row
    squares = np.square(x[:, None] - x[None]).sum(axis=2)
    expected = silhouette_samples(squares, labels, metric="precomputed")
    found = choose_k.silhouettes(x.astype(np.float32), labels)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_score_is_the_mean_of_the_silhouettes_of_sharp_and_smooth_rows():
    x, _ = blobs((60,) * 5)
    model = fit(x)
    rows, labels = model._fit_.smoother, model.labels_[model._fit_.sample]
    both = [choose_k.silhouettes(r, labels).mean() for r in (rows.sharp, rows.smooth)]
    assert model.scores_[5] == pytest.approx(np.mean(both))
    assert max(model.scores_, key=model.scores_.get) == 5


def test_the_last_step_is_to_the_nearest_mean_of_sharp_rows():
    """Row 2 is with the first rows by its smooth row, and with the last by its sharp one."""
    smooth_rows = np.float32([[0], [0.1], [0.2], [10], [10.1], [10.2]])
    sharp = np.float32([[0], [0.1], [9], [10], [10.1], [10.2]])
    none = np.empty((6, 0), np.int64)
    rows = representation.Smoother(np.zeros(1), np.eye(1), False, sharp, smooth_rows, none)
    labels = choose_k.partition(rows, tree.ward(smooth_rows), 2)
    assert (labels == labels[2]).tolist() == [False, False, True, True, True, True]


def test_more_clusters_than_three_hundred():
    centers = 30 * np.random.default_rng(0).normal(size=(320, 8))
    truth = np.repeat(np.arange(320), 12)
    x = centers[truth] + np.random.default_rng(1).normal(size=(3840, 8))
    model = fit(x)
    assert (model.n_clusters_, model.verdict_) == (320, "clear")
    assert adjusted_rand_score(truth, model.labels_) == 1


def test_iris_splits_where_it_is_split():
    x, y = load_iris(return_X_y=True)
    assert adjusted_rand_score(y > 0, fit(x).labels_) == 1


@pytest.mark.parametrize("wanted", [None, 16])
def test_one_huge_cluster_beside_many_small_ones(wanted):
    """The rows of the huge one have no say in the number of the others."""
    rng = np.random.default_rng(1)
    centers = representation.unit_rows(rng.normal(size=(16, 32)))
    truth = np.repeat(np.arange(16), [700, *[20] * 15])
    x = centers[truth] + 0.08 * rng.normal(size=(1000, 32))
    model = SmoothTree("cosine", n_clusters=wanted).fit(x)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert model.n_clusters_ == 16
    assert wanted or model.verdict_ == "clear"


@every_row("columns", [2, 6, 20])
@every_row("sizes", [(4, 3), (4, 6, 5)])
def test_few_rows_in_groups_far_apart(columns, sizes):
    """A silhouette cannot be two deviations above those of so few Gaussian rows, and groups of
    fewer than five rows are none to HDBSCAN."""
    for seed in range(3):
        truth = np.repeat(np.arange(len(sizes)), sizes)
        x = np.random.default_rng(seed).normal(size=(len(truth), columns))
        x[:, :2] += 12 * np.eye(3, 2)[truth]
        assert adjusted_rand_score(truth, fit(x).labels_) == 1


def test_the_null_has_five_rows_for_each_cluster():
    """Of two rows a cluster, the silhouette of Gaussian rows would be low."""
    x = np.random.default_rng(0).normal(size=(3000, 8))
    rows = representation.fit(x, "euclidean")
    labels = choose_k.partition(rows, tree.ward(rows.smooth), 600)
    assert abs(choose_k.split(x, rows, labels, np.random.default_rng(0))[1]) < 0.03


@every_row(("k", "each"), [(120, 12)], slow=[(60, 20)])
def test_many_random_centers_in_few_columns(k, each):
    """The covariance of the centers is that of noise, and small clusters are no copies.

    With ten rows in place of twelve the answer depends on how a processor rounds.
    """
    truth = np.repeat(np.arange(k), each)
    centers = 30 * np.random.default_rng(0).normal(size=(k, 8))
    x = centers[truth] + np.random.default_rng(1).normal(size=(k * each, 8))
    model = fit(x)
    assert model.verdict_ == "clear"
    assert adjusted_rand_score(truth, model.labels_) > 0.99


def test_random_centers_that_overlap_in_every_column():
    """Along the axes of noise, rows are at 0.7 of the distances of Gaussian rows."""
    rng, truth = np.random.default_rng(1), np.repeat(np.arange(23), 14)
    x = rng.normal(size=(23, 8))[truth] + 0.25 * rng.normal(size=(322, 8))
    assert adjusted_rand_score(truth, fit(x).labels_) > 0.95
