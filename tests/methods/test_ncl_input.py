"""Bad input of novel class discovery: one sentence each, before anything is trained or written."""

import functools

import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.runs import build
from cluster_jax.runs.config import parse_config
from tests import toy
from tests.methods import cases
from tests.rows import every_row

NO_TERM = ("ce", "bce", "consistency", "ncl", "scl")


def refused(config, dataset=None):
    """What the run says that cannot be built."""
    with pytest.raises(InputError) as error:
        build.build_run(parse_config(config), dataset)
    assert "\n" not in str(error.value)
    return str(error.value)


def made(tmp_path, case):
    return cases.use(toy.config(toy.file(tmp_path)), case)


@every_row(
    ("case", "changes", "message"),
    [
        ("ncl", {"novel.classes": 4}, "number of labeled classes, must be at most 3; got 4"),
        (
            "ncl",
            {"novel.classes": None},
            "train.labeled_batch_size must be None where no class is known; got 8: set nov",
        ),
        (
            "ncl",
            {"train.labeled_batch_size": 16},
            "labeled_batch_size for ncl must be at most 15; got 16",
        ),
        (
            "supervised",
            {"train.labeled_batch_size": 8},
            "for the method supervised must be 16; got 8",
        ),
        (
            "ncl",
            {"method.neighbors": 17},
            "neighbors must be at most 16 entries of the queue; got 17",
        ),
        (
            "ncl",
            {"method.queue": 20},
            "method.queue must be a multiple of the labeled rows of a batch, 8",
        ),
        (
            "ncl",
            {"train.labeled_batch_size": 4},
            "must be a multiple of the unlabeled rows of a batch, 12",
        ),
        ("ncl", {"method.threshold": 1.5}, "method.threshold must be between -1 and 1; got 1.5"),
        ("ncl", {"method.head": "k"}, "method.head must be one of 'pairs', 'clusters'; got 'k'"),
        ("ncl", {"method.classes": 60}, "method.classes must be at most the "),
        (
            "ncl",
            {"method.neighbors": None},
            "method.neighbors must be a whole number; got None (give --config.method.neighbors",
        ),
        ("ncl", {"method.weights": dict.fromkeys(NO_TERM, 0.0)}, "one of method.weights must be"),
        ("rotation", {"network.norm": "local", "network.group": 4}, "the method rotation, wh"),
        ("ncl", {"method.ramp": "long"}, "method.ramp must be a duration like '1500 steps'"),
        (
            "ncl",
            {"method.hng.mixing": (0.5, 1.5)},
            "method.hng.mixing must be between 0 and 1; got 1.5",
        ),
        ("ncl", {"nrcc.weight": 0.1}, "nrcc.weight must be 0 for the method ncl, which is not a t"),
        ("supervised", {"network.projector": {"hidden": 8, "out": 4}}, "classifies the backbone's"),
        ("ncl", {"network.frozen": "stage3"}, "network.frozen must be one of 'conv1', 'conv2'"),
    ],
)
def test_bad_values_get_one_sentence(tmp_path, case, changes, message):
    config = made(tmp_path, case)
    with config.unlocked():
        for key, value in changes.items():
            *sections, name = key.split(".")
            functools.reduce(getattr, sections, config)[name] = value
    assert message in refused(config)


@pytest.mark.parametrize("case", ["byol", "ncc"])
def test_labeled_rows_for_a_method_that_takes_no_labels(tmp_path, case):
    """Neither with known classes nor without."""
    config = cases.use(toy.config(toy.file(tmp_path)), case)
    config.train.labeled_batch_size = 8
    for known in (None, 2):
        config.novel.classes = known
        message = refused(config)
        assert "train.labeled_batch_size must be None" in message
        assert "\n" not in message
    assert message.endswith(f"must be None for {case}, which takes no labels; got 8")


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (lambda labels: np.full_like(labels, -1), "got no labeled ones"),
        (lambda labels: labels, "got no unlabeled ones"),
        (lambda labels: np.where(labels == 2, 2, -1), "without gaps; got no image of class 0"),
    ],
)
def test_known_classes_of_a_set_in_hand(tmp_path, known, message):
    dataset = toy.built(made(tmp_path, "ncl")).dataset
    dataset = dataset._replace(partial_labels=known(dataset.labels).astype(np.int32))
    assert message in refused(made(tmp_path, "ncl"), dataset)


@pytest.mark.parametrize("few", ["labeled", "unlabeled"])
def test_fewer_images_of_a_part_than_rows(tmp_path, few):
    """Found before anything is written, not at the first batch."""
    dataset = toy.built(made(tmp_path, "ncl")).dataset
    known = np.full(dataset.size, -1 if few == "labeled" else 0, np.int32)
    known[:5] = 0 if few == "labeled" else -1
    said = refused(made(tmp_path, "ncl"), dataset._replace(partial_labels=known))
    assert said.startswith(
        f"the number of {few} images must be at least the 8 in a batch; got 5 (lower "
    )
