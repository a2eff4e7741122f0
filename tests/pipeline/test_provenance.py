"""The table at the end of a run."""

import pytest

from cluster_jax.evaluation import summary
from cluster_jax.pipeline import provenance

SCORES = {"acc": 0.25, "nmi": None, "ari": 0.5, "ami": 0.125}


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({"n_clusters": 12, "n_large": 12}, "12 0.250"),
        ({"n_clusters": 1_234, "n_large": 12}, "12 and 1,222 small 0.250"),
        ({"n_clusters": 7}, "7 0.250"),
    ],
)
def test_small_clusters_are_counted_apart(found, shown):
    results = {
        "provenance": {
            "number_of_clusters": {"gridshift": "found", "kmeans": "given"},
            "data": {"name": "digits"},
        },
        "metrics": {
            "gridshift": {**found, **SCORES, "clear": True},
            "kmeans": {"n_clusters": 10, **SCORES},
            "knn": {"5": None},
            "linear_probe": None,
        },
        "images_per_second": None,
    }
    head, grid, means = provenance.table(results).splitlines()
    assert " ".join(grid.split()).startswith(f"GridShift (k found) {shown} - 0.500 0.125")
    assert len(head) == len(grid) == len(means)
    assert " ".join(means.split()).startswith("k-means (k given) 10 0.250")


def test_halves_that_disagree_are_told():
    metrics = {"verdict": "no clear answer", "stable_k": None, "agreement": 0.886, "n_found": 13}
    said = summary.verdict(metrics, "rows")
    assert (
        said == "No clear answer: the clusters of halves of the rows agree to an ARI of 0.89 only."
    )
    assert "one cluster or none" in summary.verdict({**metrics, "n_found": 1}, "rows")
    said = summary.verdict({**metrics, "stable_k": 2}, "images")
    assert "2 groups clearly, 13 clusters within them; halves of the images agree" in said
    said = summary.verdict({**metrics, "stable_k": 13}, "images")
    assert "find other numbers of clusters, but agree about 13" in said


def test_a_number_that_is_given_is_not_judged():
    metrics = {
        **{"n_clusters": 2, "n_found": 13, "stable_k": 2, "verdict": "no clear answer"},
        **{"cluster_sizes": {"0": 5, "1": 4}, "silhouette": None, **SCORES},
    }
    for origin in ("found", "given"):
        results = {
            "provenance": {"number_of_clusters": {"modes": origin}},
            "metrics": {"modes": metrics},
        }
        said = "13 clusters within them" in summary.cluster_table(results)
        assert said == ("--k=2 gives these." in summary.cluster_table(results))
        assert said == (origin == "found")


def test_what_is_found_by_modes():
    found = {"n_clusters": 7, "n_large": 6, "outliers": 3, "verdict": "one cluster", **SCORES}
    results = {
        "provenance": {
            "number_of_clusters": {"modes": "found", "kmeans": "as found by modes"},
            "data": {"name": "features"},
        },
        "metrics": {
            "modes": found,
            "kmeans": {"n_clusters": 6, **SCORES},
            "knn": {"5": None},
            "linear_probe": None,
        },
        "images_per_second": None,
    }
    _, modes, _, outliers, sentence = provenance.table(results).splitlines()
    assert " ".join(modes.split()).startswith("modes (k found) 6 and 1 small 0.250")
    assert outliers.split() == ["outliers", "3"]
    assert "form one cluster" in sentence
