"""ConvNeXt: convolutional networks with the block layout of Transformers."""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks
from cluster_jax.nets.backbone import Backbone, Layers
from cluster_jax.nets.backbones.efficientnet_lite import Depthwise
from cluster_jax.nets.backbones.vit import layer_norm

# Name -> blocks of the stages and channels of the first one, which each later stage doubles (Liu
# et al. 2022, "A ConvNet for the 2020s", section 3).
SIZES = {
    "convnext_tiny": ((3, 3, 9, 3), 96),
    "convnext_small": ((3, 3, 27, 3), 96),
    "convnext_base": ((3, 3, 27, 3), 128),
    "convnext_large": ((3, 3, 27, 3), 192),
}
NAMES = tuple(SIZES)
BLOCKS = ("stem", "stage1", "stage2", "stage3", "stage4")
KERNEL = 7
INITIAL_SCALE = 1e-6  # of a residual branch
truncated = nn.initializers.truncated_normal(0.02)


class Block(nn.Module):
    """Depthwise convolution, LayerNorm and an MLP on channels, a scaled residual branch.

    Attributes:
        dtype: compute dtype; None for the widest of inputs and parameters.
    """

    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, h, w, c]`."""
        channels = x.shape[-1]
        dense = functools.partial(nn.Dense, kernel_init=truncated, dtype=self.dtype)
        y = Depthwise(KERNEL, 1, self.dtype, name="depthwise")(x)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        y = layer_norm("norm", self.dtype)(y + bias.astype(y.dtype)[None, None, None])
        y = nn.gelu(dense(4 * channels, name="hidden")(y), approximate=False)
        y = dense(channels, name="out")(y)
        initial = nn.initializers.constant(INITIAL_SCALE)
        gamma = self.param("gamma", initial, (channels,), jnp.float32)
        return x + y * gamma.astype(y.dtype)[None, None, None]


class ConvNeXt(nn.Module):
    """Liu et al. (2022), without the classifier.

    Attributes:
        variant: one of `NAMES`.
        layers: frozen blocks and compute dtype.
    """

    variant: str
    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, 8 * width]`, the normalized mean over places."""
        depths, width = SIZES[self.variant]
        dtype = self.layers.dtype
        shrink = functools.partial(nn.Conv, padding="VALID", kernel_init=truncated, dtype=dtype)
        x = shrink(width, (4, 4), (4, 4), name="stem")(x)
        x = layer_norm("stem_norm", dtype)(x)
        for stage, depth in enumerate(depths, start=1):
            x = self.layers.enter(x, stage)
            if stage > 1:
                x = layer_norm(f"stage{stage}_norm", dtype)(x)
                features = width * 2 ** (stage - 1)
                x = shrink(features, (2, 2), (2, 2), name=f"stage{stage}_conv")(x)
            for block in range(depth):
                x = Block(dtype, name=f"stage{stage}_block{block}")(x)
        x = layer_norm("norm", dtype)(jnp.mean(x, axis=(1, 2)))
        return self.layers.enter(x, len(BLOCKS))


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes a ConvNeXt.

    Args:
        name: one of `NAMES`.
        width: channels of the first stage, as published.
        stem: must be None.

    Raises:
        InputError: another width.
    """
    published = SIZES[name][1]
    checks.one_of(f"network.width of {name}", width, (published,))

    def block_of(submodule: str) -> int:
        if submodule == "norm":  # It belongs to the last stage.
            return len(BLOCKS) - 1
        return BLOCKS.index(submodule.split("_")[0])

    return Backbone(functools.partial(ConvNeXt, name), 8 * width, BLOCKS, block_of)
