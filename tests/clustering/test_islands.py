"""Groups of five to ten rows that lie apart are clusters; clumps and copies are not."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cluster_jax.clustering import basins, islands, membership
from cluster_jax.clustering.modes import ModeTree


def _groups(sizes, d, gap=30.0, seed=0):
    """Normal groups at the corners of a grid, and their numbers."""
    rng = np.random.default_rng(seed)
    side = int(np.ceil(len(sizes) ** (1 / d)))
    corners = np.stack(np.unravel_index(rng.permutation(side**d), (side,) * d), axis=1)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return gap * corners[truth] + rng.normal(size=(len(truth), d)), truth


def _divide(x, prominence=1.65):
    neighbors = basins.nearest_rows(x, min(40, len(x) - 1))
    return islands.divide(np.zeros(len(x), np.int64), *neighbors, prominence)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(
    "sizes", [[7] * 8, [10] * 6, [8] * 20 + [100] * 5, [6] + [150] * 5], ids=str
)
def test_small_groups_are_found_where_they_lie_apart(sizes, d):
    x, truth = _groups(sizes, d)
    model = ModeTree(metric="euclidean").fit(x)
    assert model.n_clusters_ == len(sizes)
    assert adjusted_rand_score(truth, model.labels_) == 1
    assert np.array_equal(model.predict(x), model.labels_)
    assert (model.probabilities_ == 1).all()
    # Without evidence of theirs the splits of the others would look unsure.
    assert len(np.unique(model.cut(level=0.99))) == len(sizes)
    order = np.random.default_rng(1).permutation(len(x))
    again = ModeTree(metric="euclidean").fit(1024 * x[order])
    assert adjusted_rand_score(truth[order], again.labels_) == 1


def test_small_groups_that_are_close_are_not_divided():
    x, _ = _groups([7, 7, 60], 2, gap=4.0)
    assert not _divide(x).alone


def test_the_gap_is_compared_with_both_sides():
    group, others = np.arange(5.0) / 10, 3 + np.arange(20.0)
    for scale, n_found in ((1, 0), (0.1, 1)):
        found = _divide(np.append(group, 3 + scale * (others - 3))[:, None])
        assert len(found.alone) == n_found
    assert np.bincount(found.leaves).tolist() == [20, 5]
    assert found.alone == {1}
    sparse_group = np.append(10 * np.arange(5.0), 100 + np.arange(20.0) / 10)
    assert not _divide(sparse_group[:, None]).alone


@pytest.mark.parametrize("seed", range(4))
def test_noise_has_no_small_groups(seed):
    rng = np.random.default_rng(seed)
    for x in (rng.uniform(size=(300, 2)), rng.normal(size=(1500, 2)), rng.uniform(size=(60, 1))):
        assert not _divide(x).alone


@pytest.mark.parametrize("d", [10, 40])
def test_in_many_columns_no_gap_is_needed(d):
    """Distances in many columns are alike: those to the own group and to others differ little."""
    rng = np.random.default_rng(0)
    sizes = [300, 200, 100, 8, 7, 6]
    truth = np.repeat(np.arange(6), sizes)
    centers = np.linalg.qr(rng.normal(size=(d, 6)))[0].T * 7.5
    x = centers[truth] + rng.normal(size=(len(truth), d))
    found = _divide(x, prominence=1e9)
    small = [np.flatnonzero(found.leaves == leaf) for leaf in found.alone]
    assert sorted(len(rows) for rows in small) == [6, 7, 8]
    assert all(len(set(truth[rows])) == 1 for rows in small)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("d", [5, 8, 30])
def test_noise_in_many_columns_has_no_small_groups(seed, d):
    rng = np.random.default_rng(seed)
    heavy = rng.normal(size=(1500, d)) / np.sqrt(rng.chisquare(3, size=(1500, 1)) / 3)
    for x in (rng.uniform(size=(150, d)), rng.normal(size=(1500, d)), heavy):
        assert not _divide(x).alone


@pytest.mark.parametrize("noise", [0.0, 1e-3])
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_copies_do_not_tear_the_graph(copies, noise):
    """They take the places of neighbors: of noise, groups of six to nine rows would be left."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(500, 8))] + copies * [rng.normal(size=(125, 8))])
    x[500:] = np.tile(x[-125:], (copies, 1))
    assert not _divide(x + noise * rng.normal(size=x.shape)).alone


def test_a_curve_beside_many_columns_is_not_torn():
    for seed in range(4):
        rng = np.random.default_rng(seed)
        angle = rng.uniform(0, 2 * np.pi, 400)
        curve = 0.05 * rng.normal(size=(400, 20))
        curve[:, :2] += 8 * np.stack([4 + np.cos(angle), np.sin(angle)], axis=1)
        assert not _divide(np.concatenate([rng.normal(size=(3600, 20)), curve])).alone


def test_clumps_in_many_columns_are_not_clusters():
    x = np.random.default_rng(0).normal(size=(150, 12))
    views = np.repeat(x, 5, axis=0) + 0.1 * np.random.default_rng(1).normal(size=(750, 12))
    assert not _divide(views).alone


def test_clumps_within_clusters_are_not_clusters():
    """Frames of films, views of images: five rows each, everywhere."""
    x, truth = _groups([120] * 3, 2)
    views = np.repeat(x, 5, axis=0) + 1e-4 * np.random.default_rng(0).normal(size=(1800, 2))
    model = ModeTree(metric="euclidean").fit(views)
    assert adjusted_rand_score(np.repeat(truth, 5), model.labels_) == 1


def test_copies_are_not_clusters():
    x = np.repeat(_groups([30], 2)[0], 6, axis=0)
    assert not _divide(x).alone


def test_few_rows_are_not_divided():
    for n in (2, 5, 11):
        assert not _divide(np.random.default_rng(0).normal(size=(n, 2))).alone


def test_a_small_cluster_asks_as_many_neighbors_as_it_has_rows():
    x, truth = _groups([6, 60], 1)
    member = membership.assign(x, truth, basins.nearest_rows(x, 20)[1])
    assert (member.probabilities == 1).all()
