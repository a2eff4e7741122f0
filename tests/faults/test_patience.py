"""Nobody waits without a word: compiling, time left, Ctrl-C, and a training that is cut short."""

import pathlib
import re
import sys

import numpy as np
import pytest

from cluster_jax import estimators
from cluster_jax.core import io, logs
from cluster_jax.core.checks import InputError
from cluster_jax.runs import begin as pipeline
from tests import toy
from tests.faults.runs import assert_same, before_step

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _interrupted():
    """As by Ctrl-C outside of the loop."""
    raise KeyboardInterrupt


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_a_training_cut_short_is_evaluated_and_goes_on(finished, tmp_path, monkeypatch, capsys):
    config = finished.config
    with pytest.raises(InputError, match=r"--cut-short needs a checkpoint"):
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
def test_what_is_said_until_the_first_step(tmp_path, capsys, monkeypatch):
    """ "Compiling"; then a bar, whose time left is not made of the time of the compilation."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with logs.printing():
        pipeline.run_pipeline(toy.config(toy.file(tmp_path)), tmp_path / "run", "toy")
    said = capsys.readouterr()
    assert "\ncompiling\n" in said.out
    assert re.search(r"training: +25%\|\S* +\| 1/4 \[00:00<\?", said.err)
