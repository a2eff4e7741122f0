"""What `SmoothTree` may not say of random sets whose clusters are known, see `shapes`."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering.smooth_tree import SmoothTree
from tests.clustering import shapes


def answers(seeds):
    """The agreement, the verdict and the habits of the set of each seed."""
    for seed in seeds:
        drawn = shapes.clusters(seed)
        model = SmoothTree("euclidean").fit(drawn.x)
        inside = drawn.truth >= 0
        score = adjusted_rand_score(drawn.truth[inside], model.labels_[inside])
        yield score, model.verdict_, f"{drawn.habits}: {model.n_clusters_} clusters"


def broken_of_nothing(seeds):
    """The sets without clusters that are cut with confidence, or into many clusters."""
    for seed in seeds:
        drawn = shapes.nothing(seed)
        # With the cosine, too: it is the default above three columns.
        model = SmoothTree("auto" if seed // 8 % 2 else "euclidean").fit(drawn.x)
        if model.verdict_ == "clear" or model.n_clusters_ > 12:
            yield f"{drawn.habits}: {model.verdict_}, {model.n_clusters_} clusters"


def test_no_clear_answer_is_wrong():
    found = list(answers(range(6)))
    assert [
        habits for score, verdict, habits in found if verdict != "unclear" and score < 0.95
    ] == []
    assert sum(verdict == "clear" for _, verdict, _ in found) >= 4
    assert np.mean([score for score, _, _ in found]) > 0.97


def test_nothing_is_cut_with_confidence():
    assert list(broken_of_nothing(range(0, 16, 4))) == []


@pytest.mark.slow
def test_of_a_hundred_clear_answers_one_is_wrong():
    found = list(answers(range(1000, 1250)))
    wrong = [habits for score, verdict, habits in found if verdict != "unclear" and score < 0.95]
    assert len(wrong) <= 2, wrong
    assert np.mean([verdict == "clear" for _, verdict, _ in found]) >= 0.7
    scores = np.array([score for score, _, _ in found])
    assert (np.mean(scores > 0.95) >= 0.95, scores.mean() >= 0.985) == (True, True)


@pytest.mark.slow
def test_of_a_hundred_sets_without_clusters_at_most_four_are_cut():
    broken = list(broken_of_nothing(range(100)))
    assert len(broken) <= 4, broken
