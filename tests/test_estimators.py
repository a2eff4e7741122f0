"""ImageClusterer: a run as scikit-learn sees it, saved and loaded without pickle."""

import dataclasses
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import cluster_jax
from cluster_jax.core.checks import InputError
from cluster_jax.data import datasets
from cluster_jax.estimators import ImageClusterer
from cluster_jax.runs import start
from cluster_jax.training import loop
from tests import toy
from tests.methods import cases
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("one_device", "compiled_once")


UNREADABLE = r"^no row for 1 file that could not be read: broken\.png$"


def _tiny(**options):
    """A clusterer of four steps on 8 x 8 images in gray."""
    return ImageClusterer(toy.config("unused").to_dict(), **options)


@pytest.fixture(scope="module")
def images():
    return toy.images(90)[0]


@pytest.fixture(scope="module")
def fitted(images):
    return _tiny().fit(images)


def test_scikit_learn_can_clone_it(images):
    made = ImageClusterer("images", overrides={"seed": 3}, n_clusters=4, verbose=False)
    copied = clone(made)
    assert copied.get_params() == made.get_params()
    assert copied.set_params(n_clusters=None).n_clusters is None
    assert made.n_clusters == 4
    assert "n_clusters=4" in repr(made)


def test_what_fit_leaves(fitted, images):
    results = fitted.results_
    assert fitted.labels_.shape == fitted.distances_.shape == fitted.outliers_.shape == (90,)
    assert fitted.n_clusters_ == len(set(fitted.labels_[~fitted.outliers_]))
    assert fitted.n_clusters_ == results["metrics"]["gridshift"]["n_large"]
    assert len(set(fitted.labels_)) == results["metrics"]["gridshift"]["n_clusters"]
    assert fitted.files_ is None
    assert (fitted.distances_ >= 0).all()
    assert set(cluster_jax.cut_tree(fitted.linkage_, 2)) == {0, 1}
    assert len(fitted.linkage_) == len(set(fitted.labels_)) - 1
    assert results["metrics"]["gridshift"]["acc"] is None
    assert results["provenance"]["labels_used_for"] == []


def test_training_images_are_predicted_as_labeled(fitted, images):
    assert (fitted.predict(images) == fitted.labels_).all()
    assert (fitted.predict(images[:1]) == fitted.labels_[:1]).all()
    found = fitted.assign(images[7:30] / 255.0)
    assert (found.labels == fitted.labels_[7:30]).all()
    np.testing.assert_allclose(found.distances, fitted.distances_[7:30], atol=1e-4)
    assert not found.is_novel.any()
    features = fitted.transform(images[:20])
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(features, fitted._run.features[:20], atol=1e-5)


def test_saved_and_loaded(fitted, images, tmp_path, capsys):
    folder = fitted.save(tmp_path / "kept")
    for load in (ImageClusterer.load, cluster_jax.load):
        again = load(folder)
        assert (again.labels_ == fitted.labels_).all()
        assert (again.distances_ == fitted.distances_).all()
        assert (again.predict(images[:5]) == fitted.labels_[:5]).all()
        assert again.n_clusters is None
    assert not [f for f in folder.rglob("*") if f.suffix in (".pkl", ".pickle", ".joblib")]
    with pytest.raises(FileExistsError, match="path must be a new or empty folder"):
        fitted.save(folder)
    page = fitted.report(tmp_path / "page.html")
    assert "<html" in page.read_text()[:500].lower()
    # Fitting what was loaded starts afresh, with the same settings.
    assert (
        clone(again)._build_config(False)[0].to_dict()["train"]
        == fitted._build_config(False)[0].to_dict()["train"]
    )


def test_quiet_training_still_warns(images, tmp_path, monkeypatch, capsys):
    """Once, also if the training fails, and again in the next, verbose training."""
    config = cases.use(toy.config("unused"), "moco")
    config.method.queue = 64
    monkeypatch.setattr(loop, "train", lambda *a, **k: 1 / 0)
    # The filters of a user, whose warnings go to the standard error output.
    warnings.simplefilter("default")
    monkeypatch.setattr(warnings, "showwarning", lambda text, *a: sys.stderr.write(f"{text}\n"))
    for verbose in (False, True):
        with pytest.raises(ZeroDivisionError):
            ImageClusterer(config, workdir=tmp_path / f"{verbose}", verbose=verbose).fit(images)
        said = capsys.readouterr()
        assert said.err.count("method.queue = 64 is more than half of the 90") == 1
        if not verbose:
            assert (said.err.count("\n"), said.out) == (1, "")


def test_a_folder_and_its_workdir(images, tmp_path, monkeypatch):
    toy.save(tmp_path / "a", images[:40])
    (tmp_path / "a" / "broken.png").write_bytes(b"no image")
    made = _tiny(workdir=tmp_path / "run")
    with pytest.warns(UserWarning, match=UNREADABLE):
        features = made.fit_transform(tmp_path / "a")
    assert features.shape == (40, 8)
    assert made.files_ == tuple(f"{i:02}.png" for i in range(40))
    rows = toy.table(tmp_path / "run")
    assert [int(row["cluster"]) for row in rows] == made.labels_.tolist()
    with pytest.warns(UserWarning, match=UNREADABLE):
        assert (made.predict(str(tmp_path / "a")) == made.labels_).all()
    assert (made.predict(tmp_path / "a" / "07.png") == made.labels_[7:8]).all()
    near = cluster_jax.load(tmp_path / "run").nearest(tmp_path / "a" / "07.png", 3)
    assert near.files.shape == (1, 3)
    assert near.files[0].tolist() == [made.files_[i] for i in near.indices[0]]
    assert near.files[0, 0] == "07.png"
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))
    with pytest.warns(UserWarning, match=UNREADABLE):
        again = clone(made).fit(tmp_path / "a")
    assert (again.labels_ == made.labels_).all()
    # A finished run must not lend its labels to other images.
    (tmp_path / "a" / "00.png").unlink()
    with pytest.raises(ValueError, match=r"images.* have changed"):
        clone(made).fit(tmp_path / "a")
    with pytest.raises(ValueError, match=r"another data.dir, data.name; choose another folder$"):
        clone(made).fit(images)


def test_nearest_against_all_pairs(fitted, images):
    queries = toy.images(11, seed=9)[0]
    found = fitted.nearest(queries, 4)
    rows = fitted.transform(queries).astype(np.float64)
    similarities = rows @ fitted._run.features.astype(np.float64).T
    expected = np.argsort(-similarities, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(found.indices, expected)
    wanted = np.take_along_axis(similarities, expected, axis=1)
    np.testing.assert_allclose(found.similarities, wanted, atol=1e-6)
    assert found.files is None
    own = fitted.nearest(images[20:23], 1)
    assert own.indices.tolist() == [[20], [21], [22]]
    np.testing.assert_allclose(own.similarities, 1, atol=1e-6)
    assert fitted.nearest(queries[:1], 500).indices.shape == (1, 90)
    with pytest.raises(InputError, match="n must be"):
        fitted.nearest(queries, 0)


def test_clusters_of_outliers_are_not_counted(fitted):
    labels = np.repeat([0, 3, 4], [50, 38, 2])
    columns = fitted._run.columns.copy()
    columns["label"] = labels
    run = dataclasses.replace(fitted._run, columns=columns, outliers=labels == 4)
    assert ImageClusterer()._set_run(run).n_clusters_ == 2


def test_a_few_skipped_files_are_named():
    skipped = [(f"{i}.png", "no image") for i in range(7)]
    with pytest.warns(UserWarning, match=r"^no row for 7 files that could .*: 0.png, .*, 6.png$"):
        datasets.warn([], skipped)


def test_a_folder_that_cannot_be_read_is_no_file(caplog):
    caplog.set_level("INFO")
    entries = [("lost+found/", "PermissionError"), ("0.png", "no image")]
    start.print_skipped(entries)
    assert caplog.messages == ["1 file cannot be read; see the report"]
    start.print_skipped(entries[:1])
    assert len(caplog.messages) == 1
    with pytest.warns(UserWarning, match=r"^no row for 1 file .*: 0\.png$"):
        datasets.warn([], entries)


def test_before_fit(images):
    for call in ("predict", "transform", "assign", "save"):
        with pytest.raises(NotFittedError):
            getattr(_tiny(), call)(images)


@every_row(
    ("options", "message"),
    [
        (
            {"overrides": {"train.batch_sise": 3}},
            r"key train.batch_sise; did you mean .*train.batch_size.*\?$",
        ),
        (
            {"overrides": {"batch_size": 3}},
            r"key batch_size; did you mean eval.batch_size .*train",
        ),
        (
            {"overrides": {"train.batch_size": "many"}},
            "train.batch_size must be a whole number",
        ),
        ({"overrides": {"train.batch_size": 1000}}, "images of the set; got 1000"),
        (
            {"overrides": {"nrcc.weight": np.float32("inf")}},
            "nrcc.weight must be a finite number",
        ),
        (
            {"n_clusters": 0, "overrides": {"eval.method": "tree"}},
            "eval.n_clusters must be between 1 and 90",
        ),
        ({"n_clusters": "ten"}, "n_clusters must be None or a whole number"),
        ({"n_clusters": 5}, r"eval.n_clusters must be left out for GridShift.* tree"),
    ],
)
def test_bad_settings(images, tmp_path, options, message):
    with pytest.raises(ValueError, match=message) as error:
        _tiny(workdir=tmp_path / "run", **options).fit(images)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@every_row(
    ("source", "message"),
    [
        (np.zeros((90, 64)), r"images in X must have shape .*got \[90 x 64\]"),
        ("no/such/folder", "^X must be an existing folder of images"),
    ],
)
def test_bad_images(source, message):
    with pytest.raises(ValueError, match=message):
        _tiny().fit(source)


def test_numpy_numbers_are_settings(images):
    made = _tiny(n_clusters=np.int64(3), overrides={"eval.knn": (np.int64(7),)})
    config, _ = made._build_config(False)
    assert config.eval.n_clusters == 3
    assert list(config.eval.knn) == [7]
    with pytest.raises(InputError, match="config must be the path of a file or the name of a conf"):
        ImageClusterer("pictures").fit(images)
