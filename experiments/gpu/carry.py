"""A training state small enough to carry to the next machine.

Bit-exact checkpoints stay on the machine. What is carried is rounded once a slice: large
parameters to float16; the target network as its difference from the online one, and the
optimizer's moments, to 8 bits with one scale per output unit. All else, BatchNorm included, is
exact. A state above `LIMIT_MB` (ResNet-34's) goes without the moments, which SGD with momentum 0.9
rebuilds in some twenty steps, and if need be with 4 bits for the difference. The manifest states
the bits, and the largest relative error of each part.
"""

import io
import pathlib
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError
from cluster_jax.training.state import State
from experiments.gpu import pieces

LARGE = 4096  # entries from which an array is rounded
LIMIT_MB = 60.0
# Bits of the moments and of the target's difference, from the most exact on; 0: left out, zeros.
BITS = ({"moments": 8, "target": 8}, {"moments": 0, "target": 8}, {"moments": 0, "target": 4})


def pack(state: State, about: dict[str, Any], folder: pathlib.Path, piece_mb: float) -> dict:
    """Writes a state as pieces.

    Args:
        state: of any method.
        about: what a training must equal to go on from it: its name and its config.
        folder: must hold no pieces.
        piece_mb: see `pieces.split`.

    Returns:
        `{"mb": size in 10^6 bytes, "bits": one of `BITS`, "errors": part of the state -> norm of
        the error over that of the array, "step"}`.
    """
    leaves = _leaves(state)
    for bits in BITS:
        content, errors = _content(leaves, bits)
        if len(content) <= 1e6 * LIMIT_MB:
            break
    size = {"mb": len(content) / 1e6, "bits": bits, "errors": errors, "step": int(state.step)}
    pieces.split(content, folder, {"kind": "state", **about, **size}, piece_mb)
    return size


def unpack(folder: pathlib.Path, like: State, about: dict[str, Any]) -> State:
    """The state that `pack` wrote, with the structure, dtypes and devices of `like`.

    Raises:
        InputError: the pieces are damaged, or of another training.
    """
    content, stored = pieces.join(folder)
    if stored.get("kind") != "state":
        raise InputError(f"--resume must hold a packed state; got {folder}, which holds {stored}")
    for key, value in about.items():
        if stored.get(key) != value:
            raise InputError(
                f"--resume must hold a state of the same {key}; {folder} has another one: choose "
                "another folder, or leave --resume out to start anew"
            )
    with np.load(io.BytesIO(zlib.decompress(content)), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    shapes = _leaves(like)
    values: dict[str, NDArray] = {}
    for path in sorted(shapes, key=_online_first):
        values[path] = _decode(path, arrays, values)
        if values[path].shape != shapes[path].shape:
            raise InputError(f"--resume must hold a state of the same network; {path} differs")
    restored = [
        _placed(values[_name(path)], leaf) for path, leaf in jax.tree.leaves_with_path(like)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), restored)


def _content(leaves: dict[str, NDArray], bits: dict[str, int]) -> tuple[bytes, dict[str, float]]:
    """The bytes that stand for a state, and the largest relative error of each of its parts."""
    arrays: dict[str, NDArray] = {}
    decoded: dict[str, NDArray] = {}
    errors: dict[str, float] = {}
    for path in sorted(leaves, key=_online_first):
        # Encoded against what will be decoded, so that the target has no error of the online one.
        encoded = _encode(path, leaves[path], decoded, bits)
        decoded[path] = _decode(path, encoded, decoded)
        arrays |= encoded
        if f"{path}|exact" not in encoded and f"{path}|zeros" not in encoded:
            part = path.split("/")[0]
            errors[part] = max(errors.get(part, 0.0), _error(decoded[path], leaves[path]))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    # Nothing repeats: Huffman codes alone are as short, in less time.
    coder = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return coder.compress(buffer.getvalue()) + coder.flush(), errors


def _encode(
    path: str, value: NDArray, decoded: dict[str, NDArray], bits: dict[str, int]
) -> dict[str, NDArray]:
    """The arrays that stand for a leaf."""
    if value.size < LARGE or value.dtype != np.float32 or value.ndim < 2:
        return {f"{path}|exact": value}
    online = _online(path)
    if online in decoded:
        return _codes(path, value - decoded[online], bits["target"])
    if path.startswith("opt"):
        if not bits["moments"]:
            return {f"{path}|zeros": np.array(value.shape)}
        return _codes(path, value, bits["moments"])
    rounded = value.astype(np.float16)
    if not np.isfinite(rounded).all():
        return {f"{path}|exact": value}
    # Bytes of one significance together compress better.
    planes = rounded.view(np.uint8).reshape(-1, 2).T.copy().reshape(2, *value.shape)
    return {f"{path}|float16": planes}


def _codes(path: str, part: NDArray, bits: int) -> dict[str, NDArray]:
    """Whole numbers with one scale per output unit."""
    axes = tuple(range(part.ndim - 1))
    scale = np.maximum(np.abs(part).max(axis=axes), 1e-30) / (2 ** (bits - 1) - 1)
    scale = scale.astype(np.float32)
    return {f"{path}|int8": np.rint(part / scale).astype(np.int8), f"{path}|scale": scale}


def _decode(path: str, arrays: dict[str, NDArray], values: dict[str, NDArray]) -> NDArray:
    if f"{path}|exact" in arrays:
        return arrays[f"{path}|exact"]
    if f"{path}|float16" in arrays:
        planes = arrays[f"{path}|float16"]
        pairs = planes.reshape(2, -1).T.copy()
        return pairs.view(np.float16).reshape(planes.shape[1:]).astype(np.float32)
    if f"{path}|zeros" in arrays:
        return np.zeros(arrays[f"{path}|zeros"], np.float32)
    if f"{path}|int8" not in arrays:
        raise InputError(f"--resume must hold a state of the same network; {path} is missing")
    part = arrays[f"{path}|int8"].astype(np.float32) * arrays[f"{path}|scale"]
    online = _online(path)
    return part + values[online] if online in values else part


def _leaves(state: State) -> dict[str, NDArray]:
    """Path -> array on the host, or only its shape; a key as its integers."""
    return {_name(path): _host(leaf) for path, leaf in jax.tree.leaves_with_path(state)}


def _host(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _placed(value: NDArray, leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(jax.random.wrap_key_data(jnp.asarray(value)), leaf.sharding)
    return jax.device_put(value.astype(leaf.dtype), leaf.sharding)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _online(path: str) -> str:
    """Path of the online parameter that an entry of the target network follows."""
    start = "model_state/target/params/"
    return "params/" + path[len(start) :] if path.startswith(start) else ""


def _online_first(path: str) -> bool:
    return bool(_online(path))


def _error(rounded: NDArray, value: NDArray) -> float:
    norm = float(np.linalg.norm(value))
    return float(np.linalg.norm(rounded.astype(np.float32) - value)) / norm if norm else 0.0
