"""What `network.weights` names."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster_jax.core.checks import InputError
from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite0, safetensors

# Files that say how inputs are standardized: of transformers, and of timm or transformers.
CONFIGS = ("preprocessor_config.json", "config.json")
# Of ImageNet's training images, by which nearly all published ResNets and DINOv2 were trained.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel, on the scale [0, 1], of standardized inputs."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def describe(weights: str) -> str:
    """Network, what it was trained on, and with which labels, as far as that is known."""
    if weights == BUNDLED:
        return lite0.DESCRIPTION
    return f"{weights}, whose training data and labels are not known here"


def statistics(weights: str) -> Statistics:
    """How the network's inputs are standardized.

    A file of tensors does not say it, but one of `CONFIGS` beside it may: those of timm and
    transformers. Without one, ImageNet's mean and standard deviation. (Their sizes and
    interpolations are not used: images have the size that the config sets, by bicubic resizing.)

    Raises:
        InputError: such a file is damaged, or its values are not three numbers each.
    """
    if weights == BUNDLED:
        return Statistics(lite0.MEAN, lite0.STD)
    for name in CONFIGS:
        file = safetensors.beside(weights, name)
        values = None if file is None else _read(file)
        if values is not None:
            return values
    return Statistics(IMAGENET_MEAN, IMAGENET_STD)


def _read(file: pathlib.Path) -> Statistics | None:
    """Mean and standard deviation of a JSON file; None if it has none."""
    try:
        values = json.loads(file.read_text())
        values = values.get("pretrained_cfg", values)
        found = [values.get(f"image_{key}", values.get(key)) for key in ("mean", "std")]
        if found == [None, None]:
            return None
        mean, std = (tuple(float(x) for x in channels) for channels in found)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{file} must be a JSON file with a mean and a standard deviation of each channel; "
            f"got an error: {error}"
        ) from error
    if not (len(mean) == len(std) == 3 and all(0 < s < math.inf for s in std)):
        raise InputError(
            f"{file} must have a mean and a standard deviation above 0 of each of three channels; "
            f"got {mean} and {std}"
        )
    return Statistics(mean, std)


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
