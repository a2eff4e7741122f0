"""The benchmark of a training step, in its tiny form: what its figures are figures of."""

import json
import sys
import types

import jax
import pytest

from cluster_jax.core import io
from experiments.benchmark import __main__ as command
from experiments.benchmark import step


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_the_tiny_form_measures_a_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        step, "STEPS", {"byol + nrcc": step.STEPS["byol + nrcc"], "wrong": ("x", {})}
    )
    monkeypatch.setattr(sys, "argv", ["benchmark", "step", "--tiny", f"--json={tmp_path}/a.json"])
    command.main()
    result = io.read_json(tmp_path / "a.json")
    found = result["figures"]["steps"]
    assert found["byol + nrcc"]["low"] > 0
    assert found["byol + nrcc"]["gigaflop_per_image"] > 0
    assert "x_digits" in found["wrong"]["error"]
    assert result["figures"]["profile"]["kernels"]
    origin = result["provenance"]
    assert origin["command"] == "python -m experiments.benchmark step --tiny"
    assert origin["versions"]["jax"] == jax.__version__
    text = (tmp_path / "a.md").read_text()
    assert "| byol + nrcc | " in text
    assert "Kernels of 10 steps of byol + nrcc" in text


@pytest.mark.parametrize("size", [step.TINY, step.LARGE], ids=["tiny", "large"])
def test_every_step_is_a_valid_config(size):
    """Of every method; the steps are not traced."""
    made = {name: step.configure(name, "images.npz", size) for name in step.STEPS}
    methods = {config.method.name for config in made.values()}
    assert methods >= {
        "simclr",
        "byol",
        "simsiam",
        "barlow",
        "moco",
        "kernel_infonce",
        "swav",
        "cc",
    }
    assert methods >= {"pcl", "ncc", "cueco", "ncl"}
    assert made["byol + nrcc + remat"].train.remat
    assert made["byol with flips alone"].augment.crop is None


def test_time_counts_once_where_kernels_overlap():
    events = [("a", 0.0, 10.0), ("b", 5.0, 10.0), ("a", 20.0, 5.0), ("c", 40.0, 10.0)]
    found = step.summarize(events)
    assert found["busy"] == pytest.approx(30 / 50)
    assert next(iter(found["kernels"])) == "a"
    assert found["kernels"]["a"] == {"ms": 15e-6, "share": pytest.approx(15 / 35), "calls": 2}
    assert step.summarize([])["kernels"] == {}


def test_pytorch_runs_in_a_process_of_its_own(monkeypatch):
    printed = json.dumps({"median": 3.0})
    done = types.SimpleNamespace(returncode=0, stdout=f"{printed}\n", stderr="")
    monkeypatch.setattr(step.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(step.subprocess, "run", lambda command, **options: done)
    assert step.torch_rate(step.LARGE, 1.0) == {"median": 3.0}
    done.returncode, done.stderr = 1, "trace\nRuntimeError: no CUDA\n"
    assert step.torch_rate(step.LARGE, 1.0) == {"error": "RuntimeError: no CUDA"}
    monkeypatch.setattr(step.importlib.util, "find_spec", lambda name: None)
    assert step.torch_rate(step.LARGE, 1.0) == {"error": "PyTorch is not installed"}
