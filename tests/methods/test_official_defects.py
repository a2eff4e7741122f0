"""Errors of the papers' own code that must not come back, one test each, named after them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import collectives
from cluster_jax.losses.infonce import info_nce_queue
from cluster_jax.losses.kernel_infonce import Kernel, kernel_info_nce_queue, kernel_info_nce_views
from cluster_jax.losses.ncc import proto_cl, proto_cl_views
from tests import reference
from tests.methods import reference_losses as loops

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def kernel(gamma, temperature):
    return Kernel(gammas=(gamma,), temperatures=(temperature,))


@pytest.mark.parametrize("labels", [[3, 1, 1, 3, 2, 0, 2, 3], [3, 3, 0, 0, 1, 1, 2, 2]])
def test_prototypes_of_foreign_labels(keys, labels):
    """NCC's gathered views were paired with other labels; with the second ones a device has one."""
    labels, (x, y, t, s) = np.array(labels, np.int32), draw(keys, 4, 8, 4)

    def loss(_, x, y, t, s, k, axis):
        value = proto_cl_views((x, y), (t, s), k, n_clusters=5, temperature=0.5, axis=axis)
        return collectives.varying(value, axis)

    def in_loops(x, y, t, s):
        return loops.proto_cl((x, y), (t, s), labels, 0.5)

    def cut(a, b):
        rows = np.concatenate([(*a[i : i + 2], *b[i : i + 2]) for i in range(0, 8, 2)])
        return rows[:8], rows[8:]

    value, _ = reference.on_devices(loss, np.zeros(1), (x, y, t, s, labels), 4)
    np.testing.assert_allclose(value, in_loops(x, y, t, s), rtol=1e-10)
    assert abs(in_loops(*cut(x, y), *cut(t, s)) - value) > 0.02
    assert value > 0.5


def test_empty_clusters_filled_with_minus_ten(keys):
    """NCC: at a temperature of 0.1 a filler of -10 weighs as much as an opposite center."""
    mu, target = reference.unit(draw(keys, 3, 4)), reference.unit(draw(keys, 3, 4))
    mu[1] = mu[2] = -mu[0]  # all logits of row 0 are -10: fillers would show
    padded = (np.concatenate([x, np.zeros((3, 4))]) for x in (mu, target))
    value = proto_cl(*padded, np.arange(6) < 3, temperature=0.1)
    want = loops.proto_cl((mu, mu), (target, target), np.arange(3), 0.1)
    np.testing.assert_allclose(value, want, rtol=1e-12)


def test_lost_negatives_on_several_devices(keys):
    """Kernel-InfoNCE: row r of a device's own rows lost candidate r instead of itself."""
    x, y = draw(keys, 8, 5), draw(keys, 8, 5)

    def loss(_, x, y, axis):
        return kernel_info_nce_views(x, y, kernel=kernel(1.0, 0.1), axis=axis)

    got, _ = reference.on_devices(loss, np.zeros(1), (x, y), 4)
    rows = np.concatenate([reference.unit(x), reference.unit(y)])
    logits = -np.linalg.norm(rows[:, None] - rows[None], axis=-1) / 0.1
    own = logits[np.arange(16), (np.arange(16) + 8) % 16]
    lost = np.array([i % 8 % 2 + (i >= 8) * 2 for i in range(16)])  # of two images a device
    right, official = (
        np.mean([loops.log_sum(np.delete(logits[i], out[i])) - own[i] for i in range(16)])
        for out in (np.arange(16), lost)
    )
    np.testing.assert_allclose(got, right, rtol=1e-10)
    assert official > right + 1


def test_positive_missing_from_the_denominator_of_moco(keys):
    """Without it the loss of a good match is below zero, and -inf before the first key."""
    x, queue = reference.unit(draw(keys, 4, 3)), reference.unit(draw(keys, 6, 3))
    repelled = -(np.linalg.norm(x[:, None] - queue[None], axis=-1) ** 2) / 0.1
    with_it = np.mean([loops.log_sum([0.0, *row]) for row in repelled])
    assert np.mean([loops.log_sum(row) for row in repelled]) < 0 < with_it
    for filled, want in ((jnp.int32(6), with_it), (jnp.int32(0), 0.0)):
        cosine = info_nce_queue(x, x, queue, filled, temperature=0.05)
        gaussian = kernel_info_nce_queue(x, x, queue, filled, kernel=kernel(2.0, 0.1))
        np.testing.assert_allclose([cosine, gaussian], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("gamma", "tau"), [(0.5, 0.01), (1.0, 1.0), (2.0, 0.01)])
def test_acos_kernels_are_nan(gamma, tau):
    """Every cosine one: the official kernels of the angle took acos of more than 1."""
    a = np.outer(np.arange(1.0, 5), [1.0, -2.0, 0.5])
    loss = functools.partial(kernel_info_nce_views, kernel=kernel(gamma, tau), axis=None)
    value, gradient = jax.value_and_grad(loss)(a, a)
    np.testing.assert_allclose(value, math.log(7), atol=1e-3)
    assert np.isfinite(gradient).all()
