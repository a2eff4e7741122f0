"""Bad values of the methods: one sentence that names the key, and nothing is written."""

import functools

import numpy as np
import pytest
from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from cluster_jax.training import build
from cluster_jax.training.config import config_json, parse_config
from tests import toy
from tests.methods import cases
from tests.rows import every_row

NONE = dict.fromkeys(("ce", "bce", "consistency", "ncl", "scl"), 0.0)
SHUFFLE = {"network.norm": "shuffle", "network.group": 4}
TERM = {"name": "ncc", **cases.TERMS["ncc"]}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return toy.file(tmp_path_factory.mktemp("toy"))


def changed(file, case, changes):
    """The config of a case with dotted keys changed."""
    config = cases.use(toy.config(file, network=toy.CONVOLUTIONS), case)
    with config.unlocked():
        for key, value in changes.items():
            *sections, name = key.split(".")
            functools.reduce(getattr, sections, config)[name] = value
    return config


def refused(config, dataset=None):
    """What a run says that cannot be built."""
    with pytest.raises(InputError) as error:
        build.build_run(parse_config(config), dataset)
    assert "\n" not in str(error.value)
    return str(error.value)


# One of each rule: case, changes, what is said.
ROWS = [
    ("simsiam", {"network.predictor": None}, "network.predictor must be set for SimSiam"),
    ("simsiam", SHUFFLE, "for a method without a target network"),
    ("moco", {**SHUFFLE, "network.group": None}, "must be at least 2"),
    ("moco", {**SHUFFLE, "network.group": 3}, "must be a multiple of network.group, 3"),
    ("moco", {"method.queue": 24}, "must be a multiple of train.batch_size"),
    ("ncc", {"method.n_clusters": 65}, "n_clusters must be at most 64"),
    ("ncc", {"train.labeled_batch_size": 8}, "train.labeled_batch_size must be None"),
    ("cueco", {"method.n_clusters": 17}, "method.n_clusters must be at most 16"),
    ("cueco", {"method.warmup": "4 steps"}, "must be at most 3 steps"),
    ("kernel_infonce", {"method.decay": 0.9}, "if and only if method.queue is; got 0.9, None"),
    ("byol", {"term": ConfigDict({**TERM, "name": "byol"})}, "term.name must be one of 'cc', "),
    ("byol", {"term": ConfigDict({**TERM, "sigma": 0.1})}, "unknown config key term.sigma"),
    ("pcl", {"term": ConfigDict(TERM)}, "term must be None for the method pcl"),
    ("rotation", {"term": ConfigDict(TERM)}, "term must be None for rotation"),
    ("rotation", {"nrcc.weight": 0.5}, "nrcc.weight must be 0 for the method rotation"),
    ("rotation", {"network.norm": "local", "network.group": 4}, "the method rotation, wh"),
    ("supervised", {"train.labeled_batch_size": 8}, "for the method supervised must be 16"),
    ("supervised", {"network.projector": {"hidden": 8, "out": 4}}, "classifies the backbone's"),
    ("ncl", {"novel.classes": 4}, "labeled classes, must be at most 3"),
    ("ncl", {"novel.classes": None}, "must be None where no class is known"),
    ("ncl", {"train.labeled_batch_size": 16}, "must be at most 15"),
    ("ncl", {"method.neighbors": 17}, "neighbors must be at most 16"),
    ("ncl", {"method.queue": 20}, "method.queue must be a multiple"),
    ("ncl", {"method.n_classes": 60}, "method.n_classes must be at most the "),
    ("ncl", {"method.neighbors": None}, "got None (give --config.method.neigh"),
    ("ncl", {"method.weights": NONE}, "one of method.weights must be"),
]


@every_row(("case", "changes", "message"), ROWS)
def test_bad_values_get_one_sentence(file, case, changes, message):
    assert message in refused(changed(file, case, changes))


def _five_of(value):
    return lambda labels: np.where(np.arange(len(labels)) < 5, value, -1 - value)


@every_row(
    ("known", "message"),
    [
        (_five_of(0), "of labeled images must be at least the 8"),
        (_five_of(-1), "of unlabeled images must be at least the 8"),
    ],
)
def test_known_classes_of_a_set_in_hand(file, known, message):
    """Found before anything is written, not at the first batch."""
    config = changed(file, "ncl", {})
    dataset = cases.build("ncl", False).dataset
    dataset = dataset._replace(partial_labels=known(dataset.labels).astype(np.int32))
    assert message in refused(config, dataset)


def test_workdir_of_another_method(tmp_path):
    """Its name is named, not the first of the keys that only one of the two methods has."""
    made = [cases.use(toy.config(toy.file(tmp_path)), case) for case in ("cueco", "ncc")]
    config = config_json(made[0])
    (tmp_path / "run").mkdir()
    io.write_json(tmp_path / "run" / "config.json", config)
    with pytest.raises(InputError) as error:
        pipeline.run_pipeline(made[1], tmp_path / "run")
    said = str(error.value)
    assert "has a run with another method.name, method." in said
    assert io.read_json(tmp_path / "run" / "config.json") == config
