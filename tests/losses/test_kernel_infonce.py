"""Kernel-InfoNCE against loops, closed forms, limits, and on devices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.losses.kernel_infonce import (
    Kernel,
    kernel_clip,
    kernel_info_nce_queue,
    kernel_info_nce_views,
    log_exponential,
)
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")


def one(gamma, temperature):
    return Kernel(
        gammas=(gamma,), temperatures=(temperature,), mixture=None, weight=None, halves=False
    )


def two(mixture, weight=0.3, gammas=(1.0, 2.0), temperatures=(0.4, 0.7), halves=False):
    return Kernel(
        gammas=gammas, temperatures=temperatures, mixture=mixture, weight=weight, halves=halves
    )


KERNELS = {
    "laplacian": one(1.0, 0.3),
    "gamma 0.5": one(0.5, 0.2),
    "kernels": two("kernel"),
    "losses": two("loss", gammas=(0.5, 2.0)),
    "halves, kernels": two("kernel", gammas=(2.0, 1.0), halves=True),
    "halves, losses": two("loss", halves=True),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
mixtures = pytest.mark.parametrize("kernel", [KERNELS["kernels"], KERNELS["halves, losses"]])


def draw(keys, *shape):
    return np.asarray(jax.random.normal(next(keys), shape))


def unit_halves(x):
    middle = x.shape[1] // 2
    return np.concatenate([reference.unit(x[:, :middle]), reference.unit(x[:, middle:])], 1)


def losses_in_loops(kernel, rows, compute):
    """`compute(normalized rows, like)` for the loss, or the two losses, of a kernel."""
    rows = [unit_halves(x) if kernel.halves else reference.unit(x) for x in rows]

    def single(part):
        def like(x, y):
            if kernel.halves:
                x, y = (np.split(z, 2)[part] for z in (x, y))
            return reference.kernel(x, y, [kernel.gammas[part]], [kernel.temperatures[part]], None)

        return like

    if kernel.mixture is None:
        return compute(rows, single(0))
    w = kernel.weight
    if kernel.mixture == "loss":
        return w * compute(rows, single(0)) + (1 - w) * compute(rows, single(1))
    return compute(rows, lambda x, y: w * single(0)(x, y) + (1 - w) * single(1)(x, y))


@mixtures
def test_clip_equals_loops(keys, kernel):
    a, b = draw(keys, 5, 4), np.sinh(draw(keys, 5, 4))

    def compute(rows, like):
        x, y = rows
        return (
            reference.kernel_info_nce(x, y, range(5), like)
            + reference.kernel_info_nce(y, x, range(5), like)
        ) / 2

    got = kernel_clip(a, b, kernel=kernel, axis=None)
    np.testing.assert_allclose(got, losses_in_loops(kernel, [a, b], compute), rtol=1e-11)


def slope(kernel, part, x, y):
    """The gradient of log K at x: -gamma/tau d^(gamma-2) (x - y) of one kernel or of each half.

    Of a sum of kernels, the mean of their slopes weighted with what each adds to the sum.
    """
    if part is None:
        shares = kernel.weight, 1 - kernel.weight
        added = [w * like(kernel, i, x, y) for i, w in enumerate(shares)]
        slopes = [slope(kernel, i, x, y) for i in range(2)]
        return (added[0] * slopes[0] + added[1] * slopes[1]) / sum(added)
    gamma, tau = kernel.gammas[part], kernel.temperatures[part]
    out, own = np.zeros_like(x), own_half(kernel, part, len(x))
    apart = (x - y)[own]
    out[own] = -gamma / tau * np.linalg.norm(apart) ** (gamma - 2) * apart
    return out


def like(kernel, part, x, y):
    if part is None:
        return sum(
            w * like(kernel, i, x, y) for i, w in enumerate((kernel.weight, 1 - kernel.weight))
        )
    own = own_half(kernel, part, len(x))
    return reference.kernel(
        x[own], y[own], [kernel.gammas[part]], [kernel.temperatures[part]], None
    )


def own_half(kernel, part, size):
    if not kernel.halves:
        return slice(None)
    return slice(size // 2 * part, size // 2 * (part + 1))


def losses_of(kernel):
    """(share, part) of each loss; part None is the sum of both kernels."""
    if kernel.mixture == "loss":
        return (kernel.weight, 0), (1 - kernel.weight, 1)
    return ((1.0, 0 if kernel.mixture is None else None),)


def through(kernel, x, gradient):
    """Back through the normalization, of the halves where each is unit."""
    if not kernel.halves:
        return reference.through_unit(x, gradient)
    pairs = zip(np.split(x, 2, 1), np.split(gradient, 2, 1), strict=True)
    return np.concatenate([reference.through_unit(*pair) for pair in pairs], 1)


def softmaxes(kernel, part, x, candidates):
    odds = np.array([like(kernel, part, x, y) for y in candidates])
    return odds / odds.sum()


@every_kernel
def test_views_equal_loops_and_their_gradient_the_closed_form(keys, kernel):
    # 1/N sum_k (p(i->k) - [k is i's positive] + p(k->i) - [i is k's]) slope(z_i, z_k).
    a, b = 2 * draw(keys, 3, 4), draw(keys, 3, 4)

    def compute(rows, like):
        z, itself = np.concatenate(rows), {(i, i) for i in range(6)}
        return reference.kernel_info_nce(z, z, [3, 4, 5, 0, 1, 2], like, itself)

    z = np.concatenate([unit_halves(x) if kernel.halves else reference.unit(x) for x in (a, b)])
    free = np.zeros_like(z)
    for share, part in losses_of(kernel):
        p = np.zeros((6, 6))
        for i in range(6):
            others = [k for k in range(6) if k != i]
            p[i, others] = softmaxes(kernel, part, z[i], z[others])
            p[i, (i + 3) % 6] -= 1
        for i, k in itertools.permutations(range(6), 2):
            free[i] += share * (p[i, k] + p[k, i]) * slope(kernel, part, z[i], z[k]) / 6
    loss = functools.partial(kernel_info_nce_views, kernel=kernel, axis=None)
    value, (of_a, of_b) = reference.value_and_grad(loss, argnums=(0, 1))(a, b)
    np.testing.assert_allclose(value, losses_in_loops(kernel, [a, b], compute), rtol=1e-11)
    np.testing.assert_allclose(of_a, through(kernel, a, free[:3]), atol=1e-8)
    np.testing.assert_allclose(of_b, through(kernel, b, free[3:]), atol=1e-8)


@every_kernel
def test_the_queue_equals_loops_and_its_gradient_the_closed_form(keys, kernel):
    # 1/n sum_m (p_m - [m is the key]) slope(x, y_m); the keys and the queue are constants.
    x, key, queue = 2 * draw(keys, 3, 4), 3 * draw(keys, 3, 4), draw(keys, 5, 4)
    u, key_u, queue_u = (
        unit_halves(rows) if kernel.halves else reference.unit(rows) for rows in (x, key, queue)
    )
    loss = functools.partial(kernel_info_nce_queue, kernel=kernel)
    value_and_grad = reference.value_and_grad(loss, argnums=(0, 1, 2))
    for filled in (0, 1, 5):
        free = np.zeros_like(u)
        for i, (share, part) in itertools.product(range(3), losses_of(kernel)):
            candidates = [key_u[i], *queue_u[:filled]]
            p = softmaxes(kernel, part, u[i], candidates)
            p[0] -= 1
            for weight, y in zip(p, candidates, strict=True):
                free[i] += share * weight * slope(kernel, part, u[i], y) / 3

        def compute(rows, like, filled=filled):
            pairs = zip(rows[0], rows[1], strict=True)
            own = [(x, [y, *rows[2][:filled]]) for x, y in pairs]
            return np.mean([reference.kernel_info_nce([x], y, [0], like) for x, y in own])

        value, (of_x, *constants) = value_and_grad(x, key, queue, jnp.int32(filled))
        want = losses_in_loops(kernel, [x, key, queue], compute)
        np.testing.assert_allclose(value, want, rtol=1e-11, atol=1e-14)
        np.testing.assert_allclose(of_x, through(kernel, x, free), atol=1e-8)
        for gradient in constants:
            np.testing.assert_array_equal(gradient, 0)


def test_a_closer_positive_lowers_the_loss(keys):
    """Algorithm 2 prints the distance without the minus sign: it would push positives away."""
    a, b = reference.unit(draw(keys, 6, 4)), reference.unit(draw(keys, 6, 4))
    for kernel in KERNELS.values():
        loss = functools.partial(kernel_info_nce_views, b=b, kernel=kernel, axis=None)
        assert loss(a + 0.3 * b) < loss(a) < loss(a - 0.3 * b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_value_and_slope_at_distance_0_are_zero(dtype):
    x = np.array([[1.0, 0.0], [0.0, 1.0]], dtype)  # inner products without rounding
    gammas = (0.1, 0.5, 1.0, 1.5, 2.0, 3.0)

    def value(x, y, gamma):
        return log_exponential(x, y, gamma=gamma, temperature=0.5)[0, 0]

    @jax.jit
    def values_and_slopes(x, y):
        return [jax.value_and_grad(value, argnums=(0, 1))(x, y, gamma) for gamma in gammas]

    for gamma, result in zip(gammas, values_and_slopes(x, x), strict=True):
        for array in jax.tree.leaves(result):
            np.testing.assert_array_equal(array, 0, err_msg=f"gamma {gamma}")


@every_row(
    ("form", "kernel"),
    [
        *(("views", kernel) for kernel in ("laplacian", "gamma 0.5", "kernels", "halves, losses")),
        ("queue", "gamma 0.5"),
        ("clip", "halves, losses"),
    ],
)
def test_the_gradient_of_close_positives_in_float32(keys, form, kernel):
    # From inner products a squared distance of 1e-8 is rounding, and with it the attraction.
    a, step, queue = (np.float32(draw(keys, 6, 8)) for _ in range(3))
    b = a + np.float32(1e-4) * step
    kernel = KERNELS[kernel]

    def loss(a, b):
        if form == "queue":
            return kernel_info_nce_queue(a, b, queue.astype(a.dtype), np.int32(6), kernel=kernel)
        return {"views": kernel_info_nce_views, "clip": kernel_clip}[form](a, b, kernel=kernel)

    got = jax.grad(loss)(a, b)
    want = jax.grad(loss)(np.float64(a), np.float64(b))
    assert got.dtype == np.float32
    assert np.linalg.norm(got - want) < 0.01 * np.linalg.norm(want)
