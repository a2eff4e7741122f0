"""ImageClusterer with classes given for some images: known ones by name, novel ones by number."""

import json
import shutil

import numpy as np
import pytest

import cluster_jax
from cluster_jax.estimators import ImageClusterer
from cluster_jax.runs import begin, page, states
from cluster_jax.runs import run as records
from cluster_jax.training.config import config_json
from tests import toy

# A few steps leave the novel head undecided, of which `fit` warns.
pytestmark = [
    pytest.mark.usefixtures("one_device", "traced_once", "compiled_once"),
    pytest.mark.filterwarnings("ignore:the novel head"),
]

NAMES = np.array(["under", "at", "far", "off"])


@pytest.fixture(scope="module")
def images():
    """Pixels, and classes: two of four groups are known, all but a few of their images."""
    pixels, labels = toy.images()
    return pixels, np.where(labels < 2, NAMES[labels], "-1")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The config of `fit(X, y)` with few steps and small sizes, without its earlier stages."""
    made = toy.shrunken("ncl_images_scratch", tmp_path_factory.mktemp("config"), "mlp")
    made.network.frozen, made.stages = None, {}
    made.augment.jitter.probability = made.augment.grayscale = 0.0
    made.method.n_classes = None
    made.eval.reduce = "pca"
    return config_json(made)


@pytest.fixture(scope="module")
def fitted(config, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "run"
    with pytest.warns(UserWarning, match=r"^the novel head .*; see the report's clusters$"):
        return ImageClusterer(config, workdir=folder, n_clusters=3, verbose=False).fit(*images)


def test_what_fit_leaves(fitted, images):
    pixels, classes = images
    known = classes != "-1"
    assert (fitted.labels_[known] == classes[known]).all()
    assert set(fitted.labels_[~known]) <= {"novel 0", "novel 1", "novel 2"}
    assert fitted.n_clusters_ == len(set(fitted.labels_[~known]))
    assert fitted.results_["metrics"]["discovery"]["novel_classes"] == 3
    assert fitted.results_["metrics"]["discovery"]["novel"]["acc"] is None
    assert fitted.results_["config"]["novel"]["classes"] is None
    assert not fitted.outliers_[known].any()
    features = fitted._run.features
    for name in np.unique(fitted.labels_):  # known or novel
        own = features[fitted.labels_ == name]
        far = np.linalg.norm(own - own.mean(axis=0), axis=1)
        np.testing.assert_allclose(fitted.distances_[fitted.labels_ == name], far, atol=1e-5)
    rows = toy.table(fitted._run.workdir)
    assert [row["class"] for row in rows] == fitted.labels_.tolist()
    assert [row["kmeans_cluster"] == "" for row in rows] == known.tolist()
    np.testing.assert_allclose([float(row["distance"]) for row in rows], fitted.distances_, 1e-5)
    np.testing.assert_allclose(fitted.transform(pixels), features, atol=1e-5)


def test_new_images_are_told_by_name_or_number(fitted, images):
    found = fitted.predict(images[0])
    assert found.shape == fitted.labels_.shape
    assert set(found) <= set(fitted.labels_)
    # Fifteen neighbors vote, the image itself among them: most keep their class.
    assert (found == fitted.labels_).mean() > 0.6
    where = fitted.assign(images[0][:9])
    assert (where.labels == found[:9]).all()
    same = where.labels == fitted.labels_[:9]
    np.testing.assert_allclose(where.distances[same], fitted.distances_[:9][same], atol=1e-5)
    assert where.is_novel.dtype == bool


@pytest.mark.filterwarnings("ignore:the novel head")
def test_a_person_corrects_novel_classes_and_the_known_ones_stay(fitted, config, images, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(fitted._run.workdir, run)
    first = records.read(run)
    known = images[1] != "-1"
    unlabeled = np.flatnonzero(~known).tolist()
    assert not first.is_corrected
    np.testing.assert_array_equal(first.columns["decided"], known)
    assert page.report_data(first).n_known == 2
    assert first.points.shape == (len(known), 2), "t-SNE has drawn the map of all images"
    called = page.report_data(first).names
    found = np.unique(first.labels[unlabeled]).tolist()
    assert called == {"0": "at", "1": "under"} | {str(c): f"novel {c - 2}" for c in found}
    to = int(first.labels[unlabeled[0]])
    said = {
        "state": first.state,
        "names": {str(to): "owls"},
        "labels": {str(unlabeled[3]): to},
        "new": {"a": "bats"},
    }
    said["labels"] |= {str(unlabeled[i]): "a" for i in (5, 6)}
    (tmp_path / "said.json").write_text(json.dumps(said))
    states.correct(run, [tmp_path / "said.json"])
    table = toy.table(run)
    assert [table[row]["class"] for row in np.flatnonzero(known)] == images[1][known].tolist()
    moved = [table[unlabeled[i]] for i in (3, 5, 6)]
    new = f"novel {first.labels.max() + 1 - 2}"
    assert [row["class"] for row in moved] == [f"novel {to - 2}", new, new]
    assert [row["name"] for row in moved] == ["owls", "bats", "bats"]
    now = cluster_jax.load(run)
    found = now.results_["metrics"]["discovery"]["novel"]
    assert found["n_clusters"] == len(np.unique(records.read(run).labels[unlabeled]))
    assert set(now.predict(images[0][:9])) <= {row["class"] for row in table}
    # Another section `eval` scores other clusters; what a person has decided stays.
    other = {**config, "eval": {**config["eval"], "n_init": 2}}
    again = ImageClusterer(other, workdir=run, n_clusters=3, verbose=False).fit(*images)
    assert again.labels_.tolist() == [row["class"] for row in table]
    assert [row["name"] for row in toy.table(run)] == [row["name"] for row in table]
    assert again.results_["metrics"]["discovery"]["novel"] == found
    assert records.read(run).number == 3


def test_merges_of_classes_stay_and_corrected_known_images_count(fitted, config, images, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(fitted._run.workdir, run)
    first = records.read(run)
    known = np.flatnonzero(images[1] != "-1").tolist()
    novel = np.unique(first.labels[images[1] == "-1"]).tolist()
    said = {"state": first.state, "wrong": known[:1]}
    (tmp_path / "wrong.json").write_text(json.dumps(said))
    states.correct(run, [tmp_path / "wrong.json"])
    assert records.read(run).is_corrected
    unchecked = "Nobody has checked"
    assert unchecked in (fitted.workdir / "report.html").read_text()
    assert unchecked not in (run / "report.html").read_text()
    assert "in force: 1 decided" in states.correct(run)[0]
    said = {"state": records.read(run).state, "merges": [[novel[0], 1]]}
    (tmp_path / "merges.json").write_text(json.dumps(said))
    states.correct(run, [tmp_path / "merges.json"])
    assert set(records.read(run).labels) == {-1, 0, 1, *novel[1:]}
    assert cluster_jax.load(run).n_clusters_ == len(novel) - 1, "a known class is no novel one"
    table = toy.table(run)
    other = {**config, "eval": {**config["eval"], "n_init": 3}}
    ImageClusterer(other, workdir=run, n_clusters=3, verbose=False).fit(*images)
    assert [row["class"] for row in toy.table(run)] == [row["class"] for row in table]
    assert unchecked not in (run / "report.html").read_text()
    for _ in range(3):
        states.undo(run)
    assert unchecked in (run / "report.html").read_text()


def test_a_known_class_of_which_no_image_can_be_read(config, images, tmp_path):
    """A streamed set shows that only when its images are read; the classes keep their names."""
    toy.save_by_label(tmp_path / "photos", images[0], toy.images()[1])
    for file in (tmp_path / "photos" / "1").iterdir():
        file.write_bytes(file.read_bytes()[:60])
    of_folder = {"name": "folder", "dir": str(tmp_path / "photos"), "labels": "folders"}
    streamed = {"cache_mb": 0.0, "max_corrupt_fraction": 0.9}
    data = {**config["data"], **of_folder, **streamed}
    method, novel = {**config["method"], "n_classes": 2}, {**config["novel"], "classes": 2}
    begin.run_pipeline({**config, "data": data, "method": method, "novel": novel}, tmp_path / "run")
    found = {row["class"] for row in toy.table(tmp_path / "run")}
    assert {"0"} < found <= {"0", "novel 0", "novel 1"}


def test_loaded(fitted, images):
    again = cluster_jax.load(fitted._run.workdir)
    assert (again.labels_ == fitted.labels_).all()
    assert (again.outliers_ == fitted.outliers_).all()
    assert (again.predict(images[0][:5]) == fitted.predict(images[0][:5])).all()


def test_a_workdir_is_of_the_same_classes(fitted, config, images):
    pixels, classes = images
    made = ImageClusterer(config, workdir=fitted._run.workdir, n_clusters=3, verbose=False)
    assert (made.fit_predict(pixels, classes) == fitted.labels_).all()
    swapped = np.where(classes == "at", "under", np.where(classes == "under", "at", classes))
    with pytest.raises(ValueError, match="images or their known classes have changed"):
        made.fit(pixels, swapped)


@pytest.mark.parametrize(
    ("changed", "classes", "message"),
    [
        ({"n_clusters": None}, None, "^with y, n_clusters must be the number"),
        ({"n_clusters": 1}, None, "^method.n_classes must be at least 2; got 1$"),
        ({}, ["a"] * 3, r"^y must have one class for each of .*got shape \(3,\)$"),
        ({}, [-1] * 64, "got no labeled ones"),
        ({}, ["novel 1", "-1"] * 32, "^known classes must have names of their own.*'novel 1'$"),
        ({}, ["", "-1"] * 32, "^known classes must have names of their own.*got ''$"),
        ({}, ["a"] * 64, "got no unlabeled ones"),
        ({"config": "images"}, None, "^y must be None for the config 'images'"),
        (
            {"n_clusters": 60},
            None,
            "^method.n_classes must be at most the .*; got 60",
        ),
    ],
)
def test_bad_classes(config, images, tmp_path, changed, classes, message):
    options = {"config": config, "n_clusters": 2, "workdir": tmp_path / "run", **changed}
    with pytest.raises(ValueError, match=message) as error:
        ImageClusterer(**options).fit(images[0], images[1] if classes is None else classes)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_classes_are_needed(images):
    made = ImageClusterer("ncl_images", n_clusters=2)
    with pytest.raises(ValueError, match=r"^y must give the known classes"):
        made.fit(images[0])


def test_the_default_depends_on_classes():
    made, name = ImageClusterer()._build_config(False)
    assert (name, made.data.image_size, made.encoder) == ("images", 224, "lite2")
    made, name = ImageClusterer(n_clusters=4)._build_config(True)
    assert name == "ncl_images"
    assert made.method.n_classes == 4
