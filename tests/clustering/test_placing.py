"""New rows among the training rows: votes and novelty."""

import numpy as np
import pytest

from cluster_jax.clustering import placing
from cluster_jax.clustering.placing import ByCenters, voters
from cluster_jax.core import knn


def _unit(rng, n, d):
    rows = rng.normal(size=(n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_copies_of_a_row_agree_on_the_commonest_label():
    rng = np.random.default_rng(2)
    features = _unit(rng, 30, 6)
    features[[3, 8, 11, 20]] = features[3]
    labels = rng.integers(0, 4, 30)
    labels[[3, 8, 11, 20]] = [1, 2, 2, 0]
    found = knn.nearest(features[3:4], features, 12, metric="cosine")
    assert found.indices[0, :4].tolist() == [3, 8, 11, 20]
    assert knn.vote(found, labels).argmax(axis=1).tolist() == [2]
    labels[[3, 8, 11, 20]] = [3, 2, 2, 3]  # a tie goes to the lower label
    assert knn.vote(found, labels).argmax(axis=1).tolist() == [2]


def test_votes_against_loops():
    rng = np.random.default_rng(3)
    features, rows = _unit(rng, 50, 3), _unit(rng, 40, 3)
    labels = rng.integers(0, 5, 50)
    found = knn.nearest(rows, features, 6, metric="cosine")
    chosen = knn.vote(found, labels).argmax(axis=1)
    for i in range(40):
        votes = dict.fromkeys(range(5), 0.0)
        for j, distance in zip(found.indices[i], found.distances[i], strict=True):
            votes[labels[j]] += 1 / distance
        assert chosen[i] == max(votes, key=votes.get)
    # Neither the nearest row nor a plain majority alone decides.
    assert (chosen != labels[found.indices[:, 0]]).any()
    plain = [np.bincount(labels[row]).argmax() for row in found.indices]
    assert (chosen != plain).any()


@pytest.mark.parametrize("sample", [5_000, 50])
def test_reach_is_a_quantile_of_nearest_other_rows(sample, monkeypatch):
    monkeypatch.setattr(placing, "_SAMPLE", sample)
    rng = np.random.default_rng(4)
    features = _unit(rng, 200, 3)
    features[17] = features[90]  # a copy is another row, at distance 0
    chosen = np.arange(min(200, sample)) * 200 // min(200, sample)
    exact = features.astype(np.float64)
    apart = [np.sort(np.square(exact - exact[i]).sum(axis=1) / 2)[1] for i in chosen]
    np.testing.assert_allclose(
        placing.novelty_threshold(features), np.quantile(apart, 0.95), rtol=1e-9
    )
    assert placing.novelty_threshold(features) > np.median(apart)


def test_rows_that_are_not_finite_are_refused():
    known = voters(_unit(np.random.default_rng(5), 4, 3), "cosine")
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"rows must be finite; got NaN.*may not suit"):
            known.nearest(np.array([[1.0, 0, 0], [bad, 0, 0]]))


def test_a_center_without_rows_has_no_label_after_corrections():
    """k-means may leave one: a new row near it has the label of the nearest other center."""
    rows = np.array([[0.0, 0], [0.1, 0], [9, 0], [9.1, 0]])
    centers = np.array([[0.0, 0], [4.5, 0], [9, 0]])
    known = ByCenters(centers, np.array([0, 0, 2, 2]), voters(rows, "euclidean"))
    new = np.array([[4.4, 0], [4.6, 0]])
    assert known.place(new).labels.tolist() == [1, 1]
    assert known.place(new, np.array([7, 7, 3, 3])).labels.tolist() == [7, 3]


def test_a_row_joins_the_center_of_the_nearest_direction():
    """With the cosine lengths do not count, and the distance is 1 - cosine."""
    centers = np.array([[2.0, 0], [0, 0.5]])
    known = ByCenters(centers, np.array([0, 1]), voters(np.eye(2), "cosine"))
    new = np.array([[1.0, 2.0], [30.0, 3.0]])
    found = known.place(new)
    assert found.labels.tolist() == [1, 0]
    cosines = np.array([2 / np.sqrt(5), 30 / np.sqrt(909)])
    np.testing.assert_allclose(found.distances, 1 - cosines, rtol=1e-12)


def test_a_copy_is_not_novel_however_lengths_are_rounded():
    """Also where all training rows are copies, and the threshold is 0."""
    for seed in range(30):
        rows = np.random.default_rng(seed).normal(size=(1, 640)).astype(np.float32)
        known = placing.voters(np.repeat(rows, 3, axis=0), "cosine")
        for again in (known.rows[:1], 3 * rows, rows.astype(np.float64)):
            assert known.novelty(known.nearest(again)) == 0
        assert known.novelty(known.nearest(rows + 0.01))[0] > 1
