"""A four-layer convolutional network for images of 8x8 to 32x32 pixels."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.nets.resnet import conv

# From the input on; a network can be frozen up to any of them.
BLOCKS = ("conv1", "conv2", "conv3", "conv4", "dense")
# Images with a longer side are halved once more, so that the last map is 4x4 to 8x8.
ONE_HALVING = 16


class Small(nn.Module):
    """Four 3x3 convolutions, flattened, and one fully connected layer.

    The widths are (w, w, 2w, 2w). The third convolution has stride 2, and the second too where
    a side of the image exceeds 16 pixels: 8x8 ends at 4x4, 28x28 at 7x7, 32x32 at 8x8. The map
    is flattened, not averaged: on handwritten digits an average loses where a stroke is. Not
    from a paper.

    Attributes:
        width: channels of the first convolution.
        norm: makes a normalization layer.
        dtype: compute dtype; None for the widest of images and parameters.
        frozen: number of first `BLOCKS` that do not train.
        frozen_norm: makes a normalization layer of a frozen block.
    """

    width: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None
    frozen: int
    frozen_norm: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, h, w, c] -> [b, features]`, `features` as given by `features`."""
        second = 2 if max(x.shape[1:3]) > ONE_HALVING else 1
        for block, (times, stride) in enumerate(((1, 1), (1, second), (2, 2), (2, 1))):
            norm = self.frozen_norm if self.frozen > block else self.norm
            if 0 < self.frozen == block:
                x = lax.stop_gradient(x)
            x = nn.relu(norm()(conv(times * self.width, 3, stride, self.dtype)(x)))
        if self.frozen == 4:
            x = lax.stop_gradient(x)
        x = x.reshape(x.shape[0], -1)
        x = nn.Dense(features(self.width), use_bias=False, dtype=self.dtype)(x)
        norm = self.frozen_norm if self.frozen > 4 else self.norm
        x = nn.relu(norm()(x))
        return lax.stop_gradient(x) if self.frozen > 4 else x


def block_of(module: str) -> int:
    """Number in `BLOCKS` of the block that a submodule, by its name, belongs to."""
    kind, _, number = module.rpartition("_")
    return 4 if kind == "Dense" else int(number)


def features(width: int) -> int:
    """Size of the representation: 256 at width 16."""
    return 16 * width
