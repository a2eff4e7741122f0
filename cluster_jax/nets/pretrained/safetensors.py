"""Weights of timm, torchvision and DINOv2 for ResNets and Vision Transformers.

Only files in the safetensors format are read: they hold numbers and no code.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cluster_jax.core.checks import InputError
from cluster_jax.nets.backbones import resnet, vit

PyTree = Any
# Flax path of a module or parameter, joined by "/" -> names of its PyTorch tensors: one, or three
# for a layer that computes queries, keys and values together.
Layout = dict[str, tuple[str, ...]]

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
        raise InputError(
            f"the library safetensors must be installed to read pretrained weights: {INSTALL}; "
            f"got {path}"
        ) from error
    try:
        return safetensors.numpy.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(
            f"a file of pretrained weights must be a whole safetensors file; got {path}: {error}"
        ) from error


def from_hub(name: str) -> pathlib.Path:
    """The file "model.safetensors" of a model on the Hugging Face Hub, downloaded once.

    Args:
        name: "hf:ORG/NAME".

    Raises:
        InputError: malformed name, unknown model or file, no network; huggingface-hub is not
            installed.
    """
    file, error = _download(name, "model.safetensors")
    if file is None:
        raise InputError(
            "pretrained weights must be a model on the Hugging Face Hub that has a file "
            f"model.safetensors and can be reached; got {name!r} ({type(error).__name__}): without "
            "a network, download that file elsewhere and give its path"
        ) from error
    return file


def beside(weights: str, name: str) -> pathlib.Path | None:
    """A file beside a weights file, in its folder or its model on the Hub; None if there is none.

    Args:
        weights: path of a file, or "hf:ORG/NAME".
        name: name of the file beside it.

    Raises:
        InputError: see `from_hub`; the Hub cannot be reached.
    """
    if not weights.startswith("hf:"):
        file = pathlib.Path(weights).expanduser().parent / name
        return file if file.is_file() else None
    downloaded, error = _download(weights, name)
    if error is not None and not _is_absent(weights, name, error):
        raise InputError(
            f"{name} of {weights!r} must be within reach, as it may say how images are prepared; "
            f"got {type(error).__name__}: try again with a network, or give data.image_size, "
            "data.interpolation, augment.mean, and augment.std"
        ) from error
    return downloaded


def _is_absent(weights: str, name: str, error: Exception) -> bool:
    """Whether the Hub, or the cache of its earlier answers, reports that the file is missing."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return True
    known = huggingface_hub.try_to_load_from_cache(weights.removeprefix("hf:"), name)
    return known is not None and not isinstance(known, str)


def _download(name: str, file: str) -> tuple[pathlib.Path | None, Exception | None]:
    """A file of a model on the Hub, or the error of its download."""
    if not re.fullmatch(r"hf:[\w.-]+/[\w.-]+", name):
        raise InputError(
            f"pretrained weights on the Hugging Face Hub must be named 'hf:ORG/NAME'; got {name!r}"
        )
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise InputError(
            f"the library huggingface-hub must be installed to download weights: {INSTALL}; got "
            f"{name!r}"
        ) from error
    failures = (OSError, ValueError, huggingface_hub.errors.EntryNotFoundError)
    try:
        path = huggingface_hub.hf_hub_download(name.removeprefix("hf:"), file)
        return pathlib.Path(path), None
    except failures as error:
        return None, error


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
    layout = _layout(backbone_name, tensors)
    kept = {name: tensor for name, tensor in tensors.items() if not IGNORED.fullmatch(name)}
    leaves, structure = jax.tree_util.tree_flatten_with_path((params, stats))
    # The first key is the position in the pair (params, stats).
    paths = [tuple(key.key for key in path[1:]) for path, _ in leaves]
    sources = [_sources(layout, path) for path in paths]
    expected = [name for names in sources for name in names]
    _check_names(backbone_name, kept, expected)
    filled = [
        _converted([kept[name] for name in names], names, path, leaf)
        for names, path, (_, leaf) in zip(sources, paths, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, filled)


def _check_names(backbone_name: str, kept: Mapping[str, Any], expected: Sequence[str]) -> None:
    missing = sorted(set(expected) - set(kept))
    if missing:
        raise InputError(
            f"weights for network.name {backbone_name!r} must contain {_abbreviated(missing)}; got "
            f"{len(kept)} tensors without"
        )
    unknown = sorted(set(kept) - set(expected))
    if unknown:
        raise InputError(
            f"weights for network.name {backbone_name!r} must contain its tensors alone; got also "
            f"{_abbreviated(unknown)}"
        )


def _abbreviated(names: Sequence[str]) -> str:
    """The first name, and the number of further names."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def _converted(
    tensors: Sequence[np.ndarray], names: Sequence[str], path: tuple[str, ...], leaf: Any
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
    if path[-1] == "kernel" and len(leaf.shape) == 4:
        tensors = [tensor.transpose(2, 3, 1, 0) for tensor in tensors]
    elif path[-1] == "kernel":
        tensors = [tensor.T for tensor in tensors]
    return np.concatenate(tensors, axis=-1).reshape(leaf.shape).astype(leaf.dtype)


def _torch_shape(path: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """PyTorch's shape of a Flax parameter: outputs first; tokens have a batch axis."""
    if path[-1] == "kernel":
        return (shape[-1], *shape[-2:-1], *shape[:-2])
    return (1, *shape) if len(shape) == 2 else shape


def _sources(layout: Layout, path: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the PyTorch tensors of the parameter or statistic at a Flax path."""
    joined = "/".join(path)
    if joined in layout:
        return layout[joined]
    return tuple(f"{module}.{LEAVES[path[-1]]}" for module in layout["/".join(path[:-1])])


def _layout(backbone_name: str, names: Mapping[str, Any]) -> Layout:
    """The layout of a file, by the names of its tensors."""
    if backbone_name in resnet.NAMES:
        return _resnet_layout(backbone_name)
    if backbone_name not in vit.NAMES:
        raise InputError(
            "network.name must be a ResNet or a Vision Transformer with weights of this format; "
            f"got {backbone_name!r}"
        )
    _, depth, _, _ = vit.architecture(backbone_name)
    if "embeddings.cls_token" in names:
        return _transformers_layout(depth)
    return _vit_layout(depth, "reg_token" if "reg_token" in names else "register_tokens")


def _resnet_layout(backbone_name: str) -> Layout:
    """ResNets of timm and torchvision, whose names agree."""
    kind, convolutions = ("Bottleneck", 3) if backbone_name == "resnet50" else ("BasicBlock", 2)
    depths = resnet.DEPTHS[backbone_name]
    blocks = [f"layer{layer}.{i}" for layer, depth in enumerate(depths, 1) for i in range(depth)]
    layout = {"Conv_0": "conv1", "BatchNorm_0": "bn1"}
    for number, torch_name in enumerate(blocks):
        flax_name = f"{kind}_{number}"
        for i in range(convolutions):
            layout[f"{flax_name}/Conv_{i}"] = f"{torch_name}.conv{i + 1}"
            layout[f"{flax_name}/BatchNorm_{i}"] = f"{torch_name}.bn{i + 1}"
        # The shortcut; a block with an identity shortcut has no such tensors.
        layout[f"{flax_name}/Conv_{convolutions}"] = f"{torch_name}.downsample.0"
        layout[f"{flax_name}/BatchNorm_{convolutions}"] = f"{torch_name}.downsample.1"
    return {flax_name: (torch_name,) for flax_name, torch_name in layout.items()}


def _vit_layout(depth: int, registers: str) -> Layout:
    """Vision Transformers of timm and DINOv2, which differ in the name of the registers."""
    layout = {
        "embedding/patches": "patch_embed.proj",
        "embedding/class_token": "cls_token",
        "embedding/positions": "pos_embed",
        "embedding/registers": registers,
        "norm": "norm",
    }
    for i in range(depth):
        for flax_name, torch_name in (
            ("norm1", "norm1"),
            ("qkv", "attn.qkv"),
            ("projection", "attn.proj"),
            ("scale1", "ls1.gamma"),
            ("norm2", "norm2"),
            ("hidden", "mlp.fc1"),
            ("out", "mlp.fc2"),
            ("scale2", "ls2.gamma"),
        ):
            layout[f"block{i + 1}/{flax_name}"] = f"blocks.{i}.{torch_name}"
    return {flax_name: (torch_name,) for flax_name, torch_name in layout.items()}


def _transformers_layout(depth: int) -> Layout:
    """DINOv2 in Hugging Face's transformers, which stores queries, keys and values separately."""
    layout: Layout = {
        "embedding/patches": ("embeddings.patch_embeddings.projection",),
        "embedding/class_token": ("embeddings.cls_token",),
        "embedding/positions": ("embeddings.position_embeddings",),
        "embedding/registers": ("embeddings.register_tokens",),
        "norm": ("layernorm",),
    }
    for i in range(depth):
        flax_name, torch_name = f"block{i + 1}", f"encoder.layer.{i}"
        attention = f"{torch_name}.attention.attention"
        layout[f"{flax_name}/norm1"] = (f"{torch_name}.norm1",)
        layout[f"{flax_name}/qkv"] = tuple(f"{attention}.{x}" for x in ("query", "key", "value"))
        layout[f"{flax_name}/projection"] = (f"{torch_name}.attention.output.dense",)
        layout[f"{flax_name}/scale1"] = (f"{torch_name}.layer_scale1.lambda1",)
        layout[f"{flax_name}/norm2"] = (f"{torch_name}.norm2",)
        layout[f"{flax_name}/hidden"] = (f"{torch_name}.mlp.fc1",)
        layout[f"{flax_name}/out"] = (f"{torch_name}.mlp.fc2",)
        layout[f"{flax_name}/scale2"] = (f"{torch_name}.layer_scale2.lambda1",)
    return layout
