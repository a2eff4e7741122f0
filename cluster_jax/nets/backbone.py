"""The contract of a family of backbones, and how one is found by its name.

A family is a file of `nets/backbones` that offers `NAMES`, the values of `network.name` that it
serves, and `make(name, *, width, stem) -> Backbone`, which checks `network.stem`. A new family
needs no other change.
"""

import functools
import importlib
import pathlib
import types
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from cluster_jax.core import checks


class Layers(NamedTuple):
    """Layer factories and options for a backbone.

    Attributes:
        norm: makes a normalization layer.
        frozen_norm: makes a normalization layer of a frozen block, which keeps its statistics.
        frozen: number of first blocks that do not train; no gradient passes out of the last one.
        dtype: compute dtype; None for the widest of images and parameters.
    """

    norm: Callable[..., nn.Module]
    frozen_norm: Callable[..., nn.Module]
    frozen: int
    dtype: jnp.dtype | None

    def norm_of(self, block: int) -> Callable[..., nn.Module]:
        """What makes the normalization layers of the block of this number; takes `epsilon`."""
        return self.frozen_norm if block < self.frozen else self.norm


class Backbone(NamedTuple):
    """A backbone of given width.

    Attributes:
        module: makes the Flax module, images `[b, H, W, C]` -> representation `[b, features]`.
        features: size of the representation.
        blocks: names of its blocks, from the input on; it can be frozen up to any of them.
        block_of: number in `blocks` of the block that a direct submodule, by its name, belongs to.
        any_size: whether trained parameters take images of another size (the last feature map is
            averaged, not flattened).
    """

    module: Callable[[Layers], nn.Module]
    features: int
    blocks: tuple[str, ...]
    block_of: Callable[[str], int]
    any_size: bool


def names() -> tuple[str, ...]:
    """Values of `network.name`: the `NAMES` of all families."""
    return tuple(_families())


def make(name: str, *, width: int, stem: str | None) -> Backbone:
    """The backbone `name`.

    Args:
        name: one of `names()`.
        width: channels of the first layer.
        stem: first layers, for a family that offers a choice; else None.

    Raises:
        InputError: no such backbone, or no such stem.
    """
    checks.one_of("network.name", name, names())
    return _families()[name].make(name, width=width, stem=stem)


@functools.cache
def _families() -> dict[str, types.ModuleType]:
    """The module that serves each name."""
    files = sorted(pathlib.Path(__file__).parent.joinpath("backbones").glob("*.py"))
    stems = [file.stem for file in files if file.stem != "__init__"]
    modules = [importlib.import_module(f"cluster_jax.nets.backbones.{stem}") for stem in stems]
    return {name: module for module in modules for name in module.NAMES}
