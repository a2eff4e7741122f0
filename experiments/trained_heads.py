"""TURTLE and TEMI, two methods that train heads on frozen features; the number of classes is given.

Written from their recipes. Deviations: both get 128 principal axes of the features, turned at
random, so that they fit into minutes of a CPU; TEMI has 4 heads instead of 16 and 2,000 steps of
256 rows (the recipe's 100 epochs of 1,024 rows are 4,800 steps for its 50,000 images, and 100 for
1,797); TURTLE has one space of features and its default weight of the entropy, which is not
searched.

References:
    Gadetsky, Jiang and Brbic 2024, Let go of your labels with unsupervised transfer (TURTLE).
    Adaloglou, Michels, Kalisch and Kollmann 2023, Exploring the limits of deep image clustering
        using pretrained models (TEMI).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from scipy import stats
from sklearn.decomposition import PCA

from cluster_jax.clustering import knn

AXES = 128


def turtle(x: NDArray, k: int, seed: int, steps: int = 6000, batch: int = 10_000) -> NDArray:
    """Labels int `[n]` that linear classifiers learn fastest, of the principal axes of `[n, d]`.

    Every outer step trains a fresh classifier on the labels for ten steps of Adam, then moves the
    labels towards its answers, and the sizes of the classes towards equality.
    """
    rows = _axes(x)
    n, d = rows.shape
    adam, bound = optax.adam(1e-3), 1 / np.sqrt(d)

    def labels_of(labeler, rows):
        unit = labeler["direction"] / jnp.linalg.norm(labeler["direction"], axis=0, keepdims=True)
        return jax.nn.log_softmax(rows @ (labeler["size"] * unit) + labeler["bias"])

    def linear(key):
        return jax.random.uniform(key, (d, k), minval=-bound, maxval=bound)

    def cross_entropy(classifier, rows, target):
        logits = rows @ classifier["weight"] + classifier["bias"]
        return optax.softmax_cross_entropy(logits, target).mean()

    def outer(carry, key):
        labeler, state = carry
        row_key, classifier_key = jax.random.split(key)
        part = rows if n <= batch else rows[jax.random.choice(row_key, n, (batch,), replace=False)]
        target = jnp.exp(labels_of(labeler, part))
        classifier = {"weight": linear(classifier_key), "bias": jnp.zeros((1, k))}
        inner = adam.init(classifier)
        for _ in range(10):
            updates, inner = adam.update(jax.grad(cross_entropy)(classifier, part, target), inner)
            classifier = optax.apply_updates(classifier, updates)

        def loss(labeler):
            shares = jnp.exp(labels_of(labeler, part))
            mean = shares.mean(axis=0)
            return cross_entropy(classifier, part, shares) + 10 * (mean * jnp.log(mean)).sum()

        updates, state = adam.update(jax.grad(loss)(labeler), state)
        return (optax.apply_updates(labeler, updates), state), None

    first, rest = jax.random.split(jax.random.key(seed))
    direction = linear(first)
    size = jnp.linalg.norm(direction, axis=0, keepdims=True)
    labeler = {"direction": direction, "size": size, "bias": jnp.zeros((1, k))}
    train = jax.jit(lambda carry, keys: jax.lax.scan(outer, carry, keys)[0][0])
    trained = train((labeler, adam.init(labeler)), jax.random.split(rest, steps))
    return np.asarray(labels_of(trained, rows).argmax(axis=1))


def temi(
    x: NDArray, k: int, seed: int, steps: int = 2000, heads: int = 4, rate: float = 1e-4
) -> NDArray:
    """Labels int `[n]` by the head whose neighbors agree best, of the principal axes of `[n, d]`.

    Students follow moving averages of themselves: a row and one of its 50 nearest neighbors shall
    be in one class, and classes shall have equal sizes (weighted pointwise mutual information).
    """
    n, batch, beta = len(x), min(256, len(x)), 0.6
    rows = _axes(x)
    near = jnp.asarray(knn.nearest(x, x, min(50, n - 1), exclude_self=True).indices)
    each = n // batch  # steps of an epoch
    optimizer = optax.adamw(optax.linear_schedule(0, rate, steps // 5), weight_decay=1e-4)

    @jax.vmap
    def initial(key):
        keys, widths = jax.random.split(key, 3), (rows.shape[1], 512, 256, k)
        return [
            jax.random.truncated_normal(key, -2, 2, (a, b)) * (0.02 if b == k else a**-0.5)
            for key, a, b in zip(keys, widths[:-1], widths[1:], strict=True)
        ]

    @functools.partial(jax.vmap, in_axes=(0, None))
    def answer(head, rows):
        hidden = jax.nn.gelu(rows @ head[0]) @ head[1]
        hidden /= jnp.linalg.norm(hidden, axis=1, keepdims=True) + 1e-8
        return jax.nn.softmax(
            hidden @ (head[2] / jnp.linalg.norm(head[2], axis=0, keepdims=True)) / 0.1
        )

    def loss(student, teacher, prior, pair):
        students, teachers = ([answer(h, rows[i]) for i in pair] for h in (student, teacher))
        weight = (teachers[0] * teachers[1]).sum(axis=2).mean(axis=0)
        both = zip(students, teachers[::-1], strict=True)
        shares = [((s * t) ** beta / prior[:, None]).sum(axis=2) for s, t in both]
        losses = -(weight[None] * sum(jnp.log(share) for share in shares)).mean(axis=1) / 2
        return losses.sum(), (losses, sum(t.mean(axis=1) for t in teachers) / 2)

    def step(carry, inputs):
        student, teacher, prior, state = carry
        key, anchor, number = inputs
        pair = anchor, near[anchor, jax.random.randint(key, anchor.shape, 0, near.shape[1])]
        gradient, (losses, mean) = jax.grad(loss, has_aux=True)(student, teacher, prior, pair)
        updates, state = optimizer.update(gradient, state, student)
        updates[2] = jnp.where(number < each, 0, updates[2])  # the last layer waits for one epoch
        student = optax.apply_updates(student, updates)
        teacher = jax.tree.map(lambda t, s: 0.996 * t + 0.004 * s, teacher, student)
        return (student, teacher, 0.9 * prior + 0.1 * mean, state), losses

    key, order_key, pair_key = jax.random.split(jax.random.key(seed), 3)
    orders = jax.vmap(lambda key: jax.random.permutation(key, n)[: each * batch])(
        jax.random.split(order_key, -(-steps // each))
    ).reshape(-1, batch)[:steps]
    student = initial(jax.random.split(key, heads))
    carry = student, student, jnp.full((heads, k), 1 / k), optimizer.init(student)
    inputs = jax.random.split(pair_key, len(orders)), orders, jnp.arange(len(orders))
    (_, teacher, _, _), losses = jax.jit(lambda c, i: jax.lax.scan(step, c, i))(carry, inputs)
    best = int(losses[-each:].mean(axis=0).argmin())
    return np.asarray(answer(teacher, rows)[best].argmax(axis=1))


def _axes(x: NDArray) -> jax.Array:
    """Principal axes of rows `[n, d]`, turned at random, with a root mean square of one.

    Adam moves all columns alike: with one axis in each it would follow noise as much as signal,
    which in the features of a network is spread over all columns.
    """
    points = PCA(min(AXES, *x.shape), random_state=0).fit_transform(x)
    turn = stats.ortho_group.rvs(points.shape[1], random_state=0)
    return jnp.asarray(points @ turn / np.sqrt(np.square(points).mean()), jnp.float32)
