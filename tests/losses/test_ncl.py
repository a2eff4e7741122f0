"""NCL's losses and generated negatives against loops, closed forms, extremes, and on devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.losses.ncl import (
    EPSILON,
    consistency,
    cross_entropy,
    hard_negatives,
    neighborhood_contrast,
    pairwise_bce,
    ramp,
    similar,
    supervised_contrast,
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


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def contrast_in_loops(z, views, queue, extra, weights, tau):
    """Value, and gradient at z taken as free rows: 1 / (B tau) sum_m (p_im - w_im) m.

    `queue`: the entries that exist; `extra[i]`: vectors in the denominator of row i; `weights[i]`
    of its view and the entries.
    """
    value, gradient = 0.0, np.zeros_like(z)
    for i in range(len(z)):
        candidates = [views[i], *queue, *extra[i]]
        logits = [np.dot(z[i], m) / tau for m in candidates]
        total = reference.log_sum_exp(logits)
        for m, (row, logit) in enumerate(zip(candidates, logits, strict=True)):
            weight = weights[i][m] if m < len(weights[i]) else 0.0
            value += weight * (total - logit) / len(z)
            gradient[i] += (math.exp(logit - total) - weight) * row / (len(z) * tau)
    return value, gradient


def neighbor_weights_in_loops(z, queue, neighbors, alpha):
    out = []
    for row in z:
        order = sorted(range(len(queue)), key=lambda m: -np.dot(row, queue[m]))
        nearest = order[:neighbors]
        rest = [(1 - alpha) / len(nearest) if m in nearest else 0.0 for m in range(len(queue))]
        out.append([alpha if nearest else 1.0, *rest])
    return out


def hardest_in_loops(
    key, z, queue, labeled, slots, count, rounds, mixing, entries="easiest", partners="random"
):
    """The vectors of (14) for one unit row, the hardest first; the draws are given.

    `queue` and `labeled`: the entries that exist; `slots`: the queue's length.
    """
    if partners != "random":
        sign = 1 if partners == "easiest" else -1
        labeled = sorted(labeled, key=lambda v: sign * np.dot(z, v))[:count]
    drawn = np.array(jax.random.randint(key, (rounds, min(count, slots)), 0, len(labeled)))
    order = sorted(range(len(queue)), key=lambda m: np.dot(z, queue[m]))
    if entries == "random":
        own = jax.random.fold_in(key, 1)
        order = np.array(jax.random.randint(own, (min(count, slots),), 0, len(queue)))
        order = order[: len(queue)]
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


def test_cross_entropy_equals_loops_and_closed_form(keys):
    logits, labels = 3 * draw(keys, 5, 4), np.array([2, 0, 3, 3, 1], np.int32)
    want = sum(reference.log_sum_exp(row) - row[k] for row, k in zip(logits, labels, strict=True))
    np.testing.assert_allclose(cross_entropy(logits, labels), want / 5, rtol=1e-12)
    closed = (softmax(logits) - np.eye(4)[labels]) / 5
    np.testing.assert_allclose(jax.grad(cross_entropy)(logits, labels), closed, atol=1e-12)
    far = jnp.asarray([[1e4, -1e4], [0, 0]], jnp.float32)
    value, gradient = reference.value_and_grad(cross_entropy)(far, np.array([1, 0], np.int32))
    np.testing.assert_allclose(value, 1e4 + math.log(2) / 2, rtol=1e-6)
    assert np.isfinite(gradient).all()


def bce_in_loops(z, p, other, threshold):
    """(2), (3), and the gradients of both factors."""
    n, z, value = len(z), reference.unit(z), 0.0
    of_p, of_other = np.zeros_like(p), np.zeros_like(other)
    for i in range(n):
        for j in range(n):
            inner = np.dot(p[i], other[j])
            if np.dot(z[i], z[j]) >= threshold:
                value -= math.log(inner) / n**2
                slope = -1 / inner / n**2
            else:
                value -= math.log(1 - inner) / n**2
                slope = 1 / (1 - inner) / n**2
            of_p[i] += slope * other[j]
            of_other[j] += slope * p[i]
    return value, of_p, of_other


def bce(z, p, other, *, threshold, axis=None):
    return pairwise_bce(
        similar(z, threshold=threshold, n_classes=2, axis=axis), p, other, axis=axis
    )


@every_row("threshold", [0.95, 0.3, -0.2])
def test_pairwise_bce_equals_loops_and_closed_form(keys, threshold):
    z, p, other = draw(keys, 5, 3), softmax(draw(keys, 5, 4)), softmax(draw(keys, 5, 4))
    z[3] = 4 * z[0]  # similar at every threshold, whatever the lengths
    loss = functools.partial(bce, threshold=threshold)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1, 2))(z, p, other)
    want = bce_in_loops(z, p, other, threshold)
    np.testing.assert_allclose(value, want[0], rtol=1e-12)
    np.testing.assert_array_equal(gradients[0], 0)
    np.testing.assert_allclose(gradients[1], want[1], atol=1e-8)
    np.testing.assert_allclose(gradients[2], want[2], atol=1e-8)
    once, gradient = reference.value_and_grad(lambda p: loss(z, p, p))(p)
    want = bce_in_loops(z, p, p, threshold)
    np.testing.assert_allclose(once, want[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, want[1] + want[2], atol=1e-8)


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


def test_consistency_equals_loops_and_passes_both_gradients(keys):
    p, other = softmax(draw(keys, 5, 4)), softmax(draw(keys, 5, 4))
    want = sum((p[i, k] - other[i, k]) ** 2 for i in range(5) for k in range(4)) / 20
    value, (of_p, of_other) = reference.value_and_grad(consistency, argnums=(0, 1))(p, other)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    np.testing.assert_allclose(of_p, 2 * (p - other) / 20, atol=1e-12)
    np.testing.assert_allclose(of_other, -of_p, atol=1e-15)


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


@every_row("filled", [0, 2, 6, QUEUE])
@every_row("tau", [0.5, 0.05])
@every_row("views_nearest", [False, True])
def test_neighborhood_contrast_equals_loops_and_closed_form(rows, filled, tau, views_nearest):
    """Also where the view is nearer than any entry: it takes no neighbor's place."""
    z, views, queue, _ = rows
    queue = stale(queue, filled, z)
    if views_nearest:
        views = 3 * z + 0.01 * views
    loss = functools.partial(neighborhood_contrast, neighbors=4, alpha=0.2, temperature=tau)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1, 2))(
        z, views, queue, filled, None
    )
    u, entries = reference.unit(z), reference.unit(queue)[:filled]
    weights = neighbor_weights_in_loops(u, entries, 4, 0.2)
    want, free = contrast_in_loops(u, reference.unit(views), entries, [[]] * 5, weights, tau)
    np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradients[0], reference.through_unit(z, free), atol=1e-8)
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(gradients[2], 0)


@every_row("filled", [0, 2, QUEUE])
@every_row("tau", [0.5, 0.05])
def test_supervised_contrast_equals_loops_and_closed_form(rows, filled, tau):
    z, views, queue, queue_labels = rows
    queue = stale(queue, filled, z)
    labels = np.array([1, 0, 2, 7, 1], np.int32)  # 7 is in no slot
    loss = functools.partial(supervised_contrast, temperature=tau)
    value, gradients = reference.value_and_grad(loss, argnums=(0, 1, 3))(
        z, views, labels, queue, queue_labels, filled
    )
    u, entries = reference.unit(z), reference.unit(queue)[:filled]
    weights = []
    for label in labels:
        positive = [True, *(k == label for k in queue_labels[:filled])]
        weights.append([one / sum(positive) for one in positive])
    want, free = contrast_in_loops(u, reference.unit(views), entries, [[]] * 5, weights, tau)
    np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradients[0], reference.through_unit(z, free), atol=1e-8)
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(gradients[2], 0)


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


@every_row(("filled", "labeled_filled"), [(6, 5), (2, 5), (6, 2)])
@every_row(
    ("entries", "partners"),
    [("random", "random"), ("easiest", "nearest"), ("easiest", "easiest"), ("random", "nearest")],
)
def test_other_entries_and_partners(keys, rows, filled, labeled_filled, entries, partners):
    z, _, queue, _ = rows
    labeled, row_keys = draw(keys, 7, 4), jax.random.split(next(keys), 5)
    choice = {"count": 3, "rounds": 2, "mixing": MIXING, "entries": entries, "partners": partners}
    queue, labeled = stale(queue, filled, z), stale(labeled, labeled_filled, z)
    got = hard_negatives(row_keys, z, queue, filled, labeled, labeled_filled, **choice)
    u, held, others = (reference.unit(x) for x in (z, queue[:filled], labeled[:labeled_filled]))
    for i in range(5):
        vectors = hardest_in_loops(row_keys[i], u[i], held, others, QUEUE, *choice.values())
        want = [np.dot(u[i], zeta) for zeta in vectors]
        np.testing.assert_allclose(got.similarities[i, : len(want)], want, atol=1e-12)
        assert got.keep[i].sum() == len(want) == min(3, filled)


@every_row(("filled", "left_out"), [(8, 3), (8, 6), (2, 5), (0, 3)])
def test_the_easiest_entries_are_left_out_unless_they_are_neighbors(rows, filled, left_out):
    z, views, queue, _ = rows
    queue = stale(queue, filled, -z)
    loss = functools.partial(neighborhood_contrast, neighbors=4, alpha=0.2, temperature=0.1)
    value, gradient = reference.value_and_grad(loss)(
        z, views, queue, filled, None, left_out=left_out
    )
    u, want, closed = reference.unit(z), 0.0, np.zeros_like(z)
    for i in range(5):
        held = sorted(reference.unit(queue)[:filled], key=lambda m: np.dot(u[i], m))
        held = held[min(left_out, max(filled - 4, 0)) :]
        weights = neighbor_weights_in_loops(u[i : i + 1], held, 4, 0.2)
        own, view = u[i : i + 1], reference.unit(views)[i : i + 1]
        one, free = contrast_in_loops(own, view, held, [[]], weights, 0.1)
        want += one / 5
        closed[i] = reference.through_unit(z[i : i + 1], free / 5)[0]
    np.testing.assert_allclose(value, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gradient, closed, atol=1e-8)


def test_contrast_with_negatives_equals_loops_and_closed_form(keys, rows):
    """They widen the denominator alone: (15) changes neither neighbors nor weights."""
    z, views, queue, _ = rows
    labeled, row_keys = draw(keys, 7, 4), jax.random.split(next(keys), 5)
    labeled[2] = 5 * z[1]  # its mixtures are nearer to row 1 than many an entry

    def loss(z, queue, labeled):
        negatives = hard_negatives(
            row_keys, z, queue, 8, labeled, 7, count=3, rounds=2, mixing=MIXING
        )
        return neighborhood_contrast(
            z, views, queue, 8, negatives, neighbors=4, alpha=0.2, temperature=0.1
        )

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(z, queue, labeled)
    u, entries = reference.unit(z), reference.unit(queue)[:8]
    extra = [
        hardest_in_loops(row_keys[i], u[i], entries, reference.unit(labeled), QUEUE, 3, 2, MIXING)
        for i in range(5)
    ]
    weights = neighbor_weights_in_loops(u, entries, 4, 0.2)
    want, free = contrast_in_loops(u, reference.unit(views), entries, extra, weights, 0.1)
    np.testing.assert_allclose(value, want, rtol=1e-10)
    np.testing.assert_allclose(gradients[0], reference.through_unit(z, free), atol=1e-8)
    np.testing.assert_array_equal(gradients[1], 0)
    np.testing.assert_array_equal(gradients[2], 0)


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
