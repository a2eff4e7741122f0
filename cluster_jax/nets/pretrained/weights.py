"""Pretrained weights: installed with pip, from a file, or from the Hugging Face Hub."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Fraction, InputError
from cluster_jax.core.config import check_values
from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite0, safetensors

# Preprocessing settings beside a weights file: of transformers; of timm or transformers.
CONFIGS = ("preprocessor_config.json", "config.json")
# Channel statistics of ImageNet, by which inputs of nearly all ResNets and of DINOv2 are
# standardized.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Pillow's numbers of interpolations, which transformers writes.
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


# A standard deviation on the scale [0, 1], by which pixels are divided.
_Std = Annotated[float, functools.partial(checks.between, low=1e-6, high=1)]


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of a network's inputs: resizing and standardization.

    Attributes:
        mean: mean of each channel on the scale [0, 1].
        std: standard deviation of each channel on the scale [0, 1].
        size: side of the square image, in pixels.
        interpolation: method of resizing, see `data.interpolation`.
    """

    mean: tuple[Fraction, Fraction, Fraction] = IMAGENET_MEAN
    std: tuple[_Std, _Std, _Std] = IMAGENET_STD
    size: Count = 224
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bicubic"


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
        mean, std = (values.get(f"image_{key}", values.get(key)) for key in ("mean", "std"))
        if (mean is None) != (std is None):
            raise ValueError("one of mean and std")
        resample = values.get("resample", values.get("interpolation"))
        fields = {
            "mean": mean and tuple(mean),
            "std": std and tuple(std),
            "size": _side(values),
            "interpolation": _RESAMPLE.get(resample, resample),
        }
        fields = {key: value for key, value in fields.items() if value is not None}
        check_values("", Preprocessing(**fields))
    except (ValueError, TypeError, AttributeError) as error:
        must = f"{file} must say how images are prepared, as the files of timm and transformers do"
        raise InputError(f"{must}; got {error}") from error
    return fields


def _side(values: Mapping[str, Any]) -> Any:
    """Side of the square image: timm's `input_size`; transformers' `crop_size`, else `size`."""
    given = values.get("crop_size") if values.get("do_center_crop", True) else None
    given = values.get("input_size", values.get("size") if given is None else given)
    if isinstance(given, Mapping | list):
        sides = list(given.values()) if isinstance(given, Mapping) else given[-2:]
        if len(set(sides)) != 1:
            raise ValueError(f"the size {given!r}")
        given = sides[0]
    return given


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
