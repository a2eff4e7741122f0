"""Checks of a checkpoint's values against the checksum that is saved with them."""

import hashlib
import logging
import sys
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from cluster_jax.training.state import State


def ignore_leftovers() -> None:
    """Keeps quiet what Orbax leaves of a restore or save that failed.

    Its operations end later, on an event loop that it has closed, and Python prints a traceback of
    each.
    """
    logging.getLogger("asyncio").addFilter(_is_no_leftover)
    before = sys.unraisablehook
    if getattr(before, "__module__", None) == __name__:
        return

    def hook(raised: Any) -> None:
        if "Event loop is closed" not in str(raised.exc_value):
            before(raised)

    sys.unraisablehook = hook


def _is_no_leftover(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not (text.startswith("Task exception was never retrieved") and "orbax" in text)


class _Damaged(ValueError):
    """The values of a checkpoint are not those that were saved; says how."""


def restore(manager: ocp.CheckpointManager, step: int, target: dict[str, Any]) -> State:
    """Restores a checkpoint and checks its values; raises whatever Orbax raises, or `_Damaged`."""
    ignore_leftovers()
    values = manager.restore(step, args=ocp.args.StandardRestore(target))
    metadata = manager.metadata(step).custom_metadata or {}
    if metadata.get("checksum") != checksum(values):
        raise _Damaged("its values do not match their checksum")
    if metadata.get("step") != step:
        raise _Damaged(f"it is of step {metadata.get('step')}")
    return State(**jax.tree.map(_typed, values, target))


def _typed(value: Any, target: Any) -> Any:
    """A key as such: without its metadata of arrays, Orbax gives the key's integers."""
    is_key, was_key = (jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in (value, target))
    return jax.random.wrap_key_data(value) if was_key and not is_key else value


def checksum(values: Any) -> str:
    """SHA-256 of names, dtypes, shapes and bytes of all arrays of a state."""
    digest = hashlib.sha256()
    names = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree.leaves_with_path(values)
    }
    for name, x in sorted(names.items()):
        is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        array = np.ascontiguousarray(jax.device_get(jax.random.key_data(x) if is_key else x))
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.view(np.uint8).data if array.ndim else array.tobytes())
    return digest.hexdigest()


def not_folders(folder: epath.Path) -> list[str]:
    """Names of files where checkpoints should be, the oldest first."""
    names = [file.name for file in folder.iterdir() if file.name.isdecimal() and not file.is_dir()]
    return sorted(names, key=int)


def reason(error: Exception) -> str:
    """Why a checkpoint cannot be used, without the insides of a library that others quote."""
    if isinstance(error, _Damaged):
        return str(error)
    text = error.strerror if isinstance(error, OSError) else None
    return text or "its files cannot be read"
