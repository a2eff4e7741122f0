"""The command `export`: an encoder that another program runs without this package."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cluster_jax.cli import export as command
from cluster_jax.data import datasets
from cluster_jax.runs import begin as pipeline
from cluster_jax.runs import run as records
from cluster_jax.runs.config import parse_config
from tests import toy
from tests.cli.test_output import check_keys

LOADED = """
import sys, numpy as np, jax.export
assert not any(name.startswith("cluster_jax") for name in sys.modules)
encode = jax.export.deserialize(bytearray(open("encoder.bin", "rb").read())).call
np.save("rows.npy", encode(np.load("images.npy")))
assert not any(name.startswith("cluster_jax") for name in sys.modules)
"""


@pytest.mark.usefixtures("one_device", "traced_once")
def test_a_program_without_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = toy.config(toy.file(tmp_path))
    pipeline.run_pipeline(config, tmp_path / "run", "toy")
    capsys.readouterr()
    command.main([f"--workdir={tmp_path / 'run'}", "--out=encoder.bin", "--json"])
    printed = json.loads(capsys.readouterr().out)
    check_keys("export", printed)
    run = records.read(tmp_path / "run")
    height, width, channels = run.images["shape"]
    assert printed["input"] == [height, width, channels]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, height, width, channels), dtype=np.uint8)
    np.save("images.npy", images)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", LOADED], check=True, env=environment)
    dataset = datasets.load_new(images, parse_config(run.config).data, run.images["shape"])
    expected = run.encoder().embed(dataset)
    np.testing.assert_allclose(np.load("rows.npy"), expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)


def test_a_workdir_without_a_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main([f"--workdir={tmp_path}", f"--out={tmp_path / 'encoder.bin'}"])
    assert stop.value.code == 2
    assert "must be that of a finished run" in capsys.readouterr().err
    assert not (tmp_path / "encoder.bin").exists()
