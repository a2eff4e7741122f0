"""Kernel-InfoNCE's theorems about the package's loss, by enumeration and by sampling."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.infonce import contrast
from cluster_jax.losses.kernel_infonce import log_exponential
from tests import reference

pytestmark = pytest.mark.usefixtures("x64")


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


# The theory: graphs W with one edge out of every vertex, drawn with odds prod pi_ij^W_ij.


def similarity_graph(keys, n, symmetric):
    """pi with a zero diagonal and rows that sum to one."""
    pi = np.exp(draw(keys, n, n))
    np.fill_diagonal(pi, 0)
    if not symmetric:
        return pi / pi.sum(1, keepdims=True)
    for _ in range(500):  # Sinkhorn's scaling, kept symmetric
        scale = 1 / np.sqrt(pi.sum(1))
        pi = (pi + pi.T) / 2 * scale[:, None] * scale[None, :]
    return pi


def graphs(pi):
    """Every graph as its edges' targets, and its probability by definition 2.2."""
    n = len(pi)
    targets = [t for t in itertools.product(range(n), repeat=n) if all(t[i] != i for i in range(n))]
    odds = np.array([math.prod(pi[i, j] for i, j in enumerate(t)) for t in targets])
    return targets, odds / odds.sum()


def info_nce_of(z, targets, tau):
    """The package's loss of rows with given positives, by (10)'s kernel exp(-d^2 / (2 tau))."""
    return contrast(
        log_exponential(z, z, gamma=2.0, temperature=2 * tau),
        jnp.asarray(targets),
        positive_in_denominator=True,
        excluded=jnp.eye(len(z), dtype=bool),
    )


def test_cross_entropy_3_is_the_expected_loss(keys):
    """(3) = sum_i sum_{j != i} pi_ij (10)_ij, zero diagonal, = n times the mean InfoNCE."""
    tau, pi, z = 0.6, similarity_graph(keys, 4, symmetric=False), draw(keys, 4, 2)
    targets, chance = graphs(pi)
    gram = np.exp(-(np.linalg.norm(z[:, None] - z[None], axis=-1) ** 2) / (2 * tau))
    of_z = dict(zip(*graphs(gram), strict=True))
    cross_entropy = -sum(p * math.log(of_z[t]) for t, p in zip(targets, chance, strict=True))
    losses = jax.vmap(lambda t: info_nce_of(z, t, tau))(jnp.asarray(targets))
    np.testing.assert_allclose(cross_entropy, 4 * np.dot(chance, losses), rtol=1e-12)


def test_sampled_positives_estimate_the_cross_entropy(keys):
    """Lemma 2.3 by sampling: what SimCLR does is an unbiased estimate of (3)."""
    tau, pi, z = 0.5, similarity_graph(keys, 6, symmetric=True), draw(keys, 6, 2)
    drawn = jax.random.categorical(next(keys), jnp.log(pi), axis=-1, shape=(4000, 6))
    losses = np.asarray(jax.vmap(lambda t: info_nce_of(z, t, tau))(drawn))
    each = np.array([[info_nce_of_row(z, i, j, tau) for j in range(6)] for i in range(6)])
    want = (pi * each).sum() / 6
    error = losses.std() / math.sqrt(4000)
    assert abs(losses.mean() - want) < 4 * error
    assert abs(each.sum() / 30 - want) > 20 * error  # positives drawn alike, say


def info_nce_of_row(z, i, j, tau):
    """(10) of one edge; 0 on the diagonal, which has no edge."""
    if i == j:
        return 0.0
    others = [-sum((z[i] - z[k]) ** 2) / (2 * tau) for k in range(len(z)) if k != i]
    return reference.log_sum_exp(others) + sum((z[i] - z[j]) ** 2) / (2 * tau)


@pytest.mark.parametrize("unit_rows", [True, False])
def test_theorem_3_1_simclr_is_spectral_clustering(keys, unit_rows):
    """Expected loss = (tr(Z^T L(pi) Z) / tau + log R(Z)) / n: Laplacian and repulsion.

    For a symmetric pi; unit rows satisfy it for any pi.
    """
    tau, n = 0.7, 5
    pi, z = similarity_graph(keys, n, symmetric=not unit_rows), draw(keys, n, 2)
    if unit_rows:
        z = reference.unit(z)
    targets, chance = graphs(pi)
    losses = jax.vmap(lambda t: info_nce_of(z, t, tau))(jnp.asarray(targets))
    laplacian = np.diag(pi.sum(1)) - pi
    attraction = np.trace(z.T @ laplacian @ z) / tau
    pairs = sum(pi[i, j] * sum((z[i] - z[j]) ** 2) / (2 * tau) for i in range(n) for j in range(n))
    np.testing.assert_allclose(attraction, pairs, rtol=1e-9)
    log_r = sum(
        reference.log_sum_exp([-sum((z[i] - z[k]) ** 2) / (2 * tau) for k in range(n) if k != i])
        for i in range(n)
    )
    np.testing.assert_allclose(np.dot(chance, losses), (attraction + log_r) / n, rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_theorem_5_1_the_softmax_is_the_most_disordered_neighborhood(keys, gamma):
    """max of (P2) over the simplex is tau times the loss; -E of any other weights is less."""
    tau = 0.4
    query, points = draw(keys, 1, 3), draw(keys, 6, 3)
    psi = -(np.linalg.norm(query - points, axis=1) ** gamma)
    logits = log_exponential(query, points, gamma=gamma, temperature=tau)
    loss = contrast(logits, jnp.zeros(1, jnp.int32), positive_in_denominator=True)

    def minus_e(alpha):
        return -psi[0] + alpha @ psi - tau * sum(a * math.log(a) for a in alpha if a > 0)

    best = np.asarray(jax.nn.softmax(logits[0]))
    np.testing.assert_allclose(minus_e(best), tau * loss, rtol=1e-12)
    for alpha in np.asarray(jax.random.dirichlet(next(keys), jnp.ones(6), (50,))):
        mixed = 0.95 * best + 0.05 * alpha
        assert minus_e(mixed) < minus_e(best)
        assert minus_e(alpha) < minus_e(best)
