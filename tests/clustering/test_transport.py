"""Balanced assignment: both marginals, the optimum, and invariances."""

import itertools

import numpy as np
import pytest

from cluster_jax.clustering.transport import sinkhorn
from tests.rows import every_row


@pytest.fixture
def scores(rng):
    return rng.uniform(-1, 1, (60, 4))


def test_rows_sum_to_one_and_columns_are_equal(scores):
    q = sinkhorn(scores)
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(q.sum(axis=0), 15, rtol=1e-5)
    assert (q >= 0).all()


def test_balance_beats_the_best_cluster_of_each_row():
    scores = np.array([[0.9, 0.0], [0.8, 0.1], [0.7, 0.6], [0.6, 0.55]])
    assert scores.argmax(axis=1).tolist() == [0, 0, 0, 0]
    assert sinkhorn(scores).argmax(axis=1).tolist() == [0, 0, 1, 1]


def test_a_small_epsilon_gives_the_best_balanced_assignment(rng):
    scores = rng.uniform(-1, 1, (6, 2))
    halves = [set(half) for half in itertools.combinations(range(6), 3)]
    values = [sum(scores[i, 0 if i in half else 1] for i in range(6)) for half in halves]
    labels = sinkhorn(scores, epsilon=1e-3).argmax(axis=1)
    assert set(np.flatnonzero(labels == 0).tolist()) == halves[int(np.argmax(values))]


def test_a_large_epsilon_knows_nothing(scores):
    np.testing.assert_allclose(sinkhorn(scores, epsilon=1e6), 0.25, atol=1e-6)


def test_offsets_of_rows_and_columns_change_nothing(scores, rng):
    moved = scores + rng.normal(size=(60, 1)) + 0.1 * rng.normal(size=(1, 4))
    np.testing.assert_allclose(sinkhorn(moved), sinkhorn(scores), atol=1e-5)


def test_scores_of_any_size_stay_finite():
    q = sinkhorn(np.array([[1e6, 0.0], [1e6, -1e6], [0.0, 1.0], [5.0, 0.0]]))
    assert np.isfinite(q).all()
    np.testing.assert_allclose(q.sum(axis=1), 1)


@every_row(
    ("scores", "epsilon", "message"),
    [
        ([[1.0, 2.0]], 0.0, "epsilon must be greater than 0; got 0.0"),
        ([], 1.0, "scores must be finite"),
        ([[np.nan, 1.0]], 1.0, "scores must be finite"),
    ],
)
def test_one_sentence_for_bad_input(scores, epsilon, message):
    with pytest.raises(ValueError, match=message):
        sinkhorn(scores, epsilon=epsilon)
