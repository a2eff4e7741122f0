"""The gradients of the five papers in closed form, in float64, against `jax.grad` of the losses.

One section a paper, one test an equation, in the order of the papers; read it beside them from top
to bottom. NRCC prints gradients; of every other loss the gradient follows from the printed
definition, and of the totals, NCC (9), CueCo (6) and NCL (16), the gradient of the method is the
sum of those of its terms. All are written in NumPy, with the papers' symbols. Where a paper
misprints an equation, a test has it as it is printed and says how far it is from the gradient:
|printed - gradient| / |gradient|, over all rows.

The papers' gradients are those at unit rows taken as free vectors. The losses scale rows to length
one themselves, so `at_rows` takes a closed form through that. Every batch has `N` images, views of
unequal lengths, and `D` dimensions. `test_reference.py` has the losses' values.
"""

import ast
import itertools
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax import losses, samplers
from cluster_jax.clustering import online
from cluster_jax.data.views import Augment
from cluster_jax.methods import base as methods
from cluster_jax.nets.network import Network, Outputs
from cluster_jax.samplers import base
from cluster_jax.samplers.sghmc import SGHMCState, step
from tests.methods import cases, tiny

pytestmark = pytest.mark.usefixtures("x64")

N, D = 6, 4
every_temperature = pytest.mark.parametrize("tau", [1.0, 0.5, 0.1])


def unit(x):
    """Rows of length one, of arrays of NumPy or JAX."""
    return x / (x * x).sum(-1, keepdims=True) ** 0.5


def at_rows(x, gradient):
    """The gradient at rows x of a function whose gradient at the rows unit(x) is `gradient`."""
    u = unit(x)
    along = np.sum(gradient * u, axis=-1, keepdims=True) * u
    return (gradient - along) / np.linalg.norm(x, axis=-1, keepdims=True)


def draw(rng, *shapes):
    """Rows of unequal lengths, an array of each shape."""
    return [rng.uniform(0.5, 3, (n, 1)) * rng.normal(size=(n, d)) for n, d in shapes]


def softmax(logits, keep=True, axis=1):
    odds = np.where(keep, np.exp(logits), 0)
    return odds / odds.sum(axis, keepdims=True)


def agree(got, closed_form):
    np.testing.assert_allclose(got, closed_form, rtol=1e-9, atol=1e-11)


def agree_zero(*constants):
    """The gradients at what a paper takes for constants."""
    for gradient in constants:
        np.testing.assert_array_equal(gradient, 0)


def gradients(loss, *arrays, **settings):
    """Of a loss, at each of the arrays."""
    at_all = jax.grad(lambda arrays: loss(*arrays, **settings))
    return at_all(arrays)


def distance(printed, gradient):
    """How far a printed gradient is from the gradient: 0 if they agree, 1 for none, 2 for -1 x."""
    return np.linalg.norm(printed - gradient) / np.linalg.norm(gradient)


def about(value):
    return pytest.approx(value, rel=0.02)


ROWS = (N, D)
OTHERS = ~np.eye(N, dtype=bool)  # [i, j]: j != i

# ------------------------------------------------------------------------------------------------
# NRCC, Enhancing Contrastive Clustering with Negative Pair-guided Regularization.
#
# Sections 3.1 and 3.2: InfoNCE, (1)-(3), with its gradient, (7)-(9), and BYOL, (4).
# ------------------------------------------------------------------------------------------------


def test_nrcc_eq_4_gradient_of_byol(rng):
    """-zbar_i^b / n at q(z_i^a), with the factor 1/(2n) of (7); the targets are constants.

    (4) prints the sum of l_ia + l_ib, squared distances of unit vectors, without a factor.
    """
    qa, qb, ta, tb = draw(rng, *[ROWS] * 4)
    printed = sum(np.sum((unit(q) - unit(t)) ** 2) for q, t in ((qa, tb), (qb, ta)))
    agree(losses.byol_views((qa, qb), (ta, tb)), printed / (2 * N))
    (of_a, of_b), of_targets = gradients(losses.byol_views, (qa, qb), (ta, tb))
    agree(of_a, at_rows(qa, -unit(tb) / N))
    agree(of_b, at_rows(qb, -unit(ta) / N))
    agree_zero(*of_targets)


def info_nce_forces(a, b, tau, printed=False):
    """NRCC (8), the attraction, and (9), the repulsion, of the unit rows z_i^a of view a."""
    n, z = len(a), np.concatenate([a, b])
    is_other = ~np.tile(np.eye(n, dtype=bool), (2, 2))
    exp = np.exp(z @ z.T / tau)
    total = np.where(is_other, exp, 0).sum(1)  # of z_j^s: sum over k and l != j
    totals = np.broadcast_to(total, (n, 2 * n))
    if printed:  # sum over k and l != i
        totals = exp.sum(0) - exp[:n] - exp[n:]
    psi = 1 / total[:n, None] + 1 / totals
    attraction = b / (n * tau)
    repulsion = (psi * np.where(is_other, exp, 0)[:n]) @ z / (2 * n * tau)
    return attraction, repulsion


def info_nce_gradients(a, b, tau):
    return gradients(losses.info_nce_views, a, b, temperature=tau, positive_in_denominator=False)


@every_temperature
def test_nrcc_eq_7_to_9_gradient_of_info_nce(rng, tau):
    """(7) = -(8) + (9), with `l != j` in the second denominator; view b by symmetry."""
    a, b = draw(rng, ROWS, ROWS)
    of_a, of_b = info_nce_gradients(a, b, tau)
    for x, y, got in ((a, b, of_a), (b, a, of_b)):
        attraction, repulsion = info_nce_forces(unit(x), unit(y), tau)
        agree(got, at_rows(x, -attraction + repulsion))


@pytest.mark.parametrize(("tau", "off"), [(1.0, 0.0251), (0.5, 0.0432), (0.1, 0.198)])
def test_nrcc_eq_7_and_9_misprint_the_second_denominator(rng, tau, off):
    """They print `l != i`, by which z_j^s would be among its own negatives."""
    a, b = draw(rng, ROWS, ROWS)
    attraction, repulsion = info_nce_forces(unit(a), unit(b), tau, printed=True)
    printed = at_rows(a, -attraction + repulsion)
    assert distance(printed, info_nce_gradients(a, b, tau)[0]) == about(off)


# ------------------------------------------------------------------------------------------------
# NRCC, section 3.2: the regularizer, (5), (6), and its gradient with InfoNCE, (10), (11), and BYOL,
# (12)-(14).
# ------------------------------------------------------------------------------------------------


@every_temperature
def test_nrcc_eq_5_and_6_misprint_the_ratio_upside_down(rng, tau):
    """Its logarithm is minus that of the gradients (10)-(14), with all j and tau in both sums."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)

    def printed(a, key_a, key_b):
        def total(x, y):
            return jnp.exp(unit(x) @ unit(y).T / tau).sum(1)

        ratios = total(a, key_b) / total(a, c), total(b, key_a) / total(b, c)
        return sum(jnp.sum(jnp.log(ratio)) for ratio in ratios) / (2 * N)

    def ours(a, key_a, key_b):
        return losses.nrcc_views(
            a, b, c, keys=(key_a, key_b), temperature=tau, include_own_view=True
        )

    agree(ours(a, a, b), -printed(a, a, b))
    agree(jax.grad(lambda a: ours(a, a, b))(a), -jax.grad(lambda a: printed(a, a, b))(a))
    target_a, target_b = draw(rng, ROWS, ROWS)  # (6)
    agree(ours(a, target_a, target_b), -printed(a, target_a, target_b))
    agree(jax.grad(ours)(a, target_a, target_b), -jax.grad(printed)(a, target_a, target_b))


@pytest.mark.parametrize(
    ("tau", "off", "upright"), [(1.0, 2.0, 0.0), (0.5, 1.47, 0.535), (0.1, 1.07, 0.930)]
)
def test_nrcc_eq_5_misprints_no_temperature(rng, tau, off, upright):
    """(10)-(14) divide the inner products by tau; `upright` is how far this alone is off."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    attraction, repulsion = nrcc_forces(unit(a), unit(b), unit(c), 1.0, own=True)
    gradient = nrcc_gradient(a, b, c, tau, own=True)
    assert distance(at_rows(a, attraction - repulsion), gradient) == about(off)
    assert distance(at_rows(a, repulsion - attraction), gradient) == about(upright)


def shares(a, b, c, tau, own=False):
    """The softmaxes of (10), (11): C_ij of c_j, P_ij of b_j, and Q_ij, a_i's share as b_j sees it.

    Args:
        own: whether the sum over the sampled views has z_i^c, which (11) leaves out.
    """
    of_c = softmax(a @ c.T / tau, own | OTHERS)
    return of_c, softmax(a @ b.T / tau), softmax(a @ b.T / tau, axis=0)


def nrcc_forces(a, b, c, tau, own=False, live=True):
    """What NRCC adds to attraction and repulsion of the unit rows z_i^a, for lambda = 1.

    Args:
        live: whether the rows of view b are rows of the network and not constants; else no term
            of z_j^b has a gradient at z_i^a, and Q drops out.
    """
    of_c, p, q = shares(a, b, c, tau, own)
    weight = p + live * q
    attraction = np.diag(weight)[:, None] * b / (2 * len(a) * tau)
    repulsion = (of_c @ c - np.where(OTHERS, weight, 0) @ b) / (2 * len(a) * tau)
    return attraction, repulsion


def nrcc_gradient(a, b, c, tau, own=False):
    """Of the regularizer, at view a; the keys are the views themselves, as with InfoNCE."""
    return jax.grad(lambda a: losses.nrcc_views(a, b, c, temperature=tau, include_own_view=own))(a)


@every_temperature
@pytest.mark.parametrize("own", [False, True])
def test_nrcc_eq_10_and_11_gradient_with_info_nce(rng, tau, own):
    """lambda adds its forces to those of (8) and (9); (11) without z_i^c, or with it."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    strength = 0.7

    def total(a, b, c):
        nrcc = losses.nrcc_views(a, b, c, temperature=tau, include_own_view=own)
        info_nce = losses.info_nce_views(a, b, temperature=tau, positive_in_denominator=False)
        return info_nce + strength * nrcc

    of_a, of_b, of_c = gradients(total, a, b, c)
    for x, y, got in ((a, b, of_a), (b, a, of_b)):
        attraction, repulsion = info_nce_forces(unit(x), unit(y), tau)
        more, away = nrcc_forces(unit(x), unit(y), unit(c), tau, own)
        agree(got, at_rows(x, -(attraction + strength * more) + repulsion + strength * away))
    agree_zero(of_c)


@pytest.mark.parametrize(("tau", "off"), [(1.0, 0.0456), (0.5, 0.103), (0.1, 0.348)])
def test_nrcc_eq_10_misprints_one_softmax_twice(rng, tau, off):
    """It has P_ii, the share of z_i^b as z_i^a sees it, where half of P_ii + Q_ii belongs."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    _, p, _ = shares(unit(a), unit(b), unit(c), tau)
    printed = unit(b) / (N * tau) * np.diag(p)[:, None]
    _, repulsion = nrcc_forces(unit(a), unit(b), unit(c), tau)
    assert distance(at_rows(a, -printed + repulsion), nrcc_gradient(a, b, c, tau)) == about(off)


@pytest.mark.parametrize(
    ("tau", "off", "rest"),
    [(1.0, 9.01, (0.102, 0.163)), (0.5, 8.74, (0.131, 0.2)), (0.1, 8.35, (0.266, 0.369))],
)
def test_nrcc_eq_11_misprints_the_factor_and_one_denominator(rng, tau, off, rest):
    """It lacks 1/(2n), which (14) has; `rest` is what remains with it.

    The rest is the denominator of the sampled views, which has z_i^c where the sum has not: the
    gradient neither of the loss without z_i^c nor, as the second assertion has it, of the one with.
    """
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    ua, ub, uc = unit(a), unit(b), unit(c)
    of_c, p, q = shares(ua, ub, uc, tau, own=True)
    printed = (np.where(OTHERS, of_c, 0) @ uc - np.where(OTHERS, p + q, 0) @ ub) / tau
    attraction, _ = nrcc_forces(ua, ub, uc, tau)
    gradient = nrcc_gradient(a, b, c, tau)
    assert distance(at_rows(a, -attraction + printed), gradient) == about(off)
    scaled = at_rows(a, -attraction + printed / (2 * N))
    assert distance(scaled, gradient) == about(rest[0])
    assert distance(scaled, nrcc_gradient(a, b, c, tau, own=True)) == about(rest[1])


def test_nrcc_eq_12_is_the_gradient_of_byol_with_a_stop_gradient(rng):
    """Attraction z_i^b / n and no repulsion, without a predictor: q(z) = z and zbar = z."""
    a, b = draw(rng, ROWS, ROWS)
    of_a, of_b = gradients(lambda a, b: losses.byol_views((a, b), (a, b)), a, b)
    agree(of_a, at_rows(a, -unit(b) / N))
    agree(of_b, at_rows(b, -unit(a) / N))


def test_nrcc_eq_12_misprints_half_of_the_gradient_of_its_own_text(rng):
    """Its text also leaves the stop-gradient out: l_ia and l_ib are then the same function of a.

    (13), with lambda = 0, and (19) print half of (12) for the same term.
    """
    a, b = draw(rng, ROWS, ROWS)

    def without_stop_gradient(a):
        return 2 * jnp.sum((unit(a) - unit(b)) ** 2) / (2 * N)

    gradient = jax.grad(without_stop_gradient)(a)
    agree(gradient, at_rows(a, -2 * unit(b) / N))
    assert distance(at_rows(a, -unit(b) / N), gradient) == pytest.approx(1 / 2)
    byol = jax.grad(lambda a: losses.byol_views((a, b), (a, b)))(a)
    assert distance(at_rows(a, -unit(b) / (2 * N)), byol) == pytest.approx(1 / 2)


@every_temperature
def test_nrcc_eq_13_and_14_gradient_with_byol(rng, tau):
    """z_i^b / n [1 + lambda (P_ii + Q_ii) / (2 tau)], and (14), whose tau and 1/(2n) are right."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    strength = 0.7

    def total(a):
        nrcc = losses.nrcc_views(a, b, c, temperature=tau)
        return losses.byol_views((a, b), (a, b)) + strength * nrcc

    ua, ub, uc = unit(a), unit(b), unit(c)
    of_c, p, q = shares(ua, ub, uc, tau)
    attraction = ub / N * (1 + strength * np.diag(p + q)[:, None] / (2 * tau))
    psi = np.where(OTHERS, p + q, 0)
    repulsion = strength / (2 * N) * (of_c @ uc / tau - psi @ ub / tau)
    agree(jax.grad(total)(a), at_rows(a, -attraction + repulsion))


@pytest.mark.parametrize(
    ("tau", "off", "rest"), [(1.0, 0.347, 0.0445), (0.5, 0.328, 0.0853), (0.1, 0.332, 0.249)]
)
def test_nrcc_eq_13_and_14_misprint_factors_and_one_denominator(rng, tau, off, rest):
    """(13) prints 1/2 for 1, lacks 1/tau, and has P_ii for (P_ii + Q_ii) / 2.

    (14) has the denominator of (11); `rest` is how far this alone is off.
    """
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    ua, ub, uc = unit(a), unit(b), unit(c)
    _, p, _ = shares(ua, ub, uc, tau)
    with_own, p, q = shares(ua, ub, uc, tau, own=True)
    eq_13 = ub / N * (1 / 2 + np.diag(p)[:, None])
    eq_14 = (np.where(OTHERS, with_own, 0) @ uc - np.where(OTHERS, p + q, 0) @ ub) / (2 * N * tau)
    attraction, repulsion = nrcc_forces(ua, ub, uc, tau)

    def total(a):
        nrcc = losses.nrcc_views(a, b, c, temperature=tau)
        return losses.byol_views((a, b), (a, b)) + nrcc

    gradient = jax.grad(total)(a)
    assert distance(at_rows(a, -eq_13 + repulsion), gradient) == about(off)
    assert distance(at_rows(a, -ub / N - attraction + eq_14), gradient) == about(rest)


@pytest.mark.parametrize(
    ("tau", "half", "no_tau", "one_share"),
    [(1.0, 0.356, 0.0, 0.0199), (0.5, 0.254, 0.101, 0.0671), (0.1, 0.0598, 0.316, 0.326)],
)
def test_nrcc_eq_13_misprints_each_of_three_factors(rng, tau, half, no_tau, one_share):
    """How far each is off alone: 1/2 for 1, no 1/tau, and P_ii for (P_ii + Q_ii) / 2."""
    a, b, c = draw(rng, ROWS, ROWS, ROWS)
    ub = unit(b)
    _, p, q = shares(unit(a), ub, unit(c), tau)
    _, repulsion = nrcc_forces(unit(a), ub, unit(c), tau)
    gradient = jax.grad(lambda a: losses.byol_views((a, b), (a, b)))(a)
    gradient = gradient + nrcc_gradient(a, b, c, tau)
    mean = np.diag(p + q)[:, None] / 2

    def off(attraction):
        return distance(at_rows(a, -ub / N * attraction + repulsion), gradient)

    assert off(1 + mean / tau) < 1e-9
    assert off(1 / 2 + mean / tau) == about(half)
    assert off(1 + mean) == about(no_tau)
    assert off(1 + np.diag(p)[:, None] / tau) == about(one_share)


# ------------------------------------------------------------------------------------------------
# NRCC, section 3.4: the sampled view, (16)-(18).
# ------------------------------------------------------------------------------------------------

# P(s) of a similarity s, and its slope: (16), and the form of the authors' code.
POTENTIALS = {
    "inverse": (lambda s: 1 / (1 + s), lambda s: -1 / (1 + s) ** 2),
    "log_inverse_square": (lambda s: -np.log(1 + s**2), lambda s: -2 * s / (1 + s**2)),
}


def similarity_of(images, weights, reference):
    """sim(z(X), z(x_i)), the cosine, for z(X) = tanh(X W), and its gradient at the images."""
    z, u = np.tanh(images @ weights), unit(reference)
    similarity = np.sum(unit(z) * u, axis=1)
    return similarity, (at_rows(z, u) * (1 - z**2)) @ weights.T


def small_network(rng):
    """Images, reference projections, and weights that leave tanh far from its limits."""
    images, reference, weights = draw(rng, (N, 5), ROWS, (5, D))
    return images, reference, weights / 5


@pytest.mark.parametrize("name", POTENTIALS)
def test_nrcc_eq_16_gradient_of_the_similarity_density(rng, name):
    """-1 / (1 + sim)^2 times the gradient of sim, at the images, through the network."""
    images, reference, weights = small_network(rng)
    potential, slope = POTENTIALS[name]
    similarity, of_similarity = similarity_of(images, weights, reference)
    potential_and_grad = samplers.similarity_potential(
        lambda x: jnp.tanh(x @ weights), reference, getattr(samplers, name)
    )
    got, gradient = potential_and_grad(images)
    agree(got, potential(similarity))
    agree(gradient, slope(similarity)[:, None] * of_similarity)


def test_nrcc_eq_16_is_a_potential_and_not_the_density_that_its_text_says(rng):
    """(17) descends it, toward a higher similarity; on the density 1/(1 + sim) it would fall.

    The gradient of the potential of that density, -log P, is -(1 + sim) times the one that (17)
    takes.
    """
    images, reference, weights = small_network(rng)
    similarity, of_similarity = similarity_of(images, weights, reference)
    potential_and_grad = samplers.similarity_potential(lambda x: jnp.tanh(x @ weights), reference)
    _, gradient = potential_and_grad(images)
    rest = np.zeros_like(images)
    for sign in (1, -1):
        moved = step(SGHMCState(images, rest, rest, rest), sign * gradient, rest).position
        risen = similarity_of(moved, weights, reference)[0] - similarity
        assert np.all(sign * risen > 0)
    of_density = of_similarity / (1 + similarity)[:, None]
    agree(of_density, -(1 + similarity)[:, None] * gradient)


def test_nrcc_eq_16_continues_along_its_tangent_near_a_similarity_of_minus_one():
    """Not in the paper: below -0.99 the slope -1 / (1 + sim)^2 stays at -1e4."""
    similarity = np.array([-0.98, -0.9901, -0.999, -1.0])
    slopes = jax.grad(lambda s: jnp.sum(samplers.inverse(s)))(similarity)
    agree(slopes, [-2500, -1e4, -1e4, -1e4])


DELTA_1, DELTA_2, DELTA_3 = 0.1, 0.05, 0.99  # NRCC's friction, step size and noise


@pytest.mark.parametrize("momentum", ["new", "old"])
def test_nrcc_eq_17_and_18_updates_of_sghmc(rng, momentum):
    """p <- (1 - d1) p - d2 grad P + d3 r; s <- s + d2 p, with the p after (17) or before it."""
    s, p, gradient, r, past, drift = draw(rng, *[(N, 5)] * 6)
    state = SGHMCState(s, p, past, drift)
    after = step(state, gradient, r, momentum=momentum)
    new = (1 - DELTA_1) * p - DELTA_2 * gradient + DELTA_3 * r
    agree(after.momentum, new)
    agree(after.position, s + DELTA_2 * (new if momentum == "new" else p))
    # The part of the gradients follows the same updates without noise.
    kicked = (1 - DELTA_1) * drift - DELTA_2 * gradient
    agree(after.gradient_momentum, kicked)
    agree(after.gradient_displacement, past + DELTA_2 * (kicked if momentum == "new" else drift))


@pytest.mark.parametrize("zeta", [1, 3])
@pytest.mark.parametrize("momentum", ["new", "old"])
def test_nrcc_algorithm_1_iterates_eq_17_and_18(rng, momentum, zeta):
    """From p_0 = r_0 on, zeta times, on the potential (16)."""
    images, reference, weights = small_network(rng)
    keys = jax.random.split(jax.random.key(3), N)
    potential_and_grad = samplers.similarity_potential(lambda x: jnp.tanh(x @ weights), reference)
    sampler = samplers.sghmc(potential_and_grad, momentum=momentum, clip=None)
    view, _ = samplers.sample(sampler, keys, images, iterations=zeta)

    s, p = images, np.asarray(base.standard_normal(keys, images, 0))
    for j in range(zeta):
        similarity, of_similarity = similarity_of(s, weights, reference)
        gradient = -of_similarity / (1 + similarity[:, None]) ** 2
        r = np.asarray(base.standard_normal(keys, images, j + 1))
        new = (1 - DELTA_1) * p - DELTA_2 * gradient + DELTA_3 * r
        s, p = s + DELTA_2 * (new if momentum == "new" else p), new
    agree(view, s)


def test_nrcc_eq_18_as_printed_is_noise_without_any_gradient(rng):
    """With the old momentum and the paper's one iteration the view is s_0 + d2 r_0."""
    images, reference, weights = small_network(rng)
    keys = jax.random.split(jax.random.key(3), N)
    potential = samplers.similarity_potential(lambda x: jnp.tanh(x @ weights), reference)
    share = {}
    for momentum in ("new", "old"):
        sampler = samplers.sghmc(potential, momentum=momentum, clip=None)
        view, info = samplers.sample(sampler, keys, images, iterations=1)
        share[momentum] = info.gradient_share
    agree(view, images + DELTA_2 * base.standard_normal(keys, images, 0))
    agree(share["old"], 0)
    assert np.all(share["new"] > 0)


# ------------------------------------------------------------------------------------------------
# NRCC, section 3.6: BYOL with predictor and stop-gradient, (19) and (20).
# ------------------------------------------------------------------------------------------------


def test_nrcc_eq_19_gradient_of_byol_through_the_predictor(rng):
    """-zbar_i^b / n through the predictor's Jacobian; q is linear here, q(z) = z W."""
    a, b, ta, tb, weights = draw(rng, *[ROWS] * 4, (D, D))

    def loss(a, targets):
        return losses.byol_views((a @ weights, b @ weights), targets)

    of_a, of_targets = gradients(loss, a, (ta, tb))
    agree(of_a, at_rows(a @ weights, -unit(tb) / N) @ weights.T)
    agree_zero(*of_targets)


def test_nrcc_eq_19_misprints_the_target_and_the_factor(rng):
    """It prints z_i^b / (2n) times the Jacobian of zbar^a, the target, whose gradient is stopped.

    With the predictor's Jacobian in its place, zbar_i^b for z_i^b, and n for 2n it is the gradient.
    (20) prints z_i^b as well.
    """
    a, b, ta, tb, weights = draw(rng, *[ROWS] * 4, (D, D))
    gradient = jax.grad(lambda a: losses.byol_views((a @ weights, b @ weights), (ta, tb)))(a)

    def off(attraction, n):
        return distance(at_rows(a @ weights, -unit(attraction) / n) @ weights.T, gradient)

    assert off(tb, N) < 1e-9
    assert off(b, 2 * N) == about(1.30)
    assert off(b, N) == about(1.71)


@every_temperature
def test_nrcc_eq_20_gradient_of_byol_with_nrcc(rng, tau):
    """z_i^a before the predictor is attracted to zbar^b and repelled from zbar^c, constants."""
    a, b, ta, tb, c, weights = draw(rng, *[ROWS] * 5, (D, D))
    strength = 0.7

    def total(a, c):
        byol = losses.byol_views((a @ weights, b @ weights), (ta, tb))
        return byol + strength * losses.nrcc_views(a, b, c, keys=(ta, tb), temperature=tau)

    of_a, of_c_rows = gradients(total, a, c)
    of_c, p, _ = shares(unit(a), unit(tb), unit(c), tau)
    regularizer = (of_c @ unit(c) - p @ unit(tb)) / (2 * N * tau)
    byol = at_rows(a @ weights, -unit(tb) / N) @ weights.T
    agree(of_a, byol + at_rows(a, strength * regularizer))
    agree_zero(of_c_rows)


@pytest.mark.parametrize(
    ("tau", "off", "rest"), [(1.0, 0.872, 0.548), (0.5, 0.723, 0.655), (0.1, 1.17, 1.06)]
)
def test_nrcc_eq_20_misprints_factors_and_keeps_the_repulsion_of_eq_14(rng, tau, off, rest):
    """zbar_i^b / n P_ii lacks 1 / (2 tau); (14), which it keeps, has Q, that the target stops.

    `rest` is how far (14) alone is off, with the right attraction and the sum over l != i.
    """
    a, b, ta, tb, c = draw(rng, *[ROWS] * 5)
    ua, ub, uc = unit(a), unit(tb), unit(c)
    with_own, p, q = shares(ua, ub, uc, tau, own=True)
    eq_20 = ub / N * np.diag(p)[:, None]
    eq_14 = (np.where(OTHERS, with_own, 0) @ uc - np.where(OTHERS, p + q, 0) @ ub) / (2 * N * tau)
    gradient = jax.grad(lambda a: losses.nrcc_views(a, b, c, keys=(ta, tb), temperature=tau))(a)
    assert distance(at_rows(a, -eq_20 + eq_14), gradient) == about(off)
    attraction, _ = nrcc_forces(ua, ub, uc, tau, live=False)
    _, with_q = nrcc_forces(ua, ub, uc, tau, live=True)
    assert distance(at_rows(a, -attraction + with_q), gradient) == about(rest)


# ------------------------------------------------------------------------------------------------
# NCC, Exploring Non-contrastive Representation Learning for Deep Clustering: contrast, (1), (2),
# positive sampling, (3)-(6), ProtoCL, (7), (8), and the objective, (9).
# ------------------------------------------------------------------------------------------------


@every_temperature
@pytest.mark.parametrize("equation", [1, 2])
def test_ncc_eq_1_and_2_gradient_of_the_contrastive_loss(rng, equation, tau):
    """1/(n tau) (w - y), w the softmax over x^+ and the M negatives, or (2) over these alone.

    One network has all rows: f(x), f(x^+) and f(x_i^-) all have a gradient. (2) is lower by
    -log(1 - w) of the positive.
    """
    x, positive, negatives = draw(rng, ROWS, ROWS, (7, D))
    y = np.eye(N, N + 7)
    candidate = y + (np.arange(N + 7) >= N) > 0  # of each row: its own positive, all negatives

    def loss(x, candidates, inside):
        return losses.info_nce(
            unit(x), unit(candidates), np.arange(N), temperature=tau, excluded=~candidate,
            positive_in_denominator=inside,
        )  # fmt: skip

    keys = np.concatenate([positive, negatives])
    logits = unit(x) @ unit(keys).T / tau
    w = softmax(logits, candidate if equation == 1 else candidate & (y == 0))
    of_x, of_keys = gradients(loss, x, keys, inside=equation == 1)
    agree(of_x, at_rows(x, (w - y) @ unit(keys) / (N * tau)))
    agree(of_keys, at_rows(keys, (w - y).T @ unit(x) / (N * tau)))
    lower = np.mean(np.log(1 - np.diag(softmax(logits, candidate))))
    agree(loss(x, keys, False), loss(x, keys, True) + lower)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0])
def test_ncc_eq_5_and_6_gradient_of_the_alignment_of_samples(rng, sigma):
    """v = z + sigma epsilon passes its gradient to z; ||g(v) - f'||^2 of unit vectors.

    The predictor is linear here, g(v) = v W. With sigma = 0 this is (3).
    """
    z, target, weights = draw(rng, ROWS, ROWS, (D, D))
    keys = jax.random.split(jax.random.key(5), N)
    epsilon = np.asarray(losses.positive_samples(keys, np.zeros(ROWS), scale=1.0))

    def loss(z, target):
        v = losses.positive_samples(keys, z, scale=sigma)
        return losses.byol(v @ weights, target)

    g = (z + sigma * epsilon) @ weights
    squared = np.sum((unit(g) - unit(target)) ** 2, axis=1)
    agree(loss(z, target), squared.mean())
    of_z, of_target = gradients(loss, z, target)
    agree(of_z, at_rows(g, -2 * unit(target) / N) @ weights.T)
    agree_zero(of_target)
    # The `mse` of the pseudo-code (appendix D) is a mean over the D dimensions: D times too small.
    mse = np.mean((unit(g) - unit(target)) ** 2)
    assert mse / loss(z, target) == pytest.approx(1 / D)


def proto_cl_gradient(mu, target, tau):
    """1/(K tau) [-(1 - w_kk) mu'_k + sum_{j != k} (w_kj + w_jk) mu_j], K clusters with members."""
    k = len(mu)
    same = np.eye(k, dtype=bool)
    logits = np.where(same, np.sum(mu * target, axis=1), mu @ mu.T) / tau
    w = softmax(logits)
    others = np.where(same, 0, w + w.T)
    return (-(1 - np.diag(w))[:, None] * target + others @ mu) / (k * tau)


FILLED = np.array([True, True, False, True, True, False])


@every_temperature
def test_ncc_eq_7_gradient_of_proto_cl_at_the_centers(rng, tau):
    """mu_k is in its own row and, as a negative, in those of all others; mu'_k is a constant."""
    mu, target = unit(rng.normal(size=ROWS)), unit(rng.normal(size=ROWS))
    of_mu, of_target = gradients(losses.proto_cl, mu, target, filled=FILLED, temperature=tau)
    agree(of_mu[FILLED], proto_cl_gradient(mu[FILLED], target[FILLED], tau))
    agree_zero(of_mu[~FILLED])
    agree_zero(of_target)


@every_temperature
def test_ncc_eq_8_gradients_of_alignment_and_uniformity(rng, tau):
    """-mu'_k / (K tau), and 1/(K tau) sum_{j != k} (v_kj + v_jk) mu_j, v without the positive."""
    mu, target = unit(rng.normal(size=ROWS)), unit(rng.normal(size=ROWS))

    def gradient(part):
        return jax.grad(lambda x: losses.proto_cl(x, target, FILLED, part=part, temperature=tau))(
            mu
        )

    k = FILLED.sum()
    agree(gradient("alignment"), np.where(FILLED[:, None], -target / (k * tau), 0))
    v = softmax(mu[FILLED] @ mu[FILLED].T / tau, ~np.eye(k, dtype=bool))
    agree(gradient("uniformity")[FILLED], (v + v.T) @ mu[FILLED] / (k * tau))


@pytest.mark.parametrize(("tau", "off"), [(0.5, 0.0354), (0.1, 0.106)])
def test_ncc_appendix_d_gives_empty_clusters_a_logit_of_minus_10(rng, tau, off):
    """Each of 1,997 adds e^-10 to a denominator, at tau = 0.1 as much as an opposite center."""
    mu, target = unit(rng.normal(size=(3, D))), unit(rng.normal(size=(3, D)))

    def printed(mu):
        positive, logits = jnp.sum(mu * target, axis=1) / tau, mu @ mu.T / tau
        others = jnp.sum(jnp.where(np.eye(3, dtype=bool), 0, jnp.exp(logits)), axis=1)
        return jnp.mean(jnp.log(jnp.exp(positive) + others + 1997 * math.exp(-10)) - positive)

    ours = jax.grad(losses.proto_cl)(mu, target, np.ones(3, bool), temperature=tau)
    assert distance(jax.grad(printed)(mu), ours) == about(off)


LABELS = np.array([4, 0, 4, 1, 0, 4])  # of the clusters 0 to 5


def proto_cl_at_rows(x, target, member, tau):
    """(7) through mu_k, the unit vector along the sum of p(k|x) f(x), one direction of two.

    Args:
        member: p(k|x) of the clusters that have members `[K, n]`.
    """
    sums = member @ unit(x)
    of_mu = proto_cl_gradient(unit(sums), unit(member @ unit(target)), tau) / 2
    return at_rows(x, member.T @ at_rows(sums, of_mu))


@every_temperature
def test_ncc_eq_7_gradient_of_proto_cl_at_the_rows(rng, tau):
    """Through mu_k, the unit vector along the sum of the cluster's unit rows; both directions / 2.

    f is the online network and f' the target network, as in (7). The text of (A12) swaps them: the
    numerator would then be of the constants' centers, and the online network without a gradient.
    """
    a, b, ta, tb = draw(rng, *[ROWS] * 4)

    def loss(pair, targets):
        return losses.proto_cl_views(pair, targets, LABELS, n_clusters=N, temperature=tau)

    of_pair, of_targets = gradients(loss, (a, b), (ta, tb))
    clusters = np.unique(LABELS)
    member = (clusters[:, None] == LABELS).astype(float)
    for x, target, got in ((a, tb, of_pair[0]), (b, ta, of_pair[1])):
        agree(got, proto_cl_at_rows(x, target, member, tau))
    agree_zero(*of_targets)
    _, of_online = gradients(loss, (ta, tb), (a, b))  # (A12)
    agree_zero(*of_online)


@every_temperature
def test_ncc_below_eq_8_gradient_of_proto_cl_with_a_posterior(rng, tau):
    """p(k|x) of (8)'s text weights the sums: every row has a share in every center."""
    a, b, ta, tb = draw(rng, *[ROWS] * 4)
    posterior = softmax(rng.normal(size=(N, 3)))

    def loss(pair, posterior):
        return losses.proto_cl_views(pair, (ta, tb), posterior, n_clusters=3, temperature=tau)

    (of_a, of_b), of_posterior = gradients(loss, (a, b), posterior)
    agree(of_a, proto_cl_at_rows(a, tb, posterior.T, tau))
    agree(of_b, proto_cl_at_rows(b, ta, posterior.T, tau))
    agree_zero(of_posterior)


def free_rows(projections, predictions, targets):
    """What the networks make of a batch of the images 0 to N - 1, as rows that no network makes."""
    return methods.Encoded(projections, predictions, targets, None, np.arange(N), (None, None))


def built(name, network=None, augment=tiny.AUGMENT, **changes):
    """A method with the settings of its small case, changed as here, and its state at the start."""
    classifies = name in cases.STAGES
    context = methods.MethodContext(
        network or tiny.network(tiny.PARTS), augment, shuffle=False, images=4 * N, total_steps=10,
        total_updates=10, steps_per_epoch=3, batch_size=2 * N if classifies else N,
        labeled_batch_size=N if classifies else None, known_classes=4 if classifies else 0,
    )  # fmt: skip
    values = {**cases.METHODS, **cases.STAGES}[name] | changes
    config = methods.parse(values["name"], {k: v for k, v in values.items() if k != "name"})
    method = methods.build(values["name"], config, context)
    return method, *method.init(jax.random.key(0), jnp.zeros((1, tiny.SIDE, tiny.SIDE, 1)))


@every_temperature
@pytest.mark.parametrize("step", [0, 1])
def test_ncc_eq_9_gradient_of_the_objective(rng, step, tau):
    """(6) at predictions g(v); lambda_pcl times (7) at projections f(x), after the warm-up."""
    a, b, qa, qb, ta, tb = draw(rng, *[ROWS] * 6)
    ncc, params, state = built("ncc", n_clusters=N, weight=0.3, temperature=tau, warmup="1 step")
    state = state._replace(labels=np.tile(LABELS, 4))

    def loss(projections, predictions):
        encoded = free_rows(projections, predictions, (ta, tb))
        return ncc.objective(params, encoded, state, jnp.int32(step), jax.random.key(0), None)[0]

    (of_a, of_b), (of_qa, of_qb) = gradients(loss, (a, b), (qa, qb))
    agree(of_qa, at_rows(qa, -unit(tb) / N))
    agree(of_qb, at_rows(qb, -unit(ta) / N))
    member = (np.unique(LABELS)[:, None] == LABELS).astype(float)
    weight = 0.3 if step >= 1 else 0
    agree(of_a, weight * proto_cl_at_rows(a, tb, member, tau))
    agree(of_b, weight * proto_cl_at_rows(b, ta, member, tau))


# ------------------------------------------------------------------------------------------------
# CueCo, Cluster Contrast for Unsupervised Visual Representation Learning: the losses L1 to L3, (1),
# (4), (5), their total, (6), and the clusters, (2), (3), (7), (8).
# ------------------------------------------------------------------------------------------------

K = 5
ASSIGNED = np.array([2, 0, 2, 4, 1, 0])  # of the clusters 0 to 4; 3 is empty


def instance_gradient(z, key, queue, tau):
    """Of L1 (1) at rows z: 1/(n tau) [-z' + sum over the positive z' and the queue of p_k z_k]."""
    positive = np.sum(unit(z) * unit(key), axis=1, keepdims=True)
    p = softmax(np.concatenate([positive, unit(z) @ queue.T], axis=1) / tau)
    closed_form = (-(1 - p[:, :1]) * unit(key) + p[:, 1:] @ queue) / (len(z) * tau)
    return at_rows(z, closed_form)


def centroid_gradient(z, c, own, tau):
    """Of L2 (4): 1/(n tau) [sum_l w_l c_l - c_own], the own centroid once in w's denominator."""
    w = softmax(unit(z) @ c.T / tau)
    return at_rows(z, (w @ c - c[own]) / (len(z) * tau))


def variance_gradient(z, c, variances, own):
    """Of L3 (5): 2 (z - c) / (2 sigma^2 + 1e-6) / n."""
    scale = 2 * variances[own, None] + 1e-6
    return at_rows(z, 2 * (unit(z) - c[own]) / scale / len(z))


@every_temperature
@pytest.mark.parametrize("filled", [0, 3, 7])
def test_cueco_eq_1_gradient_of_the_instance_loss(rng, tau, filled):
    """The positive is in the denominator, beside the keys that the queue has so far."""
    z, key, queue = draw(rng, ROWS, ROWS, (7, D))
    of_z, *constants = gradients(
        losses.info_nce_queue, z, key, unit(queue), filled=jnp.int32(filled), temperature=tau
    )
    agree(of_z, instance_gradient(z, key, unit(queue)[:filled], tau))
    agree_zero(*constants)


def test_cueco_eq_2_initial_variances(rng):
    """Mean squared distance of the members to their centroid."""
    keys, centroids = draw(rng, (40, D), (3, D))
    c, z = unit(centroids), unit(keys)
    nearest = np.linalg.norm(z[:, None] - c[None], axis=2).argmin(1)
    clusters = online.start(keys, centroids)
    agree(clusters.centroids, c)
    for i in range(3):
        agree(clusters.variances[i], np.mean(np.sum((z[nearest == i] - c[i]) ** 2, axis=1)))


def test_cueco_eq_3_nearest_centroid(rng):
    """argmin_l ||z - c_l||, of z at length one: of unit centroids that of the largest cosine.

    Centroids that are not of length one are at their Euclidean distance.
    """
    z, c = draw(rng, (40, D), (K, D))
    for centroids in (unit(c), c):
        distances = np.linalg.norm(unit(z)[:, None] - centroids[None], axis=2)
        np.testing.assert_array_equal(online.assign(z, centroids), distances.argmin(1))
    np.testing.assert_array_equal(online.assign(z, unit(c)), (z @ unit(c).T).argmax(1))
    assert np.any(online.assign(z, c) != online.assign(z, unit(c)))
    # No gradient: the assignment is a constant.
    agree_zero(jax.grad(lambda z: jnp.sum(unit(c)[online.assign(z, unit(c))]))(z))


@every_temperature
def test_cueco_eq_4_gradient_of_the_centroid_contrast(rng, tau):
    """The centroids are constants, and a cluster without members has one too."""
    z, c = draw(rng, ROWS)[0], unit(rng.normal(size=(K, D)))
    of_z, of_c = gradients(losses.centroid_contrast, z, c, assigned=ASSIGNED, temperature=tau)
    agree(of_z, centroid_gradient(z, c, ASSIGNED, tau))
    agree_zero(of_c)


@pytest.mark.parametrize(("tau", "off"), [(1.0, 0.154), (0.5, 0.138), (0.1, 0.0242)])
def test_cueco_eq_4_misprints_the_own_centroid_twice(rng, tau, off):
    """The printed sum over all l has it again: each row's loss is then higher by log(1 + w_own)."""
    z, c = draw(rng, ROWS)[0], unit(rng.normal(size=(K, D)))
    own = np.eye(K, dtype=bool)[ASSIGNED]
    odds = np.exp(unit(z) @ c.T / tau)
    total = odds.sum(1) + odds[own]
    printed = -np.log(odds[own] / total)
    w = softmax(unit(z) @ c.T / tau)
    known = {"assigned": ASSIGNED, "temperature": tau}
    agree(np.mean(printed - np.log(1 + w[own])), losses.centroid_contrast(z, c, **known))
    of_printed = (odds * (1 + own) / total[:, None] @ c - c[ASSIGNED]) / (N * tau)
    gradient, _ = gradients(losses.centroid_contrast, z, c, **known)
    assert distance(at_rows(z, of_printed), gradient) == about(off)


def test_cueco_eq_5_gradient_of_the_variance_loss(rng):
    """Centroids and variances are constants."""
    z, c = draw(rng, ROWS)[0], unit(rng.normal(size=(K, D)))
    variances = np.array([0.3, 0.05, 1.4, 0.2, 0.7])
    of_z, of_c, of_variances = gradients(losses.variance_loss, z, c, variances, assigned=ASSIGNED)
    agree(of_z, variance_gradient(z, c, variances, ASSIGNED))
    agree_zero(of_c)
    agree_zero(of_variances)


@every_temperature
@pytest.mark.parametrize("by", ["key", "query"])
@pytest.mark.parametrize("step", [0, 1])
def test_cueco_eq_6_gradient_of_the_total(rng, step, by, tau):
    """lambda_1 (1) + lambda_2 (4) + lambda_3 (5), both directions / 2; only (1) in the warm-up.

    The own centroid is the nearest to the key, as in (2), or to the query, as (3) prints.
    """
    qa, qb, ka, kb, queue = draw(rng, *[ROWS] * 4, (2 * N, D))
    weights = {"instance": 0.7, "centroid": 0.4, "variance": 0.02}
    cueco, params, state = built(
        "cueco", n_clusters=K, temperature=tau, queue=2 * N, weights=weights, warmup="1 step",
        assign_by=by,
    )  # fmt: skip
    c, variances = unit(rng.normal(size=(K, D))), rng.uniform(0.1, 1, K)
    state = state._replace(
        queue=state.queue._replace(rows=unit(queue), filled=jnp.int32(9)),
        clusters=online.Clusters(c, variances),
    )

    def loss(queries, keys):
        encoded = free_rows(queries, queries, keys)
        return cueco.objective(params, encoded, state, jnp.int32(step), jax.random.key(0), None)[0]

    of_queries, of_keys = gradients(loss, (qa, qb), (ka, kb))
    for z, key, got in ((qa, kb, of_queries[0]), (qb, ka, of_queries[1])):
        own = np.argmax((key if by == "key" else z) @ c.T, axis=1)
        terms = [
            instance_gradient(z, key, unit(queue)[:9], tau),
            centroid_gradient(z, c, own, tau) * (step >= 1),
            variance_gradient(z, c, variances, own) * (step >= 1),
        ]
        total = sum(weight * term for weight, term in zip(weights.values(), terms, strict=True))
        agree(got, total / 2)
    agree_zero(*of_keys)


@pytest.mark.parametrize(("beta_1", "beta_2"), [(0.99, 0.99), (0.6, 0.2), (0.0, 1.0)])
def test_cueco_eq_7_and_8_updates_of_centroids_and_variances(rng, beta_1, beta_2):
    """c <- beta_1 c + (1 - beta_1) mean of the keys, of length one; sigma^2 about the c before.

    The clusters without members keep both.
    """
    keys, variances = draw(rng, ROWS)[0], rng.uniform(0.1, 1, K)
    c, z = unit(rng.normal(size=(K, D))), unit(keys)
    moved = online.update(
        online.Clusters(c, variances), keys, ASSIGNED, centroid_decay=beta_1, variance_decay=beta_2
    )
    for i in range(K):
        members = z[i == ASSIGNED]
        if len(members) == 0:
            agree(moved.centroids[i], c[i])
            agree(moved.variances[i], variances[i])
            continue
        agree(moved.centroids[i], unit(beta_1 * c[i] + (1 - beta_1) * members.mean(0)))
        squared = np.mean(np.sum((members - c[i]) ** 2, axis=1))
        agree(moved.variances[i], beta_2 * variances[i] + (1 - beta_2) * squared)


def test_cueco_eq_8_about_the_mean_of_the_batch_has_singletons_of_variance_zero(rng):
    """mu_i, "the mean vector of features in cluster i", is c_i here: L3 would grow without bound.

    About the mean of the batch a cluster with one member in each batch loses all of its variance,
    at beta_2 = 0 at once, and (5) would then divide by 1e-6 alone.
    """
    keys, c = draw(rng, ROWS)[0], unit(rng.normal(size=(K, D)))
    alone = keys[ASSIGNED == 4]
    moved = online.update(
        online.Clusters(c, np.ones(K)), keys, ASSIGNED, centroid_decay=0.5, variance_decay=0.0
    )
    agree(moved.variances[4], np.sum((unit(alone) - c[4]) ** 2))
    # The mean of one row is that row, and the squared distance to it 0.
    about_mean = np.array(moved.variances)
    about_mean[4] = 0
    assert losses.variance_loss(keys, c, about_mean, assigned=ASSIGNED) > 1e5
    assert losses.variance_loss(keys, c, moved.variances, assigned=ASSIGNED) < 2


# ------------------------------------------------------------------------------------------------
# Kernel-InfoNCE, Contrastive Learning Is Spectral Clustering on Similarity Graph: SimCLR, (1),
# exponential kernels, (7), (8), mixtures, CLIP, spectral clustering, (3), (4), (9)-(11), maximal
# entropy, theorem 5.1, and appendix C.
# ------------------------------------------------------------------------------------------------


def contrast_gradient(kernel, slope, positive, keep=True):
    """Gradient of the mean over rows i of -log K_i,positive / sum_k K_ik: at the rows, at the keys.

    Args:
        kernel: K of each row with each key `[m, n]`.
        slope: gradient of log K at the row `[m, n, d]`; at the key it is minus that.
        positive: 1 where the key is the row's positive, else 0 `[m, n]`.
        keep: keys over which the sum runs `[m, n]`.
    """
    share = np.where(keep, kernel, 0)
    weight = (share / share.sum(1, keepdims=True) - positive) / len(kernel)
    pairs = weight[:, :, None] * slope
    return pairs.sum(1), -pairs.sum(0)


def exponential(x, y, gamma, tau):
    """(7), K = exp(-||x - y||^gamma / tau), and the slope -gamma/tau ||x - y||^(gamma - 2) (x - y).

    A row at distance 0 is its own key, which no sum has; its slope is taken for 0.
    """
    apart = x[:, None] - y[None]
    length = np.linalg.norm(apart, axis=2)
    power = gamma * np.where(length == 0, 1, length) ** (gamma - 2) / tau
    return np.exp(-(length**gamma) / tau), -power[:, :, None] * apart


def views_gradient(a, b, pair):
    """Of (8) for two views: all 2n rows, their 2n - 1 keys; `pair` gives K and slope of rows."""
    z, n = np.concatenate([a, b]), len(a)
    positive = np.roll(np.eye(2 * n), n, axis=1)
    at_row, at_key = contrast_gradient(*pair(z, z), positive, ~np.eye(2 * n, dtype=bool))
    return np.split(at_row + at_key, 2)


@every_temperature
def test_kernel_infonce_eq_1_gradient_of_simclr(rng, tau):
    """NRCC (7) with the positive in the denominator too: the slope of <x, y> / tau is y / tau."""
    a, b = draw(rng, ROWS, ROWS)
    of_a, of_b = gradients(losses.info_nce_views, a, b, temperature=tau)
    z = unit(np.concatenate([a, b]))
    p = softmax(z @ z.T / tau, ~np.eye(2 * N, dtype=bool))
    positive = np.roll(np.eye(2 * N), N, axis=1)
    closed_form = at_rows(np.concatenate([a, b]), (p + p.T - 2 * positive) @ z / (2 * N * tau))
    agree(np.concatenate([of_a, of_b]), closed_form)
    # (2), ||x - y||^2 = 2 - 2 <x, y>: the Gaussian kernel of temperature 2 tau is the same loss.
    gaussian = losses.Kernel(gammas=(2.0,), temperatures=(2 * tau,))
    same = jax.grad(lambda a: losses.kernel_info_nce_views(a, b, kernel=gaussian))(a)
    agree(same, closed_form[:N])


@every_temperature
@pytest.mark.parametrize("gamma", [2.0, 1.0, 0.5])
def test_kernel_infonce_eq_7_and_8_gradient_of_exponential_kernels(rng, gamma, tau):
    a, b = draw(rng, ROWS, ROWS)
    kernel = losses.Kernel(gammas=(gamma,), temperatures=(tau,))
    of_a, of_b = gradients(losses.kernel_info_nce_views, a, b, kernel=kernel)
    free = views_gradient(unit(a), unit(b), lambda x, y: exponential(x, y, gamma, tau))
    agree(of_a, at_rows(a, free[0]))
    agree(of_b, at_rows(b, free[1]))


@pytest.mark.parametrize(
    ("gamma", "tau", "off"),
    [
        (2.0, 0.5, 2.06), (1.0, 0.5, 2.03), (0.5, 0.5, 2.03),
        (2.0, 1.0, 2.04), (1.0, 0.1, 1.99), (0.5, 0.1, 1.92),
    ],
)  # fmt: skip
def test_kernel_infonce_algorithm_2_misprints_the_sign_of_the_distance(rng, gamma, tau, off):
    """s = +||z_i - z_j||^gamma would be (7) with -tau: it pushes each view from its positive."""
    a, b = draw(rng, ROWS, ROWS)
    kernel = losses.Kernel(gammas=(gamma,), temperatures=(tau,))
    gradient = jax.grad(lambda a: losses.kernel_info_nce_views(a, b, kernel=kernel))(a)
    free = views_gradient(unit(a), unit(b), lambda x, y: exponential(x, y, gamma, -tau))
    assert distance(at_rows(a, free[0]), gradient) == about(off)


# Two kernels of section 5.2, with the share w of the first.
GAMMAS, SHARE = (2.0, 1.0), 0.3


def kernel_of(tau, mixture, halves):
    return losses.Kernel(
        gammas=GAMMAS, temperatures=(tau, 0.7 * tau), mixture=mixture, weight=SHARE, halves=halves
    )


def parts(x, halves):
    """What each of the two kernels sees of rows: all, or its own half of length one."""
    return [unit(half) for half in np.split(x, 2, axis=1)] if halves else [unit(x), unit(x)]


def mixed_gradient(rows, tau, mixture, halves, gradient):
    """Of a mixture, at rows of any length; `gradient(rows, pair)` is that of one kernel's loss.

    "kernel": K = w K_1 + (1 - w) K_2, whose slope is the mean of both slopes, each weighted with
    what its kernel adds to K. "loss": the loss is w L_1 + (1 - w) L_2.
    """
    width = D // 2 if halves else D

    def single(x, y, i):
        """Kernel i of what it sees, and its slope, 0 where the other kernel alone sees."""
        own = slice(i * width, (i + 1) * width) if halves else slice(None)
        k, slope = exponential(x[:, own], y[:, own], GAMMAS[i], (tau, 0.7 * tau)[i])
        whole = np.zeros((len(x), len(y), D))
        whole[:, :, own] = slope
        return k, whole

    def summed(x, y):
        (k_1, slope_1), (k_2, slope_2) = single(x, y, 0), single(x, y, 1)
        k = SHARE * k_1 + (1 - SHARE) * k_2
        added = SHARE * k_1[:, :, None] * slope_1 + (1 - SHARE) * k_2[:, :, None] * slope_2
        return k, added / k[:, :, None]

    normalized = [np.concatenate(parts(x, True), axis=1) if halves else unit(x) for x in rows]
    if mixture == "kernel":
        free = gradient(normalized, summed)
    else:
        each = [gradient(normalized, lambda x, y, i=i: single(x, y, i)) for i in (0, 1)]
        free = [SHARE * first + (1 - SHARE) * second for first, second in zip(*each, strict=True)]
    if not halves:
        return [at_rows(x, g) for x, g in zip(rows, free, strict=True)]
    x, g = (np.stack([np.split(row, 2, axis=1) for row in each]) for each in (rows, free))
    return list(np.concatenate(np.moveaxis(at_rows(x, g), 1, 0), axis=2))


every_mixture = pytest.mark.parametrize(
    ("mixture", "halves"),
    [("kernel", False), ("kernel", True), ("loss", False), ("loss", True)],
)


@every_temperature
@every_mixture
def test_kernel_infonce_section_5_2_gradient_of_mixtures(rng, mixture, halves, tau):
    """Sums of kernels (section 5.2) and of losses (appendix, Table 2), of whole rows and halves."""
    a, b = draw(rng, ROWS, ROWS)
    kernel = kernel_of(tau, mixture, halves)
    got = gradients(losses.kernel_info_nce_views, a, b, kernel=kernel)
    want = mixed_gradient(
        (a, b), tau, mixture, halves, lambda rows, pair: views_gradient(*rows, pair)
    )
    agree(got[0], want[0])
    agree(got[1], want[1])


def clip_gradient(a, b, pair):
    """Rows of A against all of B, and rows of B against all of A, over 2."""
    forth = contrast_gradient(*pair(a, b), np.eye(N))
    back = contrast_gradient(*pair(b, a), np.eye(N))
    return (forth[0] + back[1]) / 2, (forth[1] + back[0]) / 2


@every_temperature
def test_kernel_infonce_theorem_4_2_gradient_of_clip(rng, tau):
    """1/(2 n tau) [sum_j (p(i->j) + p(j->i)) b_j - 2 b_i], of cosines."""
    a, b = draw(rng, ROWS, ROWS)
    got = gradients(losses.clip, a, b, temperature=tau)
    for x, y, of_x in ((a, b, got[0]), (b, a, got[1])):
        logits = unit(x) @ unit(y).T / tau
        p = softmax(logits) + softmax(logits, axis=0)
        agree(of_x, at_rows(x, (p - 2 * np.eye(N)) @ unit(y) / (2 * N * tau)))


@every_temperature
@every_mixture
def test_kernel_infonce_theorem_4_2_gradient_of_clip_with_kernels(rng, mixture, halves, tau):
    a, b = draw(rng, ROWS, ROWS)
    kernel = kernel_of(tau, mixture, halves)
    got = gradients(losses.kernel_clip, a, b, kernel=kernel)
    want = mixed_gradient(
        (a, b), tau, mixture, halves, lambda rows, pair: clip_gradient(*rows, pair)
    )
    agree(got[0], want[0])
    agree(got[1], want[1])


@every_temperature
@pytest.mark.parametrize("gamma", [2.0, 1.0, 0.5])
def test_kernel_infonce_appendix_b_gradient_of_moco(rng, gamma, tau):
    """(8) with a queue: the keys are constants, the positive is in the denominator."""
    x, key, queue = draw(rng, ROWS, ROWS, (7, D))
    kernel = losses.Kernel(gammas=(gamma,), temperatures=(tau,))
    of_x, *constants = gradients(
        losses.kernel_info_nce_queue, x, key, queue, filled=jnp.int32(5), kernel=kernel
    )
    keys = np.concatenate([unit(key), unit(queue)[:5]])
    positive = np.eye(N, N + 5)
    keep = positive + (np.arange(N + 5) >= N) > 0
    at_row, _ = contrast_gradient(*exponential(unit(x), keys, gamma, tau), positive, keep)
    agree(of_x, at_rows(x, at_row))
    agree_zero(*constants)


def symmetric_graph(rng, n):
    """pi of section 3: symmetric, rows that sum to one, no loops."""
    pairings = [np.roll(np.eye(n), n // 2, axis=1), np.eye(n)[np.arange(n) ^ 1]]
    share = rng.uniform(0.2, 0.8)
    return share * pairings[0] + (1 - share) * pairings[1]


def expected_info_nce(z, pi, tau):
    """(9) with (10): the sum over i, j of pi_ij and the loss of row i with the positive j."""
    u, total = unit(z), 0.0
    for i, j in zip(*np.nonzero(pi), strict=True):
        own = np.arange(len(z))[None] == i
        total += pi[i, j] * losses.info_nce(
            u[i : i + 1], u, np.array([j]), temperature=tau, excluded=own
        )
    return total


def cross_entropy_of_graphs(z, pi, tau):
    """(3): over all graphs W with one edge from each vertex, of P(W; pi) and of P(W; K_Z).

    Definition 2.2: both are products over the edges, of pi and of the Gaussian kernel in (10),
    exp(-||Z_i - Z_j||^2 / 2 tau), scaled so that they sum to one over the graphs.
    """
    n, u = len(z), unit(z)
    others = [[j for j in range(n) if j != i] for i in range(n)]
    graphs = np.array(list(itertools.product(*others)))  # [W, i]: the end of the edge from i
    squared = jnp.sum((u[:, None] - u[None]) ** 2, axis=2)
    log_k = -jnp.sum(squared[np.arange(n), graphs], axis=1) / (2 * tau)
    of_pi = np.prod(pi[np.arange(n), graphs], axis=1)
    return -jnp.sum(of_pi / of_pi.sum() * jax.nn.log_softmax(log_k))


@every_temperature
def test_kernel_infonce_eq_3_9_and_10_cross_entropy_of_graphs_is_info_nce(rng, tau):
    """Lemmas 2.3, 2.4: rows of W are independent, each with K_ij / sum_{k != i} K_ik."""
    z, pi = draw(rng, (4, D))[0], symmetric_graph(rng, 4)
    agree(expected_info_nce(z, pi, tau), cross_entropy_of_graphs(z, pi, tau))
    agree(jax.grad(expected_info_nce)(z, pi, tau), jax.grad(cross_entropy_of_graphs)(z, pi, tau))


@pytest.mark.parametrize(("tau", "off"), [(1.0, 0.472), (0.5, 0.596), (0.1, 0.996)])
def test_kernel_infonce_lemma_2_3_misprints_the_row_itself_in_the_sum(rng, tau, off):
    """It divides by sum_j pi_ij, for K_Z with K_ii = 1; the graphs have no loops, (10) no k = i."""
    z, pi = draw(rng, (4, D))[0], symmetric_graph(rng, 4)

    def printed(z):
        u = unit(z)
        log_k = -jnp.sum((u[:, None] - u[None]) ** 2, axis=2) / (2 * tau)
        return -jnp.sum(pi * jax.nn.log_softmax(log_k, axis=1))

    assert distance(jax.grad(printed)(z), jax.grad(expected_info_nce)(z, pi, tau)) == about(off)


@every_temperature
def test_kernel_infonce_theorem_3_1_gradient_is_that_of_spectral_clustering(rng, tau):
    """InfoNCE, expected over the graph pi, descends tr(Z^T L(pi) Z) / tau + log R(Z), (4), (11).

    Its gradient is 2 L(pi) Z / tau, and sum_j (p_ij + p_ji) (Z_j - Z_i) / tau of the second term.
    The theorem prints the trace without 1 / tau.
    """
    n = 8
    z, pi = draw(rng, (n, D))[0], symmetric_graph(rng, n)
    u = unit(z)
    laplacian = np.diag(pi.sum(1)) - pi
    p = softmax(u @ u.T / tau, ~np.eye(n, dtype=bool))
    both = p + p.T
    repulsion = both @ u - both.sum(1, keepdims=True) * u
    closed_form = at_rows(z, (2 * laplacian @ u + repulsion) / tau)
    agree(jax.grad(expected_info_nce)(z, pi, tau), closed_form)
    # The trace is the sum over pi of the Gaussian kernel's exponents.
    squared = np.sum((u[:, None] - u[None]) ** 2, axis=2)
    agree(np.trace(u.T @ laplacian @ u) / tau, np.sum(pi * squared) / (2 * tau))


def energy(alpha, psi, tau):
    """E(alpha) of (P2), a distribution over candidates of similarities psi, the positive first."""
    return psi[0] - np.sum(alpha * psi) + tau * np.sum(alpha * np.log(alpha))


@every_temperature
def test_kernel_infonce_theorem_5_1_softmax_is_the_maximizer(rng, tau):
    """-E(alpha) is tau times InfoNCE less tau KL(alpha || alpha*), alpha* = softmax(psi / tau).

    So alpha* alone is the maximizer, of the value that the theorem prints; its slope at psi is
    alpha* - e_1. (P1), the entropy where psi_1 is no more than the mean, is at most that / tau.
    """
    psi = rng.normal(size=N)
    alpha = softmax(psi[None] / tau)[0]

    def loss(psi):
        # One anchor, and candidates whose inner products with it are psi.
        anchor, candidates = np.eye(1, D), psi[:, None] * np.eye(1, D)
        return tau * losses.info_nce(anchor, candidates, np.array([0]), temperature=tau)

    agree(-energy(alpha, psi, tau), loss(psi))
    agree(jax.grad(loss)(psi), alpha - np.eye(N)[0])
    feasible = 0
    for other in rng.dirichlet(np.ones(N), size=20):
        divergence = np.sum(other * np.log(other / alpha))
        agree(-energy(other, psi, tau), loss(psi) - tau * divergence)
        if psi[0] <= other @ psi:
            feasible += 1
            assert -np.sum(other * np.log(other)) <= loss(psi) / tau
    assert 0 < feasible < 20


@every_temperature
@pytest.mark.parametrize("gamma", [2.0, 1.0, 0.5])
def test_kernel_infonce_theorem_5_1_has_exponential_kernels_as_its_solution(rng, gamma, tau):
    """With psi_i = C - ||q - p_i||^gamma, C = 3, alpha* has the shares of (7), its value is (8)."""
    q, p = draw(rng, (1, D), (N, D))
    length = np.linalg.norm(unit(q) - unit(p), axis=1)
    odds = np.exp(-(length**gamma) / tau)
    kernel = losses.Kernel(gammas=(gamma,), temperatures=(tau,))
    loss = losses.kernel_info_nce_queue(q, p[:1], p[1:], filled=jnp.int32(N - 1), kernel=kernel)
    agree(-energy(odds / odds.sum(), 3 - length**gamma, tau), tau * loss)


@pytest.mark.parametrize(("p", "q"), [(1.0, 0.0), (0.75, 0.2)])
@every_temperature
def test_kernel_infonce_appendix_c_gradient_on_a_subgraph(rng, p, q, tau):
    """A batch of vertices of a graph of clusters, each with one edge of the graph as its positive.

    The gradient, at the vectors of all vertices in the plane, pulls both ends of an edge together.
    """
    clusters, size, batch = 3, 6, 10
    n = clusters * size
    cluster = np.arange(n) // size
    edges = rng.random((n, n)) < np.where(cluster[:, None] == cluster, p, q)
    np.fill_diagonal(edges, False)
    vertices = rng.choice(n, batch, replace=False)
    ends = np.array([rng.choice(np.flatnonzero(edges[i])) for i in vertices])
    excluded = vertices[:, None] == np.arange(n)
    z = rng.normal(size=(n, 2))

    def loss(z):
        u = unit(z)
        return losses.info_nce(u[vertices], u, ends, temperature=tau, excluded=excluded)

    u = unit(z)
    weight = softmax(u[vertices] @ u.T / tau, ~excluded) - (ends[:, None] == np.arange(n))
    closed_form = np.zeros_like(u)
    closed_form[vertices] += weight @ u / (batch * tau)
    closed_form += weight.T @ u[vertices] / (batch * tau)
    agree(jax.grad(loss)(z), at_rows(z, closed_form))


# ------------------------------------------------------------------------------------------------
# NCL, Neighborhood Contrastive Learning for Novel Class Discovery: the baseline, (1)-(5),
# neighborhood contrast, (6)-(11), hard negatives, (12)-(15), and the overall loss, (16).
# ------------------------------------------------------------------------------------------------

CLASSES = np.array([2, 0, 2, 3, 1, 0])


def at_logits(phi, gradient):
    """The gradient at the logits of the outputs phi of a softmax."""
    return phi * (gradient - np.sum(gradient * phi, axis=1, keepdims=True))


def pairwise_gradients(z, phi, other, threshold):
    """Of (3) with the targets (2), at both factors of p_ij, over all ordered pairs."""
    y, p = unit(z) @ unit(z).T >= threshold, phi @ other.T
    slope = np.where(y, -1 / p, 1 / (1 - p)) / len(z) ** 2
    return slope @ other, slope.T @ phi


def test_ncl_eq_1_gradient_of_the_cross_entropy(rng):
    """(phi - y) / n at the logits. The printed factor 1 / C^l, with y one-hot, is only a scale."""
    logits = 2 * rng.normal(size=(N, 4))
    y = np.eye(4)[CLASSES]
    agree(jax.grad(losses.cross_entropy)(logits, CLASSES), (softmax(logits) - y) / N)
    printed = -np.mean(np.sum(y * np.log(softmax(logits)), axis=1) / 4)
    agree(losses.cross_entropy(logits, CLASSES), 4 * printed)


@pytest.mark.parametrize("threshold", [0.95, 0.3, -0.2])
def test_ncl_eq_2_and_3_gradient_of_the_binary_cross_entropy(rng, threshold):
    """1/n^2 sum_j [-y_ij / p_ij + (1 - y_ij) / (1 - p_ij)] p'_j over all ordered pairs.

    (3) prints one view for both factors: the gradient is then the sum of those of two views.
    """
    z, phi = draw(rng, ROWS)[0], softmax(rng.normal(size=(N, 3)))
    other = softmax(rng.normal(size=(N, 3)))
    z[3] = 4 * z[0]  # alike at every threshold, whatever the lengths

    def loss(z, phi, other):
        pairs = losses.similar(z, n_classes=3, threshold=threshold)
        return losses.pairwise_bce(pairs, phi, other)

    of_z, *got = gradients(loss, z, phi, other)
    for of_factor, want in zip(got, pairwise_gradients(z, phi, other, threshold), strict=True):
        agree(of_factor, want)
    agree_zero(of_z)
    one_view = jax.grad(lambda phi: loss(z, phi, phi))(phi)
    agree(one_view, sum(pairwise_gradients(z, phi, phi, threshold)))


@pytest.mark.parametrize("sharpness", [0.1, 1, 4])
def test_ncl_eq_3_gradient_at_the_logits_of_soft_and_of_certain_outputs(rng, sharpness):
    """phi is a softmax: its outputs from nearly uniform, 0.1, to nearly one-hot, 4.

    Not in the paper: p_ij is clipped to 1e-7 from 0 and 1, and passes no gradient beyond.
    """
    z, logits, others = draw(rng, ROWS)[0], *(sharpness * rng.normal(size=(2, N, 3)))
    pairs = losses.similar(z, n_classes=3, threshold=0.3)

    def loss(logits, others):
        return losses.pairwise_bce(pairs, jax.nn.softmax(logits), jax.nn.softmax(others))

    phi, other = softmax(logits), softmax(others)
    want = pairwise_gradients(z, phi, other, 0.3)
    got = gradients(loss, logits, others)
    agree(got[0], at_logits(phi, want[0]))
    agree(got[1], at_logits(other, want[1]))
    certain = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    agree_zero(jax.grad(lambda phi: losses.pairwise_bce(pairs, phi, certain))(certain))


def test_ncl_eq_4_gradient_of_the_consistency(rng):
    """2 (phi - phihat) / (n C), and minus that at the other view."""
    phi, other = softmax(rng.normal(size=(N, 3))), softmax(rng.normal(size=(N, 3)))
    of_phi, of_other = gradients(losses.consistency, phi, other)
    agree(of_phi, 2 * (phi - other) / (3 * N))
    agree(of_other, -2 * (phi - other) / (3 * N))


@pytest.mark.parametrize("step", [0, 13, 40, 90])
def test_ncl_eq_5_ramp_of_the_consistency(step):
    """omega(t) = 5 exp(-5 (1 - t / T)^2), constant from T on; t are steps and T no whole epochs."""
    agree(losses.ramp(step, length=40), 5 * math.exp(-5 * (1 - min(step / 40, 1)) ** 2))


QUEUE, ENTRIES = 9, 7  # slots of a queue, and how many hold an entry


def weighted_contrast_gradient(z, view, entries, weights, tau, extra=()):
    """1/(n tau) sum_m (p_m - w_m) m over the view, the entries, and the negatives `extra[i]`.

    The gradient of -sum_m w_m log p_m, for weights that sum to one, of the view first.
    """
    closed_form = np.zeros_like(z)
    for i, row in enumerate(z):
        candidates = np.stack([view[i], *entries, *(extra[i] if len(extra) else ())])
        p = softmax(candidates[None] @ row / tau)[0]
        p[: len(weights[i])] -= weights[i]
        closed_form[i] = p @ candidates / (len(z) * tau)
    return closed_form


def neighbor_weights(z, entries, k, alpha):
    """(9): alpha for the view (6), (1 - alpha) / k for each of the k nearest entries (7), (8).

    k_1 is at most the number of entries, which the paper's full queue has.
    """
    k = min(k, len(entries))
    similarity = z @ entries.T
    nearest = similarity >= np.sort(similarity, axis=1)[:, -k][:, None]
    return np.concatenate([np.full((len(z), 1), alpha), (1 - alpha) / k * nearest], axis=1)


@every_temperature
@pytest.mark.parametrize(
    ("alpha", "equation"), [(1.0, "6"), (0.0, "8"), (0.2, "9")], ids=lambda x: f"eq {x}"
)
@pytest.mark.parametrize("neighbors", [3, QUEUE])
def test_ncl_eq_6_to_9_gradient_of_the_neighborhood_contrast(rng, neighbors, alpha, equation, tau):
    """alpha = 1 is the contrast (6) of the view alone, alpha = 0 that of neighbors, (7), (8)."""
    z, view, queue = draw(rng, ROWS, ROWS, (QUEUE, D))
    queue[ENTRIES:] = z[:2]  # no entries: they would be the nearest

    def loss(z, view, queue):
        return losses.neighborhood_contrast(
            z, view, queue, jnp.int32(ENTRIES), None, losses.Targets(neighbors, alpha),
            temperature=tau,
        )  # fmt: skip

    of_z, *constants = gradients(loss, z, view, queue)
    entries = unit(queue[:ENTRIES])
    weights = neighbor_weights(unit(z), entries, neighbors, alpha)
    free = weighted_contrast_gradient(unit(z), unit(view), entries, weights, tau)
    agree(of_z, at_rows(z, free))
    agree_zero(*constants)


def class_weights(labels, entry_labels):
    """(10), (11): 1 / |rho| for the view and for each entry of the same class."""
    same = labels[:, None] == entry_labels[None]
    rho = np.concatenate([np.ones((len(labels), 1)), same], axis=1)
    return rho / rho.sum(1, keepdims=True)


@every_temperature
def test_ncl_eq_10_and_11_gradient_of_the_supervised_contrast(rng, tau):
    """Weights 1 / |rho| of the view and of all entries of the same class."""
    z, view, queue = draw(rng, ROWS, ROWS, (QUEUE, D))
    queue[ENTRIES:] = z[:2]
    labels, queue_labels = np.array([1, 0, 2, 7, 1, 3]), np.array([1, 0, 2, 1, 1, 0, 3, 0, 1])

    def loss(z, view, queue):
        return losses.supervised_contrast(
            z, view, labels, queue, queue_labels, jnp.int32(ENTRIES), temperature=tau
        )

    of_z, *constants = gradients(loss, z, view, queue)
    weights = class_weights(labels, queue_labels[:ENTRIES])
    free = weighted_contrast_gradient(unit(z), unit(view), unit(queue[:ENTRIES]), weights, tau)
    agree(of_z, at_rows(z, free))
    agree_zero(*constants)


ROUNDS, MU = 2, (1 / 3, 2 / 3)  # N and mu of (13)
LABELED = 5  # entries of M^l
# k_2: fewer than the entries of M^u, more than these, more than its slots (the paper's 400).
every_count = pytest.mark.parametrize("count", [3, QUEUE - 1, 400])


def hardest_mixtures(keys, z, entries, labeled, count, slots=QUEUE):
    """eta_k (14) of each row: of the mixtures of its easiest entries with labeled ones, as vectors.

    k is k_2, or the number of entries if that is smaller. `jax.random` draws the labeled entry of
    each mixture, which no equation does.
    """
    k, found = min(count, len(entries)), []
    for key, row in zip(keys, z, strict=True):
        easiest = entries[np.argsort(entries @ row)[:k]]  # (12)
        drawn = jax.random.randint(key, (ROUNDS, min(count, slots)), 0, len(labeled))
        zeta = [
            unit(mu * easiest + (1 - mu) * labeled[partners[:k]]) for mu in MU for partners in drawn
        ]  # (13)
        zeta = np.concatenate(zeta)
        found.append(zeta[np.argsort(-zeta @ row)[:k]])
    return np.stack(found)


@pytest.fixture
def queues(rng):
    """Rows, their views, the queues M^u and M^l, and a key for each row's draws."""
    z, view, queue, labeled = draw(rng, ROWS, ROWS, (QUEUE, D), (LABELED + 2, D))
    labeled[LABELED:] = z[:2]  # no entries: their mixtures would be the hardest
    return z, view, queue, labeled, jax.random.split(jax.random.key(7), N)


def negatives_of(keys, z, queue, labeled, count):
    return losses.hard_negatives(
        keys, z, queue, jnp.int32(ENTRIES), labeled, jnp.int32(LABELED),
        losses.Mixing(count, ROUNDS, MU),
    )  # fmt: skip


@every_count
def test_ncl_eq_12_to_14_cosines_and_slopes_of_the_mixtures(queues, count):
    """delta(z, zeta) of the k_2 hardest mixtures; its slope at the row z is zeta, a constant."""
    z, _, queue, labeled, keys = queues
    entries, k = unit(queue[:ENTRIES]), min(count, ENTRIES)
    zeta = hardest_mixtures(keys, unit(z), entries, unit(labeled[:LABELED]), count)
    weight = np.arange(1.0, 1 + k)  # the k-th hardest counts k times

    def total(z, queue, labeled):
        negatives = negatives_of(keys, z, queue, labeled, count)
        return jnp.sum(negatives.similarities[:, :k] @ weight), negatives

    (of_z, *constants), got = jax.grad(total, (0, 1, 2), has_aux=True)(z, queue, labeled)
    np.testing.assert_array_equal(got.keep, [np.arange(min(count, QUEUE)) < ENTRIES] * N)
    agree(got.similarities[:, :k], np.einsum("ikd,id->ik", zeta, unit(z)))
    agree(of_z, at_rows(z, np.einsum("ikd,k->id", zeta, weight)))
    agree_zero(*constants)


@every_temperature
@every_count
def test_ncl_eq_15_gradient_with_hard_negatives(queues, count, tau):
    """M^u and eta_k share the denominator of (6), (8); neighbors and weights are those of M^u."""
    z, view, queue, labeled, keys = queues
    labeled[2] = 5 * z[1]  # whose mixtures are nearer to row 1 than its neighbors

    def loss(z, queue, labeled):
        negatives = negatives_of(keys, z, queue, labeled, count)
        return losses.neighborhood_contrast(
            z, view, queue, jnp.int32(ENTRIES), negatives, losses.Targets(3), temperature=tau
        )

    of_z, *constants = gradients(loss, z, queue, labeled)
    entries = unit(queue[:ENTRIES])
    zeta = hardest_mixtures(keys, unit(z), entries, unit(labeled[:LABELED]), count)
    weights = neighbor_weights(unit(z), entries, 3, 0.2)
    free = weighted_contrast_gradient(unit(z), unit(view), entries, weights, tau, zeta)
    agree(of_z, at_rows(z, free))
    agree_zero(*constants)


def looked_up(params, stats, images, *, train, axis):
    """A network whose parameters are its outputs: an image is the number of its row."""
    rows = params["backbone"]["rows"][images.reshape(-1).astype(int)]
    return Outputs(rows, rows, stats)


TABLE = Network(
    lambda key, images: ({"backbone": {"rows": jnp.zeros((4 * N, D))}}, {}), looked_up,
    predict=None, features=D, projections=D, frozen=None, any_size=False,
)  # fmt: skip
ROW_OF_VIEW = Augment(
    lambda key, image: image.astype(float), lambda key, image: image + 2.0 * N, clean=None
)
# The rows of the table: view a of labeled images and of unlabeled ones, and then their views b.
OLD_A, NEW_A, OLD_B, NEW_B = (slice(i * N, (i + 1) * N) for i in range(4))
VIEW_A, VIEW_B = slice(2 * N), slice(2 * N, 4 * N)
LENGTH = 2 * N  # slots of each of the two queues
WEIGHTS = {"ce": 0.9, "bce": 0.8, "consistency": 0.7, "ncl": 0.6, "scl": 0.5}


def baseline_gradient(z, heads, seen, omega):
    """Of (5), (1) + (3) + omega(t) (4), each by its weight, at all rows.

    Args:
        heads: phi^l and phi^u, linear: kernel and bias of each.
        seen: rows of view a and of view b that each head sees in (4).
    """
    total, phi = np.zeros_like(z), {}
    for name, (kernel, bias) in heads.items():
        phi[name] = softmax(z @ kernel + bias)
        a, b = seen[name]
        slope = 2 * (phi[name][a] - phi[name][b]) / phi[name][a].size
        for rows, sign in ((a, 1), (b, -1)):
            at_head = at_logits(phi[name][rows], sign * slope) @ kernel.T
            total[rows] += WEIGHTS["consistency"] * omega * at_head
    wrong = phi["labeled"][OLD_A] - np.eye(4)[CLASSES]
    total[OLD_A] += WEIGHTS["ce"] * wrong / N @ heads["labeled"][0].T
    factors = pairwise_gradients(z[NEW_A], phi["novel"][NEW_A], phi["novel"][NEW_B], 0.3)
    for rows, factor in zip((NEW_A, NEW_B), factors, strict=True):
        total[rows] += WEIGHTS["bce"] * at_logits(phi["novel"][rows], factor) @ heads["novel"][0].T
    return total


def contrasts_gradient(z, entries, known, known_classes, tau, extra=()):
    """Of (9) at view a of the unlabeled rows and of (11) at that of the labeled ones.

    Args:
        entries: M^u, unit rows.
        known: M^l, unit rows.
        known_classes: of M^l.
        tau: the temperature.
        extra: eta_k of each unlabeled row, (15).
    """
    u, total = unit(z), np.zeros_like(z)
    weights = neighbor_weights(u[NEW_A], entries, 3, 0.2)
    free = weighted_contrast_gradient(u[NEW_A], u[NEW_B], entries, weights, tau, extra)
    total[NEW_A] = WEIGHTS["ncl"] * at_rows(z[NEW_A], free)
    weights = class_weights(CLASSES, known_classes)
    free = weighted_contrast_gradient(u[OLD_A], u[OLD_B], known, weights, tau)
    total[OLD_A] = WEIGHTS["scl"] * at_rows(z[OLD_A], free)
    return total


@every_temperature
@pytest.mark.parametrize("consistency", ["own", "both"])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_ncl_eq_5_and_16_gradient_of_the_overall_loss(rng, step, consistency, tau):
    """The sum of the gradients above, each by its weight, and of (4) also by the ramp omega(t).

    (9) and (11) begin at step 1, hard negatives, (15), at step 2. In (4) each head sees its own
    images, as it is printed, or both see all.
    """
    hng = cases.STAGES["ncl"]["hng"] | {"count": 4, "rounds": ROUNDS, "mixing": MU}
    ncl, params, state = built(
        "ncl", TABLE, ROW_OF_VIEW, n_classes=3, threshold=0.3, consistency=consistency,
        temperature=tau, queue=LENGTH, weights=WEIGHTS, hng=hng,
    )  # fmt: skip
    z, queue, labeled, kernel = draw(rng, (4 * N, D), (LENGTH, D), (LENGTH, D), (D, 7))
    kernel = kernel / 8  # no outputs so near to one that 1 - p_ij is rounding
    heads = {
        "labeled": (kernel[:, :4], rng.normal(size=4)),
        "novel": (kernel[:, 4:], rng.normal(size=3)),
    }
    classes = rng.integers(0, 4, LENGTH).astype(np.int32)
    rows = {"z": unit(labeled), "label": classes}
    state = state._replace(
        labeled=state.labeled._replace(rows=rows, filled=jnp.int32(LABELED)),
        unlabeled=state.unlabeled._replace(rows=unit(queue), filled=jnp.int32(ENTRIES)),
    )
    index, key = np.arange(2 * N, dtype=np.int32), jax.random.key(11)
    images = index.astype(np.uint8)[:, None, None, None]
    batch = {
        "labeled": {"index": index[:N], "image": images[:N], "label": np.int32(CLASSES)},
        "unlabeled": {"index": index[N:], "image": images[N:]},
    }

    def loss(z):
        given = {name: {"kernel": head[0], "bias": head[1]} for name, head in heads.items()}
        own = {**params, "backbone": {"rows": z}, "heads": given}
        return ncl.loss(own, state, batch, jnp.int32(step), key, None)[0]

    seen = {"labeled": (OLD_A, OLD_B), "novel": (NEW_A, NEW_B)}
    if consistency == "both":
        seen = dict.fromkeys(seen, (VIEW_A, VIEW_B))
    want = baseline_gradient(z, heads, seen, omega=5 * math.exp(-5 * (1 - step / 4) ** 2))
    if step >= 1:
        entries, known = unit(queue[:ENTRIES]), unit(labeled[:LABELED])
        keys, extra = methods.image_keys(jax.random.split(key)[1], index[N:]), ()
        if step >= 2:
            extra = hardest_mixtures(keys, unit(z[NEW_A]), entries, known, 4, LENGTH)
        want += contrasts_gradient(z, entries, known, classes[:LABELED], tau, extra)
    agree(jax.grad(loss)(z), want)


# ------------------------------------------------------------------------------------------------
# Where the package claims a misprint.
# ------------------------------------------------------------------------------------------------


PACKAGE = pathlib.Path(losses.__file__).parent.parent
CLAIM = re.compile(
    "misprint|prints|printed|upside down|(?<!standard )deviations?|authors' code|official code"
    "|leaves open|Table 11",
    re.IGNORECASE,
)
TEST = re.compile(r"`(test_\w+)`")


def docstrings(*folders):
    """Name and docstring of each module, class and function, without the example."""
    for folder in folders:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = (ast.get_docstring(node) or "").split("Example:\n")[0]
                    yield f"{file.stem}.{getattr(node, 'name', '')}", " ".join(text.split())


def test_each_test_that_a_docstring_names_exists():
    named = {test for _, text in docstrings(".") for test in TEST.findall(text)}
    tests = pathlib.Path(__file__).parent.parent
    found = re.findall(
        r"^def (test_\w+)", "".join(x.read_text() for x in tests.rglob("*.py")), re.M
    )
    assert len(named) > 30
    assert named <= set(found)


def test_each_docstring_that_claims_a_misprint_or_a_deviation_names_its_test():
    """`methods.barlow.Config` says only that a factor is the authors'."""
    claims = {name: text for name, text in docstrings("losses", "methods", "samplers")}
    without = {
        name for name, text in claims.items() if CLAIM.search(text) and not TEST.search(text)
    }
    assert without == {"barlow.Config"}


def test_each_misprint_of_this_page_is_named_by_a_docstring():
    named = {test for _, text in docstrings(".") for test in TEST.findall(text)}
    misprint = re.compile("test_(nrcc|ncc|cueco|kernel_infonce|ncl)_.*_misprint")
    assert {name for name in globals() if misprint.match(name)} <= named
