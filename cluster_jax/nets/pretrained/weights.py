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
# Pillow's numbers, which transformers uses.
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class Preprocessing(NamedTuple):
    """How a network's inputs are made.

    Attributes:
        mean: of each channel on the scale [0, 1], by which inputs are standardized.
        std: standard deviation, likewise.
        size: side of the square image, in pixels.
        interpolation: by which images are resized, see `data.interpolation`.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    size: int = 224
    interpolation: str = "bicubic"


def describe(weights: str) -> str:
    """Network, what it was trained on, and with which labels, as far as that is known."""
    if weights == BUNDLED:
        return lite0.DESCRIPTION
    return f"{weights}, whose training data and labels are not known here"


def preprocessing(weights: str) -> Preprocessing:
    """How the network's inputs are made.

    A file of tensors does not say it, but one of `CONFIGS` beside it may: those of timm and
    transformers. What is not there is as for most networks trained on ImageNet. A margin that is
    resized and cut off (timm's `crop_pct`) is not: the whole short side is seen.

    Raises:
        InputError: such a file is damaged, or has other values than these.
    """
    if weights == BUNDLED:
        return Preprocessing(lite0.MEAN, lite0.STD)
    for name in CONFIGS:
        file = safetensors.beside(weights, name)
        values = {} if file is None else _read(file)
        if values:
            return Preprocessing(**values)
    return Preprocessing()


def _read(file: pathlib.Path) -> dict[str, Any]:
    """The values of a JSON file, as far as it has them."""
    try:
        values = json.loads(file.read_text())
        values = values.get("pretrained_cfg", values)
        statistics = {key: values.get(f"image_{key}", values.get(key)) for key in ("mean", "std")}
        found: dict[str, Any] = {"size": _side(values), "interpolation": _interpolation(values)}
        found = {key: value for key, value in found.items() if value is not None}
        if any(value is not None for value in statistics.values()):
            found |= {k: tuple(float(x) for x in channels) for k, channels in statistics.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(
            f"{file} must be a JSON file that says how images are prepared; got an error: {error}"
        ) from error
    complete = Preprocessing(**found)
    if not (
        len(complete.mean) == len(complete.std) == 3
        and all(map(math.isfinite, complete.mean))
        and all(0 < s < math.inf for s in complete.std)
    ):
        raise InputError(
            f"{file} must have a mean and a standard deviation above 0 of each of three channels; "
            f"got {complete.mean} and {complete.std}"
        )
    return found


def _side(values: Mapping[str, Any]) -> int | None:
    """Side of the square: timm's `input_size`; transformers' `crop_size`, else `size`."""
    if "input_size" in values:
        sides = set(values["input_size"][1:])
    else:
        given = values.get("crop_size") if values.get("do_center_crop", True) else None
        given = values.get("size") if given is None else given
        if given is None:
            return None
        sides = set(given.values()) if isinstance(given, Mapping) else {given}
    (side,) = sides  # a ValueError where they differ: networks take squares
    if not (isinstance(side, int) and side > 0):
        raise ValueError(f"a side of {side!r} pixels")
    return side


def _interpolation(values: Mapping[str, Any]) -> str | None:
    if "resample" in values:
        return _RESAMPLE[values["resample"]]
    return values.get("interpolation")


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
