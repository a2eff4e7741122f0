"""Errors of the papers' own code that must not come back, one test each, named after them.

NCC and Kernel-InfoNCE on four devices are compared with loops over the global batch, and with what
the official code makes of it.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import collectives
from cluster_jax.losses.infonce import info_nce_queue
from cluster_jax.losses.kernel_infonce import Kernel, kernel_info_nce_queue, kernel_info_nce_views
from cluster_jax.losses.ncc import PARTS, proto_cl, proto_cl_views
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")

CLUSTERS, TAU = 5, 0.5


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def kernel(gamma, temperature):
    return Kernel(gammas=(gamma,), temperatures=(temperature,))


def prototypes_in_loops(z, targets, labels):
    """ProtoCL of both directions over the images given."""
    both = ((z[0], targets[1]), (z[1], targets[0]))
    made = [[reference.prototypes(x, labels, CLUSTERS) for x in pair] for pair in both]
    return sum(reference.proto_cl(mu, target, TAU) for mu, target in made) / 2


@pytest.mark.parametrize(
    "labels", [[3, 1, 1, 3, 2, 0, 2, 3], [3, 3, 0, 0, 1, 1, 2, 2]], ids=["mixed", "one each"]
)
def test_prototypes_on_several_devices(keys, labels):
    """The official code cuts the views of all devices in two and pairs them with other labels.

    With the second labels each device has images of one cluster: judged by these, no row had a
    negative.
    """
    labels = np.array(labels, np.int32)
    x, y, t, s = draw(keys, 4, 8, 4)

    def loss(_, x, y, t, s, labels, axis):
        value = proto_cl_views(
            (x, y), (t, s), labels, clusters=CLUSTERS, temperature=TAU, axis=axis
        )
        return collectives.varying(value, axis)

    value, _ = reference.on_devices(loss, np.zeros(1), (x, y, t, s, labels), 4)
    np.testing.assert_allclose(value, prototypes_in_loops((x, y), (t, s), labels), rtol=1e-10)

    def cut(a, b):
        rows = [x for i in range(0, 8, 2) for x in (*a[i : i + 2], *b[i : i + 2])]
        return np.array(rows[:8]), np.array(rows[8:])

    foreign = prototypes_in_loops(cut(x, y), cut(t, s), labels)
    assert abs(foreign - value) > 0.02
    assert value > 0.5


@pytest.mark.parametrize("part", PARTS)
def test_empty_clusters_filled_with_minus_ten(keys, part):
    """At a temperature of 0.1 a filler of -10 weighs as much as an opposite center."""
    mu, target = reference.unit(draw(keys, 3, 4)), reference.unit(draw(keys, 3, 4))
    mu[1] = mu[2] = -mu[0]  # all logits of row 0 are -10: fillers would show
    some = np.array([True] * 3 + [False] * 3)
    padded = (np.concatenate([x, np.zeros((3, 4))]) for x in (mu, target))
    value = proto_cl(*padded, some, part=part, temperature=0.1)
    want = reference.proto_cl(dict(enumerate(mu)), dict(enumerate(target)), 0.1, part)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    # The uniformity of row 0 with three fillers, and without.
    assert reference.log_sum_exp([-10] * 5) - reference.log_sum_exp([-10] * 2) > 0.9


def test_self_pairs_and_lost_negatives_on_several_devices(keys):
    """The diagonal of a matrix of some rows with all candidates is not that of the self-pairs."""
    x, y, tau, devices = draw(keys, 8, 5), draw(keys, 8, 5), 0.1, 4

    def loss(_, x, y, axis):
        return kernel_info_nce_views(x, y, kernel=kernel(1.0, tau), axis=axis)

    got, _ = reference.on_devices(loss, np.zeros(1), (x, y), devices)
    a, b = reference.unit(x), reference.unit(y)
    rows = np.concatenate([a, b])
    logits = -np.linalg.norm(rows[:, None] - rows[None], axis=-1) / tau
    total = official = 0.0
    per = 8 // devices
    for i in range(16):
        total += reference.log_sum_exp([v for k, v in enumerate(logits[i]) if k != i])
        # Row r of a device's own rows, first those of a, then of b, lost candidate r.
        r = i % 8 % per + (i >= 8) * per
        official += reference.log_sum_exp([v for k, v in enumerate(logits[i]) if k != r])
        total -= logits[i, (i + 8) % 16]
        official -= logits[i, (i + 8) % 16]
    np.testing.assert_allclose(got, total / 16, rtol=1e-10)
    assert official / 16 > total / 16 + 1


def test_positive_missing_from_the_denominator_of_moco(keys):
    """Without it the loss of a good match is below zero, and -inf before the first key."""
    x, queue = reference.unit(draw(keys, 4, 3)), reference.unit(draw(keys, 6, 3))
    repelled = -(np.linalg.norm(x[:, None] - queue[None], axis=-1) ** 2) / 0.1
    with_it = np.mean([reference.log_sum_exp([0.0, *row]) for row in repelled])
    assert np.mean([reference.log_sum_exp(row) for row in repelled]) < 0 < with_it
    cosine = functools.partial(info_nce_queue, x, x, queue, temperature=0.05)
    gaussian = functools.partial(kernel_info_nce_queue, x, x, queue, kernel=kernel(2.0, 0.1))
    for filled, want in ((6, with_it), (0, 0.0)):
        for loss in (cosine, gaussian):  # of one value, see test_kernel_infonce
            np.testing.assert_allclose(loss(filled=jnp.int32(filled)), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("gamma", "tau"), [(0.5, 0.01), (1.0, 1.0), (2.0, 0.01)])
def test_acos_kernels_are_nan(gamma, tau):
    """Every cosine one: the official kernels of the angle took acos of more than 1."""
    a = np.outer(np.arange(1.0, 5), [1.0, -2.0, 0.5])
    loss = functools.partial(kernel_info_nce_views, kernel=kernel(gamma, tau), axis=None)
    value, gradient = jax.value_and_grad(loss)(a, a)
    np.testing.assert_allclose(value, math.log(7), atol=1e-3)
    assert np.isfinite(gradient).all()
