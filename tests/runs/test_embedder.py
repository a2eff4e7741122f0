"""Runs on features of their own images, which a frozen network makes first."""

import shutil

import numpy as np
import pytest

from cluster_jax import ImageClusterer, load
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.data import batches, features
from cluster_jax.data.images import Dataset
from cluster_jax.discovery import scores as discovery
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.nets import pretrained
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import photos
from cluster_jax.runs.features import write_features
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from tests import toy

# A few steps leave the novel head undecided, of which the estimator warns.
pytestmark = [
    pytest.mark.usefixtures("one_device", "traced_once", "shallow_lite"),
    pytest.mark.filterwarnings("ignore:the novel head"),
]
COUNT = 80


def make_config(folder, seed=0):
    """The default config for known classes, small, on 80 images of which 64 are trained on."""
    config = toy.shrunken("ncl_images", folder)
    pixels, labels = toy.images(COUNT, seed, channels=3)
    np.savez(folder / "toy.npz", images=pixels, labels=labels)
    config.novel.holdout = 0.2
    config.eval.reduce = "pca"
    config.network.width = 32
    # As in other modules: the pretrained network is compiled once for all of them.
    config.data.image_size, config.augment.size, config.eval.batch_size = 32, 32, 16
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory, one_device, traced_once, shallow_lite):
    """Workdir, config and results of a finished run."""
    folder = tmp_path_factory.mktemp("embedder")
    config = make_config(folder)
    return folder / "run", config, pipeline.run_pipeline(config, folder / "run", "toy")


def test_the_run_trains_on_the_features_of_its_images(finished, tmp_path):
    workdir, config, _ = finished
    values = config_json(config)
    values["network"] |= {**pretrained.overrides("lite2"), "frozen": None}
    values["encoder"], values["stages"] = None, {}
    values["method"] = {"name": "simclr", "temperature": 0.5, "positive_in_denominator": False}
    values["train"]["labeled_batch_size"] = None
    write_features(values, tmp_path / "x.npz")
    whole = io.read_arrays(tmp_path / "x.npz")["features"]
    train, test = (
        io.read_arrays(workdir / f)["features"] for f in ("features.npz", "features_test.npz")
    )
    assert len(train) + len(test) == COUNT
    assert train.shape[1:] == (1280,)
    sizes = np.linalg.norm(whole, axis=1).mean()
    for row in np.concatenate([train, test]):
        assert np.linalg.norm(whole - row, axis=1).min() < 1e-4 * sizes
    assert not list(workdir.glob("*.parts"))


def test_its_encoder_holds_both_networks(finished, tmp_path):
    """Of images it makes what was clustered, without the checkpoint and the pretrained weights."""
    workdir, _, _ = finished
    encoder, pixels = Encoder.load(workdir), toy.images(3, channels=3)[0]
    assert not encoder.base.is_trained
    encoder.save(tmp_path / "own.npz")
    rows = Encoder.load(tmp_path / "own.npz")(pixels)
    np.testing.assert_array_equal(rows, load(workdir).transform(pixels))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_it_is_shown_as_a_run_on_images(finished):
    workdir, _, results = finished
    provenance = results["provenance"]
    assert "ImageNet-1k" in provenance["pretrained"]
    assert results["duplicates"] is not None
    assert results["metrics"]["discovery"]["test"] is not None
    report = (workdir / "report.html").read_text()
    assert "1,000 classes" in report
    assert "each of which a person had labeled, and tells these kinds apart best." in report
    assert "rows" not in report.split("</h1>")[1][:500]


def test_new_images_pass_both_networks(finished):
    """Training images, given as new ones, come out as they were stored, alone or together."""
    workdir, config, _ = finished
    model = load(workdir)
    training = io.read_arrays(workdir / "features.npz")["features"]
    images = build.build_run(parse_config(config)).training.dataset.features_of
    pixels = images.fetch(np.arange(images.size))
    assert len(pixels) == len(training)
    rows = model.transform(pixels)
    np.testing.assert_allclose(rows, model._run.features, atol=1e-4)
    assert rows.std(axis=0).max() > 0.01
    np.testing.assert_allclose(model.transform(pixels[5:7]), rows[5:7], atol=1e-5)
    assert set(model.predict(pixels)) <= {"0", "1", "novel 0", "novel 1"}


@pytest.mark.parametrize("left", [["run-1.npz"], ["run-1.npz", "embedding.npz"]], ids=str)
def test_neighbors_in_the_features_have_a_say_in_the_classes(finished, tmp_path, monkeypatch, left):
    """Wherever an interrupted run goes on."""
    workdir, config, _ = finished
    images = build.build_run(parse_config(config)).training.dataset.features_of
    values = io.read_arrays(workdir / "features.npz")["features"]
    count = config.feature_views.neighbors
    expected = features.with_neighbors(features.of_images(images, values, 1.0), count).nearest
    spread, seen = discovery.spread_probabilities, []

    def spying(train, known, nearest):
        seen.append(nearest)
        return spread(train, known, nearest)

    monkeypatch.setattr(discovery, "spread_probabilities", spying)
    shutil.copytree(workdir, tmp_path / "run")
    for name in left:
        (tmp_path / "run" / name).unlink()
    pipeline.run_pipeline(config, tmp_path / "run", "toy")
    np.testing.assert_array_equal(seen, [expected])


def test_an_interrupted_run_embeds_no_image_twice(finished, tmp_path, monkeypatch):
    expected, _, _ = finished
    config = make_config(tmp_path)
    evaluation, seen = batches.evaluation, []

    def interrupted(dataset, **arguments):
        for images, index, count in evaluation(dataset, **arguments):
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append(count)
            yield images, index, count

    monkeypatch.setattr(batches, "evaluation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run_pipeline(config, tmp_path / "run", "toy")
    kept = {file.name for file in (tmp_path / "run").glob("*.parts/*")}
    assert kept == {"rows_0.npz"}
    starts = []
    monkeypatch.setattr(
        batches,
        "evaluation",
        lambda dataset, **a: starts.append((dataset.size, a["start"])) or evaluation(dataset, **a),
    )
    pipeline.run_pipeline(config, tmp_path / "run", "toy")
    train = len(io.read_arrays(expected / "features.npz")["features"])
    assert starts[:2] == [(train, 32), (COUNT - train, 0)]
    assert not list((tmp_path / "run").glob("*.parts"))
    for name in ("features.npz", "embedding.npz", "embedding_test.npz"):
        stored, wanted = io.read_arrays(tmp_path / "run" / name), io.read_arrays(expected / name)
        for key, values in wanted.items():
            np.testing.assert_array_equal(stored[key], values)


def test_other_images_are_refused(finished, tmp_path):
    workdir, config, _ = finished
    (workdir / "run-1.npz").rename(tmp_path / "run-1.npz")
    changed = make_config(tmp_path, seed=1)
    changed.data.dir = config.data.dir
    np.savez(config.data.dir + ".kept.npz", **np.load(config.data.dir))
    (tmp_path / "toy.npz").replace(config.data.dir)
    with pytest.raises(InputError, match="the images or their known classes have changed"):
        pipeline.run_pipeline(config, workdir, "toy")
    np.savez(config.data.dir, **np.load(config.data.dir + ".kept.npz"))
    (tmp_path / "run-1.npz").rename(workdir / "run-1.npz")


@pytest.mark.slow
def test_the_estimator_takes_classes_for_some_images(tmp_path):
    """As one without a frozen network does in tests/test_estimator_classes.py."""
    config = make_config(tmp_path)
    config.method.n_classes = None
    pixels, labels = toy.images(COUNT, channels=3)
    y = np.where(labels < 2, labels, -1)
    model = ImageClusterer(config, n_clusters=2, workdir=tmp_path / "run", verbose=False)
    with pytest.warns(UserWarning, match="^the novel head"):
        model.fit(pixels, y)
    assert set(model.labels_[y < 0]) <= {"novel 0", "novel 1"}
    assert (tmp_path / "run" / "features.npz").exists()


def test_what_cannot_be_embedded_is_named(tmp_path):
    config = config_json(make_config(tmp_path))
    config["data"]["name"] = "features"
    with pytest.raises(InputError, match=r"encoder must be None for features, which a network"):
        parse_config(config)


def test_few_programs_embed_any_number_of_photos(monkeypatch):
    """Each number of images in a batch is a program of its own, which takes seconds to compile."""
    sizes = set()

    def forward(images):
        sizes.add(len(images))
        return {"backbone": np.zeros((len(images), 2), np.float32)}

    monkeypatch.setattr(photos, "forward_of", lambda encoder, mesh, name: forward)
    for count in range(1, 30):
        pixels = toy.images(count, channels=3)[0]
        dataset = Dataset("toy", count, pixels.shape[1:], pixels, pixels.__getitem__)
        made = photos.embed(dataset, None, 20)
        assert len(made["backbone"]) == len(made["thumbnail"]) == count
    assert sizes == {8, 16, 20}
