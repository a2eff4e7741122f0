"""Rows of the first of several processes: what the others get, and what is computed of them."""

import itertools
import json
import time

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import hosts, ops, sharded_knn
from cluster_jax.metrics.knn import knn_accuracy
from cluster_jax.metrics.linear_probe import linear_probe


@pytest.fixture
def rows():
    labels = np.arange(61) % 3
    return (np.random.default_rng(0).normal(size=(61, 5)) + 3 * labels[:, None]).astype(np.float32)


def _mesh(count=4):
    return Mesh(np.array(jax.devices()[:count]), ("rows",))


def test_arrays_are_sent_in_blocks_as_they_are(monkeypatch):
    sent = []
    as_it_is = hosts._sent
    monkeypatch.setattr(hosts, "_sent", lambda words: sent.append(words.nbytes) or as_it_is(words))
    monkeypatch.setattr(hosts, "_BLOCK", 256)
    arrays = {"a": np.float64([1 / 3, np.nan, -0.0]), "text": np.array("é"), "c": np.arange(70)}
    received = hosts.from_first(arrays)
    assert received.keys() == arrays.keys()
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        assert received[name].tobytes() == array.tobytes()
    assert len(sent) > 3
    assert max(sent) == 256


@pytest.mark.parametrize(("n", "devices"), [(61, 4), (60, 4), (5, 4), (1, 3)])
def test_each_device_has_its_rows_and_all_may_ask_for_others(rows, n, devices):
    rows = rows[:n]
    spread = hosts.Spread(rows, _mesh(devices))
    assert (spread.shape, spread.dtype, len(spread)) == (rows.shape, rows.dtype, n)
    local = -(-n // devices)
    for start in range(0, n, local):
        np.testing.assert_array_equal(spread[start : min(n, start + local)], rows[start:][:local])
    np.testing.assert_array_equal(spread[np.array([n - 1, 0])], rows[[n - 1, 0]])
    np.testing.assert_array_equal(spread.max(axis=0), rows.max(axis=0))
    shards = hosts.placed(spread, _mesh(devices)).addressable_shards
    assert {shard.data.shape for shard in shards} == {(local, 5)}
    placed = np.concatenate([shard.data for shard in shards])
    np.testing.assert_array_equal(placed[:n], rows)
    assert not placed[n:].any()


def test_what_all_processes_compute_is_what_one_does(rows, monkeypatch):
    mesh = _mesh()
    monkeypatch.setattr(hosts, "_send", lambda message, arrays=(): None)
    labels = np.arange(61) % 3
    how = {"n_clusters": 4, "n_init": 2, "seed": 3}
    one, all_of_them = (hosts.on_all(kmeans, each, rows, **how) for each in (None, mesh))
    np.testing.assert_array_equal(one.labels, all_of_them.labels)
    for metric in (knn_accuracy, linear_probe):
        assert metric(rows, labels) == metric(rows, labels, mesh=mesh)
    some = rows[:20] / np.linalg.norm(rows[:20], axis=1, keepdims=True)
    near, cosines = hosts.on_all(sharded_knn.nearest_for, mesh, some, some[3:9], k=2)
    assert near[3:9, 0].tolist() == list(range(6))
    np.testing.assert_allclose(cosines[3:9, 0], 1, rtol=1e-6)


def test_others_follow_until_the_first_one_is_done(rows, monkeypatch):
    """The message of a call is all that they need; an error of the first one ends no follower."""
    mesh, messages, seen = _mesh(), [], []
    monkeypatch.setattr(hosts, "wait_for_all", lambda name: None)
    monkeypatch.setattr(hosts, "mesh_of_all", lambda: mesh)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "from_first", lambda arrays: messages.append(arrays) or arrays)
    with hosts.leading():
        hosts._send(
            {"module": "cluster_jax.core.ops", "function": "recorded", "options": {"k": 3}},
            (np.arange(2),),
        )
    with pytest.raises(OSError, match="full"), hosts.leading():
        raise OSError("full")
    in_time = [json.loads(sent["message"].item()).get("in_time") for sent in messages]
    assert in_time == [None, True]
    stream = iter(messages)
    monkeypatch.setattr(hosts, "from_first", lambda arrays: dict(next(stream)))
    monkeypatch.setattr(hosts, "Spread", lambda rows, mesh: "rows")
    monkeypatch.setattr(ops, "recorded", lambda *a, **more: seen.append((*a, more)), raising=False)
    hosts.follow()
    ((given, array, more),) = seen
    assert (given, array.tolist(), more) == ("rows", [0, 1], {"mesh": mesh, "k": 3})
    assert not list(itertools.islice(stream, 1))


def test_the_first_one_computes_alone_for_a_limited_time(monkeypatch):
    """What all compute does not count, and the job ends in all processes."""
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "LONGEST_WAIT", 0.3)
    monkeypatch.setattr(hosts, "_send", lambda message, arrays=(): sent.append(message))
    monkeypatch.setattr(hosts, "Spread", lambda rows, mesh: rows)
    together = lambda rows, mesh: time.sleep(rows)  # noqa: E731
    with hosts.leading():
        time.sleep(0.1)
        hosts.on_all(together, _mesh(), 0.5)
    with hosts.leading(limited=False):
        time.sleep(0.5)
    assert [message.get("in_time") for message in sent] == [None, True, True]

    def too_slow():
        with hosts.leading():
            time.sleep(0.2)
            hosts.on_all(together, _mesh(), 0.5)
            time.sleep(60)

    with pytest.raises(hosts.WaitedTooLong, match=r"waited 0.005 minutes .*: run the same"):
        too_slow()
    assert sent[-1] == {"module": None, "in_time": False}
    time.sleep(0.4)  # nothing ends this process later
    monkeypatch.setattr(hosts, "wait_for_all", lambda name: None)
    monkeypatch.setattr(hosts, "mesh_of_all", _mesh)
    message = {"message": np.array(json.dumps(sent[-1]))}
    monkeypatch.setattr(hosts, "from_first", lambda arrays: message)
    with pytest.raises(hosts.WaitedTooLong):
        hosts.follow()
