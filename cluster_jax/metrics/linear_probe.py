"""Accuracy of a linear classifier on frozen features."""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import Mesh
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import checks, config, hosts, schedules
from cluster_jax.core import mesh as meshes
from cluster_jax.core.arrays import numeric, one_per_row
from cluster_jax.core.checks import InputError
from cluster_jax.core.hosts import Spread
from cluster_jax.metrics.probe_settings import ProbeSettings

_MOMENTUM = 0.9
# Rows that are scaled at once.
_BLOCK = 2**14


_DEFAULTS = ProbeSettings()


def linear_probe(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    settings: ProbeSettings = _DEFAULTS,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    top: Sequence[int] = (1,),
    seed: int = 0,
    mesh: Mesh | None = None,
) -> dict[int, float | None]:
    """Returns the top-k accuracy of a linear classifier, on rows that its training does not see.

    Softmax regression from zero weights by SGD with momentum 0.9 and a cosine schedule to 0; the
    weight decay is added to the gradient of the weights. Features are centered and divided by one
    number, the root mean squared length of the training rows, so that a learning rate means the
    same for every network (a deviation: the papers use unscaled features). The rows to score on
    change neither the training nor its scale.

    Args:
        features: float `[n, d]`, finite.
        labels: classes, integers `[n]`.
        settings: see `ProbeSettings`.
        test: rows to score on, finite float `[m, d]`, and their classes, integers `[m]`; a class
            without a training row counts as wrong. None: rows are held out.
        top: numbers k; a row is right where its class is among the k that are most likely.
        seed: of the split and of the order of the rows.
        mesh: devices of all processes, see `hosts.on_all`; None: those of this process.

    Returns:
        k -> share of the scored rows that are right, or None where there are fewer classes.

    Raises:
        ValueError: shapes that do not match, or an argument out of range.

    Example:
        >>> linear_probe([[0.0], [1.0], [2.0], [7.0], [8.0], [9.0]], [0, 0, 0, 1, 1, 1])
        {1: 1.0}
    """
    rows = numeric(features, "features")
    true_labels = one_per_row(labels, "labels", len(rows))
    config.check_values("", settings)
    for k in top:
        checks.whole("top", k, 1)
    rng = np.random.default_rng(seed)
    classes, target = np.unique(true_labels, return_inverse=True)
    if test is None:
        is_test = _held_out(target, settings.holdout, rng)
        if not is_test.any():
            must = "labels must have a class of two rows or more to hold one out"
            raise InputError(f"{must}; got none")
    else:
        rows, true_labels, is_test = _joined(rows, true_labels, *test)
        target = np.searchsorted(classes, true_labels).clip(max=len(classes) - 1)
    train = np.flatnonzero(~is_test)
    batch = min(settings.batch_size, len(train))
    steps = len(train) // batch
    order = np.stack([rng.permutation(train)[: steps * batch] for _ in range(settings.epochs)])
    ranks = hosts.on_all(
        _ranks,
        mesh,
        _scaled(rows, train),
        target.astype(np.int32),
        order.reshape(-1, batch).astype(np.int32),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        n_classes=len(classes),
    )
    # The class of a test row may have no training row.
    ranks = np.where(classes[target] == true_labels, ranks[: len(rows)], len(classes))[is_test]
    return {k: float((ranks < k).mean()) if k <= len(classes) else None for k in top}


def _scaled(rows: NDArray, train: NDArray) -> NDArray:
    """Centers rows, and divides them by the root mean squared length of the training rows.

    It computes in float64, in blocks, because all rows in float64 may not fit into memory.
    """
    mean = rows[train].mean(axis=0, dtype=np.float64)

    def centered(index: NDArray) -> Iterator[NDArray]:
        return (rows[index[i : i + _BLOCK]] - mean for i in range(0, len(index), _BLOCK))

    # Squares of what is divided by the largest are numbers.
    largest = max(np.abs(block).max() for block in centered(train)) or 1.0
    squares = [((block / largest) ** 2).sum(axis=1) for block in centered(train)]
    length = largest * np.sqrt(np.concatenate(squares).mean()) or 1.0
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    blocks = [(block / length).astype(dtype) for block in centered(np.arange(len(rows)))]
    return np.concatenate(blocks)


def _ranks(
    rows: NDArray | Spread,
    target: NDArray,
    order: NDArray,
    *,
    mesh: Mesh | None,
    n_classes: int,
    **rates: float,
) -> NDArray:
    """Returns the rank of each row's class among the predicted ones, int32 `[n + padding]`.

    The most likely class has the rank 0; equally likely ones are in the order of their numbers.

    Args:
        rows: scaled rows `[n, d]`.
        target: int32 `[n]`, the classes of the rows, 0 to `n_classes` - 1.
        order: int32 `[steps, batch]`, the rows of each step of the training.
        mesh: the devices, which share the rows; None: those of this process. CPU devices have one
            memory, so that one of them has all.
        n_classes: number of classes.
        rates: `learning_rate` and `weight_decay`.
    """
    if mesh is None:
        mesh = Mesh(jax.local_devices()[: 1 if jax.default_backend() == "cpu" else None], ("rows",))
    features = hosts.placed(rows, mesh)
    padded = np.pad(target, (0, len(features) - len(target)))
    logits = _train_and_predict(features, padded, order, **rates, n_classes=n_classes)
    rank = jax.jit(_rank, out_shardings=meshes.replicated(mesh))
    return np.asarray(rank(logits, padded))


def _rank(logits: Array, target: Array) -> Array:
    """Returns how many classes come before that of each row, int32 `[n]`, see `_ranks`."""
    own = jnp.take_along_axis(logits, target[:, None], axis=1)
    is_before = jnp.arange(logits.shape[1])[None] < target[:, None]
    return jnp.sum((logits > own) | ((logits == own) & is_before), axis=1, dtype=jnp.int32)


@partial(jax.jit, static_argnames="n_classes")
def _train_and_predict(
    features: Array,
    target: Array,
    order: Array,
    learning_rate: float,
    weight_decay: float,
    *,
    n_classes: int,
) -> Array:
    """Trains on the batches `order` int32 `[steps, batch]`; logits `[n, classes]` of all rows."""

    def loss(params: dict[str, Array], rows: Array) -> Array:
        logits = features[rows] @ params["weights"] + params["bias"][None, :]
        return optax.softmax_cross_entropy_with_integer_labels(logits, target[rows]).mean()

    optimizer = optax.chain(
        optax.add_decayed_weights(weight_decay, mask={"weights": True, "bias": False}),
        optax.sgd(schedules.cosine(learning_rate, 0.0, len(order)), momentum=_MOMENTUM),
    )

    def step(carry: tuple, rows: Array) -> tuple[tuple, None]:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, rows), state, params)
        return (optax.apply_updates(params, updates), state), None

    params = {
        "weights": jnp.zeros((features.shape[1], n_classes), features.dtype),
        "bias": jnp.zeros(n_classes, features.dtype),
    }
    (params, _), _ = lax.scan(step, (params, optimizer.init(params)), order)
    return features @ params["weights"] + params["bias"][None, :]


def _joined(
    rows: NDArray, labels: NDArray, test_features: ArrayLike, test_labels: ArrayLike
) -> tuple[NDArray, NDArray, NDArray]:
    """Appends test rows to training rows; returns both, their labels, and which are test rows."""
    tested = numeric(test_features, "the test features")
    if tested.shape[1] != rows.shape[1]:
        must = f"the test features must have as many columns as features, {rows.shape[1]}"
        raise InputError(f"{must}; got {tested.shape[1]}")
    test_labels = one_per_row(np.asarray(test_labels), "the test labels", len(tested))
    is_test = np.repeat([False, True], [len(rows), len(tested)])
    return np.concatenate([rows, tested]), np.concatenate([labels, test_labels]), is_test


def _held_out(target: NDArray, holdout: float, rng: np.random.Generator) -> NDArray:
    """Returns which rows are held out, bool `[n]`: of each class at least one, and never all."""
    test = np.zeros(len(target), bool)
    for c in range(target.max() + 1):
        rows = rng.permutation(np.flatnonzero(target == c))
        if len(rows) > 1:
            test[rows[: min(max(1, round(holdout * len(rows))), len(rows) - 1)]] = True
    return test
