"""The tree of clusters: SciPy's on the same means, and its cuts."""

import numpy as np
import pytest
from scipy.cluster import hierarchy

from cluster_jax.clustering.tree import cut_tree, linkage_of_means, ward
from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from tests.rows import every_row


def _clusters(k=9, n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    return rng.normal(size=(k, d))[labels] + rng.normal(size=(n, d)) * 0.3, labels


def test_scipy_on_the_same_means():
    features, labels = _clusters()
    rows = features / np.linalg.norm(features, axis=1)[:, None]
    means = [rows[labels == c].mean(axis=0) for c in range(9)]
    expected = hierarchy.linkage(means, method="average", metric="cosine")
    np.testing.assert_allclose(linkage_of_means(features, labels), expected, atol=1e-12)
    # The length of a row does not matter, and neither do gaps between the numbers.
    scaled = features * np.linspace(0.1, 9, 300)[:, None]
    np.testing.assert_allclose(linkage_of_means(scaled, labels * 3 + 1), expected, atol=1e-12)


@every_row("n_groups", range(1, 10))
def test_cuts_are_those_of_scipy(n_groups):
    tree = linkage_of_means(*_clusters())
    groups = cut_tree(tree, n_groups)
    assert groups.dtype == np.int64
    expected = hierarchy.fcluster(tree, n_groups, "maxclust")
    assert len(np.unique(groups)) == n_groups
    assert len(set(zip(groups.tolist(), expected.tolist(), strict=True))) == n_groups
    firsts = np.unique(groups, return_index=True)[1]
    assert (np.diff(firsts) > 0).all()


def test_merges_at_one_height_keep_their_order():
    tree = np.array([[3, 4, 1, 2], [0, 5, 1, 3], [1, 2, 1, 2], [6, 7, 1, 5]], float)
    assert cut_tree(tree, 4).tolist() == [0, 1, 2, 3, 3]
    assert cut_tree(tree, 3).tolist() == [0, 1, 2, 0, 0]
    assert cut_tree(tree, 2).tolist() == [0, 1, 1, 0, 0]


def test_one_and_two_clusters():
    one = linkage_of_means(np.ones((5, 3)), np.zeros(5, int))
    assert one.shape == (0, 4)
    assert cut_tree(one, 1).tolist() == [0]
    two = linkage_of_means(np.eye(2), ["cat", "dog"])
    np.testing.assert_allclose(two, [[0, 1, 1, 2]])
    assert [cut_tree(two, n).tolist() for n in (1, 2)] == [[0, 0], [0, 1]]


def test_a_cluster_of_zeros_is_far_from_all():
    features = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [0.0, 0.0]])
    tree = linkage_of_means(features, [0, 1, 2, 3])
    assert cut_tree(tree, 3).tolist() == [0, 1, 1, 2]
    assert tree[-1, 2] == pytest.approx(1)


@pytest.mark.parametrize(("n_groups", "limit"), [(0, "at least 1"), (10, "at most 9")])
def test_groups_that_do_not_exist(n_groups, limit):
    with pytest.raises(InputError, match=f"n_clusters must be {limit}; got {n_groups}"):
        cut_tree(linkage_of_means(*_clusters()), n_groups)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("shape", [(2, 1), (60, 1), (90, 4), (50, 80)])
def test_ward_is_that_of_scipy(shape, copies, monkeypatch):
    """Also with equal rows, far from zero, and in blocks."""
    monkeypatch.setattr(arrays, "_BLOCK", 500)
    rows = np.repeat(np.random.default_rng(0).normal(size=shape) + 1000, copies, axis=0)
    found, expected = ward(rows), hierarchy.linkage(rows, "ward")
    assert hierarchy.is_valid_linkage(found)
    np.testing.assert_allclose(found[:, 2], expected[:, 2], atol=1e-9)
    for k in range(1, len(np.unique(rows, axis=0)) + 1):
        groups = [hierarchy.fcluster(tree, k, "maxclust") for tree in (found, expected)]
        assert len(np.unique(np.stack(groups), axis=1).T) == k


def test_ward_of_equal_distances():
    """A line of equal steps, where the nearest of the nearest need not be the row itself."""
    found = ward(np.arange(64.0)[:, None])
    assert hierarchy.is_valid_linkage(found)
    assert hierarchy.is_monotonic(found)
