"""The benchmark of a GPU, on the CPU: what its figures are figures of."""

import json
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster_jax.cli import flags, train
from cluster_jax.core import io
from cluster_jax.pipeline import build
from cluster_jax.pipeline.config import parse_config
from cluster_jax.training.step import make_step
from experiments.benchmark import __main__ as command
from experiments.benchmark import _checks, _steps, gpu
from experiments.benchmark._steps import Item

pytestmark = pytest.mark.usefixtures("traced_once")

BYOL = gpu.BYOL.name


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_the_tiny_form_measures_everything(tmp_path, monkeypatch, capsys):
    path = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["benchmark", "gpu", "--tiny", f"--json={path}"])
    monkeypatch.setattr(_checks, "config_names", lambda: ["base", "simclr_features"])
    command.main()
    result = io.read_json(path)
    figures, origin = result["figures"], result["provenance"]
    assert figures["checks"]["failed"] == []
    assert len(figures["checks"]["figures"]) == 3
    assert figures["rates"][BYOL]["images_per_second"] > 0
    assert figures["profile"]["kernels"] > 0
    assert origin["command"] == "python -m experiments.benchmark gpu --tiny"
    assert origin["versions"]["jax"] == jax.__version__
    assert {"machine", "commit", "device"} <= set(origin)
    assert origin["constants"]["reached"] == gpu.REACHED
    text = path.with_suffix(".md").read_text()
    assert "failed: none" in text
    assert f"| {BYOL} |" in text
    assert origin["command"] in text


def test_only_a_cpu_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", "gpu"])
    monkeypatch.setattr(_checks, "measure", lambda tiny: pytest.fail("it was measured"))
    with pytest.raises(SystemExit):
        command.main()
    assert "a GPU or TPU must be there; got only a CPU" in capsys.readouterr().err


def _run(batch=16, **item):
    config = _steps.config_of(Item(dtype="float32", **item), tiny=True)
    config.train.batch_size = batch
    dataset = _steps.generated(_steps.TINY_IMAGES, _steps.TINY_SIDE, labeled=False)
    return build.build_run(parse_config(config), dataset).training


# Slow: three tests compile whole steps, of a benchmark that no user runs.
@pytest.mark.slow
@pytest.mark.parametrize("views", ["paper", "flips"])
def test_the_compiler_passes_both_views(one_device, views):
    """Of two equal views it would pass one alone, and the rate would be that of half a step."""
    run = _run(views=views)
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    step = make_step(run.method, run.optimizer, run.mesh)
    lowered = step.lower(build.abstract_state(run), next(_steps.endless(run)), resident)
    compiled = re.findall(r" convolution\(", lowered.compile().as_text())
    assert len(compiled) == lowered.as_text().count("stablehlo.convolution")


@pytest.mark.slow
def test_operations_are_those_of_one_image_on_any_devices(two_devices):
    """Counted for one CPU: other backends count nothing, and the step of a device has its share."""
    run = _run()
    flops = _steps.operations(run)
    alone = run._replace(mesh=_steps.mesh_of(jax.devices()[0]))
    assert _steps.operations(alone) == flops
    assert _steps.operations(_run(batch=32)) == pytest.approx(flops, rel=0.02)


def test_every_rate_has_a_prediction_written_before():
    names = [item.name for item in gpu.ITEMS]
    assert len(set(names)) == len(names)
    assert set(names) == set(io.read_json(gpu.PREDICTIONS)["rates"])


@pytest.mark.slow
def test_a_prediction_follows_from_the_code():
    """Of BYOL + NRCC; operations have changed by less than a thousandth since it was written."""
    item = gpu.BYOL._replace(sampler="sghmc")
    stored = io.read_json(gpu.PREDICTIONS)["rates"][item.name]
    made = gpu.predict(item)
    assert made["gflops_per_image"] == pytest.approx(stored["gflops_per_image"], rel=1e-3)
    assert made["megabytes_per_image"] == stored["megabytes_per_image"]
    for chip in gpu.CHIPS:
        assert made[chip] == pytest.approx(stored[chip], rel=1e-3)


def test_outputs_of_convolutions_are_counted():
    """ResNet-18 with CIFAR stem: five maps of 64 x 32 x 32, then five of half the entries, ..."""
    assert _steps.outputs_of_convolutions(Item()) == 65_536 * (5 + 5 / 2 + 5 / 4 + 5 / 8)


def test_the_share_of_the_peak_is_that_of_the_dtype():
    figures = {"gflops_per_image": 10.0, "images_per_second": 9890.0}
    for dtype, share in (("bfloat16", 0.1), ("float32", 0.2)):
        assert gpu.share_of_peak(figures, gpu.CHIPS["H100"], dtype) == pytest.approx(share)


def test_a_gradient_is_what_the_second_step_changes(one_device):
    """At twice the rate it changes twice as much; the first step, at rate 0, changes nothing."""
    changes = []
    for rate in (1.0, 2.0):
        descent = optax.sgd(lambda count, rate=rate: rate * count)
        run = _checks._small_run("simclr", None, "float32", tiny=True)
        change, loss = _checks._two_steps(run._replace(optimizer=descent), jax.devices()[0])
        changes.append(change)
        assert loss > 0
    assert np.linalg.norm(changes[0]) > 0
    np.testing.assert_allclose(changes[1], 2 * changes[0], rtol=1e-3, atol=1e-6)


def test_a_failed_check_is_named():
    good = {"loss": 1e-6, "gradient": 1e-4}
    assert _checks.passes("gradient of byol", good)
    assert not _checks.passes("gradient of byol", {**good, "gradient": 0.02})
    assert not _checks.passes("gradient of byol", {**good, "loss": 1e-3})
    assert not _checks.passes("bfloat16", {"first": 0.01, "start": 1.0, "end": 1.1})
    assert not _checks.passes("one step of byol_digits", float("nan"))
    assert not _checks.passes("k-means", 0.01)
    error = _checks.attempt(lambda: 1 / 0)
    assert error == {"error": "ZeroDivisionError: division by zero"}
    assert not _checks.passes("k-means", error)


def test_a_profile_counts_time_once_where_kernels_overlap():
    events = [("a", 0.0, 10.0), ("b", 5.0, 10.0), ("a", 20.0, 5.0), ("c", 40.0, 10.0)]
    figures = gpu.summarize(events)
    assert figures["busy"] == pytest.approx(30 / 50)
    assert figures["kernels"] == 4
    first = figures["largest"][0]
    assert (first["name"], first["calls"]) == ("a", 2)
    assert first["share"] == pytest.approx(15 / 35)
    assert gpu.summarize([])["busy"] is None


def _plane(name, **lines):
    make = types.SimpleNamespace
    return make(
        name=name,
        lines=[
            make(name=line, events=[make(name=e, start_ns=1.0, duration_ns=2.0) for e in events])
            for line, events in lines.items()
        ],
    )


def test_a_profile_takes_the_kernels_of_the_gpu(monkeypatch):
    host = _plane("/host:CPU", **{"tf_XLAEigen": ["dot"], "python": ["call"]})
    device = _plane("/device:GPU:0", **{"Stream #13(Compute)": ["gemm"], "XLA Ops": ["fusion"]})
    planes = [host]
    data = types.SimpleNamespace(planes=planes)
    monkeypatch.setattr(jax.profiler.ProfileData, "from_file", lambda file: data)
    assert gpu._events("x") == [("dot", 1.0, 2.0)]
    planes.append(device)
    assert gpu._events("x") == [("gemm", 1.0, 2.0)]


def test_pytorch_runs_in_a_process_of_its_own(monkeypatch):
    printed = json.dumps({"images_per_second": 3.0})
    done = types.SimpleNamespace(returncode=0, stdout=f"{printed}\n", stderr="")
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(gpu.subprocess, "run", lambda command, **options: done)
    assert gpu.torch_rate("bfloat16") == {"images_per_second": 3.0}
    done.returncode, done.stderr = 1, "trace\nRuntimeError: no CUDA\n"
    assert gpu.torch_rate("bfloat16") == {"error": "RuntimeError: no CUDA"}
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert gpu.torch_rate("bfloat16") == {"error": "PyTorch is not installed"}


def test_a_training_is_the_packages_own_command(tmp_path, monkeypatch):
    """Its flags make a valid config, and its results are read."""
    found = {"metrics": {"kmeans": {"acc": 0.5}}, "seconds": {"train": 1.0}}
    found["images_per_second"] = 7.0

    def run(argv, check):
        assert argv[1:3] == ["-m", "cluster_jax.main"]
        given, overrides = flags.parse(train._parser(), argv[3:])
        config = parse_config(flags.read_config(given.config, overrides)[0])
        assert (config.method.name, config.network.name) == ("ncc", "resnet18")
        assert config.data.name == "cifar10"
        workdir = pathlib.Path(given.workdir)
        workdir.mkdir()
        io.write_json(workdir / "results.json", {**found, "more": 1})

    monkeypatch.setattr(gpu.subprocess, "run", run)
    figures = gpu.train("/my/data", str(tmp_path / "run"))
    command = figures.pop("command")
    assert figures == found
    assert command.startswith("python -m cluster_jax.main --config=ncc_cifar10")
    assert "--config.data.dir=DIR" in command


def test_tables_have_rates_beside_predictions_a_profile_and_a_training():
    rate = {"images_per_second": 5.0, "share_of_peak": 0.5, "gflops_per_image": 1.0}
    flips = gpu.BYOL._replace(views="flips").name
    kernel = {"name": "gemm", "milliseconds": 1.5, "share": 0.75, "calls": 20}
    figures = {
        "checks": {"figures": {"k-means": 0.1, "bfloat16": {}}, "failed": ["k-means"]},
        "rates": {
            BYOL: rate,
            gpu.BYOL._replace(sampler="hmc").name: {**rate, "images_per_second": 4.0},
            flips: {**rate, "images_per_second": 6.0},
            "byol resnet50 bfloat16 256": {"error": "RuntimeError: out of memory"},
        },
        "pytorch": {"bfloat16": {"images_per_second": 3.0}},
        "profile": {"step": "byol", "steps": 10, "milliseconds": 20.0, "kernels": 1000,
                    "busy": 0.9, "largest": [kernel]},
        "training": {"command": "python x", "images_per_second": 1234.0,
                     "metrics": {"kmeans": {"acc": 0.5, "nmi": 0.25}}},
    }  # fmt: skip
    text = "\n".join(gpu.texts(figures, {"device": "NVIDIA H200", "command": ""}))
    predicted = io.read_json(gpu.PREDICTIONS)["rates"][BYOL]["H200"]["images_per_second"]
    for expected in (
        "Checks against the CPU: 2; failed: k-means.",
        f"| {BYOL} | 5 | {predicted:,.0f} | 50.0% | 1 |  |  |",
        "BYOL + NRCC (hmc) / BYOL in time: 1.250",
        "images/s over PyTorch's, bfloat16: 2.000",
        "| byol resnet50 bfloat16 256 | RuntimeError: out of memory |",
        "byol: 10 steps in 20.0 ms, 1,000 kernels, device busy 90.0%.",
        "| `gemm` | 1.5 | 75.0% | 20 |",
        "`python x`: 1,234 images/s, k-means ACC 0.500, NMI 0.250.",
    ):
        assert expected in text
    failed = {**figures, "training": {"error": "OSError: disk"}}
    parts = gpu.texts(failed, {"device": "cpu", "command": "x --tiny"})
    assert "Training: OSError: disk." in parts
    assert parts[0] == "# cpu, tiny sizes"
