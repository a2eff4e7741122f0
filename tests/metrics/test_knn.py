"""k-NN accuracy against scikit-learn and by hand."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from cluster_jax.core import sharded_knn
from cluster_jax.metrics.knn import knn_accuracy
from tests.rows import every_row


def _data(n, seed, d=6, classes=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n) * 3 - 4
    features = rng.normal(size=(n, d)) + 0.4 * np.eye(d)[(labels + 4) // 3]
    return features * rng.uniform(0.1, 9, (n, 1)), labels


def test_leave_one_out_equals_scikit_learn():
    features, labels = _data(150, 0)
    ours = knn_accuracy(features, labels, n_neighbors=(1, 4, 20))
    for k, value in ours.items():
        model = KNeighborsClassifier(k, metric="cosine", algorithm="brute")
        predicted = cross_val_predict(model, features, labels, cv=LeaveOneOut())
        assert value == np.mean(predicted == labels)
    assert 0.2 < ours[20] < 1


def test_queries_equal_scikit_learn():
    features, labels = _data(200, 1)
    queries, truth = _data(90, 2)
    ours = knn_accuracy(
        features, labels, n_neighbors=(5, 20, 200), queries=queries, query_labels=truth
    )
    for k, value in ours.items():
        model = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(features, labels)
        assert value == model.score(queries, truth)


def test_by_hand_direction_counts_and_length_does_not():
    features = np.array([[1.0, 0], [100, 1], [0, 2], [0.1, 50]])
    assert knn_accuracy(features, [0, 0, 1, 1], n_neighbors=(1,)) == {1: 1.0}
    # Without its own vote a lone class is never right.
    assert knn_accuracy(features, [0, 0, 1, 2], n_neighbors=(1,)) == {1: 0.5}


def test_more_neighbors_than_rows():
    features, labels = _data(6, 3)
    result = knn_accuracy(features, labels, n_neighbors=(5, 6, 100))
    assert result[5] is not None
    assert result[6] is None
    assert result[100] is None
    asked = knn_accuracy(features, labels, n_neighbors=(6,), queries=features, query_labels=labels)
    assert asked[6] is not None
    assert knn_accuracy(features[:1], labels[:1], n_neighbors=(5,)) == {5: None}


@every_row(
    ("change", "message"),
    [
        ({"features": np.full((3, 2), np.nan)}, "NaN"),
        ({"labels": [0, 1]}, "3 rows"),
        ({"n_neighbors": (0,)}, "at least 1"),
        ({"queries": np.ones((2, 2))}, "given together"),
        ({"queries": np.ones((2, 5)), "query_labels": [0, 0]}, "columns"),
    ],
)
def test_bad_input(change, message):
    given = {"features": np.eye(3)[:, :2], "labels": [0, 1, 2], "n_neighbors": (1,), **change}
    with pytest.raises(ValueError, match=message):
        knn_accuracy(given.pop("features"), given.pop("labels"), **given)


def test_accelerators_find_the_same_neighbors(monkeypatch):
    """Three share the voters; the last of several blocks of queries overlaps the one before."""
    (features, labels), (queries, truth) = _data(151, 4), _data(90, 5)
    asked = {"queries": queries, "query_labels": truth}
    calls = [({}, (1, 4, 20)), (asked, (5, 151))]
    on_a_cpu = [knn_accuracy(features, labels, n_neighbors=k, **more) for more, k in calls]
    devices, meshes = jax.devices()[:3], []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    monkeypatch.setattr(sharded_knn, "_SCORES", 151 * 40 // 3)
    monkeypatch.setattr(sharded_knn, "Mesh", lambda *args: meshes.append(Mesh(*args)) or meshes[-1])
    assert [knn_accuracy(features, labels, n_neighbors=k, **more) for more, k in calls] == on_a_cpu
    assert [mesh.size for mesh in meshes] == [3, 3]


def test_of_equally_near_rows_accelerators_take_the_first():
    rows = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    found = sharded_knn.nearest(rows, k=3, mesh=Mesh(jax.devices()[:4], ("rows",)))[0]
    own = np.arange(12)[:, None]
    together = own // 4 * 4 + np.arange(4)
    np.testing.assert_array_equal(found, together[together != own].reshape(12, 3))
