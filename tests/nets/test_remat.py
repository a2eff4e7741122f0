"""Blocks that are computed again for the gradient: `train.remat`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cluster_jax.nets.network import rematerialized
from tests.nets.test_network import build, double, images_of, start


def _loss(network, params, stats, images):
    """A function of the outputs of all parts; the new statistics."""
    out = network.forward(params, stats, images, train=True, axis=None)
    z, stats = network.predict(params, out.stats, out.projection, train=True, axis=None)
    return jnp.sum(jnp.sin(out.representation)) + jnp.sum(z**3), stats


def test_the_numbers_are_the_same_and_less_is_kept(x64, keys):
    """The inputs of blocks alone are kept: what JAX keeps, before the compiler sees it."""
    network = build(width=4)
    params, stats = double(start(keys, network))
    images, results, kept = images_of(keys, 8), [], []
    for one in (network, rematerialized(network)):
        loss = partial(_loss, one, stats=stats, images=images)
        results.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(params))
        pullback = jax.eval_shape(lambda x, loss=loss: jax.vjp(loss, x, has_aux=True)[1], params)
        kept.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pullback)))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9), *results)
    assert kept[1] < 0.6 * kept[0]
