"""Frozen blocks: no gradient, no move, no change of statistics; drops of a rate."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cluster_jax.training import optim
from tests.nets.test_network import RESNET, SMALL, VIT, images_of, network_of, start
from tests.rows import every_row

VALUES = {
    "learning_rate": 0.3,
    "base_batch_size": None,
    "weight_decay": 0.1,
    "momentum": 0.9,
    "predictor_lr_multiplier": 1.0,
    "clip_norm": None,
    "schedule": "cosine_decay_schedule",
    "lr_decay_every": None,
}
# First modules of each block, by their names.
NAMED = {
    "small": {
        "conv1": ("Conv_0", "BatchNorm_0"),
        "conv2": ("Conv_1", "BatchNorm_1"),
        "conv3": ("Conv_2", "BatchNorm_2"),
        "conv4": ("Conv_3", "BatchNorm_3"),
        "dense": ("Dense_0", "BatchNorm_4"),
    },
    "resnet18": {
        "stem": ("conv1", "bn1"),
        "stage1": ("layer1_0", "layer1_1"),
        "stage2": ("layer2_0", "layer2_1"),
        "stage3": ("layer3_0", "layer3_1"),
        "stage4": ("layer4_0", "layer4_1"),
    },
    "vit_tiny_patch16": {
        "embedding": ("embedding",),
        "block1": ("block1",),
        "block2": ("block2",),
        "block3": ("block3", "norm"),
    },
}
CASES = [(SMALL, "conv1"), (SMALL, "dense"), (RESNET, "stage3")]
CASES += [(VIT, "embedding"), pytest.param(VIT, "block3", marks=pytest.mark.slow)]


def build(base, frozen):
    return network_of({**base, "frozen": frozen, "predictor": None})


def modules(name, last):
    """Names of the modules of all blocks up to and with `last`."""
    blocks = list(NAMED[name])
    return {m for block in blocks[: blocks.index(last) + 1] for m in NAMED[name][block]}


def moved(a, b):
    """Names `part.module` of which a leaf differs, and of which one is the same."""
    differences = {
        f"{part}.{module}": [
            not np.array_equal(x, y)
            for x, y in zip(jax.tree.leaves(leaves), jax.tree.leaves(b[part][module]), strict=True)
        ]
        for part, submodules in a.items()
        for module, leaves in submodules.items()
    }
    changed = {name for name, values in differences.items() if any(values)}
    return changed, {name for name, values in differences.items() if not all(values)}


def names(tree):
    return {f"{part}.{module}" for part, submodules in tree.items() for module in submodules}


def backward(network, params, stats, images):
    """Gradients of an asymmetric function of the outputs, and the new statistics."""

    def value(params, images):
        out = network.forward(params, stats, images, train=True, axis=None)
        weights = jnp.sin(jnp.arange(out.projection.size)).reshape(out.projection.shape)
        return jnp.sum(out.projection * weights) + jnp.sum(out.representation**2), out.stats

    return jax.grad(value, argnums=(0, 1), has_aux=True)(params, images)


def optimizer_of(name, *, total_steps=9, batch_size=4, frozen=None, **changes):
    values = {**VALUES, "warmup": "0 steps", **changes}
    return optim.make(
        optim.OptimizerConfig(name=name, **values), total_steps=total_steps, steps_per_epoch=1,
        batch_size=batch_size, accumulate=1, frozen=frozen,
    )  # fmt: skip


def stepped(network, params, name):
    """Parameters after two steps with gradients everywhere: only the mask holds any back."""
    optimizer, _ = optimizer_of(name, frozen=network.frozen)

    def steps(params):
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
            params = optax.apply_updates(params, updates)
        return params

    return jax.jit(steps)(params)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(("base", "last"), CASES)
def test_frozen_blocks_stay_as_they_are(keys, base, last):
    """In gradients, statistics, the mask, and an optimizer's steps with momentum and decay."""
    network = build(base, last)
    params, stats = start(keys, network, jnp.zeros((1, 16, 16, 1)))
    images = images_of(keys, 4, side=16)
    frozen = {f"backbone.{m}" for m in modules(base["name"], last)}
    (gradients, _), new = jax.jit(partial(backward, network))(params, stats, images)

    zero = jax.tree.map(np.zeros_like, params)
    changed, unchanged = moved(gradients, zero)
    assert names(params) - changed == frozen
    assert unchanged == frozen

    changed, unchanged = moved(stats, new)
    assert changed == unchanged ^ names(stats) == names(stats) - frozen

    mask = network.frozen(params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    for part, submodules in mask.items():
        for module, leaves in submodules.items():
            assert set(jax.tree.leaves(leaves)) == {f"{part}.{module}" in frozen}

    changed, unchanged = moved(params, stepped(network, params, "sgd"))
    assert names(params) - changed == unchanged == frozen


@pytest.mark.usefixtures("shallow")
@every_row("base", [SMALL, VIT], slow=[RESNET])
def test_nothing_is_frozen_by_default(keys, base):
    network = build(base, None)
    assert network.frozen is None
    params, stats = start(keys, network, jnp.zeros((1, 16, 16, 1)))
    images = images_of(keys, 4, side=16)
    (gradients, of_images), new = jax.jit(partial(backward, network))(params, stats, images)
    assert moved(gradients, jax.tree.map(np.zeros_like, params)) == (names(params), set())
    assert moved(stats, new) == (names(stats), set())
    assert all(np.abs(image).max() > 0 for image in of_images)


@pytest.mark.parametrize("name", ["adamw", "lars"])
def test_no_optimizer_moves_a_frozen_parameter(keys, name):
    network = build(SMALL, "conv3")
    params, _ = start(keys, network)
    frozen = {f"backbone.{m}" for m in modules("small", "conv3")}
    changed, unchanged = moved(params, stepped(network, params, name))
    assert names(params) - changed == unchanged == frozen


@every_row(
    ("base", "block", "blocks"),
    [
        (SMALL, "stage1", "'conv1', 'conv2', 'conv3', 'conv4', 'dense'"),
        (RESNET, "conv1", "'stem', 'stage1', 'stage2', 'stage3', 'stage4'"),
        (RESNET, "", "'stem', 'stage1', 'stage2', 'stage3', 'stage4'"),
        (VIT, "norm", ", ".join(["'embedding'", *(f"'block{i}'" for i in range(1, 13))])),
    ],
)
def test_unknown_block(base, block, blocks):
    message = f"^network.frozen must be one of {blocks}; got {block!r}$"
    with pytest.raises(ValueError, match=message):
        build(base, block)


def test_rate_is_a_tenth_after_every_drop():
    _, rate = optimizer_of(
        "sgd", batch_size=8, total_steps=99, base_batch_size=4, warmup="2 steps",
        schedule="piecewise_constant_schedule", lr_decay_every="3 steps",
    )  # fmt: skip
    # Twice the base batch size: twice 0.3. Two steps of warm-up do not move the drops.
    expected = [0.3, 0.6, 0.6, 0.06, 0.06, 0.06, 0.006, 0.006, 0.006, 0.0006]
    np.testing.assert_allclose([float(rate(i)) for i in range(10)], expected, rtol=1e-5)
