"""Four processes of two CPU devices: as one of eight, and what happens where one is killed.

The first twenty steps of every method in float64, with and without NRCC, and the labels of k-means,
against one process of eight devices. Then a training with PCL, whose k-means runs on all devices,
on 64 images in files: one process is killed in each part of it, and the same command is given
again. The processes, the methods and the images are those of the tests.
"""

import os
import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests import toy
from tests.faults.jobs import Job, kill_all
from tests.faults.runs import assert_same
from tests.methods import cases

STEPS, SEED = 20, 3
# Part of a run -> rank of the process that is killed in it; only the first clusters and reports.
KILLED = {
    "start": 2, "refresh": 3, "training": 2, "checkpoint": 1, "embedding": 3, "k-means": 0,
    "report": 0,
}  # fmt: skip
# Written before the first measurement.
PREDICTED = {"largest_difference": 1e-11, "labels_that_differ": 0, "seconds_until_all_ended": 30}
CONFIG = """
from tests import toy
from tests.methods import cases
def get_config():
    train = {"duration": "20 steps", "checkpoint_every": 5, "log_every": 5}
    made = cases.use(toy.config(None, train=train), "pcl")
    made.method.update_every = "5 steps"
    made.data.name, made.data.cache_mb, made.data.dir = "folder", 0.0, FOLDER
    made.eval.batch_size = 16
    return made
"""


def measure() -> dict[str, Any]:
    """Differences of all methods, and seconds until all processes of a job have ended."""
    names = [f"{method}{'+nrcc' * nrcc}" for method, nrcc in cases.EVERY]
    try:
        found = [differences(names[i : i + 7]) for i in range(0, len(names), 7)]
        with tempfile.TemporaryDirectory() as folder:
            job = write_job(pathlib.Path(folder))
            start(job, "whole").succeed()
            ended = {place: killed(job, place, rank) for place, rank in KILLED.items()}
    finally:
        kill_all()
    return {
        "load_average": os.getloadavg()[0],
        "differences": {name: value for part in found for name, value in part.items()},
        "seconds_from_the_kill": ended,
        "resumed_bit_for_bit": True,
    }


def differences(names: Sequence[str]) -> dict[str, float]:
    """Largest difference of a state, in units of 1 + its largest number, and of k-means' results.

    Args:
        names: of methods, "+nrcc" added where it is with NRCC.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, processes in (("one", 1), ("four", 4)):
            command = ["-m", "tests.faults.steps", f"{folder}/{file}.npz", str(STEPS), *names]
            Job(command, folder, processes=processes, devices=8 // processes).succeed(1800)
        one, four = (dict(np.load(folder / f"{file}.npz")) for file in ("one", "four"))
    found: dict[str, float] = {}
    for key, x in one.items():
        y, case = four[key], key.split("/")[0]
        apart = float(np.abs(x.astype(float) - y).max(initial=0) / (1 + np.abs(x).max(initial=0)))
        found[case] = max(found.get(case, 0.0), apart)
    return found


def write_job(folder: pathlib.Path) -> pathlib.Path:
    """Writes images and a config; returns the folder."""
    (folder / "photos").mkdir()
    for i, image in enumerate(toy.images()[0]):
        Image.fromarray(image[..., 0]).save(folder / "photos" / f"{i:02}.png")
    config = CONFIG.replace("FOLDER", repr(f"{folder}/photos"))
    (folder / "pod.py").write_text(config)
    return folder


def start(folder: pathlib.Path, run: str, dies: tuple[int, str] | None = None) -> Job:
    """Starts the training in four processes, see `tests.faults.jobs.Job`."""
    command = ["train", f"--config={folder}/pod.py", f"--workdir={folder}/{run}"]
    return Job(command, folder / run, processes=4, dies=dies)


def killed(folder: pathlib.Path, place: str, rank: int) -> float:
    """Kills a process, checks how the others end, gives the same command again; seconds.

    Args:
        folder: of the job, with the run `whole` that was left alone.
        place: where it is killed, see `tests.faults.dying`.
        rank: its number.
    """
    seconds = ended(start(folder, place, (rank, place)), rank)
    start(folder, place).succeed()
    assert_same(folder / "whole", folder / place)
    return seconds


def ended(job: Job, rank: int) -> float:
    """Checks that all processes end after one was killed, and tell the cause; seconds."""
    job.hosts[rank].wait()
    since = time.monotonic()
    codes, errors = job.end(60)
    seconds = time.monotonic() - since
    for other in set(range(len(codes))) - {rank}:
        said = errors[other]
        assert codes[other] not in (0, 2, 75), (codes, said)
        assert "of the job ended" in said or "another task died" in said, said
        assert "Traceback" not in said, said
        assert "cannot be written" not in said, said
    return seconds
