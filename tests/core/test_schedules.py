"""Schedules at their corners, and durations."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import checks, schedules
from tests.rows import every_row


@every_row(
    ("value", "want"),
    [
        ("50 steps", 50),
        ("0 steps", 0),
        ("1 step", 1),
        ("3 epochs", 21),
        ("0.5 epochs", 4),
        (" 2  epochs ", 14),
    ],
)
def test_duration(value, want):
    assert checks.steps("key", value, 7) == want


def test_duration_is_not_rounded_up_by_rounding_errors():
    assert 0.55 * 100 > 55
    assert checks.steps("key", "0.55 epochs", 100) == 55


@every_row(
    "value", ["", "5", "steps", "2 hours", "-1 steps", "1 steps 2 epochs", "nan epochs", 5, None]
)
def test_other_durations_are_named(value):
    with pytest.raises(ValueError, match=r"like '1500 steps' or '200 epochs'; got"):
        checks.steps("key", value, 7)


def test_half_a_step_is_refused():
    with pytest.raises(ValueError, match=r"whole number of steps; got '2\.5 steps'"):
        checks.steps("key", "2.5 steps", 7)


def test_warmup_cosine_at_its_corners():
    schedule = schedules.warmup_cosine(2.0, 4, 12, end=0.5)
    np.testing.assert_allclose([schedule(s) for s in range(4)], [0.5, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(schedule(4), 2.0)
    np.testing.assert_allclose(schedule(8), 1.25)  # half way through the cosine
    np.testing.assert_allclose(schedule(6), 0.5 + 1.5 * (1 + math.cos(math.pi / 4)) / 2, rtol=1e-6)
    np.testing.assert_allclose([schedule(12), schedule(100)], 0.5)
    values = [float(schedule(s)) for s in range(4, 13)]
    assert all(late < early for early, late in itertools.pairwise(values))


def test_warmup_cosine_without_warmup_starts_at_the_peak():
    schedule = schedules.warmup_cosine(3.0, 0, 10)
    np.testing.assert_allclose(schedule(0), 3.0)
    np.testing.assert_allclose(schedule(5), 1.5, rtol=1e-6)
    np.testing.assert_allclose(schedule(10), 0, atol=1e-6)


def test_a_line_and_a_constant_after_the_warmup():
    schedule = schedules.warmup_linear(2.0, 4, 12, end=0.5)
    want = [0.5, 1.0, 1.5, 2.0, 2.0, 1.25, 0.5, 0.5]
    np.testing.assert_allclose([schedule(s) for s in (0, 1, 2, 3, 4, 8, 12, 99)], want)
    schedule = schedules.warmup_constant(3.0, 2)
    np.testing.assert_allclose([schedule(s) for s in (0, 1, 2, 99)], [1.5, 3.0, 3.0, 3.0])


def test_cosine_goes_from_start_to_end_and_stays():
    schedule = schedules.cosine(0.9, 1.0, 8)
    want = [1 - 0.1 * (1 + math.cos(math.pi * s / 8)) / 2 for s in range(9)]
    np.testing.assert_allclose([schedule(s) for s in range(9)], want, rtol=1e-6)
    np.testing.assert_allclose(schedule(20), 1.0)
    constant = schedules.cosine(0.99, 0.99, 8)
    np.testing.assert_allclose([constant(s) for s in (0, 3, 8, 9)], 0.99, rtol=1e-6)


def test_schedules_are_functions_of_a_traced_step(x64):
    for schedule in (schedules.warmup_cosine(2.0, 4, 12), schedules.cosine(0.9, 1.0, 8)):
        steps = jnp.arange(14, dtype=jnp.int32)
        traced = jax.jit(jax.vmap(schedule))(steps)
        assert traced.dtype == jnp.float64
        np.testing.assert_allclose(traced, [schedule(int(s)) for s in steps], rtol=1e-14)
