"""A training on a machine that one has for half an hour: started detached, watched, stopped, used.

Without TFDS, and by the command of a clean clone: the images are an array file.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

from cluster_jax.core import arrays, io
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.runs import trainings
from cluster_jax.training import build, checkpoint, stages
from tests import toy
from tests.faults import jobs

WITHOUT_TFDS = "raise ImportError('not on this machine')\n"
FLAGS = (
    "--config=configs/nrcc_digits.py", "--config.network.name=mlp", "--config.network.width=16",
    "--config.network.projector.hidden=16", "--config.network.projector.out=8",
    "--config.nrcc.weight=0.0", "--config.train.batch_size=16", "--config.optimizer.warmup=1 step",
    "--config.train.log_every=10", "--config.train.checkpoint_every=100000",
    "--config.eval.reduce=pca", "--config.eval.linear_probe.epochs=1",
    "--config.augment.mean=(0.5,)", "--config.augment.std=(0.2,)", "--report=no",
)  # fmt: skip


def _started(folder, steps):
    """The command, in a session of its own, which writes into a file."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    for name in ("tensorflow_datasets", "array_record"):
        (site / f"{name}.py").write_text(WITHOUT_TFDS)
    command = [*FLAGS, "--config.data.name=arrays", f"--config.data.dir={folder}/toy.npz"]
    command += [f"--config.train.duration={steps} steps", f"--workdir={folder}/run"]
    environment = {"PYTHONPATH": f"{site}:{jobs.ROOT}", "JAX_PLATFORMS": "cpu"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster_jax.main", *command], cwd=jobs.ROOT, stdout=log,
            stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    jobs._STARTED.append(process)
    return process


def _records(folder) -> list[dict]:
    """The complete lines of the log of the training."""
    file = folder / "run" / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_half_an_hour_in_miniature(tmp_path):
    toy.file(tmp_path)
    process = _started(tmp_path, 800)
    end = time.monotonic() + 120
    while len(_records(tmp_path)) < 2:  # The second line has a rate without the compilation.
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < end
        time.sleep(0.05)
    assert _records(tmp_path)[1]["images_per_second"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75, (tmp_path / "log").read_text()
    assert "Run the same command again to resume." in (tmp_path / "log").read_text()

    # The newest state gives features and an encoder, although the training is not done.
    workdir = tmp_path / "run"
    assert not (workdir / "results.json").exists()
    stage = build.build_run(trainings.read_config(workdir))
    run = stage.training
    (step,) = checkpoint.steps(workdir / "checkpoints")
    assert 20 <= step < 800
    state = checkpoint.read(workdir / "checkpoints", build.abstract_state(run), step)
    early = stages.embed_all(stage, run.dataset, state)
    assert early["projection"].shape == (64, 8)
    kept = run.method.kept(state.params, state.model_state)
    build.trained(stage.inputs, *kept).save(tmp_path / "early.npz")
    pixels = run.dataset.fetch(np.arange(64))
    found = Encoder.load(tmp_path / "early.npz")(pixels)
    wanted = arrays.normalize_rows(early[stage.config.eval.features])
    np.testing.assert_allclose(found, wanted, atol=1e-4)

    again = _started(tmp_path, 800)
    assert again.wait(240) == 0, (tmp_path / "log").read_text()
    assert f"the training goes on after step {step:,}" in (tmp_path / "log").read_text()
    assert _records(tmp_path)[-1]["step"] == 800
    assert io.read_arrays(workdir / "embedding.npz")["projection"].shape == (64, 8)
    assert not (workdir / "report.html").exists()
    metrics = io.read_json(workdir / "results.json")["metrics"]
    assert metrics["kmeans"]["acc"] > 0.5
