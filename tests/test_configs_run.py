"""Every config that comes with the package trains two steps and is evaluated, whole but for sizes.

What a CPU cannot do in seconds is made smaller by overrides, as on the command line: 64 made images
of 8 or 16 pixels, batches of 16, narrow heads, short queues, few clusters, a moment of warm-up. The
ResNets, whose steps take three times as long to compile, are the network "small" here, but for one
slow test; tests/test_configs.py traces a step of every config with its own network. All else, the
evaluation with UMAP among it, is the config's.
"""

import json

import jax
import numpy as np
import pytest

from cluster_jax import assemble, pipeline, settings
from cluster_jax.training import log
from cluster_jax.training import state as states
from tests import toy

FEW = 5  # clusters, so that a batch holds members of most


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled():
    """Compiling takes nearly all the time: on one device, without optimisation, traced once."""
    with pytest.MonkeyPatch.context() as patch:
        make = states.make_mesh
        patch.setattr(states, "make_mesh", lambda devices=1: make(devices))
        patch.setattr(assemble, "_try_step", lambda *arguments: None)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # slow code for other tests


def shrunken(name, folder, network="small"):
    """The config with made images and small sizes."""
    config = settings.load(name)
    channels = 1 if name.endswith("digits") else 3
    config.data.name, config.data.dir = "arrays", str(toy.file(folder, channels=channels))
    config.data.split = None
    if channels == 3:
        config.data.canvas = config.augment.size = 16
        config.augment.blur.kernel = 3
    config.network.name = network
    if network == "small":
        config.network.stem = None
        if config.network.frozen is not None:
            config.network.frozen = "conv3"
    config.network.width = 4
    if config.network.projector is not None:
        config.network.projector.update(hidden=16, out=8)
    if config.network.predictor is not None:
        config.network.predictor.hidden = 16
    method = config.method
    if "clusters" in method:
        method.clusters = FEW
    if method.get("queue"):
        method.queue = 32
    for duration in ("warmup", "frozen", "every"):
        if duration in method:
            setattr(method, duration, "1 step")
    config.optimizer.warmup = "1 step"
    config.train.batch_size = 16
    config.train.duration = "2 steps"
    config.train.log_every = 1
    if config.stages:
        config = toy.discovery(config, 16, duration="2 steps")
    config.eval.batch_size = 64
    config.eval.linear_probe.epochs = 1
    return config


def finite(metrics, path=""):
    """Names of the figures of nested dicts, all of them finite."""
    for key, value in metrics.items():
        if isinstance(value, dict):
            yield from finite(value, f"{path}{key}.")
        elif isinstance(value, int | float):
            assert np.isfinite(value), f"{path}{key} = {value}"
            yield f"{path}{key}"


def run(config, name, folder):
    """Runs the config and checks what it leaves."""
    results = pipeline.run(config, folder / "run", name)
    assert json.loads((folder / "run" / "results.json").read_text()) == results
    assert "<html" in (folder / "run" / "report.html").read_text()[:500].lower()
    figures = set(finite(results["metrics"]))
    assert {"gridshift.nmi", "kmeans.acc", "knn.5", "linear_probe"} <= figures
    assert ("gradient_share" in figures) == (config.nrcc.weight > 0)
    assert results["protocol"]["number_of_clusters"] == {"gridshift": "found", "kmeans": "given"}
    records = log.read(folder / "run")
    assert [r["step"] for r in records] == [1, 2]
    assert all(np.isfinite(v) for r in records for v in r.values())
    for stage in config.stages:
        assert [r["step"] for r in log.read(folder / "run" / "stages" / stage)] == [1, 2]
    assert ("discovery.novel.acc" in figures) == bool(config.stages)


@pytest.mark.parametrize("name", settings.names())
def test_config_runs_two_steps_and_an_evaluation(name, tmp_path):
    run(shrunken(name, tmp_path), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nrcc_imagenet", "kernel_infonce_cifar10"])
def test_config_of_a_resnet(name, tmp_path):
    """Both stems; SGD and LARS; with and without NRCC."""
    run(shrunken(name, tmp_path, "resnet18"), name, tmp_path)
