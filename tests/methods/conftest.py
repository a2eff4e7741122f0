"""What the tests of whole steps share."""

import jax
import pytest


@pytest.fixture(scope="module")
def unoptimized():
    """Compiling takes nearly all the time of a few steps: without most of its optimizations."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()  # slow code for other tests
