"""Reduction: determinism, shapes down to single rows, PCA against singular vectors."""

import concurrent.futures
import subprocess
import sys
import time
from types import ModuleType

import numpy as np
import pytest

from cluster_jax.clustering.reduce import _neighbor_graph, reduce
from cluster_jax.core.checks import InputError
from tests.rows import every_row

SETTINGS = {"n_neighbors": 15, "metric": "cosine", "seed": 3}

# What umap-learn imports of the search for neighbors that maps of few rows do not use.
SEARCH = {
    "pynndescent": {"NNDescent": type("NNDescent", (), {})},
    "pynndescent.distances": {"named_distances": {}},
    "pynndescent.sparse": {"sparse_named_distances": {}},
}


@pytest.fixture(scope="module", autouse=True)
def without_search():
    """UMAP without pynndescent, which Numba compiles for half a minute as it is imported.

    A slow test searches with it, in a process of its own.
    """
    if "umap" in sys.modules:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, contents in SEARCH.items():
            module = ModuleType(name)
            vars(module).update(contents)
            patch.setitem(sys.modules, name, module)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "umap"]:
        del sys.modules[name]  # The next module that draws a map gets the whole one.


def _features(n, d=20, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(4, d)) * 3
    return (centers[np.arange(n) % 4] + rng.normal(size=(n, d)) * 0.3).astype(np.float32)


@pytest.mark.parametrize("method", ["umap", "tsne"])
def test_same_seed_same_map_and_groups_stay_together(method):
    features = _features(120)
    a, b = (reduce(features, method=method, n_components=2, **SETTINGS) for _ in range(2))
    assert a.shape == (120, 2)
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, b)
    c = reduce(features, method=method, n_components=2, **{**SETTINGS, "seed": 4})
    assert method == "tsne" or (a != c).any()  # t-SNE starts from the principal components
    apart = np.linalg.norm(a[:, None] - a[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert np.mean(apart.argmin(1) % 4 == np.arange(120) % 4) > 0.97


@pytest.mark.parametrize("n", [50, 9])  # more rows than columns, and fewer
def test_pca_projects_on_the_singular_vectors_whose_largest_entry_is_positive(n):
    features = _features(n, 12)
    centered = features - features.mean(0, dtype=np.float64)
    axes = np.linalg.svd(centered, full_matrices=False)[2][:4]
    largest = axes[np.arange(4), np.abs(axes).argmax(1)]
    expected = centered @ (axes * np.sign(largest)[:, None]).T
    for offset in (0, 2**30):  # float64 inside: an offset costs no precision
        ours = reduce(features.astype(np.float64) + offset, method="pca", n_components=4)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_none_is_the_features_themselves():
    features = _features(9, 5).astype(np.float64)
    ours = reduce(features, method="none", n_components=2, **SETTINGS)
    np.testing.assert_array_equal(ours, features.astype(np.float32))


@every_row("method", ["umap", "tsne", "pca"])
@every_row("n", [1, 2, 3, 5, 8])
def test_tiny_sets(method, n):
    result = reduce(_features(n, 6), method=method, n_components=3, **SETTINGS)
    assert result.shape == (n, 3)
    assert np.isfinite(result).all()


@every_row("scale", [1e30, 1e-30, 1e-300])
def test_principal_components_of_numbers_of_any_size(scale):
    x = _features(30)
    found = reduce(scale * x.astype(np.float64), method="pca", n_components=2)
    expected = scale * reduce(x, method="pca", n_components=2).astype(np.float64)
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-4, atol=1e-37)


@every_row("method", ["pca", "umap", "tsne"])
def test_numbers_beyond_float32_are_refused(method):
    with pytest.raises(
        InputError, match=r"the size of features must be at most 1e\+37; got 1e\+200"
    ):
        reduce(np.full((30, 4), 1e200), method=method, n_components=2)


def test_equal_rows():
    result = reduce(np.ones((40, 4)), method="umap", n_components=2, **SETTINGS)
    assert result.shape == (40, 2)
    assert np.isfinite(result).all()


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_neighbors_of_small_sets_are_those_of_umap(metric):
    from umap import distances as umap_distances

    features = _features(60, 6)
    features[[3, 8]] = 0  # two rows without a direction
    features[11] = 2 * features[12]
    indices, distances, _ = _neighbor_graph(features, 7, metric)
    distance = umap_distances.named_distances[metric]
    expected = np.array([[distance(a, b) for b in features] for a in features])
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :7], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(expected, indices, 1), distances, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Tensorflow not installed:ImportWarning")
def test_small_sets_take_no_loop_over_pairs(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("all pairs were compared one by one")

    monkeypatch.setattr("umap.umap_.pairwise_distances", refuse)
    assert reduce(_features(60), method="umap", n_components=2, **SETTINGS).shape == (60, 2)


# UMAP's own search, and neither it nor the import of what it needs warns of anything.
SEARCHED = """
import numpy as np
from cluster_jax.clustering.reduce import reduce
x = np.random.default_rng(0).normal(size=(4096, 6)) + 20 * (np.arange(4096) % 2)[:, None]
found = reduce(x, method="umap", n_components=2, n_neighbors=15, metric="euclidean", seed=3)
assert found.shape == (4096, 2)
apart = np.linalg.norm(found[0::2].mean(0) - found[1::2].mean(0))
assert apart > found[0::2].std(0).max() + found[1::2].std(0).max()
"""


@pytest.mark.slow
def test_many_rows_are_searched_by_umap():
    subprocess.run([sys.executable, "-W", "error", "-c", SEARCHED], check=True)


@every_row(
    ("features", "change", "message"),
    [
        (np.zeros((5, 2)), {"method": "isomap"}, "method must be one of 'umap', 'tsne', 'pca',"),
        (np.zeros(5), {}, "2D array"),
        (np.zeros((0, 2)), {}, "0 sample"),
        (np.full((5, 2), np.nan), {}, "must be finite|contains NaN"),
        (np.zeros((5, 2)), {"n_components": 0}, "n_components"),
        (np.zeros((5, 2)), {"n_neighbors": 1}, "neighbors"),
    ],
)
def test_bad_input(features, change, message):
    with pytest.raises(ValueError, match=message):
        reduce(features, **{"method": "umap", "n_components": 2, **SETTINGS, **change})


MODULE = sys.modules["cluster_jax.clustering.reduce"]


def test_maps_of_umap_are_drawn_one_at_a_time(monkeypatch):
    """numba may have no layer for threads, and then ends the process."""
    inside = []

    class Umap:
        def __init__(self, **_):
            inside.append(1)

        def fit_transform(self, x):
            time.sleep(0.02)
            assert len(inside) == 1
            inside.clear()
            return x[:, :2]

    monkeypatch.setattr(MODULE, "_imported_umap", lambda: Umap)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        maps = list(pool.map(lambda i: reduce(_features(30, seed=i), n_components=2), range(4)))
    assert [len(one) for one in maps] == [30] * 4
