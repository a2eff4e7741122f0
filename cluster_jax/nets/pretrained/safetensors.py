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
# Our modules or parameters, joined by "/", to the tensors that make them: one, or the three of a
# layer that computes queries, keys and values together.
Layout = dict[str, tuple[str, ...]]

INSTALL = "pip install 'cluster-jax[pretrained]'"
PICKLES = (".pth", ".pt", ".bin")
# The classifier, counts of batches that BatchNorm does not use, and DINOv2's token for masked
# patches, which occurs in its training only.
LEFT_OUT = re.compile(r"(fc|head)\.(weight|bias)|.*\.num_batches_tracked|(embeddings\.)?mask_token")
# Names of PyTorch for the parameters of a layer.
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
        InputError: another form of name, no such model or file, no network; huggingface-hub is not
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
    """The file `name` of the folder, or of the model on the Hub, that weights are in; or None.

    Args:
        weights: path of a file, or "hf:ORG/NAME".
        name: of the other file.

    Raises:
        InputError: see `from_hub`; the Hub cannot be asked whether the model has that file.
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
    """Whether the Hub has said, now or earlier, that the model has no such file."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return True
    known = huggingface_hub.try_to_load_from_cache(weights.removeprefix("hf:"), name)
    return known is not None and not isinstance(known, str)


def _download(name: str, file: str) -> tuple[pathlib.Path | None, Exception | None]:
    """A file of a model on the Hub, or why it cannot be had."""
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
    missing = (OSError, ValueError, huggingface_hub.errors.EntryNotFoundError)
    try:
        path = huggingface_hub.hf_hub_download(name.removeprefix("hf:"), file)
        return pathlib.Path(path), None
    except missing as error:
        return None, error


def convert(
    tensors: Mapping[str, np.ndarray], backbone_name: str, params: PyTree, stats: PyTree
) -> tuple[PyTree, PyTree]:
    """Parameters and statistics of a backbone from PyTorch's tensors.

    Names are those of timm and torchvision for a ResNet, and of timm, DINOv2, and DINOv2 in
    Hugging Face's transformers for a Vision Transformer. The classifier, `num_batches_tracked`, and
    `mask_token` are left out; every other tensor is used once. The running variance is kept as it
    is: torch's is the unbiased one, ours the biased one, and evaluation uses either.

    Args:
        tensors: by their names.
        backbone_name: `network.name`.
        params: parameters of the backbone, for their structure, shapes, and dtypes.
        stats: its statistics, likewise.

    Returns:
        `(params, stats)` in NumPy, in the structure and dtypes of those given.

    Raises:
        InputError: another backbone; a tensor is missing, has no place, or has another shape.
    """
    layout = _layout(backbone_name, tensors)
    given = {name: tensor for name, tensor in tensors.items() if not LEFT_OUT.fullmatch(name)}
    leaves, structure = jax.tree_util.tree_flatten_with_path((params, stats))
    # Without the first key, the position in the pair.
    paths = [tuple(key.key for key in path[1:]) for path, _ in leaves]
    sources = [_sources(layout, path) for path in paths]
    expected = [name for names in sources for name in names]
    _check_names(backbone_name, given, expected)
    filled = [
        _leaf([given[name] for name in names], names, path, leaf)
        for names, path, (_, leaf) in zip(sources, paths, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structure, filled)


def _check_names(backbone_name: str, given: Mapping[str, Any], expected: Sequence[str]) -> None:
    missing = sorted(set(expected) - set(given))
    if missing:
        raise InputError(
            f"weights for network.name {backbone_name!r} must contain {_some(missing)}; got "
            f"{len(given)} tensors without"
        )
    unknown = sorted(set(given) - set(expected))
    if unknown:
        raise InputError(
            f"weights for network.name {backbone_name!r} must contain its tensors alone; got also "
            f"{_some(unknown)}"
        )


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{more}"


def _leaf(
    tensors: Sequence[np.ndarray], names: Sequence[str], path: tuple[str, ...], leaf: Any
) -> np.ndarray:
    """A parameter or statistic from its tensors, with their axes in our order."""
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
    """PyTorch's shape of a parameter of ours: outputs first; tokens have a batch axis."""
    if path[-1] == "kernel":
        return (shape[-1], *shape[-2:-1], *shape[:-2])
    return (1, *shape) if len(shape) == 2 else shape


def _sources(layout: Layout, path: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the tensors that make the parameter or statistic of ours at this path."""
    joined = "/".join(path)
    if joined in layout:
        return layout[joined]
    return tuple(f"{module}.{LEAVES[path[-1]]}" for module in layout["/".join(path[:-1])])


def _layout(backbone_name: str, names: Mapping[str, Any]) -> Layout:
    """How the tensors of a file with these names are called."""
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
    """The same in timm and torchvision."""
    kind, convolutions = ("Bottleneck", 3) if backbone_name == "resnet50" else ("BasicBlock", 2)
    depths = resnet.DEPTHS[backbone_name]
    blocks = [f"layer{layer}.{i}" for layer, depth in enumerate(depths, 1) for i in range(depth)]
    layout = {"Conv_0": "conv1", "BatchNorm_0": "bn1"}
    for number, theirs in enumerate(blocks):
        ours = f"{kind}_{number}"
        for i in range(convolutions):
            layout[f"{ours}/Conv_{i}"] = f"{theirs}.conv{i + 1}"
            layout[f"{ours}/BatchNorm_{i}"] = f"{theirs}.bn{i + 1}"
        # Blocks without a projection in their shortcut have none of the following.
        layout[f"{ours}/Conv_{convolutions}"] = f"{theirs}.downsample.0"
        layout[f"{ours}/BatchNorm_{convolutions}"] = f"{theirs}.downsample.1"
    return {ours: (theirs,) for ours, theirs in layout.items()}


def _vit_layout(depth: int, registers: str) -> Layout:
    """Of timm and of DINOv2, which differ in the name of the registers."""
    layout = {
        "embedding/patches": "patch_embed.proj",
        "embedding/class_token": "cls_token",
        "embedding/positions": "pos_embed",
        "embedding/registers": registers,
        "norm": "norm",
    }
    for i in range(depth):
        for ours, theirs in (
            ("norm1", "norm1"),
            ("qkv", "attn.qkv"),
            ("projection", "attn.proj"),
            ("scale1", "ls1.gamma"),
            ("norm2", "norm2"),
            ("hidden", "mlp.fc1"),
            ("out", "mlp.fc2"),
            ("scale2", "ls2.gamma"),
        ):
            layout[f"block{i + 1}/{ours}"] = f"blocks.{i}.{theirs}"
    return {ours: (theirs,) for ours, theirs in layout.items()}


def _transformers_layout(depth: int) -> Layout:
    """DINOv2 in Hugging Face's transformers, which keeps queries, keys and values apart."""
    layout: Layout = {
        "embedding/patches": ("embeddings.patch_embeddings.projection",),
        "embedding/class_token": ("embeddings.cls_token",),
        "embedding/positions": ("embeddings.position_embeddings",),
        "embedding/registers": ("embeddings.register_tokens",),
        "norm": ("layernorm",),
    }
    for i in range(depth):
        ours, theirs = f"block{i + 1}", f"encoder.layer.{i}"
        attention = f"{theirs}.attention.attention"
        layout[f"{ours}/norm1"] = (f"{theirs}.norm1",)
        layout[f"{ours}/qkv"] = tuple(f"{attention}.{x}" for x in ("query", "key", "value"))
        layout[f"{ours}/projection"] = (f"{theirs}.attention.output.dense",)
        layout[f"{ours}/scale1"] = (f"{theirs}.layer_scale1.lambda1",)
        layout[f"{ours}/norm2"] = (f"{theirs}.norm2",)
        layout[f"{ours}/hidden"] = (f"{theirs}.mlp.fc1",)
        layout[f"{ours}/out"] = (f"{theirs}.mlp.fc2",)
        layout[f"{ours}/scale2"] = (f"{theirs}.layer_scale2.lambda1",)
    return layout
