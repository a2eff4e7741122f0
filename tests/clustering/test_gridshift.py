"""GridShift against its literal reading, its invariances and hostile input."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from cluster_jax.clustering.gridshift import STOPS, Grid, GridShift, shift
from tests.clustering.reference_gridshift import gridshift as reference
from tests.rows import every_row


def test_cells_that_move_without_merging_go_on():
    points = np.array([[0.05], [1.25], [2.75]])
    model = GridShift(1.0).fit(points)
    np.testing.assert_array_equal(model.labels_, [0, 0, 0])
    # (1 + 1.35 - 1/60 + 1.675) / 3 by hand: 0.65, 1.35, 2 after one move; 1, 4/3, 1.675 after two.
    np.testing.assert_allclose(model.cluster_centers_, [[(1 + 4 / 3 + 1.675) / 3]], atol=1e-12)
    assert model.n_iter_ == 3
    authors = GridShift(1.0, stop="no_merge").fit(points)
    np.testing.assert_array_equal(authors.labels_, [0, 1, 2])
    np.testing.assert_allclose(authors.cluster_centers_, [[0.65], [1.35], [2.0]], atol=1e-12)
    assert authors.n_iter_ == 1


def test_a_position_that_rounds_up_to_the_border_changes_cell():
    # Just left of cell 0, a hair's breadth that a position inside cell -1 cannot express.
    modes = shift(Grid(np.array([[0]]), np.array([[-1e-20]]), np.ones(1)), max_iter=5)
    assert modes.converged
    np.testing.assert_array_equal(modes.grid.centers(1.0), [[0.0]])


def _random_input(seed):
    """Points whose neighborhoods are neither all empty nor all full, in 1 to 4 dimensions."""
    rng = np.random.default_rng(seed)
    d = 1 + seed % 4
    n = int(rng.integers(2, 60))
    h = float(rng.uniform(0.3, 2.0))
    side = h * (n / rng.uniform(0.3, 3)) ** (1 / d)
    points = rng.uniform(-side / 2, side / 2, (n, d)) + rng.uniform(-3, 3, d)
    if seed % 3 == 0:  # rows of different multiplicity
        points = np.repeat(points, rng.integers(1, 5, n), axis=0)
    return points, h


@pytest.mark.parametrize("stop", STOPS)
def test_equals_the_dictionary_reference(stop):
    merged = 0
    for seed in range(400):
        points, h = _random_input(seed)
        labels, centers, n_iter = reference(points.tolist(), h, stop=stop)
        model = GridShift(h, stop=stop).fit(points)
        np.testing.assert_array_equal(model.labels_, labels, err_msg=f"seed {seed}")
        np.testing.assert_allclose(model.cluster_centers_, centers, rtol=0, atol=1e-8)
        # Rounding may decide whether a last move counts as rest.
        assert stop == "fixed_point" or model.n_iter_ == n_iter
        merged += n_iter > 1
    assert merged > 200  # the inputs exercise more than isolated cells


# Quarters and eighths: every sum and difference of them is exact.
dyadic_points = st.integers(1, 3).flatmap(
    lambda d: st.lists(
        st.lists(st.integers(-60, 60).map(lambda i: i / 8), min_size=d, max_size=d),
        min_size=1,
        max_size=40,
    ).map(np.array)
)
options = st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from(STOPS))


@settings(max_examples=200, deadline=None)
@given(dyadic_points, options, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(points, option, random):
    order = list(range(len(points)))
    random.shuffle(order)
    model = GridShift(option[0], stop=option[1]).fit(points)
    shuffled = GridShift(option[0], stop=option[1]).fit(points[order])
    np.testing.assert_array_equal(shuffled.labels_, model.labels_[order])
    np.testing.assert_array_equal(shuffled.cluster_centers_, model.cluster_centers_)


@settings(max_examples=200, deadline=None)
@given(dyadic_points, options, st.lists(st.integers(-1000, 1000), min_size=3, max_size=3))
def test_moving_by_whole_cells_changes_nothing(points, option, by):
    h, stop = option
    move = h * np.array(by[: points.shape[1]], np.float64)
    model = GridShift(h, stop=stop).fit(points)
    moved = GridShift(h, stop=stop).fit(points + move)
    np.testing.assert_array_equal(moved.labels_, model.labels_)
    assert moved.n_iter_ == model.n_iter_
    np.testing.assert_allclose(moved.cluster_centers_, model.cluster_centers_ + move, atol=1e-11)


@settings(max_examples=200, deadline=None)
@given(dyadic_points, options, st.integers(-30, 30))
def test_scaling_by_a_power_of_two_changes_nothing(points, option, power):
    h, stop = option
    scale = 2.0**power
    model = GridShift(h, stop=stop).fit(points)
    scaled = GridShift(h * scale, stop=stop).fit(points * scale)
    np.testing.assert_array_equal(scaled.labels_, model.labels_)
    np.testing.assert_array_equal(scaled.cluster_centers_, model.cluster_centers_ * scale)


@every_row("seed", range(8))
def test_training_rows_predict_their_labels(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(400, 1 + seed % 4)) * 3
    model = GridShift(0.8).fit(points)
    np.testing.assert_array_equal(model.predict(points), model.labels_)


def test_a_point_in_an_empty_cell_goes_to_the_nearest_cell_not_to_the_nearest_mode():
    points = np.array([[-0.9]] * 3 + [[2.2]] + [[3.4]] * 50 + [[4.6]] * 50)
    model = GridShift(1.0).fit(points)
    centers = model.cluster_centers_[:, 0]
    assert abs(centers[0] - 1.05) < abs(centers[1] - 1.05)
    np.testing.assert_array_equal(model.predict([[1.05], [1e9], [-1e9]]), [1, 1, 0])


def test_many_dimensions():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(3, 200)) * 10
    truth = np.arange(60) % 3
    points = centers[truth] + rng.normal(size=(60, 200)) * 0.1
    model = GridShift(4.0).fit(points)
    np.testing.assert_array_equal(model.predict(points), model.labels_)
    # A center near a border splits its points over cells, which are neighbors and merge.
    assert len(model.cluster_centers_) == 3
    assert all(len(np.unique(model.labels_[truth == c])) == 1 for c in range(3))


@every_row("bandwidth", [1.0, "auto"])
@every_row("points", [[[3.7, -1.2]], [[0.3, 0.3]] * 50])
def test_one_point_and_equal_points(points, bandwidth):
    model = GridShift(bandwidth).fit(points)
    np.testing.assert_array_equal(model.labels_, np.zeros(len(points)))
    np.testing.assert_allclose(model.cluster_centers_, points[:1], atol=1e-12)


def test_huge_coordinates_are_handled_or_refused():
    labels = GridShift(1.0).fit_predict(np.array([[-3e10], [2e10], [9e10]]))
    np.testing.assert_array_equal(labels, [0, 1, 2])
    for points, h in [([[1e17], [0.0]], 1.0), ([[1.0], [0.0]], 1e-300), ([[-1e300]], 1e-9)]:
        with pytest.raises(ValueError, match="where cells have exact numbers"):
            GridShift(h).fit(points)
    model = GridShift(1.0).fit([[0.0], [5.0]])
    with pytest.raises(ValueError, match="where cells have exact numbers"):
        model.predict([[1e17]])


@every_row("scale", [1e200, 1e-200, 1e140, 1e-140])
def test_numbers_without_squares_are_refused(scale):
    """And near the limits the bandwidth is that of the rows at any other scale."""
    points = np.repeat([[0.0, 0], [9, 0], [0, 9]], 50, 0)
    points += np.random.default_rng(0).normal(size=points.shape)
    if not 1e-150 < scale < 1e150:
        with pytest.raises(ValueError, match=r"so that squares are numbers; got .*e.(201|199): sc"):
            GridShift().fit(scale * points)
        return
    found, wanted = GridShift().fit(scale * points), GridShift().fit(points)
    assert found.bandwidth_ == pytest.approx(scale * wanted.bandwidth_)
    np.testing.assert_array_equal(found.labels_, wanted.labels_)


def test_reaching_max_iter_warns_and_still_labels():
    points = np.array([[0.05], [1.25], [2.75]])
    model = GridShift(1.0, max_iter=1)
    with pytest.warns(ConvergenceWarning, match="in 1 iterations"):
        model.fit(points)
    np.testing.assert_array_equal(model.labels_, [0, 1, 2])


@every_row(
    ("options", "message"),
    [
        ({"bandwidth": 0}, "bandwidth, if it is not 'auto', must be"),
        ({"bandwidth": float("inf")}, "bandwidth, if it is not 'auto', must be"),
        ({"bandwidth": "0.5"}, "bandwidth, if it is not 'auto', must be"),
        ({"bandwidth": 1.0, "stop": "never"}, "stop must be one of"),
        ({"bandwidth": 1.0, "max_iter": 0}, "max_iter must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        GridShift(**options).fit([[0.0], [1.0]])
    assert "\n" not in str(caught.value)


def test_bfloat16_is_clustered_as_float32():
    """NumPy does not know the type, in which networks compute."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(60, 2)), jnp.bfloat16)
    own = np.asarray(x).astype(np.float32)
    for rows in (x, np.asarray(x)):
        found = GridShift(bandwidth=1.0).fit(rows)
        np.testing.assert_array_equal(found.labels_, GridShift(bandwidth=1.0).fit(own).labels_)


@every_row(
    ("points", "message"),
    [
        ([[0.0], [np.nan]], "X must be finite; got NaN or infinity in row 1"),
        ([[np.inf, 0.0]], "X must be finite; got NaN or infinity in row 0"),
        (np.zeros((0, 2)), "0 sample"),
        ([["a", "b"]], "X must be numbers"),
        (np.array([["2020-01-01"]], "datetime64[D]"), "X must hold numbers"),
        (np.ma.masked_array([[1.0, 2.0]], [[True, False]]), "X must have no masked entries"),
    ],
)
def test_bad_points(points, message):
    for bandwidth in (1.0, "auto"):
        with pytest.raises(ValueError, match=message) as caught:
            GridShift(bandwidth).fit(points)
        assert "\n" not in str(caught.value)


def test_a_fit_that_fails_leaves_the_last_one():
    model = GridShift(1.0).fit([[0.0, 0.0], [5.0, 5.0]])
    with pytest.raises(ValueError, match="where cells have exact numbers"):
        model.set_params(bandwidth=1e-300).fit([[5.0]])
    np.testing.assert_array_equal(model.predict([[5.0, 5.0]]), [1])
    with pytest.raises(ValueError, match=r"bandwidth, if .* must be"):
        GridShift(10**400).fit([[0.0]])


def test_predict_needs_a_fit_and_the_same_columns():
    with pytest.raises(NotFittedError):
        GridShift(1.0).predict([[0.0]])
    model = GridShift(1.0).fit([[0.0, 1.0]])
    with pytest.raises(ValueError, match="1 features"):
        model.predict([[0.0]])


def test_scikit_learn_accepts_the_estimator():
    check_estimator(GridShift(1.0), on_skip=None)
    check_estimator(GridShift(), on_skip=None)


def test_random_state_moves_the_choice_of_a_bandwidth():
    """Which rows are scored; the default is 0."""
    points = np.random.default_rng(0).normal(size=(1200, 2)) + np.arange(1200)[:, None] % 3 * 5
    first, same, other = (
        GridShift(**seed).fit(points) for seed in ({}, {"random_state": 0}, {"random_state": 1})
    )
    np.testing.assert_array_equal(first.bandwidth_curve_.scores, same.bandwidth_curve_.scores)
    assert (first.bandwidth_curve_.scores != other.bandwidth_curve_.scores).any()
    with pytest.raises(ValueError, match="random_state must be at least 0; got -1"):
        GridShift(random_state=-1).fit(points)


def test_rows_of_small_clusters_are_outliers():
    points = np.concatenate([np.random.default_rng(8).normal(size=(300, 2)), [[40.0, 40.0]]]) * 5
    model = GridShift(5.0).fit(points)
    assert model.outliers_.sum() < 10
    assert model.outliers_[-1]
