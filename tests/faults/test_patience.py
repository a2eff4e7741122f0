"""Nobody waits without a word: compiling, and the time left."""

import re
import sys

import pytest

from cluster_jax.core import logs
from cluster_jax.runs import begin as pipeline
from tests import toy


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_what_is_said_until_the_first_step(tmp_path, capsys, monkeypatch):
    """ "Compiling"; then a bar, whose time left is not made of the time of the compilation."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with logs.printing():
        config = toy.config(toy.file(tmp_path), network=toy.PERCEPTRON)
        pipeline.run_pipeline(config, tmp_path / "run", "toy")
    said = capsys.readouterr()
    assert "\ncompiling\n" in said.out
    assert re.search(r"training: +25%\|\S* +\| 1/4 \[00:00<\?", said.err)
