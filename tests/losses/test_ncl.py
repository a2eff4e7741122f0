"""NCL's similar pairs, weights and generated negatives; `test_reference.py` has its losses."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.losses.ncl import (
    EPSILON,
    hard_negatives,
    neighborhood_contrast,
    pairwise_bce,
    ramp,
    similar,
    target_weights,
)
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

MIXING = (1 / 3, 2 / 3)
QUEUE = 9


def draw(keys, *shape):
    # By numpy: JAX compiles its generator again for every shape.
    seed = np.asarray(jax.random.key_data(next(keys)))
    return np.random.default_rng(seed).standard_normal(shape)


def neighbor_weights_in_loops(z, queue, neighbors, alpha):
    out = []
    for row in z:
        order = sorted(range(len(queue)), key=lambda m: -np.dot(row, queue[m]))
        nearest = order[:neighbors]
        rest = [(1 - alpha) / len(nearest) if m in nearest else 0.0 for m in range(len(queue))]
        out.append([alpha if nearest else 1.0, *rest])
    return out


def hardest_in_loops(key, z, queue, labeled, slots, count, rounds, mixing):
    """The vectors of (14) for one unit row, the hardest first; the draws are given.

    `queue` and `labeled`: the entries that exist; `slots`: the queue's length.
    """
    drawn = np.array(jax.random.randint(key, (rounds, min(count, slots)), 0, len(labeled)))
    order = sorted(range(len(queue)), key=lambda m: np.dot(z, queue[m]))
    found = []
    for n in range(rounds):
        for place, m in enumerate(order[:count]):
            for mu in mixing:
                mixed = mu * queue[m] + (1 - mu) * labeled[drawn[n, place]]
                found.append(reference.unit([mixed])[0])
    found.sort(key=lambda zeta: -np.dot(z, zeta))
    return found[: min(count, len(queue))]


@pytest.fixture
def rows(keys):
    """Anchors, views, a queue whose last slots would be everybody's nearest, and its labels."""
    z, views = draw(keys, 5, 4), draw(keys, 5, 4)
    queue = 2 * draw(keys, QUEUE, 4)
    return z, views, queue, np.array([1, 0, 2, 1, 1, 0, 3, 0, 1], np.int32)


def stale(queue, filled, like):
    """The queue with something in the slots that hold no entry, where a leak would show."""
    queue = np.array(queue)
    queue[filled:] = np.resize(like, queue[filled:].shape)
    return queue


def bce(z, p, other, *, threshold, axis=None):
    return pairwise_bce(
        similar(z, threshold=threshold, n_classes=2, axis=axis), p, other, axis=axis
    )


@every_row(("n", "classes"), [(9, 3), (7, 2), (5, 3), (12, 2), (6, 40), (2, 2), (1, 3)])
def test_one_pair_in_so_many_classes_is_similar(keys, n, classes):
    """The most similar pairs, each with its mirror, and every image with itself."""
    z = draw(keys, n, 4)
    pairs = np.asarray(similar(z, threshold=None, n_classes=classes, axis=None))
    np.testing.assert_array_equal(pairs, pairs.T)
    assert pairs.diagonal().all()
    assert pairs.sum() == n + 2 * max(0, (n * n // classes - n) // 2)
    cosines = reference.unit(z) @ reference.unit(z).T
    assert cosines[pairs].min() > cosines[~pairs].max(initial=-1)


@pytest.mark.parametrize("devices", [1, 4])
def test_an_image_is_similar_to_itself_at_every_threshold(keys, devices):
    rows = draw(keys, 64, 16).astype(np.float32)
    rows[5] = 0
    mesh = jax.make_mesh((devices,), ("i",), axis_types=(AxisType.Auto,))
    alone = functools.partial(similar, n_classes=2, threshold=1.0, axis="i")
    split = PartitionSpec("i")
    found = jax.shard_map(alone, mesh=mesh, in_specs=split, out_specs=split)(rows)
    np.testing.assert_array_equal(found, np.eye(64, dtype=bool))


def test_pairwise_bce_of_certain_outputs_is_finite():
    """One-hot outputs: pairs that agree with their target cost nothing, others -log epsilon."""
    z = jnp.asarray([[1, 0], [1, 0], [0, 1]], jnp.float32)
    loss = functools.partial(bce, threshold=0.95)
    right = jnp.eye(2, dtype=jnp.float32)[jnp.array([0, 0, 1])]
    wrong = right[jnp.array([0, 2, 0])]  # of 9 pairs, (0, 2), (0, 1) and their mirrors are wrong
    for p, share in ((right, 0), (wrong, 4 / 9)):
        value, gradient = reference.value_and_grad(lambda p: loss(z, p, p))(p)
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, -share * math.log(EPSILON), rtol=0.05, atol=1e-6)
        assert np.isfinite(gradient).all()
    zero = jnp.zeros((3, 2), jnp.float32)
    assert np.isfinite(loss(zero, right, zero))


def test_ramp():
    weight = jax.jit(functools.partial(ramp, consistency_weight=7.0, length=40))
    for step in (0, 13, 39, 40, 90):
        want = 7 * math.exp(-5 * (1 - min(step / 40, 1)) ** 2)
        np.testing.assert_allclose(weight(step), want, rtol=1e-12)
    np.testing.assert_allclose(ramp(0, consistency_weight=7.0, length=0), 7)
    with pytest.raises(ValueError, match=r"^length must be at least 0; got -1"):
        ramp(0, consistency_weight=7.0, length=-1)


@every_row("filled", [0, 1, 3, 8, QUEUE])
@every_row("neighbors", [1, 4, QUEUE])
@every_row("alpha", [0.0, 0.2, 1.0])
def test_target_weights(rows, filled, neighbors, alpha):
    z, _, queue, _ = rows
    z, queue = reference.unit(z), reference.unit(stale(queue, filled, z))
    got = target_weights(z @ queue.T, filled, neighbors=neighbors, alpha=alpha)
    want = neighbor_weights_in_loops(z, queue[:filled], neighbors, alpha)
    np.testing.assert_allclose(got[:, : filled + 1], want, atol=1e-15)
    np.testing.assert_array_equal(got[:, filled + 1 :], 0)
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-12)


@functools.partial(jax.jit, static_argnames="count")
def negatives_and_slopes(z, row_keys, queue, filled, labeled, labeled_filled, *, count):
    """Of three rounds; and the gradient of each similarity with respect to all anchors."""

    def found(z):
        got = hard_negatives(
            row_keys, z, queue, filled, labeled, labeled_filled,
            count=count, rounds=3, mixing=MIXING,
        )  # fmt: skip
        return got.similarities, got

    slopes, got = jax.jacrev(found, has_aux=True)(z)
    return got, slopes


SIZES = ((QUEUE, 7, 4), (6, 5, 4), (2, 7, 4), (QUEUE, 1, 4), (QUEUE, 7, 400), (5, 7, 400))


@pytest.mark.parametrize(("filled", "labeled_filled", "count"), SIZES)
def test_negatives_are_the_hardest_of_all_mixtures(keys, rows, filled, labeled_filled, count):
    """Every candidate as a vector; the slope of a cosine with respect to z is its vector."""
    z, _, queue, _ = rows
    queue = stale(queue, filled, -z)
    labeled = stale(3 * draw(keys, 7, 4), labeled_filled, z)
    row_keys = jax.random.split(next(keys), 5)

    got, slopes = negatives_and_slopes(
        z, row_keys, queue, filled, labeled, labeled_filled, count=count
    )
    u = reference.unit(z)
    entries, partners = reference.unit(queue)[:filled], reference.unit(labeled)[:labeled_filled]
    kept = min(count, filled)
    assert got.similarities.shape == got.keep.shape == (5, min(count, QUEUE))
    np.testing.assert_array_equal(
        got.keep, np.broadcast_to(np.arange(got.keep.shape[1]) < kept, got.keep.shape)
    )
    for i in range(5):
        vectors = hardest_in_loops(row_keys[i], u[i], entries, partners, QUEUE, count, 3, MIXING)
        want = [np.dot(u[i], zeta) for zeta in vectors]
        np.testing.assert_allclose(got.similarities[i, :kept], want, atol=1e-12)
        for m, zeta in enumerate(vectors):
            closed = np.zeros_like(z)
            closed[i] = reference.through_unit(z[i : i + 1], [zeta])[0]
            np.testing.assert_allclose(slopes[i, m], closed, atol=1e-8)


def test_negatives_of_a_row_depend_on_its_own_key_and_anchor_alone(keys, rows):
    z, _, queue, _ = rows
    labeled, row_keys = draw(keys, 7, 4), jax.random.split(next(keys), 5)
    found = functools.partial(hard_negatives, count=4, rounds=2, mixing=MIXING)
    whole = found(row_keys, z, queue, QUEUE, labeled, 7)
    order = np.array([3, 1, 1, 4, 0])
    other = found(row_keys[order], z[order], queue, QUEUE, labeled, 7)
    np.testing.assert_allclose(other.similarities, whole.similarities[order], rtol=1e-12)
    other = found(row_keys[::-1], z, queue, QUEUE, labeled, 7)
    changed = np.abs(other.similarities - whole.similarities).max(1) > 1e-6
    np.testing.assert_array_equal(changed, [True, True, False, True, True])


def test_partners_are_drawn_evenly_from_the_entries_there_are(keys):
    """With mu = 0 the negatives are the partners: 5000 draws of 5 orthogonal rows, two unused."""
    labeled = np.diag([1.0, 1, 1, 1, 1, 1, 1])
    z = np.arange(1.0, 8)[None]
    got = hard_negatives(
        jax.random.split(next(keys), 1), z, draw(keys, 5000, 7), 5000, labeled, 5,
        count=5000, rounds=1, mixing=(0.0,),
    )  # fmt: skip
    partner = np.round(np.asarray(got.similarities[0]) * np.linalg.norm(z))
    counts = np.bincount(partner.astype(int), minlength=8)
    assert counts[0] == counts[6] == counts[7] == 0
    # Standard deviation of a count: sqrt(5000 * 0.2 * 0.8).
    assert np.abs(counts[1:6] - 1000).max() < 4 * 28.3


def test_no_negatives_while_a_queue_is_empty(keys, rows):
    z, views, queue, _ = rows
    labeled, row_keys = draw(keys, 7, 4), jax.random.split(next(keys), 5)
    loss = functools.partial(
        neighborhood_contrast, z, views, queue, neighbors=4, alpha=0.2, temperature=0.05
    )
    for filled, labeled_filled in ((0, 7), (QUEUE, 0), (0, 0)):
        got = hard_negatives(
            row_keys, z, queue, filled, labeled, labeled_filled,
            count=4, rounds=2, mixing=MIXING,
        )  # fmt: skip
        assert not got.keep.any()
        np.testing.assert_allclose(loss(filled, got), loss(filled, None), rtol=1e-14)
