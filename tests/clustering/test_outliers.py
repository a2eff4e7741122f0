"""ModeTree where rows are far, in another order, or very large or small."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import basins, membership, outliers, reduce, separation, signal
from cluster_jax.clustering.modes import ModeTree


def _classes(d=2, seed=0):
    """Four classes of two modes each."""
    rng = np.random.default_rng(seed)
    mode = np.arange(480) % 8
    directions = np.linalg.qr(rng.normal(size=(max(d, 4), max(d, 4))))[0]
    centers = 60 * directions[mode // 2, :d] + 7 * directions[::-1][mode % 2, :d]
    return centers + rng.normal(size=(480, d)), mode // 2


def _with_far_rows(x, n_far, times, seed=0):
    """`x` with `n_far` rows at so many times its spread, each in a direction of its own."""
    far = np.random.default_rng(seed).normal(size=(n_far, x.shape[1]))
    far *= times * x.std() / np.linalg.norm(far, axis=1, keepdims=True)
    return np.concatenate([x, far])


def _fit(x):
    return ModeTree(metric="euclidean").fit(x)


@pytest.mark.parametrize(
    ("d", "n_far", "times"),
    [(2, 1, 30.0), (2, 1, 1e3), (2, 5, 1e3), (3, 3, 1e6), (3, 5, 1e12)],
)
def test_outliers_change_no_number(d, n_far, times):
    x, truth = _classes(d)
    model = _fit(x)
    assert model.n_clusters_ == 4 < model.tree_.n_clusters
    far = _fit(_with_far_rows(x, n_far, times))
    assert far.n_clusters_ == 4
    assert adjusted_rand_score(truth, far.labels_[: len(x)]) == 1


def test_outliers_move_no_mean():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    far = _with_far_rows(rows, 2, 1e6)
    center, typical = outliers.median_distance(far)
    core = outliers.is_core(far, center, typical)
    assert (~core).nonzero()[0].tolist() == [200, 201]
    np.testing.assert_allclose(outliers.core_mean(far, core), rows.mean(axis=0), atol=1e-12)
    assert outliers.is_core(np.zeros((5, 2)), np.zeros(2), 0.0).all()


def test_outliers_take_no_part_in_silhouettes_and_roundness():
    rows = np.random.default_rng(0).normal(size=(120, 2)) + 20 * (np.arange(120) % 3)[:, None]
    far = _with_far_rows(rows, 1, 1e4)
    groups, merges = np.append(np.arange(120) % 3, 0), np.array([[0, 1], [2, 3]])
    every = np.ones(3, bool)
    without = separation.silhouettes(rows, groups[:120], merges, every)
    found = separation.silhouettes(far, groups, merges, every)
    np.testing.assert_allclose(found, without, atol=0.02)
    assert separation.roundness(far, groups) == 1


def test_outliers_take_no_part_in_probabilities():
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 2
    rows = rng.normal(size=(600, 2)) + 3.2 * truth[:, None] * np.array([1.0, 0.0])
    far = _with_far_rows(rows, 2, 1e4)
    groups = np.append((rows[:, 0] > 1.4).astype(int), [0, 1])
    wanted = membership.assign(rows, groups[:600], basins.nearest_rows(rows, 20)[1])
    member = membership.assign(far, groups, basins.nearest_rows(far, 20)[1])
    assert (wanted.probabilities < 0.99).any()
    assert np.abs(member.probabilities[:600] - wanted.probabilities).mean() < 0.01


def test_outliers_hide_no_component():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 60))
    rows[:, :8] += 4 * rng.normal(size=(500, 8))
    for times in (1e3, 1e9, 1e200):
        projection = signal.fit(_with_far_rows(rows, 5, times))
        assert projection.components.shape == (60, 16)
        assert (np.linalg.norm(projection.components[:8], axis=1) > 0.97).all()
        assert np.abs(projection.mean).max() < 1


def test_far_rows_leave_neighbors_as_they_are():
    rows = np.random.default_rng(0).normal(size=(100, 12)).astype(np.float32)
    far = np.concatenate([rows, np.full((1, 12), 1e13, np.float32)])
    wanted = reduce._neighbor_graph(rows, 5, "euclidean")
    found = reduce._neighbor_graph(far, 5, "euclidean")
    assert np.array_equal(found[0][:100], wanted[0])
    np.testing.assert_allclose(found[1][:100], wanted[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_order_of_rows_of_few_values_changes_nothing(d):
    rng = np.random.default_rng(3)
    x = np.round(3 * rng.normal(size=(5, d))[np.arange(700) % 5] + rng.normal(size=(700, d)) / 2)
    x = x.astype(int)
    assert all(4 <= len(np.unique(column)) <= 20 for column in x.T)

    def partition(rows):
        """Labels beside rows; which of equal rows has which label is open."""
        beside = np.column_stack([rows, _fit(rows).labels_])
        return beside[np.lexsort(beside.T)].tolist()

    wanted = partition(x)
    for seed in range(3):
        assert partition(x[np.random.default_rng(seed).permutation(len(x))]) == wanted


def test_sorted_columns_have_few_values_too():
    x = np.sort(np.repeat(np.arange(4000.0), 20))[:, None]
    assert len(np.unique(signal.dequantize(x))) == len(x)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e-30, 1e18, 1e155, 1e300])
def test_scale_changes_nothing(scale):
    x, _ = _classes(3)
    model, scaled = _fit(x), _fit(x * scale)
    assert adjusted_rand_score(model.labels_, scaled.labels_) == 1
    assert np.array_equal(scaled.predict(x * scale), scaled.labels_)
    assert np.isfinite(scaled.embedding_).all()
    if scale != 1e-310:  # Of other numbers powers of two change no bit.
        assert np.array_equal(_fit(x * 2.0 ** np.round(np.log2(scale))).labels_, model.labels_)


def test_scale_of_columns_that_are_mapped():
    x, _ = _classes(12)
    for scale in (1e-200, 1e155):
        projection = signal.fit(x * scale)
        assert projection.components.shape == signal.fit(x).components.shape
        peaks = np.abs(projection.project(x * scale)).max(axis=1)
        assert 0.01 < np.median(peaks) < 100


def test_rows_of_any_distance_are_predicted():
    x, truth = _classes()
    model = _fit(x)
    centers = np.stack([x[truth == c].mean(axis=0) for c in range(4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = [model.predict(centers * times) for times in (1e3, 1e20, 1e155, 1e300)]
    assert all(np.array_equal(labels, far[0]) for labels in far)


def test_numbers_without_a_sum_are_refused():
    message = r"X must have numbers of at most 1e\+303; got 1.7e\+308"
    with pytest.raises(ValueError, match=message):
        _fit(np.full((5, 2), -1.7e308))
    with pytest.raises(ValueError, match=message):
        _fit(np.ones((5, 2))).predict([[1.7e308, 0]])
