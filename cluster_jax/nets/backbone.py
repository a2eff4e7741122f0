"""The interface of a backbone family, and the lookup of a backbone by name.

A family defines `make(name, *, width, stem) -> Backbone`, and `STEMS`, its values of
`network.stem`, if it has several. It is a file of `nets/backbones` that also defines `NAMES`, its
values of `network.name`; or a module outside of the package, whose name is that value. All names
here without an underscore are public, for backbones of one's own, too.
"""

import functools
import importlib
import pathlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from cluster_jax.core import checks, outside

ENTERED = "block_input"  # the name of what enters a block
kaiming = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class Layers(NamedTuple):
    """Layer factories and options for a backbone.

    Attributes:
        norm: makes a normalization layer.
        frozen_norm: makes a normalization layer of a frozen block, which keeps its statistics.
        frozen: number of leading blocks that do not train; no gradient flows back into them.
        dtype: compute dtype; None for the widest of images and parameters.
    """

    norm: Callable[..., nn.Module]
    frozen_norm: Callable[..., nn.Module]
    frozen: int
    dtype: jnp.dtype | None

    def enter(self, x: Array, block: int) -> Array:
        """Passes on `x`, the input of a block, without a gradient at the first block that trains.

        After the last block, `block` is the number of blocks and `x` the output of the network.
        It is named for `network.rematerialized`.
        """
        return checkpoint_name(lax.stop_gradient(x) if 0 < self.frozen == block else x, ENTERED)

    def norm_of(self, block: int) -> Callable[..., nn.Module]:
        """Returns a factory of a block's normalization layers, by its index; it takes `epsilon`."""
        return self.frozen_norm if block < self.frozen else self.norm


class Backbone(NamedTuple):
    """A backbone of given width.

    Attributes:
        module: makes the Flax module, images `[b, H, W, C]` -> representation `[b, features]`.
        features: size of the representation.
        blocks: names of its blocks, from the input on; it can be frozen up to any block.
        block_of: name of a direct submodule -> index in `blocks` of the block that contains it.
        any_size: whether trained parameters accept images of another size (the last feature map is
            averaged, not flattened).
    """

    module: Callable[[Layers], nn.Module]
    features: int
    blocks: tuple[str, ...]
    block_of: Callable[[str], int]
    any_size: bool = True


def conv(features: int, size: int, stride: int, dtype: jnp.dtype | None, **options: Any) -> nn.Conv:
    """Makes a convolution without bias, by default padded equally on both sides as in torch.

    Flax's "SAME" pads an even image only below and to the right when the stride is 2.
    """
    options = {"padding": size // 2, "use_bias": False, "kernel_init": kaiming, **options}
    return nn.Conv(features, (size, size), stride, dtype=dtype, **options)


def names() -> tuple[str, ...]:
    """Lists the values of `network.name`: the `NAMES` of all families."""
    return tuple(_families())


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """Makes the backbone `name`.

    Args:
        name: one of `names()`, or a module of one's own as Python imports it.
        width: channels of the first layer.
        stem: variant of the first layers, for a family that has several; else None.

    Raises:
        InputError: unknown backbone or stem (`outside.MissingModule`: no such module).
    """
    family = _families().get(name)
    if family is None:
        # Three of each family: a message with all Vision Transformers would be cut.
        some = [name for each in dict.fromkeys(_families().values()) for name in each.NAMES[:3]]
        family = outside.module("network.name", name, some, ("make",))
    checks.one_of(f"network.stem of {name}", stem, getattr(family, "STEMS", (None,)))
    return family.make(name, width=width, stem=stem)


@functools.cache
def _families() -> dict[str, types.ModuleType]:
    """Maps each backbone's name to the module of its family."""
    files = sorted(pathlib.Path(__file__).parent.joinpath("backbones").glob("*.py"))
    stems = [file.stem for file in files if file.stem != "__init__"]
    modules = [importlib.import_module(f"cluster_jax.nets.backbones.{stem}") for stem in stems]
    return {name: module for module in modules for name in module.NAMES}
