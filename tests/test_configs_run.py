"""Every config that comes with the package trains two steps; each kind of evaluation runs once.

What a CPU cannot do in seconds is made smaller by overrides, as on the command line: 64 generated
images of 8 or 16 pixels, batches of 16, narrow heads, short queues, few clusters, a short warm-up.
The ResNets, whose steps take three times as long to compile, are replaced by "small", except in one
slow test; tests/test_configs.py traces every config's own network. Everything else is the
config's. Configs that are the same once they are small (CIFAR-10, -20, -100 and STL-10
differ in images and in the number of clusters) are one case.
"""

import json
import pathlib

import numpy as np
import pytest

from cluster_jax.core import io
from cluster_jax.core.config import config_names, load_config
from cluster_jax.runs import begin as pipeline
from cluster_jax.training import progress
from cluster_jax.training.config import config_json
from tests import toy

pytestmark = pytest.mark.usefixtures("one_device", "traced_once")


def finite(metrics, path=""):
    """Names of the metrics in nested dicts, all of them finite."""
    for key, value in metrics.items():
        if isinstance(value, dict):
            yield from finite(value, f"{path}{key}.")
        elif isinstance(value, int | float):
            assert np.isfinite(value), f"{path}{key} = {value}"
            yield f"{path}{key}"


# One config of each kind of evaluation. Those that are not the default are slow:
# tests/test_configs.py traces their networks, tests/methods takes a step of each method, and the
# small configs of tests/runs are made of nrcc_digits and ncl_digits.
EVALUATED = ("images_scratch", "ncc_cifar10", "ncl_digits", "nrcc_digits")
DEFAULT = EVALUATED[:2]


def trainings():
    """Names of the configs, those of the same small training together."""
    groups = {}
    for name in sorted({*config_names()} - {"images"}):  # which trains nothing
        folder = pathlib.Path("digits" if name.endswith("digits") else "photos")
        values = config_json(toy.shrunken(name, folder, write=False))
        values["data"] |= {"label": None, "split": None}
        groups.setdefault(json.dumps({**values, "note": ""}, sort_keys=True), []).append(name)
    slow = pytest.mark.slow
    return [
        pytest.param(names, marks=() if {*names} & {*DEFAULT} else slow, id="-".join(names))
        for names in groups.values()
    ]


class Embedded(Exception):
    """Ends a run once its images are embedded."""


def _ended(*args):
    raise Embedded


def check_logs(config, folder):
    """Each stage has logged its two steps."""
    for stage in ("run", *(f"run/stages/{stage}" for stage in config.stages)):
        records = progress.read_log(folder / stage)
        assert [r["step"] for r in records] == [1, 2]
        assert all(np.isfinite(v) for r in records for v in r.values())


def check_outputs(results, config, folder):
    """The files of the run, and which metrics there are."""
    assert io.read_json(folder / "run" / "results.json").items() >= results.items()
    assert "<html" in (folder / "run" / "report.html").read_text()[:500].lower()
    metrics = set(finite(results["metrics"]))
    method = config.eval.method
    assert {f"{method}.nmi", "kmeans.acc", "knn.5", "linear_probe"} <= metrics
    assert ("gradient_share" in metrics) == (config.nrcc.weight > 0)
    assert results["provenance"]["number_of_clusters"] == {method: "found", "kmeans": "given"}
    given = results["provenance"]["clusters_given_to_training"]
    assert given == config.method.get("n_clusters")
    report = (folder / "run" / "report.html").read_text()
    assert (f"The training, however, was given {given} as" in report) == (given is not None)
    assert ("discovery.novel.acc" in metrics) == bool(config.stages)


@pytest.mark.parametrize("names", trainings())
def test_config_runs_two_steps(names, tmp_path, monkeypatch):
    name = next((name for name in names if name in EVALUATED), names[0])
    # A perceptron has one block, which cannot be frozen.
    is_frozen = load_config(name).network.frozen is not None
    config = toy.shrunken(name, tmp_path, "small" if is_frozen else "mlp")
    config.eval.reduce = "pca"  # Numba compiles UMAP for seconds, in other modules.
    if name in EVALUATED:
        check_outputs(pipeline.run_pipeline(config, tmp_path / "run", name), config, tmp_path)
    else:
        monkeypatch.setattr(pipeline.trainings, "next_state", _ended)
        with pytest.raises(Embedded):
            pipeline.run_pipeline(config, tmp_path / "run", name)
    check_logs(config, tmp_path)
    assert np.isfinite(np.load(tmp_path / "run" / "embedding.npz")["backbone"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nrcc_imagenet", "kernel_infonce_cifar10"])
def test_config_of_a_resnet(name, tmp_path):
    """Both stems; SGD and LARS; with and without NRCC."""
    config = toy.shrunken(name, tmp_path, "resnet18")
    check_outputs(pipeline.run_pipeline(config, tmp_path / "run", name), config, tmp_path)
    check_logs(config, tmp_path)
