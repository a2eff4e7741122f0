"""A four-layer convolutional network for images of 8x8 to 32x32 pixels."""

import functools

import flax.linen as nn
from jax import Array

from cluster_jax.nets.backbone import Backbone, Layers, conv

NAMES = ("small",)

# From the input on; a network can be frozen up to any block.
BLOCKS = ("conv1", "conv2", "conv3", "conv4", "dense")
# Larger images are downsampled twice instead of once, so that the last map is 4x4 to 8x8.
MAX_SIDE_DOWNSAMPLED_ONCE = 16
FEATURES = 16  # size of the representation over that of the first convolution


class Small(nn.Module):
    """Four 3x3 convolutions, flattened, and one fully connected layer.

    The widths are (w, w, 2w, 2w). The third convolution has stride 2, and for images of more than
    16 pixels the second too: the last map of 8x8 images is 4x4, of 28x28 7x7, of 32x32 8x8. The map
    is flattened, not averaged, because averaging loses the position of strokes of handwritten
    digits. The network is not from a paper.

    Attributes:
        width: channels of the first convolution.
        layers: normalization, frozen blocks and compute dtype.
    """

    width: int
    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, features]`."""
        dtype = self.layers.dtype
        second = 2 if max(x.shape[1:3]) > MAX_SIDE_DOWNSAMPLED_ONCE else 1
        for block, (multiple, stride) in enumerate(((1, 1), (1, second), (2, 2), (2, 1))):
            norm = self.layers.norm_of(block)
            x = self.layers.enter(x, block)
            x = nn.relu(norm()(conv(multiple * self.width, 3, stride, dtype)(x)))
        dense = BLOCKS.index("dense")
        x = self.layers.enter(x, dense).reshape(x.shape[0], -1)
        x = nn.Dense(FEATURES * self.width, use_bias=False, dtype=dtype)(x)
        x = nn.relu(self.layers.norm_of(dense)()(x))
        return self.layers.enter(x, len(BLOCKS))


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes the small network; the representation has 256 features at width 16.

    Args:
        name: "small".
        width: channels of the first convolution.
        stem: must be None.
    """
    module = functools.partial(Small, width)
    return Backbone(module, FEATURES * width, BLOCKS, _block_of, any_size=False)


def _block_of(submodule: str) -> int:
    kind, _, number = submodule.rpartition("_")
    return BLOCKS.index("dense") if kind == "Dense" else int(number)
