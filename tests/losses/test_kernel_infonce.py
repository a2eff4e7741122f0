"""Kernel-InfoNCE where rows are equal or close; `test_reference.py` has its values."""

import jax
import numpy as np
import pytest

from cluster_jax.losses.kernel_infonce import (
    Kernel,
    kernel_clip,
    kernel_info_nce_queue,
    kernel_info_nce_views,
    log_exponential,
)
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

TWO = {"gammas": (1.0, 2.0), "temperatures": (0.4, 0.7), "weight": 0.3}
KERNELS = {
    "gamma 0.5": Kernel(gammas=(0.5,), temperatures=(0.2,)),
    "kernels": Kernel(**TWO, mixture="kernel"),
    "halves, losses": Kernel(**TWO, mixture="loss", halves=True),
}


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
    ("form", "kernel"), [("views", "kernels"), ("queue", "gamma 0.5"), ("clip", "halves, losses")]
)
def test_the_gradient_of_close_positives_in_float32(keys, form, kernel):
    # From inner products a squared distance of 1e-8 is rounding, and with it the attraction.
    a, step, queue = (np.float32(jax.random.normal(next(keys), (6, 8))) for _ in range(3))
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
