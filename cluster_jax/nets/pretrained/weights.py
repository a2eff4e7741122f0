"""What `network.weights` names."""

from typing import Any, NamedTuple

from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite0


class Pretrained(NamedTuple):
    """A pretrained backbone.

    Attributes:
        params: its parameters, float32.
        stats: its BatchNorm statistics, float32.
    """

    params: Any
    stats: Any


class About(NamedTuple):
    """What to know of pretrained weights before using them.

    Attributes:
        mean: of each channel on the scale [0, 1], by which the network's inputs are standardized.
        std: standard deviation of each channel, likewise.
        description: network, what it was trained on, and with which labels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    description: str


def about(weights: str) -> About:
    """What is known of weights without reading them."""
    if weights == BUNDLED:
        return About(lite0.MEAN, lite0.STD, lite0.DESCRIPTION)
    raise NotImplementedError(weights)


def load(weights: str) -> Pretrained:
    """Reads weights.

    Raises:
        InputError: they are missing, damaged, or of another network.
    """
    if weights == BUNDLED:
        return Pretrained(*lite0.load())
    raise NotImplementedError(weights)
