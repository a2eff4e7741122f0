"""Vision Transformers for images whose sides are multiples of the patch size."""

import functools
import math
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cluster_jax.core import checks
from cluster_jax.nets.backbone import Backbone, Layers

# Width, blocks, attention heads: "base" and "large" from Dosovitskiy et al. (2021), table 1, "tiny"
# and "small" from Touvron et al. (2021), "Training data-efficient image transformers", table 1.
SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}


class Patches(NamedTuple):
    """Patch embedding of a published family of models.

    Attributes:
        size: side of a patch in pixels.
        grid: patches per side of the images that the published model was trained on.
        registers: number of register tokens (Darcet et al. 2024).
        layer_scale: whether each residual branch is scaled per channel (Touvron et al. 2021,
            "Going deeper with image transformers").
        antialias: whether position embeddings are interpolated with antialiasing.
        kind: "class": the normalized class token is the representation, GELU is exact. "clip": the
            image tower of CLIP (Radford et al. 2021), whose class token is projected; LayerNorm
            follows the embedding too, patches have no bias, and GELU is x times sigmoid(1.702 x).
            "siglip": that of SigLIP (Zhai et al. 2023), which has no class token and pools by
            attention; GELU is tanh's approximation.
    """

    size: int
    grid: int
    registers: int
    layer_scale: bool
    antialias: bool
    kind: Literal["class", "clip", "siglip"] = "class"


# "patch16" is Dosovitskiy et al.'s at 224 pixels, as in timm; "patch14" is DINOv2's (Oquab et al.
# 2024) at 518 pixels, which interpolates without antialiasing; "reg4" is DINOv2's with registers.
PATCHES = {
    "patch16": Patches(16, 14, registers=0, layer_scale=False, antialias=True),
    "patch14": Patches(14, 37, registers=0, layer_scale=True, antialias=False),
    "patch14_reg4": Patches(14, 37, registers=4, layer_scale=True, antialias=True),
}
# Image towers that are published, at 224 pixels.
TOWERS = {
    "vit_base_patch32_clip": Patches(32, 7, 0, layer_scale=False, antialias=True, kind="clip"),
    "vit_base_patch16_clip": Patches(16, 14, 0, layer_scale=False, antialias=True, kind="clip"),
    "vit_large_patch14_clip": Patches(14, 16, 0, layer_scale=False, antialias=True, kind="clip"),
    "vit_base_patch16_siglip": Patches(16, 14, 0, False, antialias=True, kind="siglip"),
}
NAMES = (*(f"vit_{size}_{patches}" for size in SIZES for patches in PATCHES), *TOWERS)
# Of LayerNorm, by kind; columns of CLIP's projection, by width.
EPSILON = {"class": 1e-6, "clip": 1e-5, "siglip": 1e-6}
PROJECTED = {768: 512, 1024: 768}
INITIAL_SCALE = 1e-5  # of a residual branch, in DINOv2's code
normal = nn.initializers.normal(0.02)


def architecture(name: str) -> tuple[int, int, int, Patches]:
    """Returns width, number of blocks, attention heads, and patches of one of `NAMES`."""
    _, size, patches = name.split("_", 2)
    return *SIZES[size], TOWERS[name] if name in TOWERS else PATCHES[patches]


class Embedding(nn.Module):
    """Class token if any, register tokens and patch tokens, with learned position embeddings.

    Registers have no position embedding. The position embeddings of the patches are a grid of the
    published size, interpolated to the grid of the image.

    Attributes:
        variant: one of `NAMES`.
        dtype: compute dtype; None for the widest of images and parameters.
    """

    variant: str
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Maps `[b, H, W, C] -> [b, tokens, width]`, the class token first."""
        width, _, _, patches = architecture(self.variant)
        side = (patches.size, patches.size)
        classes = 0 if patches.kind == "siglip" else 1  # tokens of the class
        x = nn.Conv(
            width, side, side, padding="VALID", use_bias=patches.kind != "clip", dtype=self.dtype,
            name="patches",
        )(images)  # fmt: skip

        def tokens(name: str, count: int) -> Array:
            return self.param(name, normal, (count, width), jnp.float32)

        positions = tokens("positions", classes + patches.grid**2)
        prefix = positions[:classes]
        if classes:
            prefix = tokens("class_token", 1) + prefix
        if patches.registers:
            prefix = jnp.concatenate([prefix, tokens("registers", patches.registers)])
        grid = positions[classes:].reshape(patches.grid, patches.grid, width)
        b, rows, columns, _ = x.shape
        x = x + resize(grid, (rows, columns), patches.antialias).astype(x.dtype)[None]
        x = x.reshape(b, rows * columns, width)
        prefix = jnp.broadcast_to(prefix.astype(x.dtype), (b, *prefix.shape))
        return jnp.concatenate([prefix, x], axis=1)


class Block(nn.Module):
    """Pre-norm transformer block: self-attention and MLP, each a residual branch after LayerNorm.

    Attributes:
        heads: number of attention heads.
        layer_scale: whether the residual branches are scaled per channel.
        dtype: compute dtype; None for the widest of inputs and parameters.
        kind: see `Patches`.
    """

    heads: int
    layer_scale: bool
    dtype: jnp.dtype | None
    kind: str = "class"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, n, width] -> [b, n, width]`."""
        width = x.shape[-1]
        y = layer_norm("norm1", self.dtype, self.kind)(x)
        qkv = self._dense(3 * width, "qkv")(y)
        q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, self.heads, -1), 2, 0)
        y = attention(q, k, v).reshape(x.shape)
        x = x + self._scaled(self._dense(width, "projection")(y), "scale1")
        y = layer_norm("norm2", self.dtype, self.kind)(x)
        y = gelu(self._dense(4 * width, "hidden")(y), self.kind)
        return x + self._scaled(self._dense(width, "out")(y), "scale2")

    def _dense(self, features: int, name: str) -> nn.Dense:
        return nn.Dense(features, kernel_init=normal, dtype=self.dtype, name=name)

    def _scaled(self, y: Array, name: str) -> Array:
        if not self.layer_scale:
            return y
        initial = nn.initializers.constant(INITIAL_SCALE)
        scale = self.param(name, initial, (y.shape[-1],), jnp.float32)
        return y * scale.astype(y.dtype)[None, None, :]


class Pool(nn.Module):
    """SigLIP's pooling: attention of a learned query to all tokens, then an MLP.

    Attributes:
        heads: number of attention heads.
        dtype: compute dtype; None for the widest of inputs and parameters.
    """

    heads: int
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, n, width] -> [b, width]`."""
        b, _, width = x.shape
        dense = functools.partial(nn.Dense, kernel_init=normal, dtype=self.dtype)
        probe = self.param("probe", normal, (1, width), jnp.float32).astype(x.dtype)
        probe = jnp.broadcast_to(probe[None], (b, 1, width))
        qkv = dense(3 * width, name="pool_qkv")(jnp.concatenate([probe, x], axis=1))
        qkv = qkv.reshape(b, -1, 3, self.heads, width // self.heads)
        y = attention(qkv[:, :1, 0], qkv[:, 1:, 1], qkv[:, 1:, 2]).reshape(b, width)
        y = dense(width, name="pool_projection")(y)
        hidden = layer_norm("pool_norm", self.dtype, "siglip")(y)
        hidden = gelu(dense(4 * width, name="pool_hidden")(hidden), "siglip")
        return y + dense(width, name="pool_out")(hidden)


class ViT(nn.Module):
    """Dosovitskiy et al. (2021), "An Image is Worth 16x16 Words", without the classifier.

    Attributes:
        variant: one of `NAMES`.
        layers: frozen blocks and compute dtype.
    """

    variant: str
    layers: Layers

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps `[b, h, w, c] -> [b, features]`, the normalized class token; others: see `Patches`.

        Raises:
            InputError: `h` or `w` is not a multiple of the patch.
        """
        _, depth, heads, patches = architecture(self.variant)
        dtype = self.layers.dtype
        for side in x.shape[1:3]:
            checks.multiple("each side of an image", side, patches.size, f"{self.variant}'s patch")
        x = Embedding(self.variant, dtype, name="embedding")(x)
        if patches.kind == "clip":
            x = layer_norm("norm0", dtype, "clip")(x)
        for block in range(1, depth + 1):
            x = self.layers.enter(x, block)
            x = Block(heads, patches.layer_scale, dtype, patches.kind, name=f"block{block}")(x)
        x = x if patches.kind == "siglip" else x[:, 0]
        x = layer_norm("norm", dtype, patches.kind)(x)
        if patches.kind == "siglip":
            x = Pool(heads, dtype, name="pool")(x)
        elif patches.kind == "clip":
            features = PROJECTED[x.shape[-1]]
            x = nn.Dense(
                features, use_bias=False, kernel_init=normal, dtype=dtype, name="visual_projection"
            )(x)
        return self.layers.enter(x, depth + 1)


def gelu(x: Array, kind: str) -> Array:
    """Applies the activation of a kind, see `Patches`."""
    if kind == "clip":
        return x * nn.sigmoid(1.702 * x)
    return nn.gelu(x, approximate=kind == "siglip")


def layer_norm(name: str, dtype: jnp.dtype | None, kind: str = "class") -> nn.LayerNorm:
    """Makes a LayerNorm with statistics in at least float32.

    Without Flax's fast variance, which loses all digits when the mean is large.
    """
    return nn.LayerNorm(EPSILON[kind], dtype=dtype, use_fast_variance=False, name=name)


def attention(q: Array, k: Array, v: Array) -> Array:
    """Computes scaled dot-product attention, each `[b, n, heads, d] -> [b, n, heads, d]`.

    Logits and softmax are in at least float32; `jax.nn.dot_product_attention` computes them in
    float32 also for float64 inputs.
    """
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    logits = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=dtype)
    weights = jax.nn.softmax(logits / math.sqrt(q.shape[-1]))
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)


def resize(grid: Array, size: tuple[int, int], antialias: bool) -> Array:
    """Resizes a map bicubically, as `torch.nn.functional.interpolate` with the same option.

    Deviation from DINOv2's official code for models without registers: it adds 0.1 patches to the
    size, which shifts every position by a fraction of a patch. Hugging Face's code does not.

    Args:
        grid: `[rows, columns, c]`.
        size: new number of rows and columns.
        antialias: widen the kernel when the map shrinks.

    Returns:
        `[*size, c]`; `grid` itself if it has this size.
    """
    if grid.shape[:2] == size:
        return grid
    if antialias:
        return jax.image.resize(grid, (*size, grid.shape[2]), "cubic")
    rows = jnp.asarray(_bicubic(grid.shape[0], size[0]), grid.dtype)
    columns = jnp.asarray(_bicubic(grid.shape[1], size[1]), grid.dtype)
    full = lax.Precision.HIGHEST
    return jnp.einsum("ri,cj,ijd->rcd", rows, columns, grid, precision=full)


def _bicubic(old: int, new: int) -> np.ndarray:
    """Computes weights `[new, old]` of Keys' cubic convolution kernel (1981, equation 4).

    As in PyTorch without antialiasing, and unlike `jax.image.resize`: the kernel parameter is -0.75
    instead of -0.5, and taps outside the map repeat the border instead of being dropped.
    """
    a, margin = -0.75, 2
    centers = (np.arange(new) + 0.5) * old / new - 0.5
    x = np.abs(np.arange(-margin, old + margin) - centers[:, None])
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    kernel = np.where(x <= 1, near, np.where(x < 2, far, 0))
    weights = kernel[:, margin:-margin]
    weights[:, 0] += kernel[:, :margin].sum(axis=1)
    weights[:, -1] += kernel[:, -margin:].sum(axis=1)
    return weights


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes a Vision Transformer.

    Args:
        name: one of `NAMES`.
        width: size of a token, and of the representation but for CLIP's, as published.
        stem: must be None.

    Raises:
        InputError: another width.
    """
    published, depth, _, patches = architecture(name)
    checks.one_of(f"network.width of {name}", width, (published,))
    # What follows the last block belongs to it.
    blocks = ("embedding", *(f"block{i}" for i in range(1, depth + 1)))

    def block_of(submodule: str) -> int:
        if submodule == "norm0":
            return 0
        return blocks.index(submodule) if submodule in blocks else depth

    features = PROJECTED[width] if patches.kind == "clip" else width
    return Backbone(functools.partial(ViT, name), features, blocks, block_of)
