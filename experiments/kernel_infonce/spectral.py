"""Kernel-InfoNCE appendix C: InfoNCE on free vectors of a graph is spectral clustering.

    python -m experiments.run kernel_infonce C

Seconds on a CPU. Six clusters of 100 vertices; an edge joins two vertices of the same cluster
with probability p, and of different clusters with probability q. Vertices are free vectors in the
plane. Each step draws 50 vertices and one graph neighbor of each, and moves the vectors by SGD on
InfoNCE with the kernel exp(-||x - y||^2 / (2 tau)) of (10). The paper does not state the number of
steps, nor that the candidates are the other vectors of the batch; both are choices made here.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import adjusted_rand_score

from cluster_jax.losses import infonce

CLUSTERS, SIZE = 6, 100
TEMPERATURE, RATE, BATCH, STEPS = 0.5, 1.0, 50, 20_000
PROVENANCE = {
    "data": f"a generated graph of {CLUSTERS} clusters of {SIZE} vertices",
    "labels_used_for": ["scoring"],
    "number_of_clusters": {"kmeans": "given"},
    "kmeans_n_init": 10,
    "steps": STEPS,
    "batch_size": BATCH,
}


def graph(p: float, q: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric adjacency without loops, bool `[n, n]`, and the cluster of each vertex."""
    truth = np.repeat(np.arange(CLUSTERS), SIZE)
    rng = np.random.default_rng(seed)
    chance = np.where(truth[:, None] == truth[None, :], p, q)
    upper = np.triu(rng.uniform(size=chance.shape) < chance, 1)
    return upper | upper.T, truth


def embed(edges: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors `[n, 2]` before and after the optimization."""
    start_key, loop_key = jax.random.split(jax.random.key(seed))
    start = jax.random.normal(start_key, (len(edges), 2))
    # Neighbors come first in each row, so drawing one means drawing a number below the degree.
    neighbors = jnp.asarray(np.argsort(~edges, axis=1, kind="stable"))
    degrees = jnp.asarray(edges.sum(axis=1))

    def kernel(x: Array, y: Array) -> Array:
        return -jnp.sum((x[:, None] - y[None]) ** 2, axis=-1) / (2 * TEMPERATURE)

    def loss(z: Array, i: Array, j: Array) -> Array:
        logits = infonce.Logits(kernel)
        return infonce.contrast_views(z[i], z[j], logits, positive_in_denominator=True, axis=None)

    def step(z: Array, key: Array) -> tuple[Array, None]:
        first, second = jax.random.split(key)
        i = jax.random.choice(first, len(z), (BATCH,), replace=False)
        j = neighbors[i, jax.random.randint(second, (BATCH,), 0, degrees[i])]
        return z - RATE * jax.grad(loss)(z, i, j), None

    end, _ = jax.jit(lambda z, keys: jax.lax.scan(step, z, keys))(
        start, jax.random.split(loop_key, STEPS)
    )
    return np.asarray(start), np.asarray(end)


def run(*, seed: int, p: float, q: float) -> dict:
    """Adjusted Rand index of k-means on the vectors, and of spectral clustering of the graph."""
    edges, truth = graph(p, q, seed)
    _, end = embed(edges, seed)
    labels = KMeans(CLUSTERS, n_init=10, random_state=seed).fit_predict(end)
    with warnings.catch_warnings():  # with q = 0 the graph has six components
        warnings.simplefilter("ignore", UserWarning)
        spectral = SpectralClustering(
            CLUSTERS, affinity="precomputed", random_state=seed, assign_labels="kmeans"
        ).fit_predict(edges.astype(float))
    found = {"infonce": labels, "spectral": spectral}
    return {name: {"ari": adjusted_rand_score(truth, labels)} for name, labels in found.items()}
