"""MoCo's queue: what a batch meets, what enters, lengths; bad values of the methods beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cluster_jax.methods import base, encoders
from cluster_jax.methods.base import MethodContext
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig, ProjectorConfig
from tests import toy
from tests.data.test_views import OFF, augmentation
from tests.methods import cases

BOTH = pytest.mark.parametrize("case", ["moco", "kernel_infonce on moco"])


def context(images=64, shuffle=False):
    projector = ProjectorConfig(hidden=16, out=8)
    net = network.make(NetworkConfig("mlp", width=16, projector=projector))
    steps = {"total_steps": 10, "steps_per_epoch": 4, "total_updates": 10}
    return MethodContext(net, augmentation(**OFF), shuffle, images, batch_size=16, **steps)


def build(case, **changes):
    images = changes.pop("images", 64)
    return base.build(cases.METHODS[case]["name"], parse(case, **changes), context(images))


def parse(case, **changes):
    values = {**cases.METHODS[case], **changes}
    return base.parse(values.pop("name"), values)


def draw(keys, *shape):
    return jax.random.normal(next(keys), shape)


@BOTH
def test_a_queue_that_the_set_fills_twice_is_warned_about(case):
    build(case, images=64)
    with pytest.warns(UserWarning, match=r"queue = 32 is more than half of the 63 training"):
        build(case, images=63)


def test_each_pass_of_the_target_has_an_order_of_its_own(keys, monkeypatch):
    """Of shuffled BatchNorm: view a, view b, and the passes of a sampled view."""
    orders, shuffle = [], encoders.norm.shuffle

    def recorded(*arguments):
        images, order = shuffle(*arguments)
        orders.append(tuple(order.tolist()))
        return images, order

    monkeypatch.setattr(encoders.norm, "shuffle", recorded)
    method = base.build("moco", parse("moco"), context(shuffle=True))
    views = [draw(keys, 16, toy.SIDE, toy.SIDE, 1) for _ in range(2)]
    params, state = method.init(next(keys), views[0])
    for _ in range(2):  # and every step has others
        encoded, _ = method.encode(params, state, views, jnp.arange(16), 0, next(keys), None)
        encoded.sampler_inputs.branches["target"](views[0])
    assert len(set(orders)) == len(orders) == 6
    # What comes out has the order of the images: over the whole batch BatchNorm knows none.
    plain = base.build("moco", parse("moco"), context())
    other, _ = plain.encode(params, state, views, jnp.arange(16), 0, next(keys), None)
    np.testing.assert_allclose(encoded.targets, other.targets, atol=1e-5)
