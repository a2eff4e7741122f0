"""Every config that comes with the package can be built, and says what it is."""

import ast
import functools
import itertools
import pathlib
import re

import pytest
from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import config_names, find_config, load_config
from cluster_jax.evaluation import options
from cluster_jax.nets.backbones import resnet
from cluster_jax.runs import begin as pipeline
from cluster_jax.training import build, stages
from cluster_jax.training.config import PhotosConfig, config_json, parse_config
from experiments.benchmark import topology
from tests import toy
from tests.rows import every_row

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "configs"


def test_every_key_of_the_base_config_is_explained():
    """By a comment behind it, or above it where that is too long."""
    lines = (FOLDER / "base.py").read_text().splitlines()
    explained = set()
    for above, line in itertools.pairwise(lines):
        key = re.match(r' +"([\w.]+)": ', line)
        if key and ("  # " in line or above.strip().startswith("# ")):
            explained.add(key[1])

    def keys(config, prefix=""):
        for name, value in config.items():
            if isinstance(value, ConfigDict) and len(value):
                yield from keys(value, f"{prefix}{name}.")
            else:
                yield prefix + name

    assert set(keys(load_config("base"))) - explained == set()


# Tracing a step of a ResNet takes most of the time of a test. A forward pass is traced instead, of
# each network once, and of each variant of a ResNet once with all its blocks, else with the first
# block of each stage; tests/methods has what each method embeds by, and tests/test_configs_run.py
# trains all, small.
FORWARD, WHOLE = set(), set()


@pytest.mark.parametrize("name", config_names())
def test_config_builds(name, tmp_path, monkeypatch):
    """On generated images, since the real ones may not be there; every key and value is checked."""
    config = load_config(name)
    if name == "images":
        assert isinstance(parse_config(config), PhotosConfig)
        return
    channels = 1 if "digits" in name else 3
    side = config_json(config)["augment"]["size"]
    shape = (side, side, channels)
    if name.endswith("features"):
        config.data.dir, shape = str(toy.features_file(tmp_path)), (12,)
    else:
        config.data.name = "arrays"
        config.data.dir = str(toy.file(tmp_path, channels=channels))
        config.data.image_size = side
    config.data.split = config.data.limit = config.data.classes = None
    config.novel.test_split = None
    config.train.batch_size = 32
    if config.stages:
        config = toy.discovery(config, 16)
    if config.method.get("queue"):
        config.method.queue = 32  # half of the images
    if config.method.get("n_clusters"):
        config.method.n_clusters = min(config.method.n_clusters, 20)
    if config.method.get("n_prototypes"):
        config.method.n_prototypes = (5, 20) if config.method.name == "pcl" else 20
    sections = config_json(config)
    key = str((sections["network"], sections["encoder"], shape))
    forward = functools.partial(build.check_features, features="backbone")
    monkeypatch.setattr(build, "try_step", (lambda run: None) if key in FORWARD else forward)
    FORWARD.add(key)
    network = sections["network"]["name"]
    if network in WHOLE and network in resnet.DEPTHS:
        monkeypatch.setitem(resnet.DEPTHS, network, (1, 1, 1, 1))
    WHOLE.add(network)
    for stage in stages.build_stages(parse_config(config, name), tmp_path, None):
        run = stage.training
        assert run.shape == (shape if config.encoder is None else (1280,))


PODS = io.read_json(FOLDER.parent / "experiments/benchmark/pods.json")


@every_row("name", topology.PLANS)
def test_a_step_compiled_for_a_slice_fits_its_chips(name):
    """By a record of the config as it is, since the compiler for TPUs is not installed here."""
    record = PODS["figures"][name]
    digest = topology.config_digest(load_config(name.split()[0]))
    assert record["config_digest"] == digest, (
        f'python -m experiments.benchmark topology --only="{name}"'
    )
    assert record["memory_gb"] < 16


def test_what_finds_the_clusters():
    """Configs with a paper's figures have the papers' GridShift, the others the tree."""
    methods = {name: load_config(name).eval.method for name in config_names()}
    others = ("images", "features", "fashion_mnist")
    users = {name for name in methods if any(other in name for other in others)}
    assert {"images", "ncl_images", "simclr_features", "ncl_features"} <= users
    assert {name for name, method in methods.items() if method == "tree"} == users
    assert {methods[name] for name in set(methods) - users} == {"gridshift"}
    assert set(options.FINDERS) == set(options.CLUSTERINGS) - {"kmeans"}


@every_row("name", config_names())
def test_config_says_what_it_is(name):
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    assert f"--config=configs/{name}.py" in text


def test_missing_and_spare_keys_are_named(tmp_path):
    config = config_json(toy.config(toy.file(tmp_path)))
    for section in ("data", "augment", "network", "method", "nrcc", "optimizer", "train", "eval"):
        for key in config[section]:
            lacking = {**config, section: {k: v for k, v in config[section].items() if k != key}}
            with pytest.raises(InputError, match=rf"{section}\.{key}"):
                toy.built(lacking)
        spare = {**config, section: {**config[section], "color": 1}}
        with pytest.raises(InputError, match=rf"{section}\.color"):
            toy.built(spare)
    for part in ("kmeans", "linear_probe"):
        spare = {**config["eval"], part: {**config["eval"][part], "color": 1}}
        with pytest.raises(InputError, match=rf"eval\.{part}\.color"):
            parse_config({**config, "eval": spare})
    toy.built({**config, "nrcc": None})
    with pytest.raises(InputError, match="missing config key optimizer"):
        parse_config({k: v for k, v in config.items() if k != "optimizer"})
    with pytest.raises(InputError, match="unknown config key color; valid keys: seed"):
        parse_config({**config, "color": 1})


@every_row(
    ("section", "values", "message"),
    [
        ("train", {"batch_size": 12}, "must be a multiple of the number of devices, 8; got 12"),
        ("train", {"batch_size": 128}, "images of the set; got 128"),
        ("train", {"duration": "long"}, "train.duration must be a duration like .* got 'long'"),
        ("method", {"temperature": 0.0}, "method.temperature must be greater than 0; got 0.0"),
        ("method", {"name": "simclear"}, "method.name must be one of .*'simclr'.*; got 'simclear'"),
        ("nrcc", {"branch": "target"}, "nrcc.branch for this method must be 'online'; got"),
        ("nrcc", {"anchor_layer": "prediction"}, "anchor_layer for this method must be .*'proj"),
        ("nrcc", {"resolution": 4}, "nrcc.resolution must be None for the network mlp"),
        ("network", {"norm": "shuffle", "group": 2}, "target network"),
        ("augment", {"mean": (0.5,) * 3, "std": (0.2,) * 3}, "channels"),
        ("eval", {"n_init": 0}, r"eval\.n_init must be at least 1"),
        ("eval", {"n_clusters": 3}, "eval.n_clusters must be left out for GridShift"),
        ("data", {"dir": "nowhere.npz"}, "nowhere.npz"),
        ("eval", {"method": "kmeans"}, "eval.method must be .*, or a module .*; got 'km"),
        ("eval", {"method": "tree", "bandwidth": "0.5"}, "'auto' for the method"),
    ],
)  # fmt: skip
def test_bad_values_get_one_sentence(tmp_path, section, values, message):
    sections = {"nrcc": {"weight": 0.5}, section: values}
    if section == "nrcc":
        sections["nrcc"] = {"weight": 0.5, **values}
    config = toy.config(toy.file(tmp_path), **sections)
    with pytest.raises(InputError, match=message) as error:
        pipeline.run_pipeline(config, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_file_with_the_name_of_a_config_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").write_text("raise SystemExit('run')")
    assert find_config("images").parent.name == "configs"
    assert find_config("./images") == tmp_path / "images"


@every_row("name", config_names())
def test_every_key_can_be_set_on_the_command_line(name):
    """ml_collections takes no flag for a value whose type it does not know: a bare None."""
    config = load_config(name)
    untyped = [
        key
        for section in config
        if isinstance(config[section], ConfigDict)
        for key in config[section]
        if config[section].get_type(key) is type(None)
    ]
    # Whole sections that are left out: a crop, a head.
    assert set(untyped) <= {"crop", "projector", "predictor"}
