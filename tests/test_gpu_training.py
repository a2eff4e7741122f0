"""The training of a slice of GPU time on the CPU: cut off, continued, and carried."""

import json
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest

from cluster_jax.clustering.kmeans import kmeans
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.metrics import partition
from cluster_jax.metrics.knn import knn_accuracy
from cluster_jax.pipeline import build
from experiments.gpu import map_and_cluster, map_jobs, pieces, settings, train

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")

ITEM = {"name": "t", "kind": "train", "group": "g", "share": 1.0, "method": "ncc",
        "network": "resnet18", "epochs": 4, "evaluate_every": 2, "seconds": 1}  # fmt: skip


@pytest.fixture(scope="module")
def dataset():
    return settings.generated(settings.TINY_IMAGES, settings.TINY_SIDE, False)


@pytest.fixture(autouse=True)
def _without_umap(monkeypatch):
    monkeypatch.setattr(map_and_cluster, "available", lambda: False)


def _measure(dataset, out, *, resume=None, earlier=None, seconds=1000.0):
    """The last figures of a slice, as JSON has them, and whether it ended the process."""
    figures = {}

    def write(values, complete):
        figures.clear()
        figures.update(json.loads(json.dumps(io.plain(values))), complete=complete)

    interrupted = False
    try:
        train.measure(
            ITEM, dataset=dataset, out=out, resume=resume, earlier=earlier, rates={},
            seconds=seconds, write=write, tiny=True,
        )  # fmt: skip
    except KeyboardInterrupt:
        interrupted = True
    return figures, interrupted


def _signals_at(monkeypatch, step, action):
    """Calls `action` as the batch of a step is placed; counts from 1 over all calls of the loop."""
    place, batches = train.loop._place, iter(range(1, 1000))

    def placed(batch, mesh):
        if next(batches) == step:
            action()
        return place(batch, mesh)

    monkeypatch.setattr(train.loop, "_place", placed)


def _params(out):
    """Parameters of the newest checkpoint."""
    config = io.read_json(out / "carry" / "t" / "manifest.json")["about"]["config"]
    data = settings.generated(settings.TINY_IMAGES, settings.TINY_SIDE, False)
    run = settings.build_run(train.ConfigDict(config), data).training
    folder = out / "train" / "t"
    state = train._train_to(run, 24, build.initial_state(run), folder, None)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """An uninterrupted training."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_and_cluster, "available", lambda: False)
        return _measure(dataset, out)[0], _params(out)


@pytest.fixture(scope="module")
def cut_off(dataset, tmp_path_factory):
    """A training cut off in mid-epoch by a signal that is not the end of the slice."""
    out = tmp_path_factory.mktemp("cut_off")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_and_cluster, "available", lambda: False)
        _signals_at(patch, 15, lambda: signal.raise_signal(signal.SIGTERM))
        return out, *_measure(dataset, out)


def test_a_signal_packs_the_state_and_ends_the_slice(cut_off):
    out, figures, interrupted = cut_off
    assert interrupted
    assert figures["step"] == 15  # of 24; an evaluation is due after 12
    assert not figures["complete"]
    assert [point["epoch"] for point in figures["history"]] == [2]
    assert figures["carried"]["mb"] < 1
    about = pieces.about(out / "carry" / "t")
    assert about["step"] == 15
    assert about["history"] == figures["history"]
    assert about["seconds"] > 0


def test_a_training_goes_on_from_the_packed_state(cut_off, whole, dataset, tmp_path):
    """On another machine, without its figures: close to an uninterrupted one."""
    out, first, _ = cut_off
    figures, interrupted = _measure(dataset, tmp_path, resume=out / "carry")
    assert not interrupted
    assert figures["complete"]
    assert figures["step"] == 24
    assert [point["epoch"] for point in figures["history"]] == [2, 4]
    assert figures["history"][0]["knn"] == first["history"][0]["knn"]
    assert figures["seconds"] > first["seconds"]
    expected = whole[1]
    assert 0 < np.linalg.norm(_params(tmp_path) - expected) / np.linalg.norm(expected) < 1e-3
    assert figures["loss"] == pytest.approx(whole[0]["loss"], rel=1e-2)


def test_the_newer_of_checkpoint_and_packed_state_is_taken(cut_off, tmp_path):
    out, first, _ = cut_off
    packed = out / "carry" / "t"
    workdir = tmp_path / "train"
    (workdir / "checkpoints" / "20").mkdir(parents=True)
    assert train._so_far(workdir, first, packed)[1] is None
    (workdir / "checkpoints" / "20").rename(workdir / "checkpoints" / "10")
    figures, folder = train._so_far(workdir, first, packed)
    assert folder == packed
    assert figures["history"] == first["history"]
    assert (workdir / "older" / "0" / "10").exists()
    assert train._steps_done(workdir, 0) == 0


def test_figures_without_a_state_start_anew(cut_off, tmp_path):
    _, first, _ = cut_off
    assert train._so_far(tmp_path, first, None) == (None, None)
    # Without figures the config of a checkpoint is not known.
    (tmp_path / "checkpoints" / "10").mkdir(parents=True)
    assert train._so_far(tmp_path, None, None) == (None, None)
    assert train._steps_done(tmp_path, 0) == 0


def test_a_training_goes_on_here_as_if_it_had_not_been_cut_off(cut_off, whole, dataset):
    """Lines of the history after the newest checkpoint are dropped."""
    out, first, _ = cut_off
    later = {**first["history"][0], "step": 18, "epoch": 3}
    earlier = {**first, "history": [*first["history"], later], "error": "OSError: disk"}
    figures, _ = _measure(dataset, out, earlier=earlier)
    assert figures["complete"]
    assert "error" not in figures
    assert [point["epoch"] for point in figures["history"]] == [2, 4]
    assert figures["loss"] == whole[0]["loss"]
    np.testing.assert_array_equal(_params(out), whole[1])
    assert figures["history"][1]["knn"] == whole[0]["history"][1]["knn"]


def test_the_end_of_the_slice_packs_the_state(dataset, tmp_path, monkeypatch):
    """Also if the time passed before the first step; that the next item follows is no error."""
    build_run = settings.build_run

    def slow(*arguments):
        time.sleep(0.5)
        return build_run(*arguments)

    monkeypatch.setattr(settings, "build_run", slow)
    _signals_at(monkeypatch, 20, lambda: time.sleep(30))
    start = time.monotonic()
    figures, interrupted = _measure(dataset, tmp_path, seconds=0.5)
    assert time.monotonic() - start < 25
    assert not interrupted
    assert not figures["complete"]
    assert 0 < figures["step"] < 20
    assert figures["carried"]["step"] == figures["step"]


def test_setup_is_part_of_the_slice(dataset, tmp_path, monkeypatch):
    given = []

    def record(seconds):
        given.append(seconds)
        raise KeyboardInterrupt

    build_run = settings.build_run
    monkeypatch.setattr(train, "_end_of_slice", record)
    monkeypatch.setattr(
        settings, "build_run", lambda *arguments: (time.sleep(0.3), build_run(*arguments))[1]
    )
    _measure(dataset, tmp_path, seconds=100.0)
    assert 80 < given[0] < 99.7


def test_the_signal_of_the_end_is_repeated():
    """The first one is lost, as in the last step of a call of the loop."""
    lost = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    start = time.monotonic()
    with train._end_of_slice(0.2) as ended:
        assert not ended.is_set()
        received = []
        previous = signal.signal(signal.SIGTERM, lambda *_: lost.set())
        assert lost.wait(5)
        assert ended.is_set()
        assert time.monotonic() - start < 3
        signal.signal(signal.SIGTERM, lambda *_: received.append(1))
        deadline = time.monotonic() + 5
        while not received and time.monotonic() < deadline:
            time.sleep(0.05)
        assert received
        signal.signal(signal.SIGTERM, previous)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_from_outside_is_an_end():
    with train._end_of_slice(1000.0) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended.wait(5)


def test_an_evaluation_scores_features_against_the_classes(dataset, tmp_path, monkeypatch):
    config = train._config(ITEM, {}, tiny=True)
    run = settings.build_run(config, dataset).training
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((settings.CLASSES, 6))
    features = centers[dataset.labels] + 0.7 * draw.standard_normal((dataset.size, 6))
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(train, "_embed", lambda *arguments: {"backbone": 3 * features})
    line, kept = train._evaluate(run, None, 12, 6)
    np.testing.assert_allclose(kept, features, atol=1e-6)
    expected = knn_accuracy(features, dataset.labels, n_neighbors=train.NEIGHBORS)
    assert line["knn"] == expected
    assert 0.2 < expected[5] < 1
    fitted = kmeans(features, settings.CLASSES, seed=run.schedule.seed)
    assert line["kmeans"] == partition.scores(dataset.labels, fitted.labels)
    assert line["kmeans"]["acc"] < 1


class _Process:
    """A job that ends at once."""

    returncode = 0

    def __init__(self, command, **options):
        self.killed = False
        assert command[-1] == str(os.getpid())
        io.write_json(command[-2], {"acc": 0.5})

    def wait(self, seconds=None):
        return 0

    def poll(self):
        return 0

    def kill(self):
        self.killed = True


def test_evaluations_that_a_slice_left_are_clustered_in_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(map_and_cluster, "available", lambda: True)
    monkeypatch.setattr(map_jobs.subprocess, "Popen", _Process)
    config = train._config(ITEM, {}, tiny=True)
    history = [{"step": step, "gridshift": None} for step in (6, 12, 18)]
    io.write_json(tmp_path / "gridshift-6.json", {"acc": 0.25})
    map_jobs.keep(tmp_path, history[1], np.ones((3, 2)), np.arange(3))
    with map_jobs.running(tmp_path, history, config) as jobs:
        assert [job.line["step"] for job in jobs] == [12]
        map_jobs.collect(jobs, wait=1.0)
    assert jobs[0].process.killed  # Harmless here; a running one must not outlive the training.
    results = [line["gridshift"] for line in history]
    assert results == [{"acc": 0.25}, {"acc": 0.5}, "its features are on another machine"]


def test_a_job_ends_with_its_training(monkeypatch):
    parents, codes, sleeps = iter([7, 7, 1]), [], []
    monkeypatch.setattr(map_and_cluster.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(map_and_cluster.os, "_exit", codes.append)
    monkeypatch.setattr(map_and_cluster.time, "sleep", sleeps.append)
    map_and_cluster._end_with_parent(7)
    assert codes == [1]
    assert len(sleeps) == 2


def test_states_are_compared_before_the_slice(cut_off, tmp_path):
    out, first, _ = cut_off
    resume = out / "carry"
    same = {"t": {"figures": {"config": first["config"]}}}
    for results in ({}, same, {"t": {"figures": {"error": "none"}}}):
        train.check_resume(resume, [ITEM], results)
    other = {"t": {"figures": {"config": {"seed": 1}}}}
    with pytest.raises(InputError, match="--resume must hold states of the configs in --out"):
        train.check_resume(resume, [ITEM], other)
    for file in resume.glob("t/piece-*"):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / file.name).write_bytes(b"damaged")
    manifest = (resume / "t" / "manifest.json").read_text()
    (tmp_path / "t" / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match="must have the SHA-256"):
        train.check_resume(tmp_path, [ITEM], {})
