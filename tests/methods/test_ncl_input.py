"""Bad input of novel class discovery: one sentence each, before anything is trained or written."""

import functools

import numpy as np
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.runs import build
from cluster_jax.runs.config import config_json, parse_config
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
        # Which classes are known.
        ("ncl", {"novel.classes": 0}, "novel.classes must be at least 1; got 0"),
        ("ncl", {"novel.classes": 4}, "number of labeled classes, must be at most 3; got 4"),
        (
            "ncl",
            {"novel.classes": None},
            "train.labeled_batch_size must be None where no class is known; got 8: set nov",
        ),
        (
            "supervised",
            {"novel.classes": None},
            "labeled_batch_size must be None where no class is known; got 16: set",
        ),
        ("ncl", {"novel.holdout": 1.0}, "novel.holdout must be at least 0 and below 1; got 1.0"),
        ("ncl", {"novel.holdout": -0.5}, "novel.holdout must be at least 0 and below 1; got -0.5"),
        # Rows of a batch.
        (
            "ncl",
            {"train.labeled_batch_size": None},
            "train.labeled_batch_size for ncl must be at least 1; got None",
        ),
        (
            "ncl",
            {"train.labeled_batch_size": 16},
            "labeled_batch_size for ncl must be at most 15; got 16",
        ),
        (
            "ncl",
            {"train.labeled_batch_size": 0},
            "train.labeled_batch_size must be at least 1; got 0",
        ),
        ("ncl", {"train.labeled_batch_size": 17}, "must be at most train.batch_size, 16; got 17"),
        ("ncl", {"train.labeled_batch_size": -1}, "labeled_batch_size must be at least 1; got -1"),
        (
            "supervised",
            {"train.labeled_batch_size": None},
            "train.labeled_batch_size for the method supervised must be 16; got None",
        ),
        (
            "supervised",
            {"train.labeled_batch_size": 8},
            "for the method supervised must be 16; got 8",
        ),
        (
            "rotation",
            {"train.labeled_batch_size": 8, "novel.classes": 2},
            "labeled_batch_size for the method rotation must be None; got 8",
        ),
        # The number of novel classes.
        ("ncl", {"method.classes": 1}, "method.classes must be at least 2; got 1"),
        ("ncl", {"method.classes": 0}, "method.classes must be at least 2; got 0"),
        # Queue and neighbors.
        ("ncl", {"method.neighbors": 0}, "method.neighbors must be at least 1; got 0"),
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
        ("ncl", {"method.queue": 0}, "method.queue must be at least 1; got 0"),
        # Values of the losses.
        ("ncl", {"method.temperature": 0.0}, "method.temperature must be greater than 0; got 0.0"),
        ("ncl", {"method.threshold": 1.5}, "method.threshold must be between -1 and 1; got 1.5"),
        ("ncl", {"method.alpha": -0.1}, "method.alpha must be between 0 and 1; got -0.1"),
        ("ncl", {"method.head": "k"}, "method.head must be one of 'pairs', 'clusters'; got 'k'"),
        (
            "ncl",
            {"method.head": "clusters", "method.update_every": "0 steps"},
            "method.update_every must be at least 1; got 0",
        ),
        ("ncl", {"method.alpha": 1.1}, "method.alpha must be between 0 and 1; got 1.1"),
        ("ncl", {"method.classes": 60}, "method.classes must be at most the "),
        ("ncl", {"method.threshold": "0.5"}, "method.threshold must be a number or None; got"),
        ("ncl", {"method.alpha": None}, "method.alpha must be a number; got None"),
        (
            "ncl",
            {"method.neighbors": None},
            "method.neighbors must be a whole number; got None (give --config.method.neighbors",
        ),
        ("ncl", {"method.hng.mixing": (0.5, "x")}, "method.hng.mixing must be a number; got 'x'"),
        ("ncl", {"method.weights": dict.fromkeys(NO_TERM, 0.0)}, "one of method.weights must be"),
        ("ncl", {"network.norm": "local", "network.group": 4}, "network.norm must be 'sync' for"),
        ("rotation", {"network.norm": "local", "network.group": 4}, "the method rotation, wh"),
        (
            "ncl",
            {"method.consistency_weight": -1.0},
            "method.consistency_weight must be at least 0; got -1.0",
        ),
        ("ncl", {"method.consistency": "all"}, "method.consistency must be one of 'own', 'both'"),
        ("ncl", {"method.ramp": "long"}, "method.ramp must be a duration like '1500 steps'"),
        ("ncl", {"method.contrast_from": "2"}, "method.contrast_from must be a duration like"),
        ("ncl", {"method.weights.bce": -1.0}, "method.weights.bce must be at least 0; got -1.0"),
        ("ncl", {"method.hng.count": -1}, "method.hng.count must be at least 0; got -1"),
        ("ncl", {"method.hng.rounds": 0}, "method.hng.rounds must be at least 1; got 0"),
        ("ncl", {"method.hng.mixing": ()}, "method.hng.mixing must be values between 0 and 1; got"),
        (
            "ncl",
            {"method.hng.mixing": (0.5, 1.5)},
            "method.hng.mixing must be between 0 and 1; got 1.5",
        ),
        ("ncl", {"method.hng.start": "soon"}, "method.hng.start must be a duration like"),
        # Parts that do not fit together.
        ("ncl", {"nrcc.weight": 0.1}, "nrcc.weight must be 0 for the method ncl, which is not a t"),
        ("rotation", {"nrcc.weight": 0.1}, "nrcc.weight must be 0 for the method rotation"),
        ("supervised", {"network.projector": {"hidden": 8, "out": 4}}, "classifies the backbone's"),
        ("ncl", {"network.projector": {"hidden": 8, "out": 4}}, "network.projector and network.pr"),
        ("ncl", {"network.frozen": "stage3"}, "network.frozen must be one of 'conv1', 'conv2'"),
        (
            "ncl",
            {"optimizer.lr_decay_every": "0 epochs"},
            "optimizer.lr_decay_every must be at least 1",
        ),
    ],
)
def test_bad_values_get_one_sentence(tmp_path, case, changes, message):
    config = made(tmp_path, case)
    with config.unlocked():
        for key, value in changes.items():
            *sections, name = key.split(".")
            functools.reduce(getattr, sections, config)[name] = value
    assert message in refused(config)


def test_values_of_another_type(tmp_path):
    """In a config of plain dicts; a ConfigDict refuses the one and cuts off the other."""
    values = config_json(made(tmp_path, "ncl"))
    values["method"]["hng"]["mixing"] = 0.5
    assert "method.hng.mixing must be a list, each a number; got 0.5" in refused(values)
    values["method"]["hng"]["mixing"] = [0.5]
    values["method"]["classes"] = 2.5
    assert "method.classes must be a whole number; got 2.5" in refused(values)


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


def test_all_weights_are_needed_and_no_others(tmp_path):
    config = made(tmp_path, "ncl")
    with config.method.unlocked():
        config.method.weights["extra"] = 1.0
    assert "unknown config key method.weights.extra; valid keys: method.weights.ce" in refused(
        config
    )
    with config.method.unlocked():
        del config.method.weights["extra"], config.method.weights["scl"]
    assert refused(config) == "missing config key method.weights.scl"


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


def test_a_set_without_labels(tmp_path):
    np.savez(tmp_path / "bare.npz", images=toy.images()[0])
    config = cases.use(toy.config(tmp_path / "bare.npz"), "ncl")
    sentence = "novel.classes must be None for arrays, which has no labels; got 2"
    assert refused(config) == sentence
