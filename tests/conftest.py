"""Strict settings for every test: eight CPU devices, no silent rank promotion."""

import itertools
import os
import tempfile

# Steps that several tests share, also those of other processes, are compiled once a session.
COMPILED = tempfile.TemporaryDirectory(prefix="cluster_jax_tests_")
os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax  # noqa: E402
import pytest  # noqa: E402

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
