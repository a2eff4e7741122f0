"""Projector and predictor: a multi-layer perceptron with one hidden layer."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array


class Head(nn.Module):
    """Fully connected, BatchNorm, ReLU, fully connected, as in BYOL (Grill et al. 2020).

    The first layer has no bias: BatchNorm would subtract it.

    Attributes:
        hidden: size of the hidden layer.
        out: size of the output.
        norm: makes a normalisation layer.
        dtype: compute dtype; None for the widest of inputs and parameters.
    """

    hidden: int
    out: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, f] -> [b, out]`."""
        x = nn.Dense(self.hidden, use_bias=False, dtype=self.dtype)(x)
        return nn.Dense(self.out, dtype=self.dtype)(nn.relu(self.norm()(x)))
