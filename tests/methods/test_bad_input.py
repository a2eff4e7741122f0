"""Bad values of the methods: one sentence that names the key, and nothing is written."""

import contextlib

import numpy as np
import pytest
from ml_collections import ConfigDict

from cluster_jax.core import io
from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs.config import config_json
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states
from tests import toy
from tests.methods import cases
from tests.rows import every_row

INF = float("inf")


def refused(tmp_path, config):
    """What a run says that does not begin."""
    with pytest.raises(InputError) as error:
        pipeline.run_pipeline(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    return str(error.value)


@every_row(
    ("case", "change", "message"),
    [
        ("ncc", {"clusters": 65}, "method.clusters must be at most 64 training images; got 65"),
        ("cueco", {"clusters": 17}, "method.clusters must be at most 16 keys in the queue"),
        ("cueco", {"queue": 24}, "must be a multiple of train.batch_size, 16; got 24"),
        ("ncc", {"update_every": "0 steps"}, "method.update_every must be at least 1; got 0"),
        ("cueco", {"warmup": "0 steps"}, "method.warmup must be at least 1; got 0"),
        (
            "cueco",
            {"warmup": "4 steps"},
            "must be at most 3 steps, shorter than train.duration; got 4",
        ),
        ("kernel_infonce", {"gammas": (1.0, "x")}, "method.gammas must be a number; got 'x'"),
        ("ncc", {"sigma": -0.1}, "method.sigma must be at least 0; got -0.1"),
        ("ncc", {"part": "both"}, "method.part must be one of 'whole', 'alignment', 'uniformity'"),
        ("cueco", {"assign_by": "mean"}, "method.assign_by must be one of 'key', 'query'"),
        ("cueco", {"weights": {"variance": -1.0}}, "method.weights.variance must be at least 0"),
    ],
)
def test_bad_values_get_one_sentence(tmp_path, case, change, message):
    config = cases.use(toy.config(toy.file(tmp_path)), case)
    config.method.update(change)
    said = refused(tmp_path, config)
    assert message in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("method", {"temperature": INF}, "method.temperature must be a finite number; got inf"),
        ("nrcc", {"sghmc": {"clip": np.nan}}, "nrcc.sghmc.clip must be a finite number; got nan"),
        ("augment", {"mean": (0.5, -INF)}, "augment.mean must be a finite number; got -inf"),
    ],
)
def test_numbers_are_finite(tmp_path, section, values, message):
    config = toy.config(toy.file(tmp_path), **{section: values})
    assert refused(tmp_path, config) == f"config.{message}"


def test_groups_of_a_shuffled_batch(tmp_path, monkeypatch):
    """None, one that does not divide the batch, and the whole batch, where shuffling is nothing."""
    mesh = states.make_mesh(1)
    monkeypatch.setattr(states, "make_mesh", lambda: mesh)
    for group, message in (
        (None, "network.group must be at least 2 with network.norm 'shuffle'; got None"),
        (3, "train.batch_size of each device must be a multiple of network.group, 3; got 16"),
        (16, "network.group must be at most 15 with network.norm 'shuffle'; got 16"),
    ):
        network = {"norm": "shuffle", "group": group}
        config = toy.config(toy.file(tmp_path), network=network)
        assert message in refused(tmp_path, cases.use(config, "moco"))


@pytest.mark.parametrize("method", cases.STAGES)
def test_nrcc_on_a_method_without_two_views(tmp_path, method):
    config = cases.use(toy.config(toy.file(tmp_path), nrcc={"weight": 0.5}), method)
    said = refused(tmp_path, config)
    assert said == (
        f"nrcc.weight must be 0 for the method {method}, which is not a two-view method; "
        f"got {config.nrcc.weight}"
    )


TERM = {"name": "ncc", **cases.TERMS["ncc"]}


@pytest.mark.parametrize(
    ("method", "changes", "sentence"),
    [
        ("byol", {"name": "byol"}, "term.name must be one of 'cc', 'ncc', 'pcl'; got 'byol'"),
        ("byol", {"sigma": 0.1}, "unknown config key term.sigma"),
        ("byol", {"warmup": "9 hours"}, "term.warmup must be"),
        ("byol", {"clusters": 65}, "term.clusters must be at most 64 training images; got 65"),
        (
            "pcl",
            {},
            "term must be None for the method pcl, which has clusters of its own; got 'ncc'",
        ),
        ("rotation", {}, "term must be None for rotation, which is not a two-view method; got"),
    ],
)
def test_terms_of_other_methods(tmp_path, method, changes, sentence):
    config = cases.use(toy.config(toy.file(tmp_path)), method)
    config.term = ConfigDict({**TERM, **changes})
    assert refused(tmp_path, config).startswith(sentence)


def test_workdir_of_another_method(tmp_path):
    """Its name is named, not the first of the keys that only one of the two methods has."""
    made = [cases.use(toy.config(toy.file(tmp_path)), case) for case in ("cueco", "ncc")]
    config = config_json(made[0])
    (tmp_path / "run").mkdir()
    io.write_json(tmp_path / "run" / "config.json", config)
    with pytest.raises(InputError) as error:
        pipeline.run_pipeline(made[1], tmp_path / "run")
    said = str(error.value)
    assert "contains a run with method.name = cueco, not ncc (and " in said
    assert io.read_json(tmp_path / "run" / "config.json") == config


def test_checkpoint_of_another_method(tmp_path, caplog):
    """It is not moved, nor passed over for the one before."""
    mesh = states.make_mesh(1)
    initial = [cases.on_mesh(cases.initial(case, False, 0), mesh) for case in ("byol", "simclr")]
    folder = tmp_path / "run" / "checkpoints"
    with contextlib.closing(checkpoint.Checkpoints(folder, keep=2)) as saved:
        for step in (2, 4):
            saved.save(initial[0], step)
    saved = checkpoint.Checkpoints(folder, keep=2)
    with pytest.raises(OSError, match=r"checkpoints/4 must be .* of the same network; got an err"):
        saved.restore(initial[1])
    saved.close()
    saved = checkpoint.Checkpoints(folder, keep=2)
    assert saved.restore(initial[0]) is not None
    saved.close()
    folders = sorted(p.relative_to(tmp_path).as_posix() for p in (tmp_path / "run").glob("*/[0-9]"))
    assert folders == ["run/checkpoints/2", "run/checkpoints/4"]
    assert "cannot be read" not in caplog.text
