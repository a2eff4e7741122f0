"""NRCC's sampled view: where the sampler starts, at what size, and by which passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core.config import load_config
from cluster_jax.methods import base, nrcc
from cluster_jax.training.config import parse_config

SIZE = 8, 12


def configured(**changes):
    """NRCC's section with changes."""
    config = load_config("nrcc_digits")
    config.nrcc.update(changes)
    return parse_config(config).nrcc


def sampled(keys, **changes):
    """Start and view, sizes at which the network saw it, and passes of view a that were used."""
    images, other = jax.random.normal(next(keys), (2, 3, *SIZE, 1))
    sizes, used = [], []

    def project(x):
        sizes.append(x.shape[1:3])
        return x.sum(axis=(1, 2)) * jnp.array([[1.0, -0.3]])

    def vjp_fn(cotangent):
        used.append(cotangent.shape)
        return jnp.zeros_like(images)

    reference = project(other)
    sizes.clear()
    inputs = base.SamplerInputs(images, project(images), vjp_fn, other, reference, project, {})
    sizes.clear()
    rows = base.image_keys(next(keys), jnp.arange(3))
    view, _ = nrcc._sample(configured(**changes), rows, inputs, reference, None)
    return images, view, sizes, used


@pytest.mark.parametrize(
    ("sampler", "passes", "given"), [("sghmc", [], 1), ("hmc", [SIZE, SIZE], 0)]
)
def test_hmc_compares_potentials_of_one_function(keys, sampler, passes, given):
    """The method's own pass of view a may be another: of shuffled BatchNorm the order differs."""
    _, view, sizes, used = sampled(keys, sampler=sampler)
    assert view.shape == (3, *SIZE, 1)
    assert (sizes, len(used)) == (passes, given)


@pytest.mark.parametrize("sampler", ["sghmc", "hmc", "monte_carlo", "noise"])
def test_a_view_is_sampled_at_its_resolution_and_resized_back(keys, sampler):
    """So that its noise has no finer detail than a view of that size; the proportions stay."""
    images, view, sizes, used = sampled(keys, sampler=sampler, resolution=4)
    assert view.shape == images.shape
    assert set(sizes) <= {(4, 6)}
    assert not used, "a pass of the whole view"

    def coarse(x):
        return np.asarray(nrcc._resize(nrcc._resize(x, (4, 6)), SIZE))

    # What is left of a coarse image after a second reduction is what was there, up to its borders.
    detail = np.abs(view - coarse(view)).mean() / np.abs(images - coarse(images)).mean()
    assert detail < 0.5
