"""Pretrained weights: installed with pip, from a file, or from the Hugging Face Hub."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster_jax.core.checks import InputError
from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite0, safetensors

# Preprocessing settings beside a weights file: of transformers; of timm or transformers.
CONFIGS = ("preprocessor_config.json", "config.json")
# Channel statistics of ImageNet, by which inputs of nearly all ResNets and of DINOv2 are
# standardized.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Pillow's numbers of interpolations, which transformers writes.
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class Preprocessing(NamedTuple):
    """Preprocessing of a network's inputs: resizing and standardization.

    Attributes:
        mean: mean of each channel on the scale [0, 1].
        std: standard deviation of each channel on the scale [0, 1].
        size: side of the square image, in pixels.
        interpolation: method of resizing, see `data.interpolation`.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    size: int = 224
    interpolation: str = "bicubic"


def describe(weights: str) -> str:
    """The network, its training data and their labels in words, as far as known."""
    if weights == BUNDLED:
        return lite0.DESCRIPTION
    return f"{weights}, whose training data and labels are not known here"


def preprocessing(weights: str) -> Preprocessing:
    """Preprocessing of the inputs of a pretrained network.

    A file of tensors holds no preprocessing; it is read from one of `CONFIGS` beside the file, as
    timm and transformers write them. Missing values default to ImageNet's. timm's center crop
    (`crop_pct`) is ignored: the whole short side is used.

    Raises:
        InputError: a file of `CONFIGS` is damaged or has unsupported values.
    """
    if weights == BUNDLED:
        return Preprocessing(lite0.MEAN, lite0.STD)
    is_on_hub, folder = weights.startswith("hf:"), pathlib.Path(weights).expanduser().parent
    for name in CONFIGS:
        file = safetensors.from_hub(weights, name) if is_on_hub else folder / name
        if file is not None and file.is_file() and (values := _read_fields(file)):
            return Preprocessing(**values)
    return Preprocessing()


def _read_fields(file: pathlib.Path) -> dict[str, Any]:
    """The `Preprocessing` fields that a JSON file contains."""
    try:
        values = json.loads(file.read_text())
        values = values.get("pretrained_cfg", values)
        fields = {
            "mean": _channels(values, "mean", 0),
            "std": _channels(values, "std", 1e-6),
            "size": _side(values),
            "interpolation": _interpolation(values),
        }
        if (fields["mean"] is None) != (fields["std"] is None):
            raise ValueError("one of mean and std")
    except (ValueError, TypeError, AttributeError) as error:
        must = f"{file} must say how images are prepared, as the files of timm and transformers do"
        raise InputError(f"{must}; got {error}") from error
    return {key: value for key, value in fields.items() if value is not None}


def _channels(values: Mapping[str, Any], key: str, least: float) -> tuple[float, ...] | None:
    """Mean or standard deviation of three channels, on the scale [0, 1]."""
    given = values.get(f"image_{key}", values.get(key))
    if given is None:
        return None
    is_list = isinstance(given, list) and len(given) == 3
    if not is_list or not all(_is_number(x) and least <= x <= 1 for x in given):
        raise ValueError(f"the {key} {given!r}")
    return tuple(map(float, given))


def _side(values: Mapping[str, Any]) -> int | None:
    """Side of the square image: timm's `input_size`; transformers' `crop_size`, else `size`."""
    given = values.get("crop_size") if values.get("do_center_crop", True) else None
    given = values.get("input_size", values.get("size") if given is None else given)
    if given is None:
        return None
    sides = given[-2:] if isinstance(given, list) else [given]
    sides = list(given.values()) if isinstance(given, Mapping) else sides
    is_whole = [_is_number(side) and side == int(side) >= 1 for side in sides]
    if not sides or not all(is_whole) or len(set(sides)) > 1:
        raise ValueError(f"the size {given!r}")
    return int(sides[0])


def _interpolation(values: Mapping[str, Any]) -> str | None:
    name = values.get("interpolation")
    if "resample" in values:
        name = _RESAMPLE.get(values["resample"], values["resample"])
    if name is not None and name not in _RESAMPLE.values():
        raise ValueError(f"the interpolation {name!r}")
    return name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def load(weights: str, backbone: str, params: Mapping[str, Any], stats: Any) -> tuple[Any, Any]:
    """Parameters and BatchNorm statistics of a backbone, float32.

    Args:
        weights: `network.weights`.
        backbone: `network.name`.
        params: parameters of the backbone, for their structure, shapes, and dtypes.
        stats: BatchNorm statistics, likewise.

    Raises:
        InputError: the weights are missing, damaged, or of another network.
    """
    if weights == BUNDLED:
        return lite0.load()
    is_on_hub = weights.startswith("hf:")
    path = safetensors.from_hub(weights, "model.safetensors") if is_on_hub else weights
    if path is None:
        raise InputError(
            "pretrained weights must be a model on the Hugging Face Hub that has a file "
            f"model.safetensors; got {weights!r}"
        )
    return safetensors.convert(safetensors.read(path), backbone, params, stats)
