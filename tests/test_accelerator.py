"""What needs an accelerator: `pytest -m gpu`. The checks of `experiments.benchmark gpu`."""

import jax
import pytest

from cluster_jax.core.config import config_names
from experiments.benchmark import _checks as checks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("optimized")]

CASES = checks.gradient_cases()


@pytest.fixture(autouse=True)
def _accelerator():
    if jax.default_backend() == "cpu":
        pytest.skip("there is no accelerator")


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_the_cpu(name):
    figures = checks.gradient(*CASES[name], tiny=False)
    assert checks.passes(f"gradient of {name}", figures), figures


@pytest.mark.parametrize("name", sorted(set(config_names()) - {"base"}))
def test_every_config_steps(name):
    assert checks.passes(f"one step of {name}", checks.config_step(name))


def test_bfloat16_trains():
    figures = checks.bfloat16()
    assert checks.passes("bfloat16", figures), figures


def test_kmeans_equals_the_cpu():
    figures = checks.clusters()
    assert checks.passes("k-means", figures), figures
