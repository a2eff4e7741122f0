"""BatchNorm over the global batch or over groups of fixed size, and MoCo's shuffled batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import collectives
from cluster_jax.core.collectives import Axis
from cluster_jax.core.ops import upcast

MOMENTUM = 0.9  # flax's convention: the share of the old value; torch calls it 0.1
EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Normalizes each channel (last axis) by the mean and variance of the other axes.

    Ioffe & Szegedy (2015). With `group=None` the statistics are those of the global batch
    ("sync"). Otherwise they are those of `group` consecutive rows ("local"), and the running
    statistics are averages over the groups: the result then depends on the size of a group and
    not on the number of devices. The variance is biased, in the running statistics too (torch
    keeps the unbiased one there), and is the mean squared deviation: the mean square less the
    squared mean loses all digits when the mean is large.

    Statistics are computed in at least float32 whatever the compute dtype. With "local" the new
    running statistics are those of this device's groups; their mean over devices is the one
    over all groups.

    Attributes:
        train: whether to use the statistics of the batch and update the running ones, which
            are used otherwise.
        axis: name of the mesh axis that holds the batch, None on one device.
        group: rows per group, None for the global batch.
        dtype: dtype of the result; None for the widest of images and parameters.
        epsilon: added to the variance.
    """

    train: bool
    axis: Axis
    group: int | None
    dtype: jnp.dtype | None
    epsilon: float = EPSILON

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, ..., c] -> [b, ..., c]`.

        Raises:
            ValueError: `b`, the rows on this device, is not a multiple of `group`.
        """
        channels = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)

        groups = self._groups(x.shape[0])
        x = upcast(x)
        y = x.reshape(groups, x.shape[0] // groups, *x.shape[1:])
        ones = (1,) * (y.ndim - 1)
        if self.train:
            mean, var = self._moments(y)
            self._update(running_mean, mean)
            self._update(running_var, var)
        else:
            mean = running_mean.value.reshape(*ones, channels)
            var = running_var.value.reshape(*ones, channels)
        factor = jax.lax.rsqrt(var + self.epsilon) * scale.reshape(*ones, channels)
        y = (y - mean) * factor + bias.reshape(*ones, channels)
        return y.reshape(x.shape).astype(self.dtype or y.dtype)

    def _groups(self, b: int) -> int:
        if self.group is None or not self.train:
            return 1
        if b % self.group:
            raise ValueError(
                f"the batch of each device must be a multiple of network.group = {self.group}; "
                f"got {b}: change network.group or train.batch_size"
            )
        return b // self.group

    def _moments(self, y: Array) -> tuple[Array, Array]:
        """Mean and biased variance of each group and channel, `[groups, 1, ..., channels]`."""
        axis = self.axis if self.group is None else None
        within = tuple(range(1, y.ndim - 1))
        mean = collectives.mean(jnp.mean(y, axis=within, keepdims=True), axis)
        var = collectives.mean(jnp.mean((y - mean) ** 2, axis=within, keepdims=True), axis)
        return mean, var

    @staticmethod
    def _update(running: nn.Variable, batch: Array) -> None:
        new = MOMENTUM * running.value + (1 - MOMENTUM) * jnp.mean(
            batch, axis=tuple(range(batch.ndim - 1))
        )
        running.value = new.astype(running.value.dtype)


def shuffle(key: Array, images: Array, axis: Axis) -> tuple[Array, Array]:
    """The global batch in random order, so that "local" groups mix its images.

    MoCo (He et al. 2020, section 3.3): the key network sees a shuffled batch, so that no query
    shares its group's statistics with its own key.

    Args:
        key: the same on all devices.
        images: this device's rows `[b, ...]`.
        axis: name of the mesh axis that holds the batch, None on one device.

    Returns:
        This device's rows of the shuffled batch `[b, ...]`, and the order, int32
        `[b * devices]`, the same on all devices: row `i` of the shuffled global batch is row
        `order[i]` of the given one.
    """
    n = images.shape[0] * collectives.size(axis)
    order = jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
    return _take(images, order, axis), order


def unshuffle(x: Array, order: Array, axis: Axis) -> Array:
    """Rows `[b, ...]` computed from a shuffled batch, back in the order of the given batch."""
    return _take(x, jnp.argsort(order), axis)


def _take(x: Array, order: Array, axis: Axis) -> Array:
    return collectives.gather(x, axis)[collectives.scatter(order, axis)]
