"""Safe reader of PyTorch's file format before 1.6, which needs no PyTorch.

A file is a sequence of pickles: a magic number, the version, a description of the machine, the
tensors with references to storages, the keys of the storages; then the bytes of the storages. A
pickle can run code. This unpickler resolves only four names: the ordered dict, the function that
makes a tensor from a storage, and the two storage types.
"""

import collections
import io
import pickle
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
STORAGES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class _Tensor(NamedTuple):
    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Storage(NamedTuple):
    key: str
    dtype: np.dtype
    size: int


def tensors(content: bytes) -> dict[str, NDArray]:
    """Name -> array, from the bytes of a file with a dictionary of float32 and int64 tensors.

    Raises:
        InputError: the file has another format, is truncated, or its pickles name anything else.
    """
    stream = io.BytesIO(content)
    try:
        return _read(stream)
    except InputError:
        raise
    except Exception as error:  # A damaged pickle raises errors of many types.
        raise InputError(
            f"a file of tensors must be one that torch.save wrote before 1.6; it cannot be read "
            f"({type(error).__name__}: {error})"
        ) from error


def _read(stream: io.BytesIO) -> dict[str, NDArray]:
    storages: dict[str, _Storage] = {}
    if _Reader(stream, storages).load() != MAGIC or _Reader(stream, storages).load() != VERSION:
        raise InputError("a file of tensors must be one that torch.save wrote before 1.6; got none")
    _Reader(stream, storages).load()  # description of the machine that wrote the file
    entries = _Reader(stream, storages).load()
    keys = _Reader(stream, storages).load()
    data = {}
    for key in keys:
        storage = storages[key]
        size = int.from_bytes(stream.read(8), "little")
        content = stream.read(size * storage.dtype.itemsize)
        data[key] = np.frombuffer(content, storage.dtype, count=storage.size)
    return {name: _array(entry, data) for name, entry in entries.items()}


def _array(tensor: _Tensor, data: dict[str, NDArray]) -> NDArray:
    """The elements of a tensor, copied from its storage."""
    flat = data[tensor.storage]
    last = sum((side - 1) * step for side, step in zip(tensor.shape, tensor.strides, strict=True))
    if tensor.offset < 0 or min(tensor.strides, default=0) < 0 or tensor.offset + last >= len(flat):
        raise InputError(f"a tensor must lie within its storage; got {tensor}")
    strides = [step * flat.itemsize for step in tensor.strides]
    view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides)
    return view.copy()


class _Reader(pickle.Unpickler):
    """An unpickler that creates only `_Tensor` references and plain values."""

    def __init__(self, stream: io.BytesIO, storages: dict[str, _Storage]):
        super().__init__(stream)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        """The ordered dict, the tensor function, or a storage type; any other name is refused."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        _refuse(f"{module}.{name}")

    def persistent_load(self, reference: Any) -> str:
        """Records the type and size of a storage; returns its key."""
        kind, dtype, key, _, size, *_ = reference
        if kind != "storage" or not isinstance(dtype, np.dtype):
            _refuse(str(reference))
        self._storages[key] = _Storage(key, dtype, size)
        return key


def _tensor(storage: str, offset: int, shape: tuple, strides: tuple, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _refuse(name: str) -> NoReturn:
    raise InputError(f"a file of tensors must hold nothing else; got {name}")
