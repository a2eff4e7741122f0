"""Small array functions that the losses share: unit vectors, products, masked log-sum-exp."""

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import logsumexp as _logsumexp


def upcast(x: Array) -> Array:
    """`x` in at least float32: bfloat16 and float16 are promoted, float64 stays."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def l2_normalize(x: Array) -> Array:
    """Rows of `x` `[..., d]` scaled to length one, in at least float32.

    A row of zeros stays zero and passes a zero gradient (the usual small epsilon in the
    denominator would pass one of its reciprocal size).
    """
    x = upcast(x)
    squared = jnp.sum(x * x, axis=-1, keepdims=True)
    positive = squared > 0
    norm = jnp.sqrt(jnp.where(positive, squared, 1))
    return jnp.where(positive, x / norm, 0)


def pairwise_dot(a: Array, b: Array) -> Array:
    """Inner products of the rows of `a` `[m, d]` and `b` `[n, d]`: `[m, n]`, at least float32.

    Full precision also where the hardware would round the factors to bfloat16 (TPU): divided
    by a temperature of 0.1 such a rounding moves a logit by 0.04.
    """
    return jnp.matmul(upcast(a), upcast(b).T, precision=lax.Precision.HIGHEST)


def cosine(a: Array, b: Array) -> Array:
    """Cosine of paired rows, `[..., d]` and `[..., d]` -> `[...]`, at least float32."""
    return jnp.sum(l2_normalize(a) * l2_normalize(b), axis=-1)


def logsumexp(logits: Array, keep: Array | None = None) -> Array:
    """Log of the sum of exponentials over the last axis, `[..., n] -> [...]`.

    `keep` is a boolean mask, broadcastable to `logits`; entries outside it are -inf, not a large
    negative number. A row with nothing kept gives -inf and a zero gradient.
    """
    if keep is None:
        return _logsumexp(logits, axis=-1)
    keep = jnp.broadcast_to(keep, logits.shape)
    some = jnp.any(keep, axis=-1)
    # Two `where`s: the inner one keeps the differentiated branch finite for empty rows.
    safe = _logsumexp(jnp.where(keep | ~some[..., None], logits, -jnp.inf), axis=-1)
    return jnp.where(some, safe, -jnp.inf)
