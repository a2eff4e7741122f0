"""What is apart: pairs, parts, weights, few rows in many columns, and curved clusters."""

import numpy as np
import pytest

from cluster_jax.clustering import representation, separation
from tests.rows import every_row


def are_apart(first, second, *counts):
    return separation.drop_between(first, second, *counts) >= separation.LEAST_DROP


def joined(x, rows, labels, **more):
    return separation.unions(separation.compare(x, rows, labels, **more))


def apart(first, second):
    return are_apart(first, second, np.ones(len(first)), np.ones(len(second)))


@every_row(("distance", "expected"), [(0, False), (2, False), (4, False), (8, True), (20, True)])
@every_row(("sizes", "d"), [((200, 200), 2), ((200, 200), 60), ((900, 20), 8), ((16, 16), 40)])
def test_gaussians_are_apart_from_eight_deviations(distance, expected, sizes, d):
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(n, d)) for n in sizes)
    second[:, 0] += distance
    assert apart(first, second) == expected
    assert apart(second, first) == expected


@pytest.mark.parametrize(("n", "d"), [(16, 200), (60, 64), (400, 30)])
def test_halves_of_a_gaussian_are_not_apart(n, d):
    """A line that was drawn through all rows would separate them."""
    rows = np.random.default_rng(1).normal(size=(n, d))
    along = rows @ np.linalg.svd(rows - rows.mean(axis=0))[2][0]
    is_high = along > np.median(along)
    assert not apart(rows[is_high], rows[~is_high])


def test_seven_rows_are_too_few():
    rows = np.random.default_rng(0).normal(size=(30, 3))
    assert not apart(rows[:7], rows[7:] + 40)
    assert apart(rows[:9], rows[9:] + 40)


def test_a_row_counts_as_often_as_the_rows_it_stands_for():
    """A few rows in between, which stand for many, are a bridge."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(60, 3)), rng.normal(size=(60, 3)) + 30
    first[:2] += [[8], [15]]
    second[:2] -= [[8], [15]]
    assert apart(first, second)
    counts = np.where(np.arange(60) < 2, 15.0, 1.0)
    assert not are_apart(first, second, counts, counts)
    # But they are no more evidence than they are rows.
    many = np.full(4, 99.0)
    assert not are_apart(first[2:6], second[2:6], many, many)


@pytest.mark.parametrize("k", [2, 6])
def test_parts_become_one_and_clusters_do_not(k):
    rng, truth = np.random.default_rng(k), np.arange(400) % k
    x = 9 * np.eye(k, 12)[truth] + rng.normal(size=(400, 12))
    rows = representation.fit(x, "euclidean")
    halves = 2 * truth + (x[:, -1] > 0)
    labels = joined(x, rows, halves)
    np.testing.assert_array_equal(np.unique(np.stack([labels, truth]), axis=1).shape, (2, k))


def test_clusters_along_axes_that_are_no_axes_of_the_sharp_rows_are_apart():
    """One long cluster takes both axes; two small ones differ along another."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 40))
    x[:1000, :2] *= 40
    x[1000:, 2] += 20 + np.repeat([0, 10], 12)
    rows = representation.fit(x, "euclidean", n_axes=2)
    labels = np.repeat([0, 1, 2], [1000, 12, 12])
    labels = joined(x, rows, labels)
    assert labels[1000] != labels[-1]


def test_a_ring_and_the_disc_inside_are_apart_piece_by_piece():
    rng, truth = np.random.default_rng(0), np.arange(600) % 2
    angle = rng.uniform(0, 2 * np.pi, 600)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.where(truth, 1.0, 0.3)[:, None]
    x += 0.05 * rng.normal(size=(600, 2))
    rows = representation.fit(x, "euclidean")
    assert not joined(x, rows, truth).any()
    np.testing.assert_array_equal(joined(x, rows, truth, is_curved=True), truth)
    halves = 2 * truth + (x[:, 0] > 0)
    np.testing.assert_array_equal(joined(x, rows, halves, is_curved=True), truth)
