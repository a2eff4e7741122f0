"""ResNet-18, -34 and -50 for small (CIFAR) and large (ImageNet) images.

Layers have torchvision's names, with "_" in place of ".", so that its weights need no table.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from cluster_jax.nets.backbone import Backbone, Layers, conv

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
NAMES = tuple(DEPTHS)
STEMS = ("cifar", "imagenet")
# From the input on; a network can be frozen up to any block.
BLOCKS = ("stem", "stage1", "stage2", "stage3", "stage4")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, the block of ResNet-18 and -34."""

    features: int
    stride: int
    norm: Callable[..., nn.Module]
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, h / stride, w / stride, features]`."""
        y = nn.relu(self._layer(x, "1", self.features, 3, self.stride))
        y = self._layer(y, "2", self.features, 3, 1)
        return nn.relu(y + self._shortcut(x, self.features))

    def _layer(self, x: Array, number: str, features: int, size: int, stride: int) -> Array:
        x = conv(features, size, stride, self.dtype, name=f"conv{number}")(x)
        return self.norm(name=f"bn{number}")(x)

    def _shortcut(self, x: Array, features: int) -> Array:
        """Passes `x`, by a 1x1 convolution if the shape changes (He et al. 2016, option B)."""
        if self.stride == 1 and x.shape[-1] == features:
            return x
        x = conv(features, 1, self.stride, self.dtype, name="downsample_0")(x)
        return self.norm(name="downsample_1")(x)


class Bottleneck(BasicBlock):
    """1x1, 3x3 (strided) and 1x1 convolutions and a shortcut, the block of ResNet-50.

    Deviation from the paper, as in torchvision ("v1.5"): the stride is in the 3x3 convolution, not
    in the first 1x1 one.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, h / stride, w / stride, 4 * features]`."""
        y = nn.relu(self._layer(x, "1", self.features, 1, 1))
        y = nn.relu(self._layer(y, "2", self.features, 3, self.stride))
        y = self._layer(y, "3", 4 * self.features, 1, 1)
        return nn.relu(y + self._shortcut(x, 4 * self.features))


class ResNet(nn.Module):
    """He et al. (2016), "Deep Residual Learning for Image Recognition", without the classifier.

    Attributes:
        variant: one of `NAMES`.
        width: channels of the first stage, 64 as published.
        stem: "imagenet" is the published one (7x7, stride 2, then 3x3 max-pooling, stride 2);
            "cifar" is one 3x3 convolution of stride 1 without pooling.
        layers: normalization, frozen blocks and compute dtype.
    """

    variant: str
    width: int
    stem: str
    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, features]`."""
        dtype = self.layers.dtype
        size, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        x = conv(self.width, size, stride, dtype, name="conv1")(x)
        x = nn.relu(self.layers.norm_of(0)(name="bn1")(x))
        if self.stem == "imagenet":
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        residual_block = Bottleneck if self.variant == "resnet50" else BasicBlock
        for stage, depth in enumerate(DEPTHS[self.variant], start=1):
            x = self.layers.enter(x, stage)
            features = self.width * 2 ** (stage - 1)
            norm = self.layers.norm_of(stage)
            for i in range(depth):
                stride = 2 if stage > 1 and i == 0 else 1
                x = residual_block(features, stride, norm, dtype, name=f"layer{stage}_{i}")(x)
        x = jnp.mean(x, axis=(1, 2))
        return self.layers.enter(x, len(BLOCKS))


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes a ResNet; the representation has 512, 512 or 2048 features at width 64.

    Args:
        name: one of `NAMES`.
        width: channels of the first stage, 64 as published.
        stem: one of `STEMS`.
    """
    assert stem is not None  # It is one of `STEMS`.
    features = (32 if name == "resnet50" else 8) * width
    return Backbone(functools.partial(ResNet, name, width, stem), features, BLOCKS, _block_of)


def _block_of(submodule: str) -> int:
    return int(submodule[5]) if submodule.startswith("layer") else 0
