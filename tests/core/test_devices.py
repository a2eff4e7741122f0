"""Compiled programs are kept for the next start; a host says for whom it waits."""

import os
import pathlib
import subprocess
import sys
import time

import jax
import pytest

from cluster_jax.core import devices

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = """
import warnings; warnings.simplefilter("error")
from cluster_jax.cli import exit_codes
from cluster_jax.core import devices
devices._LEAST = 0.0
devices.keep_compiled()
import jax, jax.numpy as jnp
print(jax.jit(lambda x: jnp.tanh(x @ x.T).sum(0))(jnp.arange(12.0).reshape(3, 4)))
"""


def _run(home):
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    env |= {"XDG_CACHE_HOME": str(home), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CODE]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout


@pytest.mark.slow
def test_a_damaged_or_foreign_cache_is_ignored(tmp_path):
    first = _run(tmp_path)
    files = sorted(tmp_path.rglob("*-cache"))
    assert {file.parts[len(tmp_path.parts)] for file in files} == {"cluster_jax"}
    for i, file in enumerate(files):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes((content, content[: len(content) // 2], b"foreign")[i % 3])
    assert _run(tmp_path) == first


@pytest.fixture
def unset(monkeypatch, tmp_path):
    """JAX without a cache, and an empty home."""
    before = jax.config.jax_compilation_cache_dir, jax.config.values[SECONDS]
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update(SECONDS, before[1])


SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.mark.filterwarnings("default")
def test_where_programs_are_kept(unset):
    devices.keep_compiled()
    assert pathlib.Path(jax.config.jax_compilation_cache_dir).parent == unset / "cluster_jax"
    jax.config.update("jax_compilation_cache_dir", "other")
    devices.keep_compiled()  # One that JAX was told of stays.
    assert jax.config.jax_compilation_cache_dir == "other"


@pytest.mark.parametrize(("seconds", "is_late"), [(0.0, False), (0.5, True)])
def test_a_host_says_that_others_are_missing(seconds, is_late, monkeypatch, caplog):
    """While it waits, in a call of JAX that the end of the wait does not return from."""
    for name, value in (
        ("COORDINATOR_ADDRESS", "x:1"),
        ("NUM_PROCESSES", "2"),
        ("PROCESS_ID", "1"),
    ):
        monkeypatch.setenv(f"JAX_{name}", value)
    asked = []

    def initialize(**options):
        asked.append(options)
        time.sleep(seconds)
        assert caplog.messages == is_late * [
            "this host waits for others that have not started this command, at most 5 minutes"
        ]

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(devices, "PATIENCE", 0.1)
    devices.distribute()
    time.sleep(0.2)
    assert len(caplog.messages) == is_late
    assert asked[0]["num_processes"] == 2
    assert asked[0]["initialization_timeout"] == 300
