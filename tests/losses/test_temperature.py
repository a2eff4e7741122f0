"""Every temperature is traced: another value compiles nothing, and it may be trained."""

import inspect
import logging

import jax
import numpy as np
import pytest

from cluster_jax import losses
from tests.rows import every_row

pytestmark = pytest.mark.usefixtures("x64")

A, B, C = np.random.default_rng(0).normal(size=(3, 4, 6))
LABELS, FILLED = np.array([0, 1, 1, 0], np.int32), np.int32(3)
CASES = {
    "centroid_contrast": lambda t: losses.centroid_contrast(A, B, LABELS, temperature=t),
    "clip": lambda t: losses.clip(A, B, temperature=t),
    "cluster_contrast": lambda t: losses.cluster_contrast(A, B, temperature=t),
    "info_nce": lambda t: losses.info_nce(A, B, np.arange(4), temperature=t),
    "info_nce_queue": lambda t: losses.info_nce_queue(A, B, C, FILLED, temperature=t),
    "info_nce_views": lambda t: losses.info_nce_views(A, B, temperature=t),
    "neighborhood_contrast": lambda t: losses.neighborhood_contrast(
        A, B, C, FILLED, None, neighbors=2, temperature=t
    ),
    "nrcc": lambda t: losses.nrcc(A, B, C, temperature=t),
    "nrcc_views": lambda t: losses.nrcc_views(A, B, A, B, C, temperature=t),
    "proto_cl": lambda t: losses.proto_cl(A, B, np.ones(4, bool), temperature=t),
    "proto_cl_views": lambda t: losses.proto_cl_views(
        (A, B), (B, A), LABELS, clusters=2, temperature=t
    ),
    "swapped_prediction": lambda t: losses.swapped_prediction((A, B), temperature=t),
    "supervised_contrast": lambda t: losses.supervised_contrast(
        A, B, LABELS, C, LABELS, FILLED, temperature=t
    ),
}
KERNELS = {
    "kernel_clip": lambda kernel: losses.kernel_clip(A, B, kernel=kernel),
    "kernel_info_nce_queue": lambda kernel: losses.kernel_info_nce_queue(
        A, B, C, FILLED, kernel=kernel
    ),
    "kernel_info_nce_views": lambda kernel: losses.kernel_info_nce_views(A, B, kernel=kernel),
}


def _of_kernel(loss):
    return lambda t: loss(losses.Kernel(temperatures=(t,)))


def test_no_loss_is_left_out():
    named = {
        name
        for name in dir(losses)
        if {"temperature", "kernel"} & set(inspect.signature(getattr(losses, name)).parameters)
    }
    assert named == CASES.keys() | KERNELS.keys()


@every_row("name", [*CASES, *KERNELS])
def test_another_temperature_compiles_nothing(caplog, name):
    loss = CASES[name] if name in CASES else _of_kernel(KERNELS[name])
    first = loss(0.5)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        second = loss(0.25)
    assert not [record for record in caplog.records if "ompiling" in record.message]
    assert abs(first - second) > 1e-3
    # Traced by the caller, it has a gradient: a difference quotient agrees.
    slope = jax.grad(lambda t: loss(t))(0.5)
    np.testing.assert_allclose(slope, (loss(0.5 + 1e-6) - loss(0.5 - 1e-6)) / 2e-6, rtol=1e-6)
