"""Nobody waits without a word."""

import re
import sys

import pytest

from cluster_jax.core import logs
from cluster_jax.runs import begin as pipeline
from tests import toy


@pytest.mark.usefixtures("one_device", "traced_once", "compiled_once")
def test_what_is_said_until_the_first_step(tmp_path, capsys, monkeypatch):
    """ "Compiling", and a bar of no step yet; then how many there are."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with logs.printing():
        config = toy.config(toy.file(tmp_path))
        pipeline.run_pipeline(config, tmp_path / "run", "toy")
    said = capsys.readouterr()
    assert "\ncompiling\n" in said.out
    assert re.search(r"training: +0%\|\S* +\| 0/4 .*training: 100%\|\S*\| 4/4 ", said.err, re.S)
