"""A killed evaluation goes on with the stages that are kept; a sample is replaced by all images."""

import shutil

import numpy as np
import pytest
from ml_collections import ConfigDict

from cluster_jax import load
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import clusters, evaluate, stages
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import run as records
from cluster_jax.runs.states import undo
from cluster_jax.training import stages as training_stages
from tests import toy

pytestmark = pytest.mark.usefixtures("one_device", "traced_once")
KEPT = "evaluation.parts"


class Killed(BaseException):
    """Ends a call as a kill does."""


def _killed(*args, **more):
    raise Killed


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_device, traced_once):
    folder = tmp_path_factory.mktemp("whole")
    config = toy.config(toy.file(folder))
    return config, folder / "run", pipeline.run_pipeline(config, folder / "run", "toy")


def _begun(whole, tmp_path):
    """A workdir with the embedding of the run, not clustered."""
    config, workdir, _ = whole
    (tmp_path / "run").mkdir()
    for name in ("config.json", "images.json", "embedding.npz", "encoder.npz", "metrics.jsonl"):
        (tmp_path / "run" / name).write_bytes((workdir / name).read_bytes())
    return config, tmp_path / "run"


def _assert_same(one, two):
    metrics = [io.read_json(workdir / "results.json")["metrics"] for workdir in (one, two)]
    assert metrics[0] == metrics[1]
    assert (one / "assignments.csv").read_bytes() == (two / "assignments.csv").read_bytes()


def test_a_killed_evaluation_computes_no_stage_twice(whole, tmp_path, monkeypatch):
    config, workdir = _begun(whole, tmp_path)
    monkeypatch.setattr(stages, "SECONDS", 0)
    order = [
        (clusters, "find", {"clusters"}),
        (evaluate, "kmeans", {"kmeans"}),
        (evaluate.knn, "knn_accuracy", {"knn"}),
        (evaluate, "linear_probe", {"linear_probe"}),
    ]
    done = set()
    for module, name, stage in order:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, _killed)
            with pytest.raises(Killed):
                pipeline.run_pipeline(config, workdir, "toy")
        names = {path.stem for path in (workdir / KEPT).glob("*")}
        assert names == done
        done |= stage
    with monkeypatch.context() as patch:
        for module, name, _ in order[:3]:
            patch.setattr(module, name, _killed)
        pipeline.run_pipeline(config, workdir, "toy")
    assert not (workdir / KEPT).exists()
    _assert_same(workdir, whole[1])


@pytest.mark.parametrize("change", ["damaged", "settings"])
def test_a_kept_stage_that_does_not_fit_is_computed_again(whole, tmp_path, monkeypatch, change):
    config, workdir = _begun(whole, tmp_path)
    monkeypatch.setattr(stages, "SECONDS", 0)
    other = toy.config(config.data.dir)
    other.eval.n_init = config.eval.n_init + (change == "settings")
    with monkeypatch.context() as patch:
        patch.setattr(evaluate.knn, "knn_accuracy", _killed)
        with pytest.raises(Killed):
            pipeline.run_pipeline(other, workdir, "toy")
    file = workdir / KEPT / "kmeans.npz"
    if change == "damaged":
        file.write_bytes(file.read_bytes()[:-40])
    computed = []
    kmeans = evaluate.kmeans
    monkeypatch.setattr(evaluate, "kmeans", lambda *a, **k: computed.append(1) or kmeans(*a, **k))
    pipeline.run_pipeline(config, workdir, "toy")
    assert computed
    _assert_same(workdir, whole[1])


def test_short_stages_are_not_kept(whole):
    assert not (whole[1] / KEPT).exists()
    kept = stages.Stages(whole[1], "of these")
    assert kept.values("name", lambda: {1: np.float64(0.5), 5: None}) == {"1": 0.5, "5": None}
    assert not (whole[1] / "name.npz").exists()


def test_one_process_clusters_all_after_a_sample(tmp_path, monkeypatch, caplog):
    """After a job of several hosts, whose default is a sample."""
    caplog.set_level("INFO")
    config = toy.config(toy.file(tmp_path))
    fitted = []
    fit = GridShift.fit
    monkeypatch.setattr(GridShift, "fit", lambda self, x: fitted.append(len(x)) or fit(self, x))
    section = type(pipeline.parse_config(config, "toy").eval)

    def on_several_hosts():
        with monkeypatch.context() as patch:
            patch.setattr(section, "sample_of", lambda self, n, processes: 40 if n > 40 else None)
            return pipeline.run_pipeline(config, tmp_path / "run", "toy")

    first = on_several_hosts()
    assert on_several_hosts() == first, "it is finished"
    assert first["metrics"]["gridshift"]["rows_clustered"] == 40
    second = pipeline.run_pipeline(config, tmp_path / "run", "toy")
    assert "of another version of your modules, or of a sample: they are" in caplog.text
    assert "rows_clustered" not in second["metrics"]["gridshift"]
    assert pipeline.run_pipeline(config, tmp_path / "run", "toy") == second, "it is finished"
    assert on_several_hosts() == second, "no sample replaces the clusters of all images"
    assert fitted == [40, 64]


def test_an_e_step_embeds_what_it_clusters_alone(tmp_path, monkeypatch):
    embedded = []
    embed = training_stages.embed

    def recorded(*args, **more):
        embedded.append(embed(*args, **more))
        return embedded[-1]

    monkeypatch.setattr(training_stages, "embed", recorded)
    config = toy.config(toy.file(tmp_path))
    method = {"weight": 0.1, "n_clusters": 3, "temperature": 0.5, "warmup": "1 step"}
    method |= {"update_every": "1 step", "n_init": 1, "warm_start": False, "part": "whole"}
    config.term = ConfigDict({"name": "ncc", **method})
    pipeline.run_pipeline(config, tmp_path / "run", "toy")
    names = [set(found) for found in embedded]
    assert names[-1] == {"backbone", "projection"}
    assert {"projection"} in names
    assert len([found for found in names if found == {"projection"}]) == 3


@pytest.mark.parametrize("is_finished", [False, True])
def test_other_labels_after_the_training_leave_the_features(whole, tmp_path, is_finished):
    """The scores are of the labels of now, whatever is beside the features."""
    config, workdir = _begun(whole, tmp_path)
    if is_finished:
        shutil.copytree(whole[1], workdir, dirs_exist_ok=True)
    before = io.read_arrays(workdir / "embedding.npz")
    labels = (before["labels"] + np.arange(64) // 32) % 3
    np.save(tmp_path / "labels.npy", labels)
    config = toy.config(config.data.dir, data={"labels": str(tmp_path / "labels.npy")})
    results = pipeline.run_pipeline(config, workdir, "toy")
    assert results["metrics"]["collapse"].keys() == {"backbone", "projection"}
    assert np.array_equal(records.read(workdir).truth, labels)
    toy.assert_same(io.read_arrays(workdir / "embedding.npz"), before)
    # They stay where a command names none.
    section = {"n_init": config.eval.n_init + 1}
    config = toy.config(config.data.dir, eval=section, data={"labels": None})
    pipeline.run_pipeline(config, workdir, "toy")
    run = records.read(workdir)
    assert np.array_equal(run.truth, labels)
    assert run.number == 2 + is_finished
    assert run.config["data"]["labels"] == str(tmp_path / "labels.npy")


def test_an_undo_of_other_features_needs_their_encoder(tmp_path):
    """The one that is there makes other features; the command of the run makes it again."""
    config = toy.config(toy.file(tmp_path), eval={"features": "projection"})
    workdir = tmp_path / "run"
    first = pipeline.run_pipeline(config, workdir, "toy")
    images = toy.images()[0]
    labels = load(workdir).predict(images)
    others = toy.config(config.data.dir, eval={"features": "backbone"})
    pipeline.run_pipeline(others, workdir, "toy")
    assert load(workdir).transform(images).shape[1] != records.read(workdir, 1).features.shape[1]
    undo(workdir)
    with pytest.raises(InputError, match=r"encoder.npz must be that of eval.features=projection"):
        load(workdir).predict(images)
    assert pipeline.run_pipeline(config, workdir, "toy") == first, "not clustered again"
    assert (load(workdir).predict(images) == labels).all()
