"""Projector and predictor, with one hidden layer, and the linear classifier."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core.ops import upcast


class Head(nn.Module):
    """Fully connected, BatchNorm, ReLU, fully connected, as in BYOL (Grill et al. 2020).

    The first layer has no bias: BatchNorm would subtract it.

    Attributes:
        hidden: size of the hidden layer.
        out: size of the output.
        norm: makes a normalization layer.
        dtype: compute dtype; None for the widest of inputs and parameters.
        init_std: standard deviation of the initial normal weights; None for LeCun's, which
            is 1 / sqrt(inputs of the layer). Biases start at zero.
    """

    hidden: int
    out: int
    norm: Callable[[], nn.Module]
    dtype: jnp.dtype | None
    init_std: float | None = None

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[b, f] -> [b, out]`."""
        std, initializers = self.init_std, nn.initializers
        init = initializers.lecun_normal() if std is None else initializers.normal(std)
        x = nn.Dense(self.hidden, use_bias=False, kernel_init=init, dtype=self.dtype)(x)
        x = nn.relu(self.norm()(x))
        return nn.Dense(self.out, kernel_init=init, dtype=self.dtype)(x)


def classifier(key: Array, features: int, classes: int) -> dict[str, Array]:
    """Parameters of a linear classifier, drawn uniformly from +-1 / sqrt(features) as in torch."""
    bound = features**-0.5
    kernel = jax.random.uniform(key, (features, classes), minval=-bound, maxval=bound)
    return {"kernel": kernel, "bias": jnp.zeros(classes)}


def classify(params: dict[str, Array], x: Array) -> Array:
    """Logits `[b, classes]`, at least float32, of rows `[b, features]`."""
    return upcast(x) @ params["kernel"] + params["bias"][None, :]
