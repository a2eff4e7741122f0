"""SwAV's loss against loops and its closed form."""

import functools

import jax
import numpy as np
import pytest

from cluster_jax.losses.swav import sinkhorn_codes, swapped_prediction
from tests import reference
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

SETTINGS = {"epsilon": 0.3, "iterations": 3}


def views(keys, count, rows=5, prototypes=4):
    return [np.asarray(jax.random.normal(next(keys), (rows, prototypes))) for _ in range(count)]


def codes_in_loops(scores):
    """(3): columns to one sum, then rows to the sum 1, three times."""
    q = np.exp(scores / SETTINGS["epsilon"])
    for _ in range(SETTINGS["iterations"]):
        for k in range(q.shape[1]):
            q[:, k] /= sum(q[:, k])
        for i in range(len(q)):
            q[i] /= sum(q[i])
    return q


def test_codes_equal_loops(keys):
    (scores,) = views(keys, 1)
    codes = sinkhorn_codes(scores, **SETTINGS)
    np.testing.assert_allclose(codes, codes_in_loops(scores), rtol=1e-12)


@every_row("count", [2, 4])
@every_row("tau", [1.0, 0.1])
def test_value_and_gradient_are_the_closed_form(keys, count, tau):
    """dL/ds = sum of (softmax(s / tau) - q) / tau over the codes q of the other views."""
    scores = views(keys, count)
    loss = functools.partial(swapped_prediction, temperature=tau, **SETTINGS)
    value, gradients = reference.value_and_grad(loss)(scores)
    want, free, pairs = 0.0, [np.zeros_like(s) for s in scores], 2 * (count - 1)
    for i, codes in enumerate(map(codes_in_loops, scores[:2])):
        for j in set(range(count)) - {i}:
            for row, (s, q) in enumerate(zip(scores[j], codes, strict=True)):
                logits = s / tau
                want += (reference.log_sum_exp(logits) - q @ logits) / 5 / pairs
                chance = np.exp(logits - reference.log_sum_exp(logits))
                free[j][row] += (chance - q) / tau / 5 / pairs
    np.testing.assert_allclose(value, want, rtol=1e-12)
    for got, closed in zip(gradients, free, strict=True):
        np.testing.assert_allclose(got, closed, atol=1e-12)
