"""ResNet-18, -34 and -50 for small (CIFAR) and large (ImageNet) images."""

import functools
import itertools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from cluster_jax.nets.backbone import Backbone, Layers
from cluster_jax.nets.conv import conv

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
NAMES = tuple(DEPTHS)
STEMS = ("cifar", "imagenet")
# From the input on; a network can be frozen up to any block.
BLOCKS = ("stem", "stage1", "stage2", "stage3", "stage4")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, the block of ResNet-18 and -34."""

    features: int
    stride: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, h, w, c] -> [b, h / stride, w / stride, features]`."""
        y = nn.relu(self.norm()(conv(self.features, 3, self.stride, self.dtype)(x)))
        y = self.norm()(conv(self.features, 3, 1, self.dtype)(y))
        return nn.relu(y + shortcut(x, self.features, self.stride, self.norm, self.dtype))


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided) and 1x1 convolutions and a shortcut, the block of ResNet-50.

    Deviation from the paper, as in torchvision ("v1.5"): the stride is in the 3x3 convolution, not
    in the first 1x1 one.
    """

    features: int
    stride: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, h, w, c] -> [b, h / stride, w / stride, 4 * features]`."""
        y = nn.relu(self.norm()(conv(self.features, 1, 1, self.dtype)(x)))
        y = nn.relu(self.norm()(conv(self.features, 3, self.stride, self.dtype)(y)))
        y = self.norm()(conv(4 * self.features, 1, 1, self.dtype)(y))
        return nn.relu(y + shortcut(x, 4 * self.features, self.stride, self.norm, self.dtype))


def shortcut(
    x: Array, features: int, stride: int, norm: Callable[[], nn.Module], dtype: jnp.dtype | None
) -> Array:
    """Identity, or a 1x1 convolution if the shape changes (He et al. 2016, option B)."""
    if stride == 1 and x.shape[-1] == features:
        return x
    return norm()(conv(features, 1, stride, dtype)(x))


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
        """`[b, h, w, c] -> [b, features]`."""
        dtype = self.layers.dtype
        norm = self.layers.norm_of(BLOCKS.index("stem"))
        if self.stem == "imagenet":
            x = nn.relu(norm()(conv(self.width, 7, 2, dtype)(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        else:
            x = nn.relu(norm()(conv(self.width, 3, 1, dtype)(x)))
        residual_block = Bottleneck if self.variant == "resnet50" else BasicBlock
        for stage, depth in enumerate(DEPTHS[self.variant]):
            block = BLOCKS.index("stage1") + stage
            x = self.layers.enter(x, block)
            norm = self.layers.norm_of(block)
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                x = residual_block(self.width * 2**stage, stride, norm, dtype)(x)
        x = jnp.mean(x, axis=(1, 2))
        return self.layers.enter(x, len(BLOCKS))


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """A ResNet; the representation has 512, 512 or 2048 features at width 64.

    Args:
        name: one of `NAMES`.
        width: channels of the first stage, 64 as published.
        stem: one of `STEMS`.
    """
    assert stem is not None  # It is one of `STEMS`.
    return Backbone(
        module=functools.partial(ResNet, name, width, stem),
        features=width * (32 if name == "resnet50" else 8),
        blocks=BLOCKS,
        block_of=functools.partial(_block_of, name),
        any_size=True,
    )


def _block_of(name: str, submodule: str) -> int:
    kind, _, number = submodule.rpartition("_")
    if not kind.endswith(("BasicBlock", "Bottleneck")):
        return BLOCKS.index("stem")
    ends = itertools.accumulate(DEPTHS[name])
    stage = next(stage for stage, end in enumerate(ends) if int(number) < end)
    return BLOCKS.index("stage1") + stage
