"""Strict settings for every test: eight CPU devices, no silent rank promotion."""

import itertools
import os
import tempfile

# Steps that several tests share, also those of other processes, are compiled once a session:
# the workers of pytest-xdist inherit the folder of the process that started them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="cluster_jax_tests_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax
import pytest

from cluster_jax import assemble
from cluster_jax.training import state as states

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


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
def quickly_compiled(one_device):
    """Compiling takes nearly all the time: without optimisation, each step traced once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "_try_step", lambda *arguments: None)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # slow code for other tests
