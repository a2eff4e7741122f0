"""ResNet-18, -34 and -50 for small (CIFAR) and large (ImageNet) images."""

import itertools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
STEMS = ("cifar", "imagenet")
# From the input on; a network can be frozen up to any of them.
BLOCKS = ("stem", "stage1", "stage2", "stage3", "stage4")

kaiming = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv(features: int, size: int, stride: int, dtype: jnp.dtype | None) -> nn.Conv:
    """Convolution without bias, padded equally on both sides as in torch.

    ("SAME" pads an even image only below and to the right when the stride is 2.)
    """
    return nn.Conv(
        features,
        (size, size),
        stride,
        padding=size // 2,
        use_bias=False,
        kernel_init=kaiming,
        dtype=dtype,
    )


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

    Deviation from the paper, as torchvision ("v1.5"): the stride is in the 3x3 convolution, not
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
    """The identity, or a projection where the shape changes (option B of the paper)."""
    if stride == 1 and x.shape[-1] == features:
        return x
    return norm()(conv(features, 1, stride, dtype)(x))


class ResNet(nn.Module):
    """He et al. (2016), "Deep Residual Learning for Image Recognition", without the classifier.

    Attributes:
        variant: one of `DEPTHS`.
        width: channels of the first stage, 64 as published.
        stem: "imagenet" is the published one (7x7, stride 2, then 3x3 max-pooling, stride 2);
            "cifar" is one 3x3 convolution of stride 1 without pooling.
        norm: makes a normalization layer.
        dtype: compute dtype; None for the widest of images and parameters.
        frozen: number of first `BLOCKS` that do not train.
        frozen_norm: makes a normalization layer of a frozen block.
    """

    variant: str
    width: int
    stem: str
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None
    frozen: int
    frozen_norm: Callable[[], nn.Module]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, h, w, c] -> [b, features]`, `features` as given by `features`."""
        norm = self.frozen_norm if self.frozen > 0 else self.norm
        if self.stem == "imagenet":
            x = nn.relu(norm()(conv(self.width, 7, 2, self.dtype)(x)))
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        else:
            x = nn.relu(norm()(conv(self.width, 3, 1, self.dtype)(x)))
        block = Bottleneck if self.variant == "resnet50" else BasicBlock
        for stage, depth in enumerate(DEPTHS[self.variant]):
            frozen = self.frozen > stage + 1
            norm = self.frozen_norm if frozen else self.norm
            if self.frozen == stage + 1:
                x = lax.stop_gradient(x)
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                x = block(self.width * 2**stage, stride, norm, self.dtype)(x)
        x = jnp.mean(x, axis=(1, 2))
        return lax.stop_gradient(x) if self.frozen == len(BLOCKS) else x


def block_of(variant: str, module: str) -> int:
    """Number in `BLOCKS` of the block that a submodule, by its name, belongs to."""
    kind, _, number = module.rpartition("_")
    if not kind.endswith(("BasicBlock", "Bottleneck")):
        return 0
    ends = itertools.accumulate(DEPTHS[variant])
    return 1 + next(stage for stage, end in enumerate(ends) if int(number) < end)


def features(name: str, width: int) -> int:
    """Size of the representation: 512, 512 and 2048 at width 64."""
    return width * (32 if name == "resnet50" else 8)
