"""Pretrained weights: installed with pip, from a file, or from the Hugging Face Hub.

Files are those of timm, torchvision, DINOv2, CLIP and SigLIP for ResNets, ConvNeXts and Vision
Transformers. Only the safetensors format is read: it holds numbers and no code.
"""

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import numpy as np

from cluster_jax.core import checks
from cluster_jax.core.checks import Count, Fraction, InputError
from cluster_jax.core.config import check_values
from cluster_jax.core.names import counted
from cluster_jax.nets.backbones import convnext, resnet, vit
from cluster_jax.nets.config import BUNDLED
from cluster_jax.nets.pretrained import lite

PyTree = Any
# Path of a parameter or statistic in Flax.
Path = tuple[str, ...]

INSTALL = "pip install 'cluster-jax[pretrained]'"
PICKLES = (".pth", ".pt", ".bin")
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
    """Describes the network, its training data and their labels in words, as far as known."""
    if weights in BUNDLED:
        return lite.describe(weights)
    return f"{weights}, whose training data and labels are not known here"


def preprocessing(weights: str) -> Preprocessing:
    """Returns the preprocessing of the inputs of a pretrained network.

    A file of tensors holds no preprocessing; it is read from one of `CONFIGS` beside the file, as
    timm and transformers write them. Missing values default to ImageNet's. timm's center crop
    (`crop_pct`) is ignored: the whole short side is used.

    Raises:
        InputError: a file of `CONFIGS` is damaged or has unsupported values.
    """
    if weights in BUNDLED:
        return Preprocessing(lite.MEAN, lite.STD)
    is_on_hub, folder = weights.startswith("hf:"), pathlib.Path(weights).expanduser().parent
    for name in CONFIGS:
        file = from_hub(weights, name) if is_on_hub else folder / name
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
    if weights in BUNDLED:
        return lite.load(weights)
    return convert(read(_file(weights)), backbone, params, stats)


def _file(weights: str) -> str | pathlib.Path:
    """Finds the file of tensors of a path or of a model on the Hugging Face Hub."""
    is_on_hub = weights.startswith("hf:")
    path = from_hub(weights, "model.safetensors") if is_on_hub else weights
    if path is None:
        raise InputError(
            "pretrained weights must be a model on the Hugging Face Hub that has a file "
            f"model.safetensors; got {weights!r}"
        )
    return path


def shapes(weights: str) -> dict[str, tuple[int, ...]]:
    """Reads the shapes of all tensors of a file or of a model on the Hugging Face Hub, by name.

    Raises:
        InputError: see `read` and `from_hub`.
    """
    return {name: tensor.shape for name, tensor in read(_file(weights)).items()}


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a safetensors file, by name.

    Raises:
        InputError: a pickled, missing, truncated or edited file; safetensors is not installed.
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix in PICKLES:
        raise InputError(
            "a file of pretrained weights must be in the safetensors format, as a pickled one can "
            f"run code; got {path}: convert it with `safetensors.torch.save_file(torch.load(FILE, "
            'weights_only=True), "model.safetensors")`'
        )
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        must = f"the library safetensors must be installed to read pretrained weights: {INSTALL}"
        raise InputError(f"{must}; got {path}") from error
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        must = "a file of pretrained weights must be a whole safetensors file"
        raise InputError(f"{must}; got {path}: {error}") from error


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
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
        from huggingface_hub.utils import logging
    except ImportError as error:
        must = f"the library huggingface-hub must be installed to download weights: {INSTALL}"
        raise InputError(f"{must}; got {weights!r}") from error
    repository = weights.removeprefix("hf:")
    # Without a network the library tells of every one of its tries.
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return pathlib.Path(hub.hf_hub_download(repository, name))
    except (OSError, ValueError, EntryNotFoundError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        # The library also keeps which files the Hub did not have.
        cached = hub.try_to_load_from_cache(repository, name)
        if cached is not None and not isinstance(cached, str):
            return None
        raise InputError(
            f"{name} of {weights!r} must be within reach on the Hugging Face Hub; got "
            f"{type(error).__name__}: try again with a network, or download the files of the model "
            "elsewhere and give the path of model.safetensors"
        ) from error
    finally:
        logging.set_verbosity(level)


def convert(
    tensors: Mapping[str, np.ndarray], backbone_name: str, params: PyTree, stats: PyTree
) -> tuple[PyTree, PyTree]:
    """Converts PyTorch's tensors to parameters and statistics of a backbone.

    Tensor names of timm and torchvision (ResNets), of timm (ConvNeXts), and of timm, DINOv2, and
    DINOv2, CLIP and SigLIP in Hugging Face's transformers (Vision Transformers) are known. What
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
    if backbone_name not in (*convnext.NAMES, *resnet.NAMES, *vit.NAMES):
        must = (
            "network.name must be a ResNet, a ConvNeXt or a Vision Transformer with weights of "
            "this format"
        )
        raise InputError(f"{must}; got {backbone_name!r}")
    kept = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    leaves, structure = jax.tree_util.tree_flatten_with_path((params, stats))
    # The first key is the position in the pair (params, stats).
    paths = [tuple(key.key for key in path[1:]) for path, _ in leaves]
    sources = [_names(backbone_name, path, tensors) for path in paths]
    expected = [name for names in sources for name in names]
    _check_names(backbone_name, kept, expected)
    filled = [
        _converted([kept[name] for name in names], names, path, leaf)
        for names, path, (_, leaf) in zip(sources, paths, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, filled)


def _check_names(backbone_name: str, kept: Mapping[str, Any], expected: Sequence[str]) -> None:
    must = f"weights for network.name {backbone_name!r} must contain"
    if missing := set(expected) - set(kept):
        raise InputError(
            f"{must} {_abbreviated(missing)}; got {counted(len(kept), 'tensor')} without"
        )
    if unknown := set(kept) - set(expected):
        raise InputError(f"{must} its tensors alone; got also {_abbreviated(unknown)}")


def _abbreviated(names: Collection[str]) -> str:
    """Returns the first name in alphabetical order, and the number of further names."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)!r}{more}"


def _converted(
    tensors: Sequence[np.ndarray], names: Sequence[str], path: Path, leaf: Any
) -> np.ndarray:
    """Converts PyTorch tensors to a parameter or statistic, with axes in Flax's order."""
    if path == ("embedding", "positions") and tensors[0].shape[1:2] == (leaf.shape[0] - 1,):
        # timm adds the position of DINOv2's class token to the token itself.
        (positions,) = tensors
        tensors = [np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)]
    is_token = path[-1] in ("class_token", "positions", "probe")
    shape = _torch_shape(path, (*leaf.shape[:-1], leaf.shape[-1] // len(tensors)))
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != shape and not (is_token and _bare(tensor.shape) == _bare(shape)):
            raise InputError(f"the tensor {name!r} must have the shape {shape}; got {tensor.shape}")
    if path[-1] == "kernel":
        axes = (2, 3, 1, 0) if len(leaf.shape) == 4 else (1, 0)
        tensors = [tensor.transpose(axes) for tensor in tensors]
    return np.concatenate(tensors, axis=-1).reshape(leaf.shape).astype(leaf.dtype)


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Removes leading axes of one from a shape: tokens have them in some files."""
    return _bare(shape[1:]) if shape[:1] == (1,) else shape


def _torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns PyTorch's shape of a Flax parameter: outputs first; tokens have a batch axis."""
    if path[-1] == "kernel":
        return (shape[-1], *shape[-2:-1], *shape[:-2])
    return (1, *shape) if len(shape) == 2 else shape


def _names(backbone_name: str, path: Path, tensors: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the PyTorch tensors of a Flax path: one, or three in `VIT`."""
    if backbone_name in resnet.NAMES:
        return (_resnet_name(backbone_name, path),)
    if backbone_name in convnext.NAMES:
        return (_convnext_name(path),)
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
    return tuple(name.replace("*", part) + leaf for part in (kinds if "*" in name else ("",)))


# Layer or parameter of a ConvNeXt's block in Flax -> its name in timm.
CONVNEXT = {
    "depthwise": "conv_dw", "bias": "conv_dw.bias", "norm": "norm", "hidden": "mlp.fc1",
    "out": "mlp.fc2", "gamma": "gamma",
}  # fmt: skip


def _convnext_name(path: Path) -> str:
    """Returns the name in timm."""
    scope, *layer = path[0], *path[1:-1]
    leaf = f".{LEAVES[path[-1]]}" if path[-1] in LEAVES else ""
    if match := re.fullmatch(r"stage(\d)_block(\d+)", scope):
        name = CONVNEXT[layer[0]] + leaf if layer else CONVNEXT[path[-1]]
        return f"stages.{int(match[1]) - 1}.blocks.{match[2]}.{name}"
    if match := re.fullmatch(r"stage(\d)_(norm|conv)", scope):
        return f"stages.{int(match[1]) - 1}.downsample.{int(match[2] == 'conv')}{leaf}"
    return {"stem": "stem.0", "stem_norm": "stem.1", "norm": "head.norm"}[scope] + leaf


def _resnet_name(backbone_name: str, path: Path) -> str:
    """Returns the name in timm and torchvision, which agree."""
    depths = resnet.DEPTHS[backbone_name]
    blocks = [f"layer{layer}.{i}" for layer, depth in enumerate(depths, 1) for i in range(depth)]
    *block, layer, leaf = path
    kind, number = layer.split("_")
    name = f"{'conv' if kind == 'Conv' else 'bn'}{int(number) + 1}"
    if block:
        shortcut = 3 if backbone_name == "resnet50" else 2  # number of its convolution
        if int(number) == shortcut:
            name = f"downsample.{0 if kind == 'Conv' else 1}"
        name = f"{blocks[int(block[0].split('_')[1])]}.{name}"
    return f"{name}.{LEAVES[leaf]}"
