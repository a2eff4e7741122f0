"""The table of cells: grouping against NumPy, neighborhoods against all pairs, borders."""

import numpy as np

from cluster_jax.clustering import gridshift as grid
from tests.rows import every_row


def test_a_position_that_rounds_up_to_the_border_changes_cell():
    # Just left of cell 0, a hair's breadth that a position inside cell -1 cannot express.
    table = grid.Grid(np.array([[0]]), np.array([[-1e-20]]), np.ones(1))
    modes = grid.shift(table, max_iter=5)
    assert modes.converged
    np.testing.assert_array_equal(modes.grid.centers(1.0), [[0.0]])


def test_grouping_rows():
    rng = np.random.default_rng(0)
    for d, scale in [(1, 3), (3, 5), (4, 10**6), (40, 2), (7, 2**51)]:
        rows = rng.integers(-scale, scale, (200, d))
        rows[100:] = rows[rng.integers(0, 100, 100)]
        unique, row = grid.group(rows)
        expected, inverse = np.unique(rows, axis=0, return_inverse=True)
        np.testing.assert_array_equal(unique, expected)
        np.testing.assert_array_equal(row, inverse.ravel())


@every_row(("d", "scale"), [(1, 20), (2, 7), (3, 4), (5, 2), (8, 2), (2, 2**40)])
def test_neighborhood_sums_over_all_near_cells(d, scale):
    rng = np.random.default_rng(d)
    rows, _ = grid.group(rng.integers(-scale, scale, (150, d)) + 10**6)
    m = len(rows)
    table = grid.Grid(rows, rng.uniform(size=(m, d)), rng.uniform(0.1, 2, m))
    near = (np.abs(rows[:, None] - rows[None]) <= 1).all(axis=2)
    assert d > 1 or near.sum() > m
    position = rows[None] - rows[:, None] + table.offsets[None]
    total = (near * table.weights[None]).sum(1)
    moment = (near[:, :, None] * table.weights[None, :, None] * position).sum(1)
    ours = grid.neighborhood(table)
    np.testing.assert_allclose(ours[0], total, rtol=1e-12)
    np.testing.assert_allclose(ours[1], moment, rtol=0, atol=1e-11)
