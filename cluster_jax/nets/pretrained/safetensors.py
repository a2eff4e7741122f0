"""Weights of timm, torchvision and DINOv2 for ResNets and Vision Transformers.

Only files in the safetensors format are read: they hold numbers and no code.
"""

import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cluster_jax.core.checks import InputError
from cluster_jax.nets.backbones import resnet, vit

PyTree = Any
# Path of a parameter or statistic in Flax.
Path = tuple[str, ...]

INSTALL = "pip install 'cluster-jax[pretrained]'"
PICKLES = (".pth", ".pt", ".bin")
# Tensors that are not loaded: the classifier, BatchNorm's counts of batches, and DINOv2's token for
# masked patches, which only its training uses.
IGNORED = re.compile(r"(fc|head)\.(weight|bias)|.*\.num_batches_tracked|(embeddings\.)?mask_token")
# Flax's name of a parameter of a layer -> PyTorch's.
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
# Layer or parameter of a Vision Transformer in Flax -> its name in timm and DINOv2's own files, and
# in Hugging Face's transformers; {} is the number of the block. * stands for "query", "key" and
# "value", which transformers stores separately.
VIT = {
    "patches": ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
    "class_token": ("cls_token", "embeddings.cls_token"),
    "positions": ("pos_embed", "embeddings.position_embeddings"),
    "registers": ("register_tokens", "embeddings.register_tokens"),
    "norm": ("norm", "layernorm"),
    "norm1": ("blocks.{}.norm1", "encoder.layer.{}.norm1"),
    "qkv": ("blocks.{}.attn.qkv", "encoder.layer.{}.attention.attention.*"),
    "projection": ("blocks.{}.attn.proj", "encoder.layer.{}.attention.output.dense"),
    "scale1": ("blocks.{}.ls1.gamma", "encoder.layer.{}.layer_scale1.lambda1"),
    "norm2": ("blocks.{}.norm2", "encoder.layer.{}.norm2"),
    "hidden": ("blocks.{}.mlp.fc1", "encoder.layer.{}.mlp.fc1"),
    "out": ("blocks.{}.mlp.fc2", "encoder.layer.{}.mlp.fc2"),
    "scale2": ("blocks.{}.ls2.gamma", "encoder.layer.{}.layer_scale2.lambda1"),
}


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file, by name.

    Raises:
        InputError: a pickled, missing, truncated or edited file; safetensors is not installed.
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix in PICKLES:
        raise InputError(
            "a file of pretrained weights must be in the safetensors format, as a pickled one can "
            f"run code; got {path}: convert it with `safetensors.torch.save_file(torch.load("
            f'"{path}", weights_only=True), "{path.with_suffix(".safetensors")}")`'
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
    """A file of a model on the Hugging Face Hub, downloaded once; None if the model lacks it.

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
    except ImportError as error:
        must = f"the library huggingface-hub must be installed to download weights: {INSTALL}"
        raise InputError(f"{must}; got {weights!r}") from error
    repository = weights.removeprefix("hf:")
    try:
        return pathlib.Path(hub.hf_hub_download(repository, name))
    except (OSError, ValueError, EntryNotFoundError) as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        # The library also keeps which files the Hub did not have.
        known = hub.try_to_load_from_cache(repository, name)
        if known is not None and not isinstance(known, str):
            return None
        raise InputError(
            f"{name} of {weights!r} must be within reach on the Hugging Face Hub; got "
            f"{type(error).__name__}: try again with a network, or download the files of the model "
            "elsewhere and give the path of model.safetensors"
        ) from error


def convert(
    tensors: Mapping[str, np.ndarray], backbone_name: str, params: PyTree, stats: PyTree
) -> tuple[PyTree, PyTree]:
    """Parameters and statistics of a backbone from PyTorch's tensors.

    Tensor names of timm and torchvision (ResNets), and of timm, DINOv2, and DINOv2 in Hugging
    Face's transformers (Vision Transformers) are known. The classifier, `num_batches_tracked`, and
    `mask_token` are ignored; every other tensor is used once. The running variance is copied
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
    names_of = _naming(backbone_name, tensors)
    kept = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    leaves, structure = jax.tree_util.tree_flatten_with_path((params, stats))
    # The first key is the position in the pair (params, stats).
    paths = [tuple(key.key for key in path[1:]) for path, _ in leaves]
    sources = [names_of(path) for path in paths]
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
        raise InputError(f"{must} {_abbreviated(missing)}; got {len(kept)} tensors without")
    if unknown := set(kept) - set(expected):
        raise InputError(f"{must} its tensors alone; got also {_abbreviated(unknown)}")


def _abbreviated(names: Collection[str]) -> str:
    """The first name in alphabetical order, and the number of further names."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{min(names)!r}{more}"


def _converted(
    tensors: Sequence[np.ndarray], names: Sequence[str], path: Path, leaf: Any
) -> np.ndarray:
    """A parameter or statistic from its PyTorch tensors, with axes in Flax's order."""
    if path == ("embedding", "positions") and tensors[0].shape[1:2] == (leaf.shape[0] - 1,):
        # timm adds the position of DINOv2's class token to the token itself.
        (positions,) = tensors
        tensors = [np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)]
    shape = _torch_shape(path, (*leaf.shape[:-1], leaf.shape[-1] // len(tensors)))
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != shape:
            raise InputError(f"the tensor {name!r} must have the shape {shape}; got {tensor.shape}")
    if path[-1] == "kernel":
        axes = (2, 3, 1, 0) if len(leaf.shape) == 4 else (1, 0)
        tensors = [tensor.transpose(axes) for tensor in tensors]
    return np.concatenate(tensors, axis=-1).reshape(leaf.shape).astype(leaf.dtype)


def _torch_shape(path: Path, shape: tuple[int, ...]) -> tuple[int, ...]:
    """PyTorch's shape of a Flax parameter: outputs first; tokens have a batch axis."""
    if path[-1] == "kernel":
        return (shape[-1], *shape[-2:-1], *shape[:-2])
    return (1, *shape) if len(shape) == 2 else shape


def _naming(backbone_name: str, tensors: Mapping[str, Any]) -> Callable[[Path], tuple[str, ...]]:
    """A function from a Flax path to the names of its PyTorch tensors: one, or three in `VIT`."""
    if backbone_name in resnet.NAMES:
        return _resnet_naming(backbone_name)
    if backbone_name not in vit.NAMES:
        must = "network.name must be a ResNet or a Vision Transformer with weights of this format"
        raise InputError(f"{must}; got {backbone_name!r}")
    is_transformers = "embeddings.cls_token" in tensors

    def names_of(path: Path) -> tuple[str, ...]:
        is_layer = path[-1] in LEAVES
        name = VIT[path[-2] if is_layer else path[-1]][is_transformers]
        if path[0].startswith("block"):
            name = name.format(int(path[0].removeprefix("block")) - 1)
        elif name == "register_tokens" and "reg_token" in tensors:  # in timm
            name = "reg_token"
        parts = ("query", "key", "value") if "*" in name else ("",)
        leaf = f".{LEAVES[path[-1]]}" if is_layer else ""
        return tuple(name.replace("*", part) + leaf for part in parts)

    return names_of


def _resnet_naming(backbone_name: str) -> Callable[[Path], tuple[str, ...]]:
    """The names of timm and torchvision, which agree."""
    depths = resnet.DEPTHS[backbone_name]
    blocks = [f"layer{layer}.{i}" for layer, depth in enumerate(depths, 1) for i in range(depth)]
    shortcut = 3 if backbone_name == "resnet50" else 2  # number of its convolution

    def names_of(path: Path) -> tuple[str, ...]:
        *block, layer, leaf = path
        kind, number = layer.split("_")
        name = f"{'conv' if kind == 'Conv' else 'bn'}{int(number) + 1}"
        if block:
            if int(number) == shortcut:
                name = f"downsample.{0 if kind == 'Conv' else 1}"
            name = f"{blocks[int(block[0].split('_')[1])]}.{name}"
        return (f"{name}.{LEAVES[leaf]}",)

    return names_of
