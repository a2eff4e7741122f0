"""Nobody waits without a word: compiling, time left, Ctrl-C, and a training that is cut short."""

import pathlib
import re
import sys

import numpy as np
import pytest

from cluster_jax import estimators
from cluster_jax.core import io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline import inference
from cluster_jax.pipeline import run as pipeline
from cluster_jax.report import assignments
from tests import toy
from tests.faults.runs import assert_same, before_step

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _interrupted():
    """As by Ctrl-C outside of the loop."""
    raise KeyboardInterrupt


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_training_cut_short_is_evaluated_and_goes_on(finished, tmp_path, monkeypatch, capsys):
    config = finished.config
    with pytest.raises(InputError, match=r"--cut_short needs a checkpoint"):
        pipeline.run_pipeline(config, tmp_path / "run", "toy", cut_short=True)
    before_step(monkeypatch, 4, _interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run_pipeline(config, tmp_path / "run", "toy")
    results = pipeline.run_pipeline(config, tmp_path / "run", "toy", cut_short=True)
    assert results["provenance"]["steps"] == 2
    assert results["provenance"]["cut_short"]
    estimator = estimators.load(tmp_path / "run")
    rows = io.read_arrays(tmp_path / "run" / "embedding.npz")["projection"]
    found = estimator.transform(toy.images()[0])
    np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1)[:, None], atol=1e-5)
    monkeypatch.undo()
    again = pipeline.run_pipeline(config, tmp_path / "run", "toy")
    assert_same(tmp_path / "run", finished.workdir)
    assert not again["provenance"]["cut_short"]
    assert "is finished" not in capsys.readouterr().out


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_warmup_longer_than_the_training_shrinks(tmp_path, caplog):
    config = toy.config(toy.file(tmp_path))
    config.optimizer.warmup = "100 steps"
    rate = toy.built(config).learning_rate
    assert "optimizer.warmup, 100 steps, is longer than train.duration, 4: it is 1" in caplog.text
    assert float(rate(0)) == pytest.approx(config.optimizer.learning_rate)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_what_is_said_until_the_first_step(tmp_path, capsys, monkeypatch):
    """ "Compiling"; then a bar, whose time left is not made of the time of the compilation."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with logs.printing():
        pipeline.run_pipeline(toy.config(toy.file(tmp_path)), tmp_path / "run", "toy")
    said = capsys.readouterr()
    assert "\ncompiling\n" in said.out
    assert re.search(r"training: +25%\|\S* +\| 1/4 \[00:00<\?", said.err)


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_bar_needs_a_terminal(tmp_path, capsys):
    with logs.printing():
        pipeline.run_pipeline(toy.config(toy.file(tmp_path)), tmp_path / "run", "toy")
    assert capsys.readouterr().err == ""


def test_names_that_are_not_utf_8():
    names = ["plain.png", "caf\udce9.png", r"back\slash", r"\xe9", "\udcff\\x41", "é"]
    table = assignments.to_csv({"image": names})
    table.encode("utf-8")
    lines = table.splitlines()[1:]
    assert lines[1] == r"caf\xe9.png"
    assert [assignments.unescaped(line) for line in lines] == names


def test_a_folder_of_the_command_cluster_is_told_apart(tmp_path, monkeypatch):
    from cluster_jax.cli import cluster

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    cluster.main(["--features=x.npy", "--method=gridshift", "--bandwidth=2", "--workdir=out"])
    with pytest.raises(InputError, match="a folder of the command `cluster`, which has no images"):
        inference.read("out")


@pytest.mark.parametrize(
    ("rows", "flags", "said"),
    [
        (np.full((60, 3), 1e300), (), "features must be between -1e+150 and 1e+150"),
        (np.ones((60, 8)), ("--n_components=9", "--reduce=pca"), "at most the 8 columns; got 9"),
    ],
)
def test_features_that_cannot_be_clustered(tmp_path, monkeypatch, capsys, rows, flags, said):
    from cluster_jax.cli import cluster

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", rows * np.linspace(0.5, 1, 60)[:, None])
    with pytest.raises(SystemExit) as stop:
        cluster.main(["--features=x.npy", "--workdir=out", *flags])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err
