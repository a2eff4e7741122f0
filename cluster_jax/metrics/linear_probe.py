"""Accuracy of a linear classifier on frozen features."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray

from cluster_jax.core import checks, schedules
from cluster_jax.core.arrays import numeric, one_per_row

_MOMENTUM = 0.9


def linear_probe(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    epochs: int = 100,
    learning_rate: float = 0.3,
    weight_decay: float = 1e-6,
    batch_size: int = 256,
    holdout: float = 0.2,
    seed: int = 0,
) -> float:
    """Top-1 accuracy, on rows held out of its training, of a linear classifier.

    Softmax regression from zero weights by SGD with momentum 0.9 and a cosine schedule to 0; the
    weight decay is added to the gradient of the weights. Features are centered and divided by one
    number, the root mean squared length of the training rows, so that a learning rate means the
    same for every network (a deviation: the papers use unscaled features).

    Args:
        features: float `[n, d]`, finite.
        labels: classes, integers `[n]`.
        epochs: passes over the training rows.
        learning_rate: at the start.
        weight_decay: of the weights, not of the bias.
        batch_size: rows per step; all training rows where there are fewer.
        holdout: share of each class that is tested and not trained on, 0 to 1; a class of one row
            is only trained on.
        seed: of the split and of the order of the rows.

    Returns:
        Share of the held-out rows that are classified correctly.

    Raises:
        ValueError: shapes that do not match, or an argument out of range.

    Example:
        >>> linear_probe([[0.0], [1.0], [2.0], [7.0], [8.0], [9.0]], [0, 0, 0, 1, 1, 1], epochs=9)
        1.0
    """
    rows = numeric(features, "features")
    true_labels = one_per_row(labels, "labels", len(rows))
    checks.share("holdout", holdout)
    for name, value in zip(("epochs", "batch_size"), (epochs, batch_size), strict=True):
        checks.whole(name, value, 1)
    checks.positive("learning_rate", learning_rate)
    rng = np.random.default_rng(seed)
    classes, target = np.unique(true_labels, return_inverse=True)
    test = _held_out(target, holdout, rng)
    if not test.any():
        raise ValueError("labels must have a class of two rows or more to hold one out; got none")
    train = np.flatnonzero(~test)
    mean = rows[train].mean(axis=0, dtype=np.float64)
    centered = rows - mean
    length = np.sqrt((centered[train] ** 2).sum(axis=1).mean())

    batch = min(batch_size, len(train))
    steps = len(train) // batch
    order = np.stack([rng.permutation(train)[: steps * batch] for _ in range(epochs)])
    predicted = _train_and_predict(
        jnp.asarray(centered / (length or 1.0)),
        jnp.asarray(target, jnp.int32),
        jnp.asarray(order.reshape(epochs * steps, batch), jnp.int32),
        learning_rate,
        weight_decay,
        n_classes=len(classes),
    )
    return float((np.asarray(predicted) == target)[test].mean())


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
    """Trains on the batches `order` int32 `[steps, batch]`, then classifies all rows."""

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
    return jnp.argmax(features @ params["weights"] + params["bias"][None, :], axis=1)


def _held_out(target: NDArray, holdout: float, rng: np.random.Generator) -> NDArray:
    """Boolean `[n]`: `holdout` of each class, at least one row and never all of them."""
    test = np.zeros(len(target), bool)
    for c in range(target.max() + 1):
        rows = rng.permutation(np.flatnonzero(target == c))
        if len(rows) > 1:
            test[rows[: min(max(1, round(holdout * len(rows))), len(rows) - 1)]] = True
    return test
