"""The map of the report."""

import numpy as np

from cluster_jax.evaluation import maps
from cluster_jax.evaluation.maps import by_tsne
from tests.clustering.test_reduce import _features
from tests.rows import every_row

MAP = {"n_neighbors": 10, "metric": "euclidean", "seed": 1}


def same_kind(points, kinds):
    """The share of rows whose nearest other row in a map is of their kind."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return np.mean(kinds[apart.argmin(1)] == kinds)


def test_a_map_of_a_report_has_at_most_so_many_rows_of_tsne(monkeypatch):
    x, kinds = _features(260, 9), np.arange(260) % 4
    drawn = []
    tsne = maps.tsne
    monkeypatch.setattr(
        maps,
        "tsne",
        lambda rows, *args, **how: drawn.append(len(rows)) or tsne(rows, *args, **how),
    )
    whole = by_tsne(x, **MAP)
    monkeypatch.setattr(maps, "DRAWN", 90)
    part = by_tsne(x, **MAP)
    assert drawn == [260, 90]
    for points in (whole, part):
        assert points.shape == (260, 2)
        assert points.dtype == np.float32
        assert same_kind(points, kinds) > 0.97
    np.testing.assert_array_equal(part, by_tsne(x, **MAP))
    assert (part != by_tsne(x, **{**MAP, "seed": 2})).any(), "another sample"
    assert same_kind(by_tsne(1e30 * x.astype(np.float64), **MAP), kinds) > 0.97


def test_the_rows_of_a_small_tight_group_lie_side_by_side_on_a_map(rng):
    """Not on one spot, as by more steps in which neighbors attract each other more."""
    centers = np.repeat(rng.normal(size=(10, 64)), 15, axis=0)
    points = by_tsne(centers + 0.1 * rng.normal(size=centers.shape), **MAP)
    size = np.ptp(points, axis=0).max()
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert np.median(apart.min(axis=1)) > 0.005 * size
    assert same_kind(points, np.arange(150) // 15) == 1


@every_row("metric", ["cosine", "euclidean"])
@every_row(
    "x", [np.ones((1, 1)), np.eye(3), np.eye(4), np.ones((30, 5)), np.arange(8.0)[:, None] + 1]
)
def test_a_map_of_few_or_equal_rows_is_finite(x, metric):
    points = by_tsne(x, **{**MAP, "metric": metric})
    assert points.shape == (len(x), 2)
    assert np.isfinite(points).all()
