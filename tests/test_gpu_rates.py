"""What the rates of a slice of GPU time are rates of."""

import re

import jax
import jax.numpy as jnp
import pytest

from cluster_jax.pipeline import build
from cluster_jax.training.step import make_step
from experiments.gpu import rates, settings

pytestmark = pytest.mark.usefixtures("traced_once")


def _run(batch=16, **item):
    item = {"method": "byol", "network": "resnet18", "dtype": "float32", "batch": batch, **item}
    config = settings.config_of(item, tiny=True)
    config.train.batch_size = batch
    return settings.build_run(config, settings.images_for(item, tiny=True)).training


def _convolutions(run):
    """Convolutions of the step as traced and as compiled."""
    resident = jax.ShapeDtypeStruct(run.dataset.images.shape, jnp.uint8)
    step = make_step(run.method, run.optimizer, run.mesh)
    lowered = step.lower(build.abstract_state(run), next(rates.endless(run)), resident)
    compiled = lowered.compile().as_text()
    return lowered.as_text().count("stablehlo.convolution"), len(
        re.findall(r" convolution\(", compiled)
    )


@pytest.mark.parametrize("views", ["paper", "flips"])
def test_the_compiler_passes_both_views(one_device, views):
    """Of two equal views it would pass one alone, and the rate would be that of half a step."""
    traced, compiled = _convolutions(_run(views=views))
    assert compiled == traced


def test_operations_are_those_of_one_image_on_any_devices(two_devices):
    """Counted for one CPU: other backends count nothing, and the step of a device has its share."""
    run = _run()
    flops = rates.operations(run)
    alone = run._replace(mesh=rates.mesh_of(jax.devices()[0]))
    assert rates.operations(alone) == flops
    assert rates.operations(_run(batch=32)) == pytest.approx(flops, rel=0.02)
