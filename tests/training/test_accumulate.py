"""Steps whose gradients are added up: `train.accumulate`."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.core import mesh as meshes
from cluster_jax.methods.base import Aux, Method
from cluster_jax.training import build, loop, optim, progress
from cluster_jax.training import state as states
from cluster_jax.training.step import make_step
from tests import toy

ROWS = 8
SECTION = optim.OptimizerConfig(
    name="sgd", learning_rate=0.3, base_batch_size=4, weight_decay=0.02, momentum=0.9,
    predictor_lr_multiplier=1.0, warmup="0 steps", lr_decay_every=None,
    clip_norm=None, schedule="constant_schedule",
)  # fmt: skip


class State(NamedTuple):
    """Running sums of the network, a moving average, and what `after` was called with."""

    batch_stats: jax.Array
    average: jax.Array
    updates: jax.Array


def _init(key, images):
    del images
    weights = jax.random.normal(key, (4, 3), jnp.result_type(float))
    return {"network": weights}, State(jnp.zeros(()), jnp.copy(weights), jnp.full(9, -1))


def _loss(params, state, batch, step, key, axis):
    """A mean over rows, which sees no other rows."""
    x = batch["image"].reshape(-1, 4) / 255
    value = jnp.mean(jnp.sum(jnp.tanh(x @ params["network"]) ** 2, axis=1))
    state = state._replace(batch_stats=state.batch_stats + 1)
    return value, Aux(state, {"loss": value})


def _after(params, state, update):
    average = 0.9 * state.average + 0.1 * params["network"]
    updates = state.updates.at[jnp.sum(state.updates >= 0)].set(update)
    return {"network": 2 * params["network"]}, state._replace(average=average, updates=updates)


METHOD = Method(_init, _loss, _after)


def _made(total_steps, batch_size, accumulate, devices=2):
    optimizer, _ = optim.make(
        SECTION, total_steps=total_steps, steps_per_epoch=1, batch_size=batch_size,
        accumulate=accumulate, frozen=None,
    )  # fmt: skip
    mesh = meshes.make(devices)
    state = states.create(METHOD, optimizer, seed=0, shape=(2, 2, 1), mesh=mesh)
    return state, make_step(METHOD, optimizer, mesh)


def _batch(rows, devices=2):
    batch = {"index": np.arange(len(rows), dtype=np.int32), "image": rows}
    return jax.device_put(batch, meshes.sharded(meshes.make(devices)))


def _rows(steps, size=ROWS):
    return np.random.default_rng(0).random((steps, size, 2, 2, 1)) * 255


def test_steps_are_one_step_of_more_rows(x64):
    """State and parameters after every update; between two of them neither moves."""
    rows = _rows(6)
    state, step = _made(6, ROWS, 2)
    large, large_step = _made(3, 2 * ROWS, 1)
    for i in range(3):
        large, _ = large_step(large, _batch(np.concatenate(rows[2 * i : 2 * i + 2])), None)
        before = jax.device_get((state.params, state.model_state.average))
        state, _ = step(state, _batch(rows[2 * i]), None)
        _same(before, jax.device_get((state.params, state.model_state.average)))
        state, _ = step(state, _batch(rows[2 * i + 1]), None)
        for x, y in zip(
            jax.tree.leaves((state.params, state.model_state[1:])),
            jax.tree.leaves((large.params, large.model_state[1:])),
            strict=True,
        ):
            np.testing.assert_allclose(x, y, rtol=1e-12)
    assert (int(state.step), int(large.step)) == (6, 3)
    assert state.model_state.batch_stats == 6
    np.testing.assert_array_equal(state.model_state.updates[:4], [0, 1, 2, -1])


def test_a_step_that_is_not_finite_is_left_out(x64):
    """The next one takes its place, and updates are as if it had not been."""
    rows = _rows(4)
    state, step = _made(5, ROWS, 2)
    for each in (rows[0], np.full_like(rows[0], np.nan), *rows[1:]):
        state, metrics = step(state, _batch(each), None)
    assert np.isfinite(metrics["loss"])
    clean, step = _made(5, ROWS, 2)
    for each in rows:
        clean, _ = step(clean, _batch(each), None)
    _same(*(jax.device_get((s.params, s.model_state, s.opt)) for s in (state, clean)))
    assert (int(state.step), int(clean.step)) == (5, 4)


@pytest.mark.usefixtures("one_device", "compiled_once")
def test_a_training_in_two_parts(tmp_path):
    """BYOL + NRCC, stopped between two updates; the log has the rate of the update to come."""
    train = {"accumulate": 2, "duration": "6 steps", "checkpoint_every": 3, "log_every": 1}
    config = toy.byol(toy.config(toy.file(tmp_path), train=train))
    run = toy.built(config)
    ends = []
    for name, stops in (("whole", (6,)), ("parts", (3, 6))):
        for stop in stops:
            end = loop.train(
                run._replace(total_steps=stop), build.initial_state(run),
                workdir=tmp_path / name, embed=lambda state: {},
            )  # fmt: skip
        ends.append(states.checksum(end))
    assert ends[0] == ends[1]
    rates = [line["learning_rate"] for line in progress.read_log(tmp_path / "parts")]
    assert rates[::2] == rates[1::2]
    assert rates[4] < rates[0]


def _same(one, other):
    for (path, x), y in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def test_strict_promotion_of_dtypes_is_for_our_code_alone():
    """Optax raises floats to integer powers."""
    section = dataclasses.replace(SECTION, name="adamw")
    optimizer, _ = optim.make(
        section, total_steps=2, steps_per_epoch=1, batch_size=ROWS, accumulate=1, frozen=None
    )
    mesh = meshes.make(1)
    method = Method(_init, _loss, lambda params, state, update: (params, state))
    state = states.create(method, optimizer, seed=0, shape=(2, 2, 1), mesh=mesh)
    with jax.numpy_dtype_promotion("strict"):
        batch = _batch(jnp.zeros((ROWS, 2, 2, 1)), 1)
        state, metrics = make_step(method, optimizer, mesh)(state, batch, None)
    assert np.isfinite(metrics["loss"])
