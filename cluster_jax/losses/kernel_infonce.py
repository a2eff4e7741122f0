"""Kernel-InfoNCE: InfoNCE whose logit is the log of a kernel of the distance between unit rows."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from cluster_jax.core import checks, ops
from cluster_jax.core.checks import InputError
from cluster_jax.core.collectives import Axis
from cluster_jax.losses import infonce
from cluster_jax.losses.base import array_function
from cluster_jax.losses.infonce import Logits

MIXTURES = ("kernel", "loss")
# Rows x and y, gamma and temperature -> logits.
LogKernel = Callable[..., Array]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["temperatures"],
    meta_fields=["gammas", "mixture", "weight", "halves"],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel `exp(-||x - y||^gamma / tau)` or a mixture of two.

    The default is the Gaussian that gives SimCLR's loss at tau 0.5. A kernel is a pytree of its
    temperatures; a jitted function compiles anew for other values of the rest.

    Attributes:
        gammas: one exponent or two, > 0: 2 is Gaussian, 1 Laplacian.
        temperatures: tau of each kernel, positive. Numbers are checked, arrays are not.
        mixture: for two kernels, `"kernel"`: K = w K_1 + (1 - w) K_2, or `"loss"`: the loss is
            w L_1 + (1 - w) L_2; for one kernel None.
        weight: w, from 0 to 1; for one kernel None.
        halves: concatenation: the first kernel sees the first half of each row, the second the
            second half, each half scaled to length one.

    Raises:
        ValueError: a value is out of range, or they do not fit together.

    Source: Kernel-InfoNCE (7), section 5.2 and Table 2 of its appendix. Section 5.2 adds kernels,
    with equal weights: `"kernel"` with w = 0.5 (a common factor of all kernels cancels in (8)). The
    appendix and the official code add losses: `"loss"`. Of two halves, section 5.2 gives the
    first to gamma = 2, the appendix to gamma = 1: here the order of `gammas` decides. The official
    code scales the two halves as one vector; then neither kernel sees unit rows
    (`test_kernel_infonce_section_5_2_gradient_of_mixtures`). The temperatures were searched and not
    published.

    Example:
        >>> Kernel(gammas=(1.0,), temperatures=(0.5,)).mixture is None
        True
    """

    gammas: tuple[float, ...] = (2.0,)
    temperatures: tuple[Array | float, ...] = (1.0,)
    mixture: str | None = None
    weight: float | None = None
    halves: bool = False

    def __post_init__(self) -> None:
        sizes = len(self.gammas), len(self.temperatures)
        if sizes not in ((1, 1), (2, 2)):
            raise InputError(
                "gammas and temperatures must hold one number each for one kernel, two for a "
                f"mixture; got {sizes[0]} and {sizes[1]}"
            )
        for gamma in self.gammas:
            checks.positive("gammas", gamma)
        for temperature in self.temperatures:
            checks.if_number(checks.positive, "temperatures", temperature)
        if len(self.gammas) == 2:
            checks.one_of("mixture", self.mixture, MIXTURES)
            checks.between("weight", self.weight, 0, 1)
        elif self.mixture is not None or self.weight is not None or self.halves:
            raise InputError(
                "mixture and weight must be None and halves False for one kernel; "
                f"got mixture {self.mixture!r}, weight {self.weight} and halves {self.halves}"
            )


@array_function(a="float[rows, d]", b="float[rows, d]", static=("axis",))
def kernel_info_nce_views(a: Array, b: Array, *, kernel: Kernel, axis: Axis = None) -> Array:
    """Computes Kernel-InfoNCE of two views of a batch, `1/(2n) sum_i (l_ia + l_ib)`.

    Candidates are both views of all images on all devices, the positive among them; a row is
    never its own candidate. A Gaussian kernel of temperature tau gives SimCLR's loss of
    temperature tau / 2.

    Args:
        a: projections of the first view `[rows, d]`, this device's part, of any length.
        b: projections of the second view, same images in the same order `[rows, d]`.
        kernel: see `Kernel`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: the rows cannot be halved.

    Source: Kernel-InfoNCE (8), Algorithm 2. The latter prints s = ||z_i - z_j||^gamma without the
    minus sign of (7) (`test_kernel_infonce_algorithm_2_misprints_the_sign_of_the_distance`).

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[2.0, 0.0], [0.0, 3.0]])
        >>> round(kernel_info_nce_views(a, a, kernel=Kernel()).item(), 4)
        0.2395
        >>> round(infonce.info_nce_views(a, a, temperature=0.5).item(), 4)
        0.2395
    """
    a, b = _normalized(a, kernel), _normalized(b, kernel)
    return _total(kernel, functools.partial(infonce.contrast_views, a, b, axis=axis))


@array_function(
    anchors="float[rows, d]", keys="float[rows, d]", queue="float[Q, d]", filled="int[]"
)
def kernel_info_nce_queue(
    anchors: Array, keys: Array, queue: Array, filled: Array, *, kernel: Kernel
) -> Array:
    """Computes Kernel-InfoNCE with a queue of negatives, one direction (appendix B, MoCo).

    Args:
        anchors: online rows `[rows, d]`, this device's part, of any length.
        keys: target rows of the other view of the same images `[rows, d]`; constants.
        queue: keys of earlier steps `[Q, d]`, the same on all devices; constants.
        filled: how many of the queue's first rows hold a key, int32 `[]`.
        kernel: see `Kernel`.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: the rows cannot be halved.

    Source: Kernel-InfoNCE (8). The official code has no positive in the denominator here
    (`test_kernel_infonce_appendix_b_gradient_of_moco`).

    Example:
        >>> import jax.numpy as jnp
        >>> a, queue, kernel = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]]), Kernel()
        >>> loss = kernel_info_nce_queue(a, a, queue, jnp.int32(1), kernel=kernel)
        >>> round(loss.item(), 4)  # log(1 + exp(-2))
        0.1269
    """
    anchors, keys, queue = (_normalized(x, kernel) for x in (anchors, keys, queue))
    return _total(kernel, functools.partial(infonce.contrast_queue, anchors, keys, queue, filled))


@array_function(a="float[rows, d]", b="float[rows, d]", static=("axis",))
def kernel_clip(a: Array, b: Array, *, kernel: Kernel, axis: Axis = None) -> Array:
    """Computes Theorem 4.2's loss of two modalities, with any kernel (`infonce.clip`: the cosine).

    Args:
        a: embeddings of one modality `[rows, d]`, this device's part, of any length.
        b: embeddings of the other modality, partners in the same order `[rows, d]`.
        kernel: see `Kernel`.
        axis: mesh axis that holds the batch, or None.

    Returns:
        Scalar, at least float32, whose mean over the devices is the loss of the global batch.

    Raises:
        ValueError: the rows cannot be halved.

    Source: Kernel-InfoNCE Theorem 4.2 and its proof.

    Example:
        >>> import jax.numpy as jnp
        >>> round(kernel_clip(jnp.eye(2), jnp.eye(2), kernel=Kernel()).item(), 4)
        0.1269
    """
    a, b = _normalized(a, kernel), _normalized(b, kernel)
    return _total(kernel, functools.partial(infonce.contrast_pairs, a, b, axis=axis))


def log_exponential(
    x: Array, y: Array, *, gamma: float = 2.0, temperature: Array | float = 1.0
) -> Array:
    """Computes `-||x_i - y_j||^gamma / tau` of all pairs of rows: `[m, d], [n, d] -> [m, n]`.

    The gradient of a pair at distance 0 is zero; for gamma < 1 it has none, for gamma = 1 zero is
    one of its subgradients. Squared distances come from inner products: below about 1e-7 times
    the squared length of the rows (in float32) they are rounding. The losses take those of
    positive pairs from the differences of their rows, which are exact where the kernel's slope is
    steep.

    Source: Kernel-InfoNCE (7).

    Example:
        >>> import jax.numpy as jnp
        >>> log_exponential(jnp.array([[3.0, 4.0]]), jnp.zeros((1, 2)), gamma=1.0).item()
        -5.0
    """
    x, y = ops.upcast(x), ops.upcast(y)
    lengths = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)[None, :]
    squared = lengths - 2 * ops.pairwise_dot(x, y)
    return -_power(squared, gamma / 2) / temperature


def _power(squared: Array, exponent: float) -> Array:
    """Computes `squared ** exponent`, value and gradient zero where `squared` is zero or below."""
    if exponent == 1:
        return squared
    is_zero = squared <= 0
    # Two `where`s: the inner one keeps the differentiated branch finite at zero.
    return jnp.where(is_zero, 0, jnp.where(is_zero, 1, squared) ** exponent)


def _normalized(x: Array, kernel: Kernel) -> Array:
    """Scales rows, or each of their two halves, to unit length."""
    if not kernel.halves:
        return ops.l2_normalize(x)
    checks.multiple("the length of rows with halves = True", x.shape[-1], 2, "the halves")
    return jnp.concatenate([ops.l2_normalize(half) for half in jnp.split(x, 2, axis=-1)], axis=-1)


def _total(kernel: Kernel, loss: Callable[[Logits], Array]) -> Array:
    """Computes the loss of a kernel, given the loss as a function of the logits."""
    return functools.reduce(operator.add, (w * loss(logits) for w, logits in _terms(kernel)))


def _terms(kernel: Kernel) -> Sequence[tuple[float, Logits]]:
    """Returns weights and logits of the losses whose sum is the loss of a kernel."""

    def single(log_kernel: LogKernel, i: int, x: Array, y: Array) -> Array:
        """Computes the logits of one kernel, of whole rows or of one half of them."""
        if kernel.halves:
            x, y = (jnp.split(rows, 2, axis=-1)[i] for rows in (x, y))
        return log_kernel(x, y, gamma=kernel.gammas[i], temperature=kernel.temperatures[i])

    def mixed(log_kernel: LogKernel, x: Array, y: Array) -> Array:
        first, second = (jnp.log(share) + single(log_kernel, i, x, y) for i, share in present)
        return jnp.logaddexp(first, second)

    def logits(of_pairs: Callable[..., Array], *index: int) -> Logits:
        return Logits(*(functools.partial(of_pairs, f, *index) for f in (log_exponential, _paired)))

    shares = (1.0,) if kernel.weight is None else (kernel.weight, 1 - kernel.weight)
    present = [(i, share) for i, share in enumerate(shares) if share]
    if kernel.mixture == "kernel" and len(present) == 2:
        return [(1.0, logits(mixed))]
    return [(share, logits(single, i)) for i, share in present]


def _paired(x: Array, y: Array, *, gamma: float, temperature: Array | float) -> Array:
    """Computes `log_exponential` of each row with its partner alone, `[m, d], [m, d] -> [m]`."""
    squared = jnp.sum((ops.upcast(x) - ops.upcast(y)) ** 2, axis=-1)
    return -_power(squared, gamma / 2) / temperature
