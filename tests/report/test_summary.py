"""The table at the end of a run."""

import pytest

from cluster_jax.report import summary

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
    head, grid, means = summary.run_table(results).splitlines()
    assert " ".join(grid.split()).startswith(f"GridShift (k found) {shown} - 0.500 0.125")
    assert len(head) == len(grid) == len(means)
    assert " ".join(means.split()).startswith("k-means (k given) 10 0.250")


def test_without_labels_there_are_no_scores():
    none = dict.fromkeys(SCORES)
    results = {
        "provenance": {"number_of_clusters": {"tree": "found"}, "data": {"name": "folder"}},
        "metrics": {"tree": {"n_clusters": 7, **none}, "knn": {"5": None}, "linear_probe": None},
        "images_per_second": None,
    }
    head, tree = summary.run_table(results).splitlines()
    assert head.split() == ["groups"], "of photos"
    trained = results | {"provenance": {**results["provenance"], "steps": 9}}
    assert summary.run_table(trained).split()[0] == "clusters"
    assert tree.split() == ["Tree", "(number", "found)", "7"]
    # The command `cluster` has the silhouette, which needs none.
    found = {"n_clusters": 1, **none, "silhouette": 0.25, "cluster_sizes": {"0": 9}}
    results["metrics"]["tree"] = found
    head, tree, *_ = summary.run_table(results).splitlines()
    assert (head.split(), tree.split()[-2:]) == (["clusters", "silhouette"], ["1", "0.250"])


def test_a_best_guess_is_told():
    metrics = {"verdict": "unclear", "gap": 0.186, "n_clusters": 13}
    assert summary.verdict(metrics, "rows") == (
        "No clear answer: the 13 clusters are a best guess, separated by a silhouette of 0.19 more "
        "than parts of one cluster, too little to be clear."
    )
    # GridShift has no such figure.
    said = summary.verdict({"verdict": "unclear", "n_clusters": 13}, "images")
    assert "the images may form one cluster or none" in said
    assert summary.verdict({**metrics, "verdict": "clear"}, "rows") is None
    # Nor have the tree's clusters by density.
    said = summary.verdict({**metrics, "gap": None}, "rows")
    assert said == (
        "No clear answer: the 13 clusters are a best guess, because a coarser look finds another "
        "number."
    )


def test_clusters_of_photos_are_groups():
    guess = {"verdict": "unclear", "n_clusters": 3, "gap": 0.2, **dict.fromkeys(SCORES)}
    origin = {"number_of_clusters": {"tree": "found"}, "data": {"name": "folder"}}
    for found in (
        guess,
        guess | {"gap": None},
        guess | {"verdict": "one_cluster", "n_clusters": 1},
    ):
        said = summary.run_table({"provenance": origin, "metrics": {"tree": found}})
        assert "group" in said
        assert "cluster" not in said


def test_too_few_rows_are_not_called_one_cluster():
    metrics = {"verdict": "one_cluster", "gap": None, "n_clusters": 1, "rows_clustered": 5}
    said = summary.verdict(metrics, "rows")
    assert said == (
        "There are fewer than 6 different rows, too few to look for a number of clusters: give it "
        "instead."
    )
    said = summary.verdict({**metrics, "rows_clustered": 6}, "rows")
    assert said == "The rows form one cluster: no split separates them clearly."


def test_what_is_found_by_the_tree():
    found = {"n_clusters": 7, "n_large": 6, "outliers": 3, "verdict": "one_cluster", **SCORES}
    results = {
        "provenance": {
            "number_of_clusters": {"tree": "found", "kmeans": "as found by tree"},
            "data": {"name": "features"},
        },
        "metrics": {
            "tree": found,
            "kmeans": {"n_clusters": 6, **SCORES},
            "knn": {"5": None},
            "linear_probe": None,
        },
        "images_per_second": None,
    }
    _, tree, _, sentence, outliers = summary.run_table(results).splitlines()
    assert " ".join(tree.split()).startswith("Tree (k found) 6 and 1 small 0.250")
    assert outliers.split() == ["Outliers", "3"]
    assert "form one cluster" in sentence


@pytest.mark.parametrize("undecided", [False, True])
def test_whether_the_novel_head_is_undecided_is_said_in_words(undecided):
    found = {"n_clusters": 2, "n_large": 2, "n_classes": 2, "verdict": "clear", "outliers": 0}
    novel = {"n_clusters": 2, "acc": 0.5, "nmi": 0.5, "ari": 0.5, "ami": 0.5}
    discovery = {"novel_classes": 2, "confidence": 0.6, "undecided": undecided, "novel": novel}
    results = {"metrics": {"tree": found, "discovery": discovery}, "provenance": {}}
    text = summary.run_table(results)
    assert text.count("undecided") == undecided
    assert "the novel head is undecided" in text or not undecided


def test_values_in_words():
    words = {
        None: "–",
        float("nan"): "–",
        1234: "1,234",
        1234.5: "1,234",
        0.1234: "0.123",
        12.34: "12.3",
        0.00012345: "0.0001234",
    }
    assert {value: summary.format_value(value) for value in words} == words
    assert summary.entry_name("knn", "5") == "k-NN accuracy, k = 5"
