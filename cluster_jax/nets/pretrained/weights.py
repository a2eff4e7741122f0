"""What `network.weights` names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite0, safetensors

# Of ImageNet's training images, by which nearly all published ResNets and DINOv2 were trained.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class About(NamedTuple):
    """What to know of pretrained weights before reading them.

    Attributes:
        mean: of each channel on the scale [0, 1], by which the network's inputs are standardized.
        std: standard deviation of each channel, likewise.
        description: network, what it was trained on, and with which labels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    description: str


def about(weights: str) -> About:
    """What is known of weights without reading them.

    A file of tensors does not say how its images were standardized: by ImageNet's mean and
    standard deviation, unless `augment.mean` and `augment.std` are set (timm's own ViTs have 0.5).
    """
    if weights == BUNDLED:
        return About(lite0.MEAN, lite0.STD, lite0.DESCRIPTION)
    return About(
        IMAGENET_MEAN, IMAGENET_STD, f"{weights}, whose training data and labels are not known here"
    )


def load(weights: str, backbone: str, params: Mapping[str, Any], stats: Any) -> tuple[Any, Any]:
    """Parameters and BatchNorm statistics of a backbone, float32.

    Args:
        weights: `network.weights`.
        backbone: `network.name`.
        params: parameters of the backbone, of which only shapes matter.
        stats: statistics, likewise.

    Raises:
        InputError: the weights are missing, damaged, or of another network.
    """
    if weights == BUNDLED:
        return lite0.load()
    path = safetensors.from_hub(weights) if weights.startswith("hf:") else weights
    return safetensors.convert(safetensors.read(path), backbone, params, stats)
