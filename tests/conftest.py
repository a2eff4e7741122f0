"""Strict settings for every test: eight CPU devices, no silent rank promotion."""

import itertools
import os

# Also those of other processes: what takes this long to compile is compiled once.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax
import pytest

from cluster_jax.pipeline import build
from cluster_jax.training import state as states

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_configure(config):
    """Keeps compiled code from one test run to the next, in pytest's cache directory."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = str(config.rootpath / ".pytest_cache" / "d" / "jax")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        jax.config.update("jax_compilation_cache_dir", folder)


@pytest.fixture
def keys():
    """An endless supply of fresh keys, so that no test draws twice from one."""
    root = jax.random.key(20261121)
    return (jax.random.fold_in(root, i) for i in itertools.count())


@pytest.fixture
def x64():
    """Float64 for the duration of a test."""
    with jax.enable_x64(True):
        yield


def _runs_on(count):
    with pytest.MonkeyPatch.context() as patch:
        make = states.make_mesh
        patch.setattr(states, "make_mesh", lambda devices=count: make(devices))
        yield


@pytest.fixture(scope="module")
def one_device():
    """Runs on one device alone: the compiler takes its time for each."""
    yield from _runs_on(1)


@pytest.fixture(scope="module")
def two_devices():
    """Runs on two, enough to be parallel."""
    yield from _runs_on(2)


@pytest.fixture(scope="module")
def unoptimized():
    """Skips most compiler optimizations, for code that runs a few times and compiles for long."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # slow code for other tests


@pytest.fixture(scope="module")
def quickly_compiled(one_device, unoptimized):
    """Whole runs of a few steps: unoptimized, on one device, each step traced once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_try_step", lambda *arguments: None)
        yield
