"""k-means in two levels: against one level, against the definition, and through the command."""

import json

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cluster_jax.cli import cluster
from cluster_jax.clustering import two_levels
from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.clustering.two_levels import _divided, kmeans_two_levels
from cluster_jax.core import arrays
from cluster_jax.data import tables
from cluster_jax.evaluation import clusters


def groups(n=3_000, k=30, d=8, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    return (10 * rng.normal(size=(k, d))[truth] + rng.normal(size=(n, d))).astype(np.float32), truth


@pytest.mark.parametrize("block_rows", [2**16, 200])
@pytest.mark.parametrize("metric", ["euclidean", "spherical"])
def test_groups_of_rows(metric, block_rows, monkeypatch):
    """With 200 rows a block, clusters of the first level are divided by a sample."""
    monkeypatch.setattr(two_levels, "_BLOCK_ROWS", block_rows)
    x, _ = groups()
    one = kmeans(x, 120, metric=metric, n_init=1)
    two = kmeans_two_levels(x, 120, metric=metric)
    assert two.centers.shape == (120, 8)
    assert two.labels.dtype == np.int32
    assert two.labels.max() < 120
    rows = arrays.normalize_rows(x) if metric == "spherical" else x
    own = np.square(rows - two.centers[two.labels]).sum(axis=1, dtype=np.float64)
    assert two.inertia == pytest.approx(own.sum(), rel=1e-4)
    assert two.inertia < 1.25 * one.inertia
    again = kmeans_two_levels(x, 120, metric=metric)
    kmeans_two_levels(x[:60], 9, metric=metric, seed=2**40)  # scikit-learn takes 32 bits
    np.testing.assert_array_equal(two.labels, again.labels)


def test_rows_are_read_in_ascending_order(monkeypatch):
    """Shards and memory maps are slow in any other order."""

    class Rows(np.ndarray):
        def __getitem__(self, rows):
            if isinstance(rows, np.ndarray) and len(rows) > 200:
                is_ascending.append(bool((np.diff(rows) > 0).all()))
            return np.asarray(super().__getitem__(rows))

    is_ascending = []
    monkeypatch.setattr(two_levels, "_BLOCK_ROWS", 300)
    kmeans_two_levels(groups()[0].view(Rows), 9)
    assert len(is_ascending) > 1
    assert all(is_ascending)


def test_a_large_cluster_is_never_read_whole(monkeypatch):
    """Of one of 900 rows, 300 are divided and the others placed, 300 at once."""
    first_level = two_levels.kmeans_blocks

    class Rows(np.ndarray):
        def __getitem__(self, rows):
            if isinstance(rows, np.ndarray):
                read.append(len(rows))
            return np.asarray(super().__getitem__(rows))

    def kmeans_blocks(*arguments, **settings):
        found = first_level(*arguments, **settings)
        read.clear()
        return found

    monkeypatch.setattr(two_levels, "kmeans_blocks", kmeans_blocks)
    read, rng = [], np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(n, 3)) + 50 * i for i, n in enumerate((900, 90, 60))])
    monkeypatch.setattr(two_levels, "_BLOCK_ROWS", 300)
    found = kmeans_two_levels(x.astype(np.float32).view(Rows), 9)
    assert max(read) == 300
    assert np.bincount(found.labels, minlength=9).max() < 600


def test_clusters_hold_about_as_many_rows():
    """Nine groups of 20 to 2,000 rows; each is divided in proportion to its rows."""
    sizes = np.geomspace(20, 2_000, 9).astype(int)
    x = (100 * np.eye(9)[np.repeat(np.arange(9), sizes)]).astype(np.float32)
    x += np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    counts = np.bincount(kmeans_two_levels(x, 81).labels, minlength=81)
    assert counts.max() < 4 * sizes.sum() / 81


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([90, 8, 2, 0], 10, [8, 1, 1, 0]),
        ([1, 1, 1, 97], 4, [1, 1, 1, 1]),
        ([5, 5], 10, [5, 5]),
        ([3, 0, 4], 7, [3, 0, 4]),
        ([50, 30, 20], 7, [4, 2, 1]),
    ],
)
def test_division(sizes, total, expected):
    assert _divided(np.array(sizes), total).tolist() == expected


def test_as_many_clusters_as_rows():
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    result = kmeans_two_levels(x, 50)
    assert sorted(result.labels.tolist()) == list(range(50))
    assert result.inertia == pytest.approx(0, abs=1e-6)


def test_too_many_clusters():
    with pytest.raises(ValueError, match="n_clusters must be at most 50; got 51"):
        kmeans_two_levels(np.zeros((50, 3), np.float32), 51)


def test_the_command_takes_two_levels_for_many_clusters(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clusters, "MOST_IN_ONE_LEVEL", 20)
    monkeypatch.setattr(tables, "LARGE", 300)
    x, truth = groups()
    (tmp_path / "x").mkdir()
    for i, part in enumerate(np.split(x, 3)):
        np.save(tmp_path / "x" / f"{i}.npy", part)
    flags = [f"--features={tmp_path / 'x'}", f"--workdir={tmp_path / 'w'}", "--metric=euclidean"]
    cluster.main([*flags, "--method=kmeans", "--k=30"])
    assert "k = 30, in two levels" in capsys.readouterr().out
    (metrics,) = json.loads((tmp_path / "w" / "results.json").read_text())["metrics"].values()
    assert metrics["k_given"] == 30
    table = np.loadtxt(
        tmp_path / "w" / "assignments.csv", int, delimiter=",", skiprows=1, usecols=1
    )
    assert adjusted_rand_score(truth, table) > 0.8
