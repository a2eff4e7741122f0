"""The log of a training that goes on."""

import json
import math

from cluster_jax.training import progress


def _write(workdir, start, stop):
    written = progress.Log(workdir, step=start, records=progress.read_log(workdir))
    for step in range(start + 1, stop + 1):
        written.write(step, {"loss": math.nan if step == 3 else 1.0})
    written.close()


def test_a_kill_goes_back_to_what_was_saved(tmp_path):
    """Also after a line that was cut off."""
    _write(tmp_path, 0, 5)
    assert progress.read_log(tmp_path)[2] == {"step": 3, "loss": None}
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 7, "loss": 1.0}) + "\n")
        file.write('{"step": 8, "lo')
    assert [line["step"] for line in progress.read_log(tmp_path)] == [1, 2, 3, 4, 5, 7]
    _write(tmp_path, 5, 6)
    assert [line["step"] for line in progress.read_log(tmp_path)] == [1, 2, 3, 4, 5, 6]
