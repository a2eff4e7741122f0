"""A perceptron of one layer, for stored features of a pretrained network."""

import functools

import flax.linen as nn
from jax import Array

from cluster_jax.nets.backbone import Backbone, Layers

NAMES = ("mlp",)
BLOCKS = ("dense",)


class MLP(nn.Module):
    """Fully connected, BatchNorm, ReLU.

    Followed by a projector it is a projection head of two hidden layers, as in SimCLR v2.

    Attributes:
        width: size of the layer.
        layers: normalization, frozen blocks and compute dtype.
    """

    width: int
    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, d] -> [b, width]`; images `[b, h, w, c]` are flattened."""
        x = x.reshape(x.shape[0], -1)
        x = nn.Dense(self.width, use_bias=False, dtype=self.layers.dtype)(x)
        x = nn.relu(self.layers.norm_of(0)()(x))
        return self.layers.enter(x, 1)


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes the layer; the representation has `width` features.

    Args:
        name: "mlp".
        width: size of the layer.
        stem: must be None.
    """
    return Backbone(functools.partial(MLP, width), width, BLOCKS, lambda _: 0, any_size=False)
