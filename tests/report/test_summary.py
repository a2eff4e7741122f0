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
            "gridshift": {**found, **SCORES, "outliers": 3, "verdict": "clear"},
            "kmeans": {"n_clusters": 10, **SCORES},
            "knn": {"5": None},
            "linear_probe": None,
        },
        "images_per_second": None,
    }
    head, grid, means, outliers = summary.run_table(results).splitlines()
    assert " ".join(grid.split()).startswith(f"GridShift (k found) {shown} - 0.500 0.125")
    assert len(head) == len(grid) == len(means)
    assert " ".join(means.split()).startswith("k-means (k given) 10 0.250")
    assert outliers.split() == ["Outliers", "3"]


def test_clusters_are_listed_by_size():
    """The twenty largest that count; the others in a line."""

    def lines_of(sizes, **metrics):
        found = {"n_clusters": len(sizes), "cluster_sizes": sizes, **SCORES, **metrics}
        origin = {"number_of_clusters": {"gridshift": "found"}}
        text = summary.run_table({"provenance": origin, "metrics": {"gridshift": found}})
        kinds = ("Found", "cluster ", "and")
        return [line for line in text.splitlines() if line.startswith(kinds)]

    found, first, *others, last = lines_of({str(c): 1 + c % 7 for c in range(30)})
    assert first == "cluster   6  7  rows  6.1%"
    assert [line.split()[1] for line in others[:4]] == ["13", "20", "27", "5"]
    assert last == "and 10 more of at most 2 rows"
    assert "cluster  3  1  row  50.0%" in lines_of({"3": 1, "4": 1})
    sizes = {"0": 2, "1": 50, "2": 30, "3": 1, "4": 3}
    found, *clusters, last = lines_of(sizes, n_large=2, outliers=6)
    assert found == "Found 2 clusters and 3 small ones in 86 rows."
    assert [line.split()[1:3] for line in clusters] == [["1", "50"], ["2", "30"]]
    assert last == "and 3 small, of at most 3 rows, too small to count: 6 rows are outliers"


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
        "No clear answer: the 13 clusters are a best guess. Their silhouette is 0.19 higher than "
        "it would be without clusters, but some clusters may belong together, or have parts."
    )
    one = summary.verdict({**metrics, "gap": -0.02, "n_clusters": 1}, "rows")
    assert "no split separates the rows clearly, which does not prove" in one
    # GridShift has no such figure.
    said = summary.verdict({"verdict": "unclear", "n_clusters": 13}, "images")
    assert "the images may form one cluster or none" in said
    assert summary.verdict({**metrics, "verdict": "clear"}, "rows") is None
    # Nor have the tree's clusters by density.
    said = summary.verdict({**metrics, "gap": None}, "rows")
    assert said == (
        "No clear answer: the 13 clusters are a best guess, because some clusters may "
        "belong together, or have parts."
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
    assert "The photos form one group: no split" in said


def test_too_few_rows_are_not_called_one_cluster():
    metrics = {"verdict": "one_cluster", "gap": None, "n_clusters": 1, "rows_clustered": 5}
    said = summary.verdict(metrics, "rows")
    assert said == (
        "There are fewer than 6 different rows, too few to look for a number of clusters: give it "
        "instead."
    )
    said = summary.verdict({**metrics, "rows_clustered": 6}, "rows")
    assert said == "The rows form one cluster: no split separates them clearly."


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
