"""NCL with hard negative generation at the paper's sizes, forward and backward, 64 rows.

Compared with the same loss of a single row that forms all its mixtures, jitted and called 64 times,
and with the forward and backward pass of a ResNet-18 (CIFAR stem, 32x32, float32, batch 128, one
view, no optimizer). Both losses draw the same mixing partners, so their values must agree. Rows and
full queues are normal noise; temporaries are those that XLA plans for the compiled function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cluster_jax.core import ops
from cluster_jax.losses.ncl import hard_negatives, neighborhood_contrast, target_weights
from cluster_jax.nets import network
from cluster_jax.nets.config import NetworkConfig, ProjectorConfig
from experiments.benchmark import _measure

ROWS, DIMENSIONS, QUEUE, NEIGHBORS, NEGATIVES, ROUNDS = 64, 512, 2000, 200, 400, 5
MIXING, ALPHA, TEMPERATURE = (1 / 3, 2 / 3), 0.2, 0.05
BATCH, REPEATS, SEED = 128, 7, 0


class _Rows(NamedTuple):
    """Arguments of the loss other than the anchors."""

    keys: Array
    views: Array
    queue: Array
    labeled: Array


def measure() -> dict[str, Any]:
    """Times, measured alternately, their ratios, and the size of temporaries."""
    anchors, rows = _inputs()
    whole = jax.jit(jax.value_and_grad(_whole)).lower(anchors, rows).compile()
    single_rows = [
        (anchors[i], rows._replace(keys=rows.keys[i], views=rows.views[i])) for i in range(ROWS)
    ]
    one_row = jax.jit(jax.value_and_grad(_one_row)).lower(*single_rows[0]).compile()
    calls = {
        "whole": lambda: whole(anchors, rows),
        "calls": lambda: [one_row(*arguments) for arguments in single_rows],
        "network": _network(),
    }
    _check(calls["whole"](), calls["calls"]())
    jax.block_until_ready(calls["network"]())
    times = _measure.alternate(calls, REPEATS)
    return {
        "seconds": {name: _measure.spread(values) for name, values in times.items()},
        "calls_by_whole": _measure.ratios(times["calls"], times["whole"]),
        "share_of_network": _measure.ratios(times["whole"], times["network"]),
        "temporaries_mb": {
            "whole": whole.memory_analysis().temp_size_in_bytes / 1e6,
            "one row": one_row.memory_analysis().temp_size_in_bytes / 1e6,
            "all mixtures": ROWS * NEGATIVES * ROUNDS * len(MIXING) * DIMENSIONS * 4 / 1e6,
        },
    }


def _inputs() -> tuple[Array, _Rows]:
    generator = np.random.default_rng(SEED)
    anchors, noise, queue, labeled = (
        jnp.asarray(generator.standard_normal((n, DIMENSIONS), dtype=np.float32))
        for n in (ROWS, ROWS, QUEUE, QUEUE)
    )
    keys = jax.random.split(jax.random.key(SEED), ROWS)
    return anchors, _Rows(keys, anchors + noise, queue, labeled)


def _whole(anchors: Array, rows: _Rows) -> Array:
    negatives = hard_negatives(
        rows.keys, anchors, rows.queue, QUEUE, rows.labeled, QUEUE,
        count=NEGATIVES, rounds=ROUNDS, mixing=MIXING,
    )  # fmt: skip
    return neighborhood_contrast(
        anchors, rows.views, rows.queue, QUEUE, negatives,
        neighbors=NEIGHBORS, alpha=ALPHA, temperature=TEMPERATURE,
    )  # fmt: skip


def _one_row(anchor: Array, rows: _Rows) -> Array:
    """The loss of a single row, with its own key and view, from all its mixtures."""
    z, view, queue, labeled = (ops.l2_normalize(x) for x in (anchor, *rows[1:]))
    to_queue = queue @ z
    _, easy = lax.top_k(-to_queue, NEGATIVES)
    drawn = jax.random.randint(rows.keys, (ROUNDS, NEGATIVES), 0, QUEUE)
    mixtures = jnp.concatenate(
        [mu * queue[easy][None] + (1 - mu) * labeled[drawn] for mu in MIXING]
    )
    mixtures = lax.stop_gradient(ops.l2_normalize(mixtures.reshape(-1, DIMENSIONS)))
    _, hardest = lax.top_k(mixtures @ z, NEGATIVES)
    weights = target_weights(to_queue[None], QUEUE, neighbors=NEIGHBORS, alpha=ALPHA)[0]
    candidates = jnp.concatenate([view[None], queue, mixtures[hardest]])
    logits = candidates @ z / TEMPERATURE
    return ops.logsumexp(logits) - weights @ logits[: len(weights)]


def _network() -> Callable[[], object]:
    """The forward and backward pass of a ResNet-18."""
    net = network.make(
        NetworkConfig(
            name="resnet18",
            width=64,
            stem="cifar",
            projector=ProjectorConfig(hidden=512, out=128),
            predictor=None,
            weights=None,
            frozen=None,
            norm="sync",
            group=None,
            dtype="float32",
        )
    )
    images = np.random.default_rng(SEED).standard_normal((BATCH, 32, 32, 3), dtype=np.float32)
    images = jnp.asarray(images)
    params, stats = net.init(jax.random.key(SEED), images[:1])

    @jax.jit
    def step(params):
        def loss(params):
            out = net.forward(params, stats, images, train=True, axis=None)
            return jnp.sum(out.projection**2)

        return jax.value_and_grad(loss)(params)

    return lambda: step(params)


def _check(whole: tuple[Array, Array], calls: list[tuple[Array, Array]]) -> None:
    """Values and gradients must agree; the mean over rows divides the gradients by their number."""
    values, gradients = (jnp.stack(x) for x in zip(*calls, strict=True))
    np.testing.assert_allclose(whole[0], jnp.mean(values), rtol=1e-4)
    np.testing.assert_allclose(whole[1], gradients / ROWS, atol=1e-3 * float(whole[1].max()))
