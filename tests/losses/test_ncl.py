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
    Mixing,
    Targets,
    hard_negatives,
    neighborhood_contrast,
    pairwise_bce,
    similar,
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


@pytest.fixture
def rows(keys):
    """Anchors, views, a queue whose last slots would be everybody's nearest, and its labels."""
    z, views = draw(keys, 5, 4), draw(keys, 5, 4)
    queue = 2 * draw(keys, QUEUE, 4)
    return z, views, queue, np.array([1, 0, 2, 1, 1, 0, 3, 0, 1], np.int32)


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


def test_negatives_of_a_row_depend_on_its_own_key_and_anchor_alone(keys, rows):
    z, _, queue, _ = rows
    labeled, row_keys = draw(keys, 7, 4), jax.random.split(next(keys), 5)
    found = functools.partial(hard_negatives, mixing=Mixing(4, 2, MIXING))
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
        Mixing(5000, rounds=1, mu=(0.0,)),
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
        neighborhood_contrast, z, views, queue, targets=Targets(4), temperature=0.05
    )
    for filled, labeled_filled in ((0, 7), (QUEUE, 0), (0, 0)):
        got = hard_negatives(
            row_keys, z, queue, filled, labeled, labeled_filled,
            Mixing(4, 2, MIXING),
        )  # fmt: skip
        assert not got.keep.any()
        np.testing.assert_allclose(
            loss(filled, negatives=got), loss(filled, negatives=None), rtol=1e-14
        )
