"""Parts of one's own by name: the guide's examples, from outside of the package, in miniature."""

import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from cluster_jax import ImageClusterer, load
from cluster_jax.cli import predict
from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import load_config
from cluster_jax.data import views
from cluster_jax.data.views import AugmentConfig
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.evaluation import own
from cluster_jax.nets import backbone
from cluster_jax.training.build import try_step
from cluster_jax.training.config import parse_config
from experiments import table
from tests import toy
from tests.rows import every_row
from tests.training.test_optim import VALUES, made

PAGE = pathlib.Path(__file__).parent.parent / "experiments" / "guide" / "own_parts.md"
EXAMPLES = dict(
    re.findall(r"^## [^\n]*`(\w+)\.py`$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
)
PARTS = ("convnext", "lion", "langevin", "cutout", "compactness")

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into a folder from which Python imports: the page's, or others."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    written = set(EXAMPLES)
    for name, source in EXAMPLES.items():
        (folder / f"{name}.py").write_text(source)

    def write(name, source):
        sys.modules.pop(name, None)
        written.add(name)
        (folder / f"{name}.py").write_text(source)
        return folder / f"{name}.py"

    yield write
    for name in written:
        sys.modules.pop(name, None)


def small(tmp_path, **sections):
    """A config of NRCC with every part of the page but the method."""
    own_parts = {
        "network": {"name": "convnext", "width": 8, **sections.pop("network", {})},
        "optimizer": {"name": "lion", "schedule": "decay", "clip_norm": 1.0},
        "augment": {"more": ("cutout",)},
        "eval": {"metrics": ("compactness",), "knn": ()},
    }
    made = toy.config(toy.file(tmp_path), **own_parts)
    made.nrcc.update(weight=0.1, sampler="langevin")
    made.train.update(duration="2 steps", checkpoint_every=2, log_every=1, **sections)
    return made


DECAY = """
import optax

def make(peak, warmup, total):
    return optax.warmup_exponential_decay_schedule(0.0, peak, warmup, total, decay_rate=0.1)
"""


def test_the_page_has_each_part_in_at_most_forty_lines():
    assert {*PARTS, "teacher"} == set(EXAMPLES)
    assert max(len(source.splitlines()) for source in EXAMPLES.values()) <= 40


@pytest.mark.usefixtures("traced_once")
def test_a_training_with_each_part(write, tmp_path, capsys):
    """It trains, predicts, is loaded, loads its encoder and exports it."""
    write("decay", DECAY)
    run = tmp_path / "run"
    config = small(tmp_path)
    fitted = ImageClusterer(config, workdir=run).fit(toy.images()[0])
    told = capsys.readouterr().out
    results = io.read_json(run / "results.json")
    numbers = results["metrics"]["own"]
    assert set(numbers) == {"compactness", "clusters_per_class"}
    assert 0 < numbers["compactness"] <= 1
    assert f"{numbers['compactness']:.3f}" in told.split("Compactness")[1].splitlines()[0]
    assert results["metrics"]["knn"] == {}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert all('"gradient_share"' in line for line in lines)
    files = io.read_json(run / "images.json")["code"]
    assert set(files) == {"convnext", "lion", "decay", "langevin", "cutout"}
    # All but the backbone are parts of the training alone.
    for name in ("lion", "decay", "langevin", "cutout", "compactness"):
        sys.modules.pop(name)
        (tmp_path / "own" / f"{name}.py").unlink()
    images = toy.images(5, seed=1)[0]
    labels = load(run).predict(images)
    toy.save(tmp_path / "new", images)
    predict.main([f"--workdir={run}", f"--images={tmp_path}/new", f"--out={tmp_path}/p.csv"])
    rows = toy.table(tmp_path, "p.csv")
    assert [int(row["cluster"]) for row in rows] == labels.tolist()
    features = Encoder.load(run)(images)
    np.testing.assert_allclose(features, fitted.transform(images), atol=1e-5)
    pytest.importorskip("flatbuffers")
    Encoder.load(run).export(tmp_path / "encoder")
    exported = jax.export.deserialize((tmp_path / "encoder").read_bytes())
    np.testing.assert_allclose(exported.call(images), features, atol=1e-5)
    sys.modules.pop("convnext")
    (tmp_path / "own" / "convnext.py").unlink()
    with pytest.raises(InputError, match="PYTHONPATH=FOLDER has the folder of convnext"):
        load(run).predict(images)


@pytest.mark.usefixtures("traced_once")
def test_edits_of_a_part_are_told(write, tmp_path, capsys):
    """A metric's: the clusters are scored again; a part's of the training: a warning."""
    write("half", "def score(features, labels, clusters):\n    return {'half': 0.5}\n")
    sections = {"augment": {"more": ("cutout",)}, "eval": {"metrics": ("half",)}}
    config = toy.config(toy.file(tmp_path), **sections)
    run = {"config": config, "workdir": tmp_path / "run"}
    images = toy.images()[0]
    ImageClusterer(**run).fit(images)
    ImageClusterer(**run).fit(images)
    assert "are replaced" not in capsys.readouterr().out
    write("half", "def score(features, labels, clusters):\n    return {'half': 0.25}\n")
    write("cutout", EXAMPLES["cutout"] + "\n")
    with pytest.warns(UserWarning, match="the code of cutout has changed since the run in"):
        ImageClusterer(**run).fit(images)
    assert "are of another version of your modules" in capsys.readouterr().out
    assert io.read_json(tmp_path / "run" / "results.json")["metrics"]["own"] == {"half": 0.25}


@pytest.mark.usefixtures("traced_once")
def test_the_teacher(write, tmp_path):
    """Its step moves the center by a tenth of the teacher's mean, and the state keeps it."""
    config = toy.config(toy.file(tmp_path))
    values = {"name": "teacher", "temperature": 0.1, "teacher_temperature": 0.05, "decay": 0.9}
    config.method = ConfigDict(values)
    config.train.update(duration="2 steps", checkpoint_every=2)
    clusterer = ImageClusterer(config, workdir=tmp_path / "run", verbose=False)
    assert len(clusterer.fit(toy.images()[0]).labels_) == 64
    assert load(tmp_path / "run").predict(toy.images(3)[0]).shape == (3,)


def test_langevin_follows_the_gradient_of_each_image(write, keys):
    """At temperature 0 of the noise it descends; a view does not depend on the batch."""
    langevin = __import__("langevin")
    images = jnp.array([[2.0, 0.0], [0.0, -2.0]])
    own_keys = jax.random.split(next(keys), 2)
    quadratic = lambda x: (jnp.sum(x**2, axis=1) / 2, x)  # noqa: E731
    view, info = langevin.sample(own_keys, images, quadratic)
    alone, _ = langevin.sample(own_keys[1:], images[1:], quadratic)
    np.testing.assert_allclose(view[1:], alone, rtol=1e-6)
    noise, _ = langevin.sample(own_keys, images, lambda x: (0 * x[:, 0], 0 * x))
    # Three steps of 0.01 by a gradient that is clipped to 1.
    np.testing.assert_allclose((noise - view)[0, 0], 0.03, rtol=1e-3)
    assert (info.gradient_share > 0).all()


def test_cutout_follows_the_augmentations_of_the_package(write, keys):
    """A gray square in the standardized image, at another place with another key."""
    config = toy.config(pathlib.Path("unused"), augment={"more": ("cutout",)}).augment
    values = {**config.to_dict(), "mean": (0.25,), "std": (0.5,), "noise": 0.0}
    for name in ("crop", "jitter", "blur", "solarize", "affine"):
        values[name] = None
    augment = views.make(AugmentConfig(**values))
    image = np.full((8, 8, 1), 255, np.uint8)
    drawn = [np.asarray(augment.view(next(keys), image)) for _ in range(3)]
    gray, white = (0.5 - 0.25) / 0.5, (1 - 0.25) / 0.5
    for x in drawn:
        assert set(np.unique(x)) == {np.float32(gray), np.float32(white)}
        assert 4 <= (x == np.float32(gray)).sum() <= 16
    assert not np.array_equal(drawn[0], drawn[1])
    np.testing.assert_allclose(augment.clean(image), white)


def test_own_optimizers_and_schedules(write):
    """Lion moves by the sign of the gradient times the schedule of one's own."""
    write("decay", DECAY)
    values = {**VALUES, "name": "lion", "schedule": "decay", "weight_decay": 0.0}
    optimizer, rate = made(total_steps=10, **values)
    wanted = optax.warmup_exponential_decay_schedule
    peak = float(made(total_steps=10, **{**values, "schedule": "constant_schedule"})[1](9))
    want = wanted(0.0, peak, 2, 10, decay_rate=0.1)
    np.testing.assert_allclose([rate(i) for i in range(10)], [want(i) for i in range(10)])
    params = {"backbone": {"kernel": jnp.ones((2, 2))}}
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(jax.tree.map(lambda x: -3 * x, params), state, params)
    np.testing.assert_allclose(updates["backbone"]["kernel"], np.full((2, 2), float(rate(1))))


SOURCES = {
    "network.name": ("convnet", "def make(name, width, stem): ..."),
    "optimizer.name": ("momentum", "def make(config, learning_rate): return 3"),
    "optimizer.schedule": ("flat", "def make(peak, warmup, total): return peak"),
    "nrcc.sampler": ("walk", "def sample(keys, images, potential_and_grad): return images"),
    "augment.more": ("grow", "def augment(key, image): return image[:4]"),
}


@every_row(
    ("key", "message"),
    [
        ("optimizer.name", "make of optimizer.name momentum must return an optax transformation"),
        ("optimizer.schedule", "make of optimizer.schedule flat must return a function"),
        ("nrcc.sampler", r"sample of nrcc.sampler walk must return views \[.*SamplerInfo; got a"),
        (
            "augment.more",
            r"augment.more grow must return a float image \[8, 8, 1\]; got",
        ),
    ],
)
def test_what_a_part_must_return(key, message, write, tmp_path):
    name, source = SOURCES[key]
    write(name, source)
    config = toy.config(toy.file(tmp_path))
    section, field = key.split(".")
    config[section][field] = (name,) if field == "more" else name
    config.nrcc.weight = 0.1
    with pytest.raises(InputError, match=message):
        try_step(toy.built(config))


@every_row(
    ("key", "value", "message"),
    [
        ("network.name", "json", "'small', .* a function make; got 'json', which has no make"),
        (
            "network.name",
            "resnet19",
            "which Python can import .*; got 'resnet19': No module",
        ),
        ("optimizer.name", "no/path", "'adamw', or a module of your own, .*; got 'no/path'"),
        ("nrcc.sampler", "json", "a function sample; got 'json', which has no sample"),
        ("augment.more", ("json",), "augment.more must be a module of your own, .* no augment"),
        ("eval.metrics", ("a b",), r"eval.metrics.* a function score; got 'a b'"),
    ],
)
def test_other_names_are_refused(key, value, message, tmp_path):
    config = toy.config(toy.file(tmp_path))
    section, field = key.split(".")
    config[section][field] = value
    config.nrcc.weight = 0.1
    with pytest.raises(InputError, match=message):
        try_step(toy.built(config))


@every_row(
    ("source", "message"),
    [
        ("return 0.5", "must return numbers by name, .*; got a float"),
        ("return {'a': 'b'}", "must return numbers by name, .*; got 'a': 'b'"),
        ("return {'half': 1}", "one number of each name; got two 'half'"),
    ],
)
def test_what_a_metric_must_return(source, message, write):
    write("half", "def score(features, labels, clusters): return {'half': float('nan')}")
    write("other", f"def score(features, labels, clusters): {source}")
    rows = np.eye(3), None, np.arange(3)
    assert own.scores(["half"], *rows) == {"half": None}
    with pytest.raises(InputError, match=message):
        own.scores(["half", "other"], *rows)


def test_compactness_by_hand(write):
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = own.scores(["compactness"], rows, np.array([0, 0, 1]), np.array([4, 4, 7]))
    assert found == {"compactness": pytest.approx((2 / 2**0.5 + 1) / 3), "clusters_per_class": 1.0}
    assert own.scores(["compactness"], rows, None, np.zeros(3, int))["clusters_per_class"] is None


def test_a_table_of_experiments_has_a_column_of_it():
    row = {"metrics": {"gridshift": {"acc": 0.5}, "own": {"compactness": 0.25}}}
    assert table.lookup(row, "gridshift", "own.compactness") == 0.25
    assert table.lookup(row, "gridshift", "own.other") is None
    assert table.lookup(row, "gridshift", "ACC") == 50.0


def test_a_backbone_can_be_frozen_up_to_a_block(write):
    """Its blocks are those of `network.frozen`, and its submodules belong to them."""
    family = backbone.make("convnext", width=8, stem=None)
    assert [family.block_of(name) for name in ("stem", "depthwise1", "reduce2")] == [0, 1, 2]
    values = load_config("nrcc_digits")
    values.network.update(name="convnext", frozen="block3")
    with pytest.raises(InputError, match=r"network.frozen must be .*'block2'; got 'block3'"):
        parse_config(values)
