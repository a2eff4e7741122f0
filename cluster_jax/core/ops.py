"""JAX functions shared by the losses: L2 normalization, inner products, masked log-sum-exp.

`l2_normalize` and `logsumexp` are written here because zero rows and fully masked rows occur and
must have a zero gradient. Dividing by a norm plus epsilon gives a zero row a gradient of size
1 / epsilon; `jax.nn.logsumexp` computes 0 / 0 for a masked row, which is NaN in forward mode and an
error under `jax_debug_nans`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import logsumexp as _logsumexp


def upcast(x: Array) -> Array:
    """Promotes `x` to at least float32: bfloat16 and float16 are promoted, float64 is kept."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def l2_normalize(x: Array) -> Array:
    """Scales rows of `x` `[..., d]` to length one, in at least float32.

    A row of zeros stays zero and has a zero gradient; a row with NaN is NaN. The square of the
    length must be a number of the dtype: in float32, lengths of about 1e-18 to 1e19.
    """
    x = upcast(x)
    squared = jnp.sum(x * x, axis=-1, keepdims=True)
    is_zero = squared == 0
    norm = jnp.sqrt(jnp.where(is_zero, 1, squared))
    return jnp.where(is_zero, 0, x / norm)


def pairwise_dot(a: Array, b: Array) -> Array:
    """Computes inner products of rows of `a` `[m, d]` and `b` `[n, d]`: `[m, n]`, at least float32.

    Uses full precision also on TPUs, which round the factors to bfloat16 by default: at a
    temperature of 0.1 that rounding changes a logit by 0.04.
    """
    return jnp.matmul(upcast(a), upcast(b).T, precision=lax.Precision.HIGHEST)


def cosine(a: Array, b: Array) -> Array:
    """Computes cosines of paired rows, `[..., d]` and `[..., d]` -> `[...]`, at least float32."""
    return jnp.sum(l2_normalize(a) * l2_normalize(b), axis=-1)


def logsumexp(logits: Array, keep: Array | None = None) -> Array:
    """Computes the log of the sum of exponentials over the last axis, `[..., n] -> [...]`.

    `keep` is a boolean mask, broadcastable to `logits`; entries outside it count as exactly -inf,
    not as a large negative number. A row without entries gives -inf and a zero gradient.
    """
    if keep is None:
        return _logsumexp(logits, axis=-1)
    keep = jnp.broadcast_to(keep, logits.shape)
    has_entries = jnp.any(keep, axis=-1)
    # The inner `where` keeps the differentiated branch finite for rows without entries.
    safe = _logsumexp(jnp.where(keep | ~has_entries[..., None], logits, -jnp.inf), axis=-1)
    return jnp.where(has_entries, safe, -jnp.inf)


def named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a pytree by their path, such as "params/backbone/conv"."""
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): x for path, x in jax.tree.leaves_with_path(tree)}


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dictionaries of dictionaries whose leaves have these paths, as of `named`."""
    tree: dict[str, Any] = {}
    for path, x in leaves.items():
        *parents, name = path.split("/")
        functools.reduce(lambda inner, part: inner.setdefault(part, {}), parents, tree)[name] = x
    return tree
