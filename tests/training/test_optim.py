"""Optimizers against their recursions in plain numpy: parameter groups, order, values."""

import jax
import numpy as np
import optax
import pytest

from cluster_jax.core.checks import InputError
from cluster_jax.training import optim

pytestmark = pytest.mark.usefixtures("x64")

STEPS, WARMUP, BATCH = 6, 2, 8
VALUES = {
    "learning_rate": 0.3,
    "base_batch_size": 4,
    "weight_decay": 0.02,
    "momentum": 0.9,
    "predictor_lr_multiplier": 10.0,
    "clip_norm": None,
    "warmup": f"{WARMUP} steps",
    "schedule": "cosine_decay_schedule",
    "lr_decay_every": None,
}


@pytest.fixture
def params(rng):
    return {
        "backbone": {
            "conv": {"kernel": rng.normal(size=(3, 3, 2, 4))},
            "norm": {"scale": rng.normal(size=4), "bias": rng.normal(size=4)},
        },
        "projector": {"kernel": rng.normal(size=(4, 3)), "bias": np.zeros(3)},
        "predictor": {"kernel": 5 * rng.normal(size=(3, 3)), "bias": rng.normal(size=3)},
    }


def flat(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def in_numpy(params, gradients, name):
    """`sgd` or `lars`, one parameter after another."""
    rates = [0.3, 0.6] + [0.6 * 0.5 * (1 + np.cos(np.pi * i / 4)) for i in range(4)]
    out = {}
    for key, value in flat(params):
        value, trace = np.array(value), np.zeros_like(value)
        kernel = key.endswith("kernel")
        for rate, gradient in zip(rates, gradients, strict=True):
            g = dict(flat(gradient))[key]
            if kernel:
                g = g + 0.02 * value
                if name == "lars":
                    g = g * 0.001 * np.sqrt((value**2).sum()) / np.sqrt((g**2).sum())
            trace = 0.9 * trace + g
            value = value - rate * trace * (10 if key.startswith("predictor") else 1)
        out[key] = value
    return out


def made(total_steps=STEPS, batch_size=BATCH, accumulate=1, **values):
    """The optimizer and its rate."""
    return optim.make(
        optim.OptimizerConfig(**values), total_steps=total_steps, steps_per_epoch=1,
        batch_size=batch_size, accumulate=accumulate, frozen=None,
    )  # fmt: skip


def run(params, gradients, name, **values):
    optimizer, _ = made(name=name, **{**VALUES, **values})

    @jax.jit
    def step(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return dict(flat(jax.device_get(params)))


def like(params, rng):
    return jax.tree.map(lambda value: rng.normal(size=value.shape), params)


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_recursion_and_parameter_groups(params, rng, name):
    """Neither decay nor adaptation for biases and norms; ten times the rate for the predictor."""
    gradients = [like(params, rng) for _ in range(STEPS)]
    got, want = run(params, gradients, name), in_numpy(params, gradients, name)
    assert sorted(got) == sorted(want)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-12, err_msg=key)


@pytest.mark.parametrize("zero", ["params", "gradients"])
def test_lars_of_zeros_is_finite(params, rng, zero):
    gradient = like(params, rng)
    if zero == "params":
        params = jax.tree.map(np.zeros_like, params)
    else:
        gradient = jax.tree.map(np.zeros_like, gradient)
    for value in run(params, [gradient] * 2, "lars").values():
        assert np.isfinite(value).all()


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_two_batches_are_one_of_twice_the_size(params, rng, name):
    """Momentum, decay, warm-up and the scaled rate as for the mean gradients; one is left over."""
    gradients = [like(params, rng) for _ in range(2 * STEPS)]
    pairs = zip(gradients[::2], gradients[1::2], strict=True)
    means = [jax.tree.map(lambda a, b: (a + b) / 2, *pair) for pair in pairs]
    large = run(params, means, name, batch_size=2 * BATCH)
    lengths = {"total_steps": 2 * STEPS + 1, "warmup": f"{2 * WARMUP} steps"}
    small = run(params, [*gradients, gradients[0]], name, accumulate=2, **lengths)
    for key, value in large.items():
        np.testing.assert_allclose(small[key], value, rtol=1e-12, atol=1e-14, err_msg=key)


@pytest.mark.parametrize(("every", "drops"), [(None, None), ("5 steps", 2)])
def test_the_rate_counts_updates(every, drops):
    """Of three batches: a warm-up of 4 steps is two updates, drops every 5 steps as well."""
    values = {**VALUES, "name": "sgd"}
    schedule = optim.DROPS if every else "cosine_decay_schedule"
    lengths = {"warmup": "4 steps", "schedule": schedule, "lr_decay_every": every}
    _, rate = made(total_steps=20, accumulate=3, **{**values, **lengths})
    lengths |= {"warmup": "2 steps", "lr_decay_every": drops and f"{drops} steps"}
    _, larger = made(total_steps=6, batch_size=3 * BATCH, **{**values, **lengths})
    got, want = (
        [float(f(i)) for i in steps] for f, steps in ((rate, range(18)), (larger, range(6)))
    )
    np.testing.assert_allclose(got, np.repeat(want, 3), rtol=1e-12)


def test_a_training_without_an_update_is_refused():
    with pytest.raises(InputError, match=r"train.accumulate must be at most 6 steps, .*; got 7"):
        made(name="sgd", accumulate=7, **VALUES)


def test_a_warmup_as_long_as_the_training_is_refused():
    with pytest.raises(InputError, match=r"shorter than train.duration, 6 steps; got 6: lower it"):
        made(total_steps=6, name="sgd", **{**VALUES, "warmup": "6 steps"})
    made(total_steps=6, name="sgd", **{**VALUES, "warmup": "5 steps"})
