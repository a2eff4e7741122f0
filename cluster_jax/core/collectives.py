"""Collectives over the devices of a mesh axis; the only file that calls `jax.lax` collectives.

Every function takes `axis: str | None`, the name of the mesh axis that holds the batch.
With `axis=None` there is one device, rank 0 of 1, and every reduction is the identity.

`jax.shard_map` types values as equal on all devices or varying (`check_vma=True`), and the gradient
of a collective follows these types. `jax.shard_map(..., check_vma=False)`, `jax.pmap` and
`jax.vmap(..., axis_name=...)` have no such types: there JAX differentiates the sum of the devices'
losses.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

Axis = str | None


def size(axis: Axis) -> int:
    """Returns the number of devices along `axis`."""
    return 1 if axis is None else lax.axis_size(axis)


def rank(axis: Axis) -> Array | int:
    """Returns the position of this device along `axis`, int32."""
    return 0 if axis is None else lax.axis_index(axis)


def mean(tree: Any, axis: Axis) -> Any:
    """Averages every leaf over the devices; the result is the same on all of them."""
    return tree if axis is None else lax.pmean(tree, axis)


def total(tree: Any, axis: Axis) -> Any:
    """Sums every leaf over the devices; the result is the same on all of them."""
    return tree if axis is None else lax.psum(tree, axis)


def gather(x: Array, axis: Axis) -> Array:
    """Gathers the rows of all devices, `[b, ...] -> [b * devices, ...]`, in global order.

    Differentiable: the gradient of a row goes to the device that owns it, summed over the devices
    that used the row. The result is typed as equal on all devices, where JAX types that, so it can
    be stored in a replicated state.
    """
    if axis is None:
        return x
    # Typed as equal on all devices, a gradient is summed where the result is used. Without these
    # types nothing would sum it, so that the gather has to.
    to: Literal["varying", "invarying"] = "invarying" if _has_types(axis) else "varying"
    return lax.all_gather(x, axis, tiled=True, to=to)


def scatter(x: Array, axis: Axis) -> Array:
    """Takes this device's rows, `[b * devices, ...] -> [b, ...]`; the inverse of `gather`."""
    if axis is None:
        return x
    rows = x.shape[0] // lax.axis_size(axis)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * rows, rows)


def varying(tree: Any, axis: Axis) -> Any:
    """Types values as device-varying, so that gradients stay local to a device."""
    if axis is None or not _has_types(axis):
        return tree
    return jax.tree.map(lambda x: x if _varies(x, axis) else lax.pcast(x, axis, to="varying"), tree)


def replicate(tree: Any, axis: Axis) -> Any:
    """Makes every leaf equal on all devices: device-varying floats are averaged.

    Raises:
        TypeError: an integer leaf varies between devices; its average would be meaningless.
    """
    if axis is None:
        return tree

    def replicate_leaf(x: Array) -> Array:
        if not _varies(x, axis):
            return x
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            leaf = f"a {x.dtype} leaf of shape {x.shape}"
            raise TypeError(f"{leaf} differs between devices; gather it before it is stored")
        return lax.pmean(x, axis)

    return jax.tree.map(replicate_leaf, tree)


def local_rows(n: int, axis: Axis) -> Array:
    """Returns the indices in the global batch of this device's `n` rows, int32 `[n]`."""
    return rank(axis) * n + jnp.arange(n, dtype=jnp.int32)


def _has_types(axis: str) -> bool:
    """Returns whether JAX types values as equal on all devices or varying."""
    return _varies(lax.axis_index(axis), axis)


def _varies(x: Array, axis: str) -> bool:
    return axis in jax.typeof(x).manual_axis_type.varying
