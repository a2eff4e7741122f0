"""NCC's positive sampling and ProtoCL against loops, closed forms, limits, and on devices."""

import functools

import jax
import numpy as np
import pytest

from cluster_jax.losses.byol import byol_views
from cluster_jax.losses.ncc import positive_samples, proto_cl, proto_cl_views, prototypes
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

PARTS = ("whole", "alignment", "uniformity")
# Ten images of 7 clusters: 2 and 5 are empty, 6 has one member.
LABELS = np.array([4, 0, 4, 1, 3, 6, 1, 4, 0, 3], np.int32)


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def views_in_loops(pair, targets, labels, clusters, tau, part):
    (a, b), (ta, tb) = pair, targets
    total = 0.0
    for x, t in ((a, tb), (b, ta)):
        mu, target = (reference.prototypes(z, labels, clusters) for z in (x, t))
        total += reference.proto_cl(mu, target, tau, part) / 2
    return total


def through_prototypes(x, labels, gradient):
    """Gradient at rows `x` of a function with gradient `{cluster: row}` at their prototypes."""
    z, out = reference.unit(x), np.zeros_like(x)
    for k, g in gradient.items():
        members = np.flatnonzero(labels == k)
        out[members] = reference.through_unit([z[members].sum(0)], [g])[0]
    return reference.through_unit(x, out)


def test_prototypes_equal_loops(keys):
    x = 3 * draw(keys, 10, 4)
    centers, filled = prototypes(x, LABELS, n_clusters=7, axis=None)
    want = reference.prototypes(x, LABELS, 7)
    assert sorted(want) == list(np.flatnonzero(filled)) == [0, 1, 3, 4, 6]
    for k in range(7):
        np.testing.assert_allclose(centers[k], want.get(k, np.zeros(4)), rtol=1e-12)


def test_more_clusters_than_images(keys):
    """The slots are the clusters of the batch: memory does not grow with their number."""
    x = draw(keys, 10, 4)
    far = LABELS * 3001
    centers, filled = prototypes(x, far, n_clusters=25_000, axis=None)
    assert centers.shape == (10, 4)
    np.testing.assert_array_equal(filled, np.arange(10) < 5)
    want = reference.prototypes(x, LABELS, 7)
    np.testing.assert_allclose(centers[:5], [want[k] for k in sorted(want)], rtol=1e-12)


@every_row("part", PARTS)
@every_row("clusters", [7, 300])
def test_views_equal_loops(keys, part, clusters):
    pair, targets = ([s * draw(keys, 10, 4) for s in (1, 2)] for _ in range(2))
    labels = LABELS if clusters == 7 else LABELS * 40
    got = proto_cl_views(
        pair, targets, labels, part=part, n_clusters=clusters, temperature=0.5, axis=None
    )
    want = views_in_loops(pair, targets, labels, clusters, 0.5, part)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@every_row("part", PARTS)
@every_row("tau", [1.0, 0.5, 0.1])
def test_gradient_at_the_centers_is_the_closed_form(keys, tau, part):
    mu, target = reference.unit(draw(keys, 6, 4)), reference.unit(draw(keys, 6, 4))
    filled = np.array([True, True, False, True, True, False])
    loss = functools.partial(proto_cl, part=part, temperature=tau)
    of_mu, of_target = jax.grad(loss, argnums=(0, 1))(mu, target, filled)
    closed = reference.proto_cl_gradient(mu[filled], target[filled], tau, part)
    np.testing.assert_allclose(of_mu[filled], closed, atol=1e-8)
    np.testing.assert_array_equal(of_mu[~filled], 0)
    np.testing.assert_array_equal(of_target, 0)


@pytest.mark.parametrize("clusters", [7, 300])
def test_gradient_at_the_rows_is_the_closed_form(keys, clusters):
    a, b, ta, tb = (2 * draw(keys, 10, 4) for _ in range(4))
    labels = LABELS if clusters == 7 else LABELS * 40
    loss = functools.partial(
        proto_cl_views, part="whole", n_clusters=clusters, temperature=0.5, axis=None
    )
    (got, _), stopped = jax.grad(loss, argnums=(0, 1))((a, b), (ta, tb), labels)
    mu, target = (reference.prototypes(z, labels, clusters) for z in (a, tb))
    rows = reference.proto_cl_gradient(
        np.array(list(mu.values())), np.array(list(target.values())), 0.5
    )
    free = dict(zip(mu, rows / 2, strict=True))
    np.testing.assert_allclose(got, through_prototypes(a, labels, free), atol=1e-8)
    for target in stopped:
        np.testing.assert_array_equal(target, 0)


def test_positive_samples_are_normal_around_their_row(keys):
    z = draw(keys, 3, 5)
    sampled = np.stack(
        [
            positive_samples(jax.random.split(key, 3), z, scale=0.3)
            for key in jax.random.split(next(keys), 400)
        ]
    )
    noise = (sampled - z).reshape(-1)
    # Of 6000 draws: standard error 0.3 / sqrt(6000) of the mean, 0.3 / sqrt(12000) of the std.
    assert abs(noise.mean()) < 4 * 0.3 / np.sqrt(6000)
    assert abs(noise.std() - 0.3) < 4 * 0.3 / np.sqrt(12000)
    np.testing.assert_array_equal(positive_samples(jax.random.split(next(keys), 3), z, scale=0), z)


def test_a_sample_depends_on_its_own_key_and_row_alone(keys):
    row_keys, z = jax.random.split(next(keys), 4), draw(keys, 4, 5)
    whole = positive_samples(row_keys, z, scale=0.1)
    some = np.array([3, 1])
    np.testing.assert_array_equal(positive_samples(row_keys[some], z[some], scale=0.1), whole[some])
    noise = whole - z
    assert np.abs(noise[:, None] - noise[None] + np.eye(4)[..., None]).max(-1).min() > 1e-3


def test_alignment_of_samples_backpropagates_through_the_row(keys):
    """(6): the squared distance of unit vectors, from the sampled row; its slope reaches z."""
    row_keys, z = jax.random.split(next(keys), 4), draw(keys, 4, 5)
    targets = draw(keys, 4, 5)

    def loss(z):
        v = positive_samples(row_keys, z, scale=0.2)
        return byol_views((v, v), (targets, targets))

    v = np.asarray(positive_samples(row_keys, z, scale=0.2))
    np.testing.assert_allclose(loss(z), reference.byol(v, targets), rtol=1e-12)
    closed = reference.through_unit(v, -2 * reference.unit(targets) / 4)
    np.testing.assert_allclose(jax.grad(loss)(z), closed, atol=1e-8)
