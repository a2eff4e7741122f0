"""Every config that comes with the package trains two steps and is evaluated, whole but for sizes.

What a CPU cannot do in seconds is made smaller by overrides, as on the command line: 64 made images
of 8 or 16 pixels, batches of 16, narrow heads, short queues, few clusters, a moment of warm-up. The
ResNets, whose steps take three times as long to compile, are the network "small" here, but for one
slow test; tests/test_configs.py traces a step of every config with its own network. All else, the
evaluation with UMAP among it, is the config's.
"""

import json

import numpy as np
import pytest

from cluster_jax.core.config import config_names
from cluster_jax.pipeline import run as pipeline
from cluster_jax.training import log
from tests import toy

pytestmark = pytest.mark.usefixtures("quickly_compiled")


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
    results = pipeline.run_pipeline(config, folder / "run", name)
    assert json.loads((folder / "run" / "results.json").read_text()) == results
    assert "<html" in (folder / "run" / "report.html").read_text()[:500].lower()
    figures = set(finite(results["metrics"]))
    assert {"gridshift.nmi", "kmeans.acc", "knn.5", "linear_probe"} <= figures
    assert ("gradient_share" in figures) == (config.nrcc.weight > 0)
    assert results["provenance"]["number_of_clusters"] == {"gridshift": "found", "kmeans": "given"}
    records = log.read(folder / "run")
    assert [r["step"] for r in records] == [1, 2]
    assert all(np.isfinite(v) for r in records for v in r.values())
    for stage in config.stages:
        assert [r["step"] for r in log.read(folder / "run" / "stages" / stage)] == [1, 2]
    assert ("discovery.novel.acc" in figures) == bool(config.stages)


@pytest.mark.parametrize("name", config_names())
def test_config_runs_two_steps_and_an_evaluation(name, tmp_path):
    run(toy.shrunken(name, tmp_path), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nrcc_imagenet", "kernel_infonce_cifar10"])
def test_config_of_a_resnet(name, tmp_path):
    """Both stems; SGD and LARS; with and without NRCC."""
    run(toy.shrunken(name, tmp_path, "resnet18"), name, tmp_path)
