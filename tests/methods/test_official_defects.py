"""Errors of the papers' own code that must not come back, one test each, named after them.

NCC and Kernel-InfoNCE on four devices are compared with loops over the global batch, and with what
the official code makes of it.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster_jax.losses.infonce import info_nce_queue
from cluster_jax.losses.kernel_infonce import Kernel, kernel_info_nce_queue, kernel_info_nce_views
from cluster_jax.losses.ncc import PARTS, proto_cl
from cluster_jax.methods import base
from cluster_jax.methods.base import Encoded
from cluster_jax.methods.encoders import MomentumState
from cluster_jax.methods.ncc import PseudoLabels
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import reference
from tests.methods import cases
from tests.methods.test_moco import context

pytestmark = pytest.mark.usefixtures("x64")

CLUSTERS, WEIGHT, TAU = 5, 0.7, 0.5
LABELS = np.array([3, 0, 1, 3, 2, 0, 1, 1, 2, 3, 0, 2], np.int32)  # of 12 images; 4 is empty


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def kernel(gamma, temperature):
    return Kernel(
        gammas=(gamma,), temperatures=(temperature,), mixture=None, weight=None, halves=False
    )


def embeddings(w, images, xp):
    """Projections, predictions and target projections of both views: any functions will do."""
    z = images.reshape(len(images), -1) @ w
    pairs = (z, xp.sin(2 * z)), (z + 0.5 * z**2, xp.cos(z)), (xp.tanh(z[:, ::-1]), z**2 - 1)
    return [(a + 0.1, b) for a, b in pairs]


@functools.cache
def ncc_step():
    """A step of NCC on four devices whose networks are `embeddings`, by the real objective."""
    values = {k: v for k, v in cases.METHODS["ncc"].items() if k != "name"}
    values |= {"clusters": CLUSTERS, "weight": WEIGHT, "temperature": TAU, "warmup": "0 steps"}
    given = context(images=len(LABELS))
    predicts = given.network._replace(predict=embeddings)
    made = base.build("ncc", base.parse("ncc", values), given._replace(network=predicts))

    def loss(params, model_state, batch, step, key, axis):
        pairs = jax.lax.stop_gradient(embeddings(params, batch["image"], jnp)[2])
        found = embeddings(params, batch["image"], jnp)[:2]
        encoded = Encoded(*found, pairs, None, batch["index"], None)
        value, model_state, metrics = made.objective(params, encoded, model_state, step, key, axis)
        return value, base.Aux(model_state, {"loss": value, **metrics})

    method = base.as_method(made)._replace(loss=loss, after=base.unchanged)
    optimizer = optax.sgd(1.0)
    return make_step(method, optimizer, states.make_mesh(4)), optimizer


class Stepped(NamedTuple):
    w: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    metrics: dict
    gradient: np.ndarray


def stepped(keys, index):
    """The metrics and the gradient of a step on the images of a batch, two on each device."""
    step, optimizer = ncc_step()
    w, images = draw(keys, 4, 3), draw(keys, 12, 2, 2, 1)
    labels = PseudoLabels(jnp.asarray(LABELS), jnp.zeros((CLUSTERS, 3)))
    model_state = base.joined(MomentumState(None, None), labels)
    state = states.State(
        jnp.int32(0), jax.random.key(0), jnp.asarray(w), model_state, optimizer.init(w)
    )
    after, metrics = step(state, {"index": jnp.asarray(index, jnp.int32)}, images)
    return Stepped(w, images[index], LABELS[index], metrics, w - np.asarray(after.params))


def prototypes_in_loops(z, targets, labels):
    """ProtoCL of both directions over the images given."""
    both = ((z[0], targets[1]), (z[1], targets[0]))
    made = [[reference.prototypes(x, labels, CLUSTERS) for x in pair] for pair in both]
    return sum(reference.proto_cl(mu, target, TAU) for mu, target in made) / 2


def test_foreign_pseudo_labels_on_several_devices(keys):
    """Gathered views, cut in two, paired with labels in the order of the devices."""
    run = stepped(keys, [7, 2, 10, 0, 4, 5, 11, 3])
    z, _, targets = embeddings(run.w, run.images, np)
    want = prototypes_in_loops(z, targets, run.labels)
    np.testing.assert_allclose(run.metrics["prototypes"], want, rtol=1e-10)

    def cut(a, b):
        rows = [x for i in range(0, 8, 2) for x in (*a[i : i + 2], *b[i : i + 2])]
        return np.array(rows[:8]), np.array(rows[8:])

    foreign = prototypes_in_loops(cut(*z), cut(*targets), run.labels)
    assert abs(foreign - want) > 0.05
    # Labels by the place in the batch, not by the number of the image.
    assert abs(prototypes_in_loops(z, targets, LABELS[:8]) - want) > 0.05


def test_gradient_divided_by_the_number_of_devices(keys):
    """A gather that returns the local slice of the gradient divides that of the prototypes."""
    run = stepped(keys, [7, 2, 10, 0, 4, 5, 11, 3])
    fixed = embeddings(run.w, run.images, np)[2]
    direction = draw(keys, *run.w.shape)

    def along(t, weight):
        z, p, _ = embeddings(run.w + t * direction, run.images, np)
        alignment = (reference.byol(p[0], fixed[1]) + reference.byol(p[1], fixed[0])) / 2
        return alignment + weight * prototypes_in_loops(z, fixed, run.labels)

    h = 1e-5
    slope, divided = ((along(h, w) - along(-h, w)) / (2 * h) for w in (WEIGHT, WEIGHT / 4))
    np.testing.assert_allclose((run.gradient * direction).sum(), slope, rtol=1e-7)
    assert abs(divided - slope) > 0.01


def test_locally_empty_clusters(keys):
    """Each device has images of one cluster; judged by these, no row had a negative."""
    run = stepped(keys, [0, 3, 1, 5, 6, 7, 4, 8])
    assert run.labels.tolist() == [3, 3, 0, 0, 1, 1, 2, 2]
    z, _, targets = embeddings(run.w, run.images, np)
    want = prototypes_in_loops(z, targets, run.labels)
    np.testing.assert_allclose(run.metrics["prototypes"], want, rtol=1e-10)
    assert want > 0.5


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


@pytest.mark.parametrize("devices", [2, 4])
def test_self_pairs_and_lost_negatives_on_several_devices(keys, devices):
    """The diagonal of a matrix of some rows with all candidates is not that of the self-pairs."""
    w, x, y, tau = draw(keys, 5, 3), draw(keys, 8, 5), draw(keys, 8, 5), 0.1

    def loss(w, x, y, axis):
        return kernel_info_nce_views(x @ w, jnp.tanh(y @ w), kernel=kernel(1.0, tau), axis=axis)

    got, _ = reference.on_devices(loss, w, (x, y), devices)
    a, b = reference.unit(x @ w), reference.unit(np.tanh(y @ w))
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


@pytest.mark.parametrize("form", ["cosine", "kernel"])
def test_positive_missing_from_the_denominator_of_moco(keys, form):
    """Without it the loss of a good match is below zero, and -inf before the first key."""
    x, queue = reference.unit(draw(keys, 4, 3)), reference.unit(draw(keys, 6, 3))
    if form == "cosine":
        loss = functools.partial(info_nce_queue, x, x, temperature=0.1)
        logits = x @ queue.T / 0.1, 1 / 0.1
    else:
        loss = functools.partial(kernel_info_nce_queue, x, x, kernel=kernel(2.0, 0.1))
        logits = -(np.linalg.norm(x[:, None] - queue[None], axis=-1) ** 2) / 0.1, 0.0
    repelled, own = logits
    with_it = np.mean([reference.log_sum_exp([own, *row]) - own for row in repelled])
    without = np.mean([reference.log_sum_exp(row) - own for row in repelled])
    assert without < 0 < with_it
    np.testing.assert_allclose(loss(queue, jnp.int32(6)), with_it, rtol=1e-12)
    np.testing.assert_allclose(loss(queue, jnp.int32(0)), 0, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tau", [1.0, 0.01])
def test_acos_kernels_are_nan(gamma, tau):
    """Every cosine one: the official kernels of the angle took acos of more than 1."""
    assert math.isnan(jnp.arccos(tau + 1 - tau + 1e-6))
    a = np.outer(np.arange(1.0, 5), [1.0, -2.0, 0.5])
    loss = functools.partial(kernel_info_nce_views, kernel=kernel(gamma, tau), axis=None)
    value, gradient = jax.value_and_grad(loss)(a, a)
    np.testing.assert_allclose(value, math.log(7), atol=1e-3)
    assert np.isfinite(gradient).all()
