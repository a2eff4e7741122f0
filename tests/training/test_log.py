"""The log of a training that is interrupted between two reports goes on with the same means."""

import json
import math
from types import SimpleNamespace

import numpy as np

from cluster_jax.training import progress
from cluster_jax.training.progress import Progress

LOSSES = np.random.default_rng(0).normal(size=10).astype(np.float32)


def _train(workdir, start, stop, earlier=()):
    """Steps as `loop.train` makes them; returns what it saves with the state."""
    written = progress.Log(workdir, step=start, records=progress.read_log(workdir))
    run = SimpleNamespace(
        train=SimpleNamespace(batch_size=4), total_steps=10, learning_rate=lambda step: 0.1
    )
    shown = Progress(run, written, start, earlier)
    for step in range(start + 1, stop + 1):
        bad = np.float32(math.inf if step == 3 else 1.0)
        shown.add({"loss": LOSSES[step - 1], "gradient_norm": bad})
        if step % 5 == 0:
            shown.report(step, None, None)
    shown.close()
    return json.loads(json.dumps(shown.unreported()))


def test_the_means_are_those_of_a_training_in_one_piece(tmp_path):
    for name, stops in (("whole", (10,)), ("parts", (2, 4, 7, 10))):
        (tmp_path / name).mkdir()
        earlier = ()
        for start, stop in zip((0, *stops), stops, strict=False):
            earlier = _train(tmp_path / name, start, stop, earlier)
        assert earlier == []
    whole, parts = (progress.read_log(tmp_path / name) for name in ("whole", "parts"))
    assert [line["step"] for line in parts] == [5, 10]
    for line in (*whole, *parts):
        assert line.pop("images_per_second") > 0
    assert parts == whole
    assert whole[0]["skipped_steps"] == 1


def test_a_kill_goes_back_to_what_was_saved(tmp_path):
    """Also after a line that was cut off."""
    _train(tmp_path, 0, 5)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 7, "loss": 1.0}) + "\n")
        file.write('{"step": 8, "lo')
    assert [line["step"] for line in progress.read_log(tmp_path)] == [5, 7]
    progress.Log(tmp_path, step=5, records=progress.read_log(tmp_path)).close()
    assert [line["step"] for line in progress.read_log(tmp_path)] == [5]
