"""Whole runs on features, and the file of features that `embed` writes."""

import dataclasses

import jax
import numpy as np
import pytest

from cluster_jax import ImageClusterer, clustering, load
from cluster_jax.clustering.label_spreading import label_spreading
from cluster_jax.core import hosts
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data import batches
from cluster_jax.encoding import embed
from cluster_jax.evaluation import clusters, evaluate
from cluster_jax.metrics import partition
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import novel as novel_classes
from cluster_jax.runs.features import write_features
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from tests import toy

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "shallow_lite")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, one_device, traced_once):
    """A finished run on features in four overlapping groups: workdir, results, features."""
    folder = tmp_path_factory.mktemp("features")
    path = toy.features_file(folder)
    config = toy.shrunken("nrcc_features", folder)
    config.data.dir, config.train.duration, config.network.width = str(path), "100 steps", 32
    config.eval.reduce = "pca"
    results = pipeline.run_pipeline(config, folder / "run", "toy")
    return folder / "run", results, np.load(path)


def test_neighbors_bring_the_groups_together(finished):
    workdir, results, stored = finished
    assert results["metrics"]["kmeans"]["acc"] > 0.95
    assert 0 < results["metrics"]["gradient_share"] < 1
    assert results["duplicates"] is None
    assert not (workdir / "duplicates.csv").exists()
    rows = toy.table(workdir)
    assert [row["image"] for row in rows] == stored["files"].tolist()
    report = (workdir / "report.html").read_text()
    assert "80 rows" in report
    assert "80 images" not in report


def test_k_means_has_the_metric_of_the_config(finished, monkeypatch):
    monkeypatch.setattr(evaluate, "kmeans", clustering.kmeans)  # ours
    _, results, _ = finished
    assert results["config"]["eval"]["kmeans"]["metric"] == "spherical"
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(100, 8)) + 1
    section = dataclasses.replace(parse_config(results["config"]).eval, method="gridshift")
    section = dataclasses.replace(section, linear_probe=None)
    labels = {}
    for metric in ("euclidean", "spherical"):
        kmeans = dataclasses.replace(section.kmeans, n_clusters=7, metric=metric)
        changed = dataclasses.replace(section, kmeans=kmeans)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        found = clusters.run_gridshift(unit[:, :3])
        evaluation = evaluate.evaluate({"projection": rows}, found, None, changed, seed=0)
        labels[metric] = evaluation.kmeans_labels
        expected = clustering.kmeans(unit, 7, metric=metric, n_init=50, seed=0).labels
        np.testing.assert_array_equal(labels[metric], expected)
    assert (labels["euclidean"] != labels["spherical"]).any()


def test_new_rows_are_placed_without_neighbors(finished):
    workdir, _, stored = finished
    model = load(workdir)
    labels = model.predict(stored["features"])
    assert partition.accuracy(model.labels_, labels) > 0.95
    one = model.transform(stored["features"][:3])
    np.testing.assert_allclose(one, model.transform(stored["features"])[:3], atol=1e-5)
    with pytest.raises(ValueError, match="must have 12 columns like those of the training; got 5"):
        model.predict(np.ones((2, 5)))


def test_the_estimator_takes_an_array_of_features(finished, tmp_path):
    _, _, stored = finished
    config = toy.shrunken("simclr_features", tmp_path)
    config.eval.reduce = "pca"
    model = ImageClusterer(config, workdir=tmp_path / "run", verbose=False)
    model.fit(stored["features"])
    labels = model.labels_
    written = (tmp_path / "run" / "results.json").stat().st_mtime_ns
    np.testing.assert_array_equal(model.fit(stored["features"]).labels_, labels)
    assert (tmp_path / "run" / "results.json").stat().st_mtime_ns == written
    with pytest.raises(InputError, match="exported must be images in files; got a run on features"):
        model.export(tmp_path / "export")
    assert model.labels_.shape == (len(stored["features"]),)
    assert model.results_["provenance"]["data"]["name"] == "features"


def test_methods_of_images_are_refused_in_one_sentence(tmp_path):
    config = toy.shrunken("simclr_features", tmp_path)
    config.nrcc.update(weight=0.5, resolution=4)
    with pytest.raises(InputError, match=r"nrcc.resolution must be None"):
        build.build_run(parse_config(config))
    config = toy.shrunken("simclr_features", tmp_path)
    config.feature_views.neighbors = 1000
    with pytest.raises(InputError, match="must be at most 79 for 80 rows of the data; got 1000"):
        build.build_run(parse_config(config))
    config.feature_views.neighbors = 0
    assert build.build_run(parse_config(config)).training.dataset.shape == (1, 12)
    config = toy.shrunken("ncl_features", tmp_path)
    config.stages.supervised.method = {"name": "rotation"}
    config.stages.supervised.train = {"labeled_batch_size": None}
    with pytest.raises(InputError, match="rotation must be trained on images; got features"):
        pipeline.run_pipeline(config, tmp_path / "run")
    config = toy.shrunken("simclr_features", tmp_path)
    config.network.weights = config.network.name = "efficientnet_lite2"
    config.network.width = 32
    with pytest.raises(InputError, match=r"network.weights must be None for features"):
        build.build_run(parse_config(config))


@pytest.mark.parametrize("head", ["pairs", "clusters"])
def test_what_the_head_on_clusters_says_is_spread_over_neighbors(tmp_path, head):
    """Of unlabeled images; the paper's head alone decides."""
    config = toy.shrunken("ncl_features", tmp_path)
    config.method.head = head
    config.feature_views.neighbors = 10
    built = build.build_run(parse_config(config))
    dataset = built.training.dataset
    rng, n_known = np.random.default_rng(0), int(dataset.partial_labels.max()) + 1
    # Groups that the head sees through noise, other ones than those of the data.
    group = rng.permutation(80) % 2
    rows = np.eye(2, 5)[group] + rng.normal(size=(80, 5)) / 3
    novel = 2 * np.eye(2)[group] + rng.normal(size=(80, 2)) * 3
    embedding = {"backbone": rows, "labeled": rng.normal(size=(80, n_known)), "novel": novel}
    found = novel_classes.discover(built.inputs, {"embedding.npz": embedding})
    unlabeled = np.flatnonzero(dataset.partial_labels < 0)
    of_novel = found.classes[unlabeled] - n_known
    of_head = novel[unlabeled].argmax(axis=1)
    if head == "pairs":
        np.testing.assert_array_equal(of_novel, of_head)
        return
    odds = np.exp(novel) / np.exp(novel).sum(axis=1, keepdims=True)
    units = rows[unlabeled] / np.linalg.norm(rows[unlabeled], axis=1)[:, None]
    near = [[j for j in dataset.nearest[i] if j in unlabeled] for i in unlabeled]
    others = np.full((len(unlabeled), dataset.nearest.shape[1]), -1)
    for i, columns in enumerate(near):
        others[i, : len(columns)] = np.searchsorted(unlabeled, columns)
    expected = label_spreading(odds[unlabeled], units, others).argmax(axis=1)
    np.testing.assert_array_equal(of_novel, expected)
    assert (of_novel != of_head).any()
    alone = label_spreading(odds[unlabeled], units, None).argmax(axis=1)
    assert (of_novel != alone).any()
    # How sure the head is of itself is another question.
    assert found.metrics["confidence"] == pytest.approx(odds[unlabeled].max(axis=1).mean())


@pytest.fixture
def photos(tmp_path):
    """A config of the frozen network on 40 small color images."""
    config = load_config("images")
    config.data.name, config.data.dir = "arrays", str(toy.file(tmp_path, 40, channels=3))
    config.data.image_size = 32
    config.eval.batch_size = 16
    config.eval.reduce = "pca"
    return config_json(config)


def test_embed_writes_what_a_run_embeds(photos, tmp_path):
    assert write_features(photos, tmp_path / "x.npz") == ((40, 1280), [])
    stored = np.load(tmp_path / "x.npz")
    pipeline.run_pipeline(photos, tmp_path / "run", "photos")
    expected = np.load(tmp_path / "run" / "store-0.npz")["features"]
    np.testing.assert_allclose(stored["features"], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(stored["labels"], toy.images(40, channels=3)[1])
    assert not (tmp_path / "x.npz.parts").exists()


class _Evaluation:
    """Batches as they are, which count the images of each; raises after a number of batches."""

    def __init__(self, monkeypatch, stop=None, error=KeyboardInterrupt):
        self._evaluation, self._stop, self._error = batches.evaluation, stop, error
        self.counts = []
        monkeypatch.setattr(batches, "evaluation", self)

    def __call__(self, dataset, **arguments):
        for images, index, count in self._evaluation(dataset, **arguments):
            if len(self.counts) == self._stop:
                raise self._error
            self.counts.append(count)
            yield images, index, count


def test_embed_resumes_with_the_same_rows(photos, tmp_path, monkeypatch):
    """But not with those of other pixels."""
    other = photos | {"data": photos["data"] | {"image_size": 40}}
    assert write_features(photos, tmp_path / "whole.npz") == ((40, 1280), [])
    whole = np.load(tmp_path / "whole.npz")["features"]
    for config in (other, photos):
        with monkeypatch.context() as patch:
            _Evaluation(patch, stop=2)
            with pytest.raises(KeyboardInterrupt):
                write_features(config, tmp_path / "x.npz")
        assert not (tmp_path / "x.npz").exists()
    rest = _Evaluation(monkeypatch)
    write_features(photos, tmp_path / "x.npz")
    assert rest.counts == [8]
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["features"], whole)


def test_two_processes_write_the_same_rows(photos, tmp_path, monkeypatch):
    write_features(photos, tmp_path / "whole.npz")
    monkeypatch.setattr(hosts, "wait_for_all", lambda name: None)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for number in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        assert write_features(photos, tmp_path / "two")[0][1] == 1280
    with pytest.raises(InputError, match="must be a folder in 2 processes; got"):
        write_features(photos, tmp_path / "two.npz")
    whole, parts = np.load(tmp_path / "whole.npz"), [f"0000{i}-of-00002" for i in "01"]
    rows = [np.load(tmp_path / "two" / f"features-{part}.npy") for part in parts]
    np.testing.assert_allclose(np.concatenate(rows), whole["features"], atol=1e-4)
    labels = [np.load(tmp_path / "two" / f"rows-{part}.npz")["labels"] for part in parts]
    np.testing.assert_array_equal(np.concatenate(labels), whole["labels"])
    assert len(list((tmp_path / "two").iterdir())) == 4


@pytest.mark.slow
def test_a_run_goes_on_with_the_parts_of_its_embedding(photos, tmp_path, monkeypatch):
    """After Ctrl-C in the second batch, and a kill in the third: no image twice."""
    pipeline.run_pipeline(photos, tmp_path / "whole", "photos")
    workdir = tmp_path / "run"
    folder = workdir / "store.parts"
    for number, error in enumerate((KeyboardInterrupt, ZeroDivisionError), start=1):
        with monkeypatch.context() as patch:
            patch.setattr(embed, "SECONDS", 20.0 if error is KeyboardInterrupt else -1.0)
            seen = _Evaluation(patch, stop=1, error=error)
            with pytest.raises(error):
                pipeline.run_pipeline(photos, workdir, "photos")
        assert seen.counts == [16]
        assert len(list(folder.iterdir())) == number
    rest = _Evaluation(monkeypatch)
    pipeline.run_pipeline(photos, workdir, "photos")
    assert rest.counts == [8]
    assert not folder.exists()
    features = [np.load(tmp_path / name / "store-0.npz")["features"] for name in ("run", "whole")]
    np.testing.assert_array_equal(*features)
