"""What checksums and watch cost in one training of `nrcc_digits`: their share of its time.

Each is timed inside the run itself, so that no second run with other noise is compared with.
"""

import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

from cluster_jax.core import devices, io
from cluster_jax.core.config import load_config
from cluster_jax.pipeline import stages
from cluster_jax.pipeline.config import config_json, parse_config
from cluster_jax.training import checkpoint, loop, progress, watch

# Name -> where its functions are.
TIMED: dict[str, tuple[tuple[Any, str], ...]] = {
    "checksums of checkpoints": ((checkpoint, "checksum"),),
    "checksums of files": ((io, "_sha256"),),
    "watch": ((watch, "look"), (watch, "findings")),
}


def measure() -> tuple[dict, dict]:
    """Seconds of each, and their share of the training."""
    config = load_config("nrcc_digits")
    devices.use_cores(config.train.batch_size)
    seconds = dict.fromkeys([*TIMED, "images to watch"], 0.0)
    originals = [(place, name, getattr(place, name)) for at in TIMED.values() for place, name in at]
    for task, at in TIMED.items():
        for place, name in at:
            setattr(place, name, _timed(getattr(place, name), task, seconds))
    train = loop.train

    def with_timed_probe(*arguments: Any, **options: Any) -> Any:
        probe = _timed(options.pop("probe"), "images to watch", seconds)
        return train(*arguments, probe=probe, **options)

    loop.train = with_timed_probe
    try:
        with tempfile.TemporaryDirectory() as folder:
            total = _train(parse_config(config_json(config)), pathlib.Path(folder))
    finally:
        loop.train = train
        for place, name, function in originals:
            setattr(place, name, function)
    figures = {
        "training_seconds": total,
        "seconds": seconds,
        "share": sum(seconds.values()) / total,
    }
    setup = {"config": "nrcc_digits", "seed": config.seed, "cores": devices.cores()}
    return figures, setup


def _train(config: Any, folder: pathlib.Path) -> float:
    """Seconds of a training, without those of the compilation."""
    from etils import epath

    workdir = epath.Path(folder) / "run"
    trainings = stages.build_stages(config, workdir, "nrcc_digits", None)
    started: list[float] = []
    add = progress.Progress.add

    def first_step(self: Any, metrics: Any) -> None:
        add(self, metrics)
        started.append(time.perf_counter())

    progress.Progress.add = first_step  # type: ignore[method-assign]
    try:
        stages.train(trainings, None, print, None, lambda: None)
    finally:
        progress.Progress.add = add  # type: ignore[method-assign]
    return time.perf_counter() - started[0]


def _timed(function: Callable, task: str, seconds: dict[str, float]) -> Callable:
    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds[task] += time.perf_counter() - start

    return timed
