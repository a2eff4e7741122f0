"""BatchNorm over the global batch or over groups of fixed size, and MoCo's shuffled batch."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, collectives
from cluster_jax.core.collectives import Axis
from cluster_jax.core.ops import upcast

MOMENTUM = 0.9  # Flax's convention: the weight of the old value; torch's momentum is 0.1
EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Normalizes each channel (last axis) by the mean and variance of the other axes.

    Ioffe & Szegedy (2015). With `group=None` mean and variance are taken over the global batch
    ("sync"), else over each group of `group` consecutive rows ("local"). Running statistics are
    averages over the groups, so that results depend on the size of a group and not on the number of
    devices. The variance is biased, in the running statistics too (torch's running variance is
    unbiased), and is the mean squared deviation: the mean square minus the squared mean loses all
    digits when the mean is large.

    Statistics are computed in at least float32 whatever the compute dtype. With "local" the running
    statistics of a device average its own groups; their mean over devices averages all groups.

    Attributes:
        train: normalize by batch statistics and update the running statistics; else normalize by
            the running statistics.
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
        """Normalizes `[b, ..., c] -> [b, ..., c]`.

        Raises:
            ValueError: `b`, the rows on this device, is not a multiple of `group`.
        """
        channels = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        b = rows = x.shape[0]  # no number where an exported network leaves the batch open
        if self.group and self.train:
            rows = self.group
            checks.multiple("train.batch_size of each device", b, rows, "network.group")
        x = upcast(x)
        y = x.reshape(b // rows, rows, *x.shape[1:])
        shape = (*(1,) * (y.ndim - 1), channels)
        if self.train:
            moments = self._moments(y, running_mean.value.reshape(shape))
            self._update(running_mean, moments[0])
            self._update(running_var, moments[1])
            # Both at once, so that one reduction sums the gradients of both over the devices.
            mean, var = collectives.varying(moments, self.axis)
        else:
            mean = running_mean.value.reshape(shape)
            var = running_var.value.reshape(shape)
        factor = jax.lax.rsqrt(var + self.epsilon) * scale.reshape(shape)
        y = (y - mean) * factor + bias.reshape(shape)
        return y.reshape(x.shape).astype(self.dtype or y.dtype)

    def _moments(self, y: Array, shift: Array) -> Array:
        """Computes mean and biased variance per group and channel, `[2, groups, 1, ..., c]`.

        Over several devices both are combined from those of each device (Chan, Golub & LeVeque
        1983): the variance is the mean of their variances and the variance of their means. One
        reduction suffices, of the same size for any number of devices, as the variance of the means
        is that of their distances to the running mean, `shift`, which all devices know. A batch d
        standard deviations from the running mean has a relative error of about 1e-7 d^2 in its
        variance, so that only the first batches of an unusual network would see it.
        """
        within = tuple(range(1, y.ndim - 1))
        mean = jnp.mean(y, axis=within, keepdims=True)
        var = jnp.mean((y - mean) ** 2, axis=within, keepdims=True)
        if self.axis is None or self.group is not None:
            return jnp.stack([mean, var])
        distance = mean - shift
        sums = jnp.stack([distance, var, distance**2])
        distance, var, square = collectives.mean(sums, self.axis)
        return jnp.stack([shift + distance, var + jnp.maximum(square - distance**2, 0)])

    @staticmethod
    def _update(running: nn.Variable, batch: Array) -> None:
        mean = jnp.mean(batch, axis=tuple(range(batch.ndim - 1)))
        new = MOMENTUM * running.value + (1 - MOMENTUM) * mean
        running.value = new.astype(running.value.dtype)


def shuffle(key: Array, images: Array, axis: Axis) -> tuple[Array, Array]:
    """Shuffles the global batch, before "local" groups are formed (Shuffling BatchNorm).

    MoCo (He et al. 2020, section 3.3): the key network gets a shuffled batch, so that a query and
    its key are not normalized by statistics of the same images.

    Args:
        key: random key, the same on all devices.
        images: this device's rows `[b, ...]`.
        axis: name of the mesh axis that holds the batch, None on one device.

    Returns:
        This device's rows of the shuffled batch `[b, ...]`, and the order, int32
        `[b * devices]`, the same on all devices: row `i` of the shuffled global batch is row
        `order[i]` of the original global batch.
    """
    n = images.shape[0] * collectives.size(axis)
    order = jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))
    return _permute(images, order, axis), order


def unshuffle(x: Array, order: Array, axis: Axis) -> Array:
    """Inverts `shuffle`: rows `[b, ...]` of a shuffled batch in their original order."""
    return _permute(x, jnp.argsort(order), axis)


def _permute(x: Array, order: Array, axis: Axis) -> Array:
    return collectives.gather(x, axis)[collectives.scatter(order, axis)]
