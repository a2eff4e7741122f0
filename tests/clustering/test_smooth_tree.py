"""SmoothTree: numbers of clusters, verdicts, cuts, predictions, invariances, bad input."""

import pickle

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.cluster import hierarchy
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import cluster_jax
from cluster_jax.clustering import choose_k, representation, tree_fit, verdict
from cluster_jax.clustering.smooth_tree import SmoothTree
from cluster_jax.core import io, knn
from cluster_jax.core.checks import InputError
from cluster_jax.data.arrays import Shards
from tests.clustering.blobs import blobs, fit
from tests.rows import every_row


def test_columns_of_few_values():
    x, truth = blobs((300, 300, 300), 3, gap=5, seed=2)
    assert adjusted_rand_score(truth, fit(np.round(x)).labels_) > 0.97


def test_cuts_are_nested_partitions_of_which_the_labels_are_one():
    x, _ = blobs((60,) * 6)
    model = fit(x)
    assert hierarchy.is_valid_linkage(model.linkage_)
    previous = model.cut(n_clusters=1)
    for k in range(2, 40):
        groups = model.cut(n_clusters=k)
        assert len(np.unique(groups)) == k
        assert len(np.unique(np.stack([groups, previous]), axis=1).T) == k
        previous = groups
    np.testing.assert_array_equal(model.cut(n_clusters=6), model.labels_)
    np.testing.assert_array_equal(model.cut(), model.labels_)


def test_heights_are_those_of_ward():
    """With one level of one cluster the tree is SciPy's; above clusters, sizes count."""
    x, _ = blobs((50, 50))
    one = fit(np.random.default_rng(0).normal(size=(60, 8)))
    expected = hierarchy.linkage(one._fit_.smoother.smooth.astype(np.float64), "ward")
    np.testing.assert_allclose(one.linkage_[:, 2:], expected[:, 2:])
    two = fit(x)
    labels = two.labels_[two._fit_.sample]
    means = [two._fit_.smoother.smooth[labels == c].mean(axis=0) for c in range(2)]
    gap = np.linalg.norm(means[0] - means[1]) * np.sqrt(2 * 50 * 50 / 100)
    assert two.linkage_[-1, 2] == pytest.approx(gap, rel=1e-4)


def test_number_of_clusters_given():
    x, truth = blobs((100,) * 4)
    model = fit(x, n_clusters=4)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert fit(x, n_clusters=9).n_clusters_ == 9
    assert not fit(x, n_clusters=1).labels_.any()
    for k in (150, 399, 400):
        assert fit(x, n_clusters=k).n_clusters_ == k


def test_a_given_number_is_not_searched_for(monkeypatch):
    steps = [(verdict, "find"), (verdict, "_divided"), (choose_k, "search")]
    for module, step in [*steps, (choose_k, "without_clusters")]:
        monkeypatch.setattr(module, step, lambda *_, step=step: pytest.fail(step))
    x, _ = blobs((100,) * 4)
    assert fit(x, n_clusters=6).n_clusters_ == 6
    assert fit(x[:, :2], n_clusters=6).n_clusters_ == 6


@every_row(("n", "d"), [(90, 2), (200, 9), (500, 30)])
def test_a_row_between_two_clusters_is_not_sure(n, d):
    rng, truth = np.random.default_rng(d), np.arange(n) % 2
    x = rng.normal(size=(n, d))
    x[:, 0] += 11 * truth
    middle = np.zeros((1, d))
    middle[0, 0] = 5.5
    for row in (middle, middle + 0.05):
        model = fit(np.concatenate([x, row]))
        assert (model.n_clusters_, model.probabilities_[-1] < 0.9) == (2, True)
    assert (fit(x).predict_proba(middle) < 0.9).all()
    assert fit(x).probabilities_.mean() > 0.99


@pytest.mark.parametrize("most", [400, 350])  # The second: micro-clusters.
@pytest.mark.parametrize("metric", representation.METRICS)
def test_the_order_of_the_rows_changes_nothing(metric, most, monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", most)
    x, _ = blobs((100,) * 4, gap=1.0)
    x[7] = x[8]
    order = np.random.default_rng(3).permutation(400)
    one, other = SmoothTree(metric).fit(x), SmoothTree(metric).fit(x[order])
    np.testing.assert_array_equal(one.linkage_, other.linkage_)
    np.testing.assert_array_equal(one.probabilities_[order], other.probabilities_)
    np.testing.assert_array_equal(
        one.labels_[order] == one.labels_[0], other.labels_ == one.labels_[0]
    )
    assert adjusted_rand_score(one.labels_[order], other.labels_) == 1


def test_many_rows_are_condensed(monkeypatch):
    """Micro-clusters give the clusters of all rows, and every cut is one of them."""
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 200)
    x, truth = blobs((200,) * 4)
    model = fit(x)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    assert len(model._fit_.sample) <= 200
    counts = np.bincount(model._fit_.leaves)
    np.testing.assert_array_equal(model._fit_.smoother.counts, counts)
    sharp = model._fit_.smoother.project(x)
    for leaf in (0, len(counts) - 1):
        own = sharp[model._fit_.leaves == leaf]
        np.testing.assert_allclose(model._fit_.smoother.sharp[leaf], own.mean(axis=0), atol=1e-5)
        squares = np.square(own).sum(axis=1).mean()
        assert model._fit_.smoother.squares[leaf] == pytest.approx(squares, rel=1e-4)
    of_leaves = model.labels_[model._fit_.sample]
    np.testing.assert_array_equal(model.labels_, of_leaves[model._fit_.leaves])
    for k in (2, 4, 9):
        groups = model.cut(n_clusters=k)
        assert len(np.unique(groups)) == k
        fine = model.labels_ if k <= 4 else groups
        coarse = groups if k <= 4 else model.labels_
        assert len(np.unique(np.stack([fine, coarse]), axis=1).T) == max(4, k)
    assert model.transform(x[:7]).shape == (7, model._fit_.smoother.smooth.shape[1])


def test_micro_clusters_are_the_same_on_one_device_and_four(monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 200)
    x, _ = blobs((200,) * 4, gap=1.0)
    every, found = jax.devices(), []
    for count in (1, 4):
        monkeypatch.setattr(jax, "local_devices", lambda count=count: every[:count])
        found.append(fit(x))
    for name in ("labels", "leaves", "sample", "linkage"):
        np.testing.assert_array_equal(*(getattr(model._fit_, name) for model in found), name)


def test_more_clusters_than_half_of_the_micro_clusters(monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 200)
    centers = 30 * np.random.default_rng(0).normal(size=(120, 8))
    truth = np.repeat(np.arange(120), 10)
    x = centers[truth] + np.random.default_rng(1).normal(size=(1200, 8))
    model = fit(x)
    assert adjusted_rand_score(truth, model.labels_) > 0.99


def test_probabilities_are_shares_of_labels_after_two_averages():
    x, _ = blobs((100,) * 4, gap=0.8)
    model = fit(x)
    sharp, order = model._fit_.smoother.sharp, model._fit_.sample
    count = representation.n_neighbors(len(order))
    near = knn.nearest(sharp, sharp, count, exclude_self=True).indices
    shares = np.eye(model.n_clusters_)[model.labels_[order]]
    for _ in range(2):
        shares = (shares + shares[near].sum(axis=1)) / (count + 1)
    own = shares[np.arange(len(order)), model.labels_[order]]
    np.testing.assert_allclose(model.probabilities_[order], own)
    likely = model.second_labels_ >= 0
    assert 0 < likely.sum() < 400
    assert (model.second_labels_[likely] != model.labels_[likely]).all()
    assert (model.second_probabilities_[~likely] == 0).all()


@every_row("n", [1, 2, 5, 9, 10, 11, 19, 25])
@every_row("metric", representation.METRICS)
def test_few_rows(n, metric):
    x = np.random.default_rng(n).normal(size=(n, 6))
    model = SmoothTree(metric).fit(x)
    assert model.labels_.shape == (n,)
    leaves = len(model._fit_.sample)
    assert model.linkage_.shape == (leaves - 1, 4)
    assert model.predict(x[:1]).tolist() == model.labels_[:1].tolist()
    assert len(np.unique(model.cut(n_clusters=leaves))) == leaves


@every_row("metric", representation.METRICS)
@every_row("value", [0.0, 3.0, 1e17])
@every_row("columns", [1, 2, 30])
def test_equal_rows_are_one_cluster(metric, value, columns):
    model = SmoothTree(metric).fit(np.full((50, columns), value))
    assert (model.n_clusters_, model.verdict_) == (1, "one_cluster")


@every_row("draw", ["normal", "uniform", "exponential"])
def test_constant_and_repeated_columns_change_nothing(draw):
    x = getattr(np.random.default_rng(1), draw)(size=(200, 1))
    model = SmoothTree("euclidean").fit(x)
    sevens = np.full((200, 2), 7.0)
    for other in ([x, sevens], [sevens, x, x]):
        again = SmoothTree("euclidean").fit(np.concatenate(other, axis=1))
        assert again.verdict_ == model.verdict_
        assert adjusted_rand_score(again.labels_, model.labels_) == 1


@every_row("metric", representation.METRICS)
def test_rows_far_away_have_the_clusters_of_their_direction(metric):
    x, _ = blobs((60, 60, 60))
    model = SmoothTree(metric).fit(x)
    near = model.predict_proba(1e12 * x)
    np.testing.assert_allclose(near.sum(axis=1), 1)
    for scale in (1e39, 1e140):
        np.testing.assert_allclose(model.predict_proba(scale * x), near, atol=1e-4)
        assert np.isfinite(model.transform(scale * x)).all()


def test_copies_zero_rows_and_constant_columns():
    x, truth = blobs((100, 100, 100))
    x[:90] = x[0]
    truth[:90] = truth[0]
    x = np.concatenate([x, np.full((300, 5), 7.0)], axis=1)
    assert adjusted_rand_score(truth, fit(x).labels_) > 0.99
    x[:20] = 0
    assert np.isfinite(tree_fit.fit(x).membership.probabilities).all()


def test_seeds():
    x, _ = blobs((60,) * 6)
    assert fit(x).gap_ == fit(x).gap_ != fit(x, random_state=1).gap_
    gaps = [fit(x, random_state=np.random.RandomState(seed)).gap_ for seed in (4, 4, 5)]
    assert gaps[0] == gaps[1] != gaps[2]
    assert fit(x, random_state=None).gap_ != fit(x, random_state=None).gap_


def test_four_blobs_in_the_plane_are_compared_by_distance():
    rng, truth = np.random.default_rng(0), np.repeat(np.arange(4), 100)
    x = np.array([[0, 0], [9, 9], [0, 9], [18, 18]])[truth] + rng.normal(size=(400, 2))
    model = SmoothTree().fit(x)
    assert (model.metric_, model.n_clusters_) == ("euclidean", 4)
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    whole = np.round(x).astype(int) + 20
    assert SmoothTree("cosine").fit(whole).score_samples(whole).max() == 0
    assert SmoothTree().fit(blobs((60, 60))[0]).metric_ == "cosine"


def test_known_copies_change_nothing():
    """Rows that something else than their values tells to be copies take their original's place."""
    x, _ = blobs((40,) * 4)
    others = np.random.default_rng(5).permutation(160)[:60]
    copied = np.concatenate([x, x[others] + np.random.default_rng(6).normal(size=(60, 20))])
    originals = np.concatenate([np.arange(160), others])
    model = tree_fit.fit(x, "euclidean")
    again = tree_fit.fit(copied, "euclidean", originals=originals)
    np.testing.assert_array_equal(again.leaves, again.leaves[originals])
    np.testing.assert_array_equal(again.smoother.smooth, model.smoother.smooth)
    assert adjusted_rand_score(model.labels, again.labels[:160]) == 1
    assert again.linkage[-1, 3] == 160
    more = tree_fit.fit(copied, "euclidean", 200, originals=originals)
    assert len(more.ids) == 200  # More than the originals: the copies part.


def test_clusters_asked_for_beyond_the_distinct_rows():
    x = np.repeat(np.random.default_rng(0).normal(size=(5, 6)), 4, axis=0)
    assert fit(x, n_clusters=5).n_clusters_ == 5
    with pytest.raises(ValueError, match="n_clusters must be at most 5 distinct rows; got 6"):
        fit(x, n_clusters=6)
    x = np.concatenate([x, x + 1e-9])  # Near copies part.
    assert fit(x, n_clusters=8).n_clusters_ == 8


def test_bad_arguments():
    x, _ = blobs((30, 30))
    model = fit(x)
    for call, message in (
        (lambda: SmoothTree("l1").fit(x), "metric must be one of"),
        (lambda: fit(x, n_clusters=61), "n_clusters must be at most 60"),
        (lambda: fit(x, n_clusters=2.5), "n_clusters must be a whole number"),
        (lambda: fit(x, random_state=-1), "random_state must be"),
        (lambda: model.cut(n_clusters=0), "n_clusters must be at least 1"),
        (lambda: model.cut(n_clusters=61), "n_clusters must be at most 60"),
        (lambda: model.cut(n_clusters="3"), "n_clusters must be a number"),
        (lambda: fit(np.where(x == x[3, 4], np.nan, x)), "finite"),
        (lambda: fit(1e200 * x), "scale them"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@parametrize_with_checks([SmoothTree(metric="euclidean")])
def test_estimator(estimator, check):
    check(estimator)


def test_new_rows_are_checked_like_those_of_fit():
    x, _ = blobs((60, 60))
    model = fit(x)
    with pytest.raises(ValueError, match=r"between -1e\+150 and 1e\+150.*got 1e\+200"):
        model.predict(np.full((1, 20), 1e200))
    with pytest.raises(ValueError, match=r"between -1e\+150 and 1e\+150.*got 1e\+200"):
        model.transform(np.full((1, 20), 1e200))
    with pytest.raises(NotFittedError):
        SmoothTree().cut(n_clusters=2)


@pytest.fixture(scope="module")
def few_and_copies():
    """Three groups, one of three rows, and a third of all rows twice."""
    rng = np.random.default_rng(5)
    sizes = (60, 40, 3)
    rows = np.repeat(np.eye(3, 6) * 20, sizes, axis=0) + rng.normal(size=(sum(sizes), 6))
    return np.concatenate([rows, rows[::3]])


def test_one_probability_for_old_and_new_rows(few_and_copies):
    x = few_and_copies
    model = SmoothTree("euclidean", n_clusters=3).fit(x)
    every = model.predict_proba(x)
    np.testing.assert_allclose(every.sum(axis=1), 1)
    own = every[np.arange(len(x)), model.labels_]
    np.testing.assert_allclose(own, model.probabilities_, atol=1e-6)
    found = model.assign(x)
    np.testing.assert_array_equal(found.labels, model.labels_)
    np.testing.assert_allclose(found.probabilities, model.probabilities_, atol=1e-6)
    np.testing.assert_allclose(found.second_probabilities, model.second_probabilities_, atol=1e-6)
    # Three rows look at each other only, not at seven strangers.
    assert (model.probabilities_[100:103] == 1).all()


def test_a_new_row_has_its_likeliest_cluster(few_and_copies):
    x = few_and_copies
    model = SmoothTree("euclidean", n_clusters=3).fit(x)
    new = (x[:60] + x[40:100]) / 2
    found, every = model.assign(new), model.predict_proba(new)
    np.testing.assert_array_equal(found.labels, every.argmax(axis=1))
    np.testing.assert_array_equal(found.labels, model.predict(new))
    np.testing.assert_allclose(found.probabilities, every.max(axis=1))
    second = np.sort(every, axis=1)[:, -2]
    np.testing.assert_allclose(found.second_probabilities, second)
    one = model.assign(new[:1])
    for whole, alone in zip(found, one, strict=True):
        np.testing.assert_allclose(whole[:1], alone)
    assert model.assign(100 + new[:3]).is_novel.all()
    np.testing.assert_allclose(model.transform(new[:1]), model.transform(new)[:1])


def test_saved_and_loaded(few_and_copies, tmp_path):
    x = few_and_copies
    model = SmoothTree("auto", random_state=3).fit(x)
    model.save(tmp_path / "model.npz")
    again = SmoothTree.load(tmp_path / "model.npz")
    assert again.get_params() == model.get_params()
    assert again.scores_ == model.scores_
    others = ("_fit_", "_state_", "scores_", "changes_")
    for name in (n for n in vars(model) if n.endswith("_") and n not in others):
        np.testing.assert_array_equal(getattr(model, name), getattr(again, name))
    new = (x[:60] + x[40:100]) / 2
    for ours, theirs in zip(model.assign(new), again.assign(new), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(model.transform(new), again.transform(new))
    np.testing.assert_array_equal(model.cut(n_clusters=5), again.cut(n_clusters=5))
    with np.load(tmp_path / "model.npz", allow_pickle=False) as stored:
        assert stored["version"] == cluster_jax.__version__
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_proba(new), model.predict_proba(new))


@pytest.mark.parametrize("most", [tree_fit.MAX_ROWS, 90])
def test_rows_may_be_read_in_blocks(most, tmp_path, monkeypatch):
    """The same clusters as of an array; and a sparse matrix is none, though it can be sliced."""
    monkeypatch.setattr(tree_fit, "MAX_ROWS", most)
    x, truth = blobs((60, 60, 80))
    np.save(tmp_path / "x.npy", x)
    model = SmoothTree("euclidean").fit(Shards(str(tmp_path / "x.npy")))
    assert adjusted_rand_score(truth, model.labels_) == 1
    assert model.n_features_in_ == x.shape[1]
    np.testing.assert_array_equal(model.predict(x), model.labels_)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        SmoothTree().fit(sparse.csr_array(x))


def test_names_of_columns_stay(tmp_path):
    columns = list("abcdef")
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 6)), columns=columns)
    model = SmoothTree("euclidean").fit(x).partial_fit(x[:5])
    model.save(tmp_path / "model.npz")
    for known in (model, SmoothTree.load(tmp_path / "model.npz")):
        with pytest.raises(ValueError, match="feature names should match"):
            known.predict(x[columns[::-1]])


def test_other_files_are_refused(few_and_copies, tmp_path):
    io.write_arrays(tmp_path / "other.npz", {"kind": np.asarray("ByVotes")})
    with pytest.raises(InputError, match=r"other.npz must be a file of SmoothTree.save"):
        SmoothTree.load(tmp_path / "other.npz")
    SmoothTree("euclidean").fit(few_and_copies).save(tmp_path / "new.npz")
    stored = io.read_arrays(tmp_path / "new.npz")
    del stored["leaves"]
    io.write_arrays(tmp_path / "old.npz", stored)
    with pytest.raises(InputError, match="version"):
        SmoothTree.load(tmp_path / "old.npz")


@pytest.mark.parametrize("moved_to", [-1, 1, 7])
def test_a_label_that_only_a_copy_has(few_and_copies, moved_to):
    """A person may move one of two equal rows: no leaf of the tree is in that cluster."""
    x = few_and_copies
    model = SmoothTree("euclidean", n_clusters=3).fit(x)
    labels = np.array([0, 3, 9])[model.labels_]
    labels[-1] = moved_to
    assert len(x) - 1 not in model._fit_.sample
    placed = model._fit_.placer.place(x[:90], labels)
    np.testing.assert_array_equal(placed.labels, labels[:90])
    assert np.isfinite(placed.distances).all()
    every = model._fit_.placer.probabilities(x, labels)
    assert every.shape == (len(x), 4)
    np.testing.assert_allclose(every.sum(axis=1), 1)
    assert not every[:, np.unique(labels).tolist().index(moved_to)].any()


def test_a_second_fit_leaves_nothing_of_the_first():
    x, _ = blobs((60, 60, 60))
    other, truth = blobs((60, 60, 60, 60), seed=1)
    model = SmoothTree("euclidean").fit(x)
    model.partial_fit(x[:5])
    model.assign(x)
    model.fit(other)
    np.testing.assert_array_equal(model.assign(other).labels, model.labels_)
    assert adjusted_rand_score(truth, model.assign(other).labels) == 1
    assert [event.kind for event in model.changes_] == ["emerged"] * 4


def test_more_clusters_than_micro_clusters(monkeypatch):
    monkeypatch.setattr(tree_fit, "MAX_ROWS", 200)
    x, _ = blobs((200,) * 4)
    message = "n_clusters must be at most .* micro-clusters of 800 rows; got 300"
    with pytest.raises(InputError, match=message):
        fit(x, n_clusters=300)


def test_rows_without_a_direction_are_in_no_cluster():
    """Zeros under the cosine, as of texts or files that failed."""
    rng = np.random.default_rng(0)
    x = 3 * rng.normal(size=(4, 1, 64)) + rng.normal(size=(4, 40, 64))
    x = np.concatenate([np.zeros((2, 64)), x.reshape(160, 64), np.zeros((3, 64))])
    is_zero = ~x.any(axis=1)
    with pytest.warns(UserWarning, match="5 rows are in no cluster: zeros alone"):
        model = SmoothTree().fit(x)
    alone = SmoothTree().fit(x[~is_zero])
    np.testing.assert_array_equal(model.labels_[~is_zero], alone.labels_)
    np.testing.assert_array_equal(model.probabilities_[~is_zero], alone.probabilities_)
    assert (model.n_clusters_, model.verdict_) == (4, "clear")
    assert (model.labels_[is_zero] == -1).all()
    assert not model.probabilities_[is_zero].any()
    np.testing.assert_array_equal(model.cut(n_clusters=2)[~is_zero], alone.cut(n_clusters=2))
    assert (model.cut(n_clusters=2)[is_zero] == -1).all()
    placed = model.assign(x[[0, 5]])
    assert placed.labels.tolist() == [-1, model.labels_[5]] == model.predict(x[[0, 5]]).tolist()
    assert (placed.is_novel.tolist(), placed.probabilities[0]) == ([True, False], 0)
    new = np.concatenate([x[10:14], np.zeros((2, 64))])
    ids = [*model.labels_, *model.labels_[10:14], -1, -1]
    np.testing.assert_array_equal(model.partial_fit(new).labels_, ids)
    assert (SmoothTree(metric="euclidean").fit(x).labels_ >= 0).all()
    assert set(SmoothTree().fit(np.zeros((9, 5))).labels_.tolist()) == {0}


def test_a_copy_with_a_direction_stands_for_an_image_without_one():
    """Rows 0 and 1 are zeros: the first is an original with a copy, the second has none."""
    rng = np.random.default_rng(0)
    x = 3 * rng.normal(size=(4, 1, 64)) + rng.normal(size=(4, 40, 64))
    x = np.concatenate([np.zeros((2, 64)), x.reshape(160, 64)])
    originals = np.arange(len(x))
    originals[[7, 50]] = [0, 5]
    labels = tree_fit.fit(x, originals=originals).labels
    assert labels[[0, 50]].tolist() == labels[[7, 5]].tolist()
    assert np.flatnonzero(labels == -1).tolist() == [1]
