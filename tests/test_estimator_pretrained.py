"""`ImageClusterer` by default: a pretrained network that is not trained further."""

import copy
import dataclasses
import functools
import gc
import json
import logging
import pathlib
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
from PIL import Image
from tqdm import tqdm

from cluster_jax import Encoder, ImageClusterer, load
from cluster_jax.cli import report, update
from cluster_jax.core import logs
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data.decode import Resize, decode
from cluster_jax.encoding import encoder
from cluster_jax.nets import network
from cluster_jax.nets.backbones import resnet
from cluster_jax.nets.config import NetworkConfig
from cluster_jax.runs import begin, claims
from cluster_jax.runs import run as records
from cluster_jax.runs import update as updates
from cluster_jax.training.config import RunConfig, parse_config, parse_training
from tests import toy
from tests.nets import test_safetensors
from tests.nets.test_pretrained import TIMM, lite2, lite_module
from tests.report.test_report import Page

pytestmark = pytest.mark.usefixtures("one_device", "traced_once", "shallow_lite")

# Small images, so that a forward pass takes milliseconds; the map does not matter.
PCA = {"data.image_size": 32, "eval.batch_size": 16, "eval.reduce": "pca"}


def small(overrides=None, **options):
    return ImageClusterer(overrides={**PCA, **(overrides or {})}, verbose=False, **options)


@pytest.fixture(scope="module")
def gray():
    return toy.images(48, channels=1)[0]


@pytest.fixture(scope="module")
def fitted(gray, tmp_path_factory, one_device, traced_once, shallow_lite):
    workdir = tmp_path_factory.mktemp("run")
    return small(workdir=workdir).fit(gray)


def test_nothing_is_trained(fitted, gray):
    assert fitted.results_["provenance"]["steps"] == 0
    assert fitted.results_["provenance"]["images_trained"] == 0
    assert list(fitted.results_["metrics"]["collapse"]) == ["backbone"]
    assert fitted.results_["provenance"]["batch_size"] is None
    assert not (fitted._run.workdir / "metrics.jsonl").exists()
    # Gray images are those that the run has in three channels.
    again = small(workdir=fitted._run.workdir).fit(gray)
    assert (again.labels_ == fitted.labels_).all()


def test_nothing_is_printed_unless_asked(tmp_path, monkeypatch, capfd):
    """Not even the bars of what is read before and after the clusters are found."""
    monkeypatch.setattr(logs, "tqdm", _at_once)
    monkeypatch.setattr(logs, "_is_notebook", lambda: True)
    photos = tmp_path / "photos"
    toy.save(photos, toy.images(12, channels=3)[0])
    model = small({"data.cache_mb": 0}).fit(photos)
    model.predict(photos)
    model.export(tmp_path / "sorted")
    names = [first for first, *_ in model.results_["suggested_names"].values()]
    assert {path.name for path in (tmp_path / "sorted").iterdir()} == {*names, "copies"}
    model.report(tmp_path / "report.html")
    assert capfd.readouterr() == ("", "")
    ImageClusterer(overrides=PCA).fit(photos)
    assert "reading" in capfd.readouterr().err, "a bar would have been seen"


def _at_once(items, **options):
    """A progress bar that is drawn without delay."""
    return tqdm(items, **{**options, "delay": 0, "mininterval": 0})


def test_clusters_get_suggested_names(fitted):
    suggested = fitted.results_["suggested_names"]
    assert set(suggested) == {str(label) for label in np.unique(fitted.labels_)}
    report = Page((fitted._run.workdir / "report.html").read_text())
    guesses = {str(c["id"]): c["guess"] for c in report.record["map"]["clusters"]}
    assert guesses == {label: ", ".join(names) for label, names in suggested.items()}


def test_features_are_those_of_the_weights(fitted, gray, tmp_path):
    params, stats = lite2()
    # Gray images of 8 x 8 as the network sees them.
    pixels = np.stack([decode(x, Resize(32, "bicubic"), 3) for x in gray[:4]])
    inputs = (pixels.astype(np.float32) - 127) / 128
    apply = jax.jit(lite_module().apply)
    expected = apply({"params": params, "batch_stats": stats}, inputs)
    expected = np.asarray(expected) / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.transform(gray[:4]), expected, atol=1e-4)
    made = Encoder.pretrained("lite2")
    assert len(repr(made)) < 1_000, "weights are not printed"
    assert (made.shape, made.checksum) == ((224, 224, 3), fitted._run.images["weights_sha256"])
    small = dataclasses.replace(made.preprocessing, size=32)
    made = dataclasses.replace(made, shape=(32, 32, 3), preprocessing=small)
    made.save(tmp_path / "small.npz")
    np.testing.assert_allclose(Encoder.load(tmp_path / "small.npz")(gray[:4]), expected, atol=1e-4)
    assert fitted.encoder_.checksum == made.checksum


def test_what_is_warm_compiles_nothing(fitted, gray, tmp_path, caplog):
    """A service answers one image, a few and many without a pause."""
    again = load(fitted.save(tmp_path / "saved")).warm_up()
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        alone = [again.assign(gray[i : i + 1]) for i in range(3)]
        few = again.assign(gray[:3])
        many = again.assign(gray)
    assert not [record for record in caplog.records if "ompiling" in record.message]
    np.testing.assert_array_equal([one.labels[0] for one in alone], few.labels)
    np.testing.assert_array_equal(few.labels, many.labels[:3])
    np.testing.assert_allclose([one.distances[0] for one in alone], few.distances, atol=1e-4)


def test_what_is_warmed_up(fitted, gray, monkeypatch):
    sizes = []
    monkeypatch.setattr(fitted, "assign", lambda images: sizes.append(len(images)))
    fitted.warm_up(1)
    assert sizes == [1]
    fitted.warm_up(2)
    assert sizes == [1, 1, 8]
    fitted.warm_up()
    assert sizes[3:] == [1, 8, 64]
    with pytest.raises(ValueError, match=r"n_images must be .*; got 0"):
        fitted.warm_up(0)


def test_an_update_reads_the_folder_again(gray, tmp_path):
    toy.save(tmp_path / "photos", gray[:40])
    model = small(workdir=tmp_path / "run").fit(tmp_path / "photos")
    labels = model.labels_
    toy.save(tmp_path / "photos", gray[40:44], 40)
    toy.save(tmp_path / "more", gray[44:], 44)
    model.update().update(tmp_path / "more")
    assert len(model.labels_) == len(model.files_) == 48
    told = {(event.id, to) for event in model.changes_ for to in event.into}
    moved = zip(labels.tolist(), model.labels_[:40].tolist(), strict=True)
    assert {pair for pair in moved if pair[0] != pair[1]} <= told
    assert (model.predict(gray[40:]) == model.labels_[40:]).all()
    again = small(workdir=tmp_path / "run").fit([tmp_path / "photos", tmp_path / "more"])
    assert (again.labels_ == model.labels_).all()
    loaded = ImageClusterer.load(model.save(tmp_path / "saved"))
    assert (loaded.labels_.tolist(), loaded.changes_) == (model.labels_.tolist(), model.changes_)
    assert loaded.changes_
    # Without the features of the first photos nothing is guessed, nor are those of now taken.
    file = tmp_path / "saved" / "store-0.npz"
    file.write_bytes(file.read_bytes()[:9_000])
    config = loaded._run.config
    copied = tmp_path / "copied"
    run_again = functools.partial(begin.run_pipeline, config)
    for use in (load, run_again, lambda _: loaded.save(copied)):
        with pytest.raises(InputError, match=r"store-0.npz is damaged .*from a copy$"):
            use(tmp_path / "saved")
    file.unlink()
    for use in (load, lambda _: loaded.save(copied)):
        with pytest.raises(InputError, match=r"store-0.npz is damaged \(it is not there\)"):
            use(tmp_path / "saved")
    assert not copied.exists()
    # Of as many other photos.
    small(workdir=tmp_path / "other").fit(255 - gray[:40])
    shutil.copy(tmp_path / "other" / "store-0.npz", file)
    with pytest.raises(InputError, match=r"store-0.npz is damaged \(it has other rows\)"):
        load(tmp_path / "saved")


def test_replaced_photos_do_not_get_old_labels(gray, tmp_path, monkeypatch):
    """Nor by other settings; few of a streamed set are compared before all are read."""
    monkeypatch.setattr(claims, "_SAMPLE", 1)
    options = {"overrides": {"data.cache_mb": 0}, "workdir": tmp_path / "run"}
    toy.save(tmp_path / "photos", gray[:12])
    small(**options).fit(tmp_path / "photos")
    toy.save(tmp_path / "photos", gray[12:13], 5)
    for k in (None, 2):
        with pytest.raises(InputError, match=r"have changed since the run .*update --workdir="):
            small(n_clusters=k, **options).fit(tmp_path / "photos")


def test_an_update_needs_a_folder_and_the_tree(gray, fitted, tmp_path):
    with pytest.raises(InputError, match=r"must be of all photos of a folder.* data.name=arrays"):
        fitted.update()
    with pytest.raises(InputError, match="folders must be paths of folders or files; got ndarray"):
        fitted.update(gray[:3])
    toy.save(tmp_path / "photos", gray)
    model = small({"eval.method": "gridshift"}).fit(tmp_path / "photos")
    with pytest.raises(InputError, match=r"clusters of the tree; got .*eval.method=gridshift"):
        model.update()
    run = records.read(model._run.workdir)
    run.config["data"].update(classes=[1])
    run.write()
    with pytest.raises(InputError, match=r"data.limit=None and data.classes="):
        updates.update_photos(run.workdir)


def test_other_images_are_refused_by_what_the_state_says(fitted, gray, tmp_path):
    """The file `images.json` may be lost."""
    saved = fitted.save(tmp_path / "saved")
    (saved / "images.json").unlink()
    small(workdir=saved).fit(gray)
    with pytest.raises(InputError, match=r"images .* have changed since the run") as error:
        small(workdir=saved).fit(gray[::-1])
    assert str(error.value).endswith("started: choose another folder"), "update takes photos alone"
    np.save(tmp_path / "x.npy", gray)
    with pytest.raises(InputError, match=r"with another data.dir; choose another folder$"):
        small(workdir=saved).fit(tmp_path / "x.npy")


def test_without_a_workdir_it_is_in_a_temporary_one(fitted, gray, tmp_path):
    """Its report is made when it is asked for, and shows the images; it goes with the estimator."""
    made = small().fit(gray)
    folder = made._run.workdir
    np.testing.assert_array_equal(made.assign(gray), fitted.assign(gray))
    assert made.results_["metrics"] == fitted.results_["metrics"]
    assert not (folder / "report.html").exists()
    workdir = fitted._run.workdir
    made.report(tmp_path / "report.html")
    saved = made.save(tmp_path / "saved")
    for page in (tmp_path / "report.html", saved / "report.html"):
        own, wanted = (Page(file.read_text()).record for file in (page, workdir / "report.html"))
        assert own["map"]["clusters"] == wanted["map"]["clusters"]
        assert len(page.read_bytes()) > 0.9 * len((workdir / "report.html").read_bytes())
    for name in ("assignments.csv", "duplicates.csv"):
        assert (saved / name).read_bytes() == (workdir / name).read_bytes(), name
    with pytest.raises(TypeError, match="is kept by save and read by load, not pickled"):
        copy.deepcopy(made)
    del made
    gc.collect()
    assert not folder.exists()


def test_weights_from_a_file(gray, tmp_path, monkeypatch):
    """Those of a ResNet of half the blocks under torchvision's names; a pickle is refused.

    The path is relative to the folder in which the run was made, and not to that of later commands.
    """
    rng = np.random.default_rng(5)
    monkeypatch.setitem(resnet.DEPTHS, "resnet18", (1, 1, 1, 1))

    def drawn(leaf):
        """Small kernels; scales, offsets and statistics of about one."""
        x = rng.normal(size=leaf.shape) / np.sqrt(leaf.size / leaf.shape[-1])
        return np.float32(x if len(leaf.shape) > 1 else 1 + abs(x) / 9)

    safetensors = pytest.importorskip("safetensors.numpy")
    net = network.make(NetworkConfig("resnet18", 64, "imagenet"))
    shapes = jax.eval_shape(net.init, jax.random.key(5), np.zeros((1, 32, 32, 3), np.float32))
    params, stats = jax.tree.map(drawn, shapes)
    tensors = test_safetensors.written("resnet18", params["backbone"], stats["backbone"])
    safetensors.save_file(
        jax.tree.map(np.ascontiguousarray, tensors), tmp_path / "resnet18.safetensors"
    )
    monkeypatch.chdir(tmp_path)
    # New images go through the program of the first ones, which takes seconds to compile.
    monkeypatch.setattr(encoder, "BATCHES", (PCA["eval.batch_size"] * jax.device_count(),))
    overrides = {"encoder": "resnet18.safetensors"}
    fitted = small(overrides, workdir=tmp_path / "run").fit(gray)
    assert "resnet18.safetensors" in fitted.results_["provenance"]["pretrained"]
    assert fitted.results_["suggested_names"] is None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rows = fitted.transform(gray)
    np.testing.assert_array_equal(rows, load(tmp_path / "run").transform(gray))
    np.testing.assert_allclose(rows, fitted._run.features, atol=1e-5)
    assert rows.std(axis=0).max() > 0.01
    # New images go through the network of the run or none.
    changed = jax.tree.map(lambda x: np.ascontiguousarray(2 * np.asarray(x)), tensors)
    safetensors.save_file(changed, tmp_path / "resnet18.safetensors")
    with pytest.raises(InputError, match=r"resnet18\.safetensors, which has other values now"):
        load(tmp_path / "run").transform(gray)

    (tmp_path / "w.pth").write_bytes(b"pickle")
    overrides["encoder"] = str(tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"a .safetensors file named as a model, .* got .*w.pth"):
        small(overrides).fit(gray)


def test_projections_that_were_not_trained_are_not_clustered(gray):
    with pytest.raises(InputError, match=r"eval.features must be 'backbone'; got 'projec"):
        small({"eval.features": "projection"}).fit(gray)


def test_a_config_trains_or_is_one_of_photos():
    values = load_config("simclr_images")
    assert isinstance(parse_config(values), RunConfig)
    values.network.frozen = "head"
    with pytest.raises(InputError, match=r"must leave blocks to train; got 'head'.* config images"):
        parse_config(values)
    values.eval.features = "projection"
    assert isinstance(parse_config(values), RunConfig)
    with pytest.raises(InputError, match="config must be one of a training; got images"):
        parse_training(load_config("images"), "images")


def test_an_encoder_stands_in_the_place_that_the_config_has_for_it(tmp_path):
    encoder = str(tmp_path / "dinov2-small.safetensors")
    assert ImageClusterer(encoder=encoder)._build_config(has_classes=False)[0].encoder == encoder
    clusterer = ImageClusterer("simclr_images", encoder=encoder)
    network = clusterer._build_config(has_classes=False)[0].network
    assert (network.name, network.weights) == ("vit_small_patch14", encoder)
    clusterer = ImageClusterer(encoder=encoder, n_clusters=2)
    assert clusterer._build_config(has_classes=True)[0].encoder == encoder


def test_other_weights_are_named(gray):
    with pytest.raises(InputError, match=r"encoder must be 'lite2', .*; got 'resnet'"):
        small({"encoder": "resnet"}).fit(gray)
    for overrides, message in (
        ({"network.weights": "resnet"}, "network.weights must be None, 'efficientnet_lite2',"),
        ({"network.name": "small"}, "network.width|network.name with network.weights"),
        ({"network.frozen": "stage9"}, "network.frozen must be one of 'stem', .*'head'"),
    ):
        with pytest.raises(InputError, match=message):
            ImageClusterer("simclr_images", overrides=overrides, verbose=False).fit(gray)


def test_images_are_prepared_as_the_weights_say_unless_the_config_does(tmp_path):
    config = load_config("images")
    config.encoder = str(tmp_path / "resnet18.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TIMM))
    assert parse_config(config).data.resize == Resize(98, "bilinear")
    config.data.update(image_size=64, interpolation="lanczos")
    assert parse_config(config).data.resize == Resize(64, "lanczos")
    config = load_config("simclr_images")
    config.network.weights = str(tmp_path / "resnet18.safetensors")
    config.augment.std = (1.0, 1.0, 1.0)
    parsed = parse_config(config)
    assert parsed.data.resize == Resize(98, "bilinear")
    assert parsed.augment.size == 98
    assert parsed.augment.mean == (0.5, 0.4, 0.3)
    assert parsed.augment.std == (1.0, 1.0, 1.0)
    config.network.weights = None
    with pytest.raises(InputError, match=r"data.interpolation must be given where network.weights"):
        parse_config(config)


def test_what_is_left_out_is_told(tmp_path):
    toy.save(tmp_path, toy.images(40)[0])
    (tmp_path / "film.mov").write_bytes(b"other")
    (tmp_path / "broken.png").write_bytes(b"no image")
    clusterer = small({"data.max_corrupt_fraction": 0.1})
    with pytest.warns(UserWarning, match=".") as told:
        clusterer.fit([tmp_path])
    told_of = "no row for 1 file that could not be read: broken.png"
    assert [str(w.message) for w in told] == ["ignored files: 1 .mov", told_of]
    with pytest.warns(UserWarning, match=".") as told:
        assert len(clusterer.predict([tmp_path / "01.png", tmp_path / "broken.png"])) == 1
    assert [str(w.message) for w in told] == [told_of]
    (tmp_path / "film.mov").unlink()
    (tmp_path / "broken.png").unlink()
    assert clusterer.predict(tmp_path).shape == (40,)


def test_a_list_of_files_keeps_its_order(fitted, gray, tmp_path):
    toy.save(tmp_path, gray)
    files = [tmp_path / f"{i:02}.png" for i in (31, 4, 4, 12)]
    rows = fitted.transform([file.read_bytes() for file in files])
    np.testing.assert_array_equal(fitted.transform(files), rows)
    np.testing.assert_array_equal(fitted.encoder_(files), rows)
    assert small().fit(files).files_ == ("31.png", "04.png", "12.png")


@pytest.mark.parametrize("of_array", [True, False])
def test_images_without_files_keep_their_pictures(tmp_path, of_array):
    """After names, corrections and an undo the page shows them: as images, with words."""
    pixels = toy.images(26, seed=3, channels=3)[0]
    source = pixels if of_array else [Image.fromarray(image) for image in pixels]
    run = small(workdir=tmp_path / "run").fit(source)._run.workdir
    del source
    first = Page((run / "report.html").read_text())
    state = json.loads((run / "results.json").read_text())["state"]
    said = tmp_path / "corrections.json"
    said.write_text(json.dumps({"state": state, "wrong": [3]}))
    report.main([str(run), f"--corrections={said}"])
    report.main([str(run), "--name=0=bars"])
    later = [Page((run / "report.html").read_text())]
    update.main([f"--workdir={run}", "--undo"])
    later.append(Page((run / "report.html").read_text()))
    for page in later:
        assert page.record["words"] == first.record["words"]
        assert [s["column"] for s in page.record["map"]["sheets"]] == ["sample"]
        assert page.text.count("26 ") == first.text.count("26 ")
    kept = records.read(run).pictures()
    wanted = np.stack([decode(image, Resize(32, "bicubic"), 3) for image in pixels])
    np.testing.assert_array_equal(kept.fetch(np.arange(26)), wanted)


def test_the_guides_examples_of_sequences(tmp_path, monkeypatch):
    """A column of `datasets`, and what torchvision and WebDataset hand out, here by stand-ins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    pytest.importorskip("datasets").config.HF_DATASETS_CACHE = tmp_path / "cache"
    pictures, labels = toy.images(24, channels=3)
    toy.save_by_label(tmp_path / "photos", pictures, labels)
    files = sorted((tmp_path / "photos").rglob("*.png"))
    torchvision, webdataset = types.ModuleType("torchvision.datasets"), types.ModuleType("w")
    torchvision.ImageFolder = lambda folder: [(Image.open(file), 0) for file in files]
    webdataset.WebDataset = lambda url: ({"__key__": "x", "png": f.read_bytes()} for f in files)
    modules = {"torchvision": types.ModuleType("t"), "torchvision.datasets": torchvision}
    for name, module in {**modules, "webdataset": webdataset}.items():
        monkeypatch.setitem(sys.modules, name, module)
    guide = (pathlib.Path(__file__).parent.parent / "experiments/guide/photos.md").read_text()
    start = guide.index("In Python, images may also be any sequence")
    blocks = re.findall(r"```python\n(.*?)```", guide[start:], re.DOTALL)[:3]
    assert [re.search(r"datasets|torchvision|webdataset", block)[0] for block in blocks] == [
        "datasets",
        "torchvision",
        "webdataset",
    ]
    options = {"verbose": False, "overrides": PCA}
    of_folder = ImageClusterer(**options).fit("photos")
    for block in blocks:
        namespace = {"options": options}
        exec(block.replace("ImageClusterer()", "ImageClusterer(**options)"), namespace)
        clusterer = namespace["clusterer"]
        assert clusterer.files_ == tuple(map(str, range(24)))
        np.testing.assert_array_equal(clusterer.labels_, of_folder.labels_)
        np.testing.assert_array_equal(clusterer._run.features, of_folder._run.features)
        assert (
            clusterer.predict([files[3].read_bytes()]).tolist() == clusterer.labels_[3:4].tolist()
        )
