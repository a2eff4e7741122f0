"""Clustering of features that do not fit into memory."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.core.checks import InputError
from cluster_jax.data.arrays import Shards
from cluster_jax.evaluation import clusters
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import ClusterOptions, check_k, resolve

# Table of the sample.
SAMPLE = 10_000


class LargeClustering(NamedTuple):
    """Clusters of `n` rows of which `m` are in a sample.

    Attributes:
        sample: int64 `[m]`, ascending numbers of the rows of the sample, drawn at random.
        clustering: clusters of the sample; the scores against the labels and the sizes of the
            clusters among its metrics are those of all rows.
        labels: int32 `[n]`.
        shares: float32 `[n]`, probability of the cluster; None for k-means.
        rows_used: how many rows there are, are in the report, and in how many files.
    """

    sample: NDArray
    clustering: Clustering
    labels: NDArray
    shares: NDArray | None
    rows_used: dict[str, int]


def sample_rows(features: Shards, seed: int) -> NDArray:
    """Draws the rows of the sample, as ascending numbers int64 `[m]`."""
    rng, n = np.random.default_rng(seed), len(features)
    return np.sort(rng.choice(n, min(n, SAMPLE), replace=False))


def resolve_large(features: Shards, options: ClusterOptions) -> ClusterOptions:
    """Applies `options.resolve` to the sample; the number of clusters may be up to `n`.

    Raises:
        InputError: the features or an option cannot be used, such as a method that needs all rows
            in memory.
    """
    values, k = features[sample_rows(features, options.seed)], options.n_clusters
    check_k("n_clusters", k, len(features), "rows")
    within = dataclasses.replace(options, n_clusters=None if k is None else min(k, len(values)))
    resolved = resolve(values, within)
    in_blocks = {"tree": resolved.reduce, "kmeans": "none"}
    if in_blocks.get(resolved.method) != resolved.reduce:
        must = "method must be 'tree', or 'kmeans' with reduce='none', for rows read in blocks"
        raise InputError(f"{must}; got {resolved.method!r} with reduce={resolved.reduce!r}")
    return dataclasses.replace(resolved, n_clusters=k)


def cluster_shards(
    features: Shards,
    true_labels: NDArray | None,
    options: ClusterOptions,
    progress: Callable[[str], None],
) -> LargeClustering:
    """Clusters features that are read block by block, by SmoothTree or k-means.

    Args:
        features: finite rows `[n, d]`.
        true_labels: int `[n]`, used for scores only, or None.
        options: from `resolve_large`.
        progress: called with one line of text at each step.
    """
    n, sample = len(features), sample_rows(features, options.seed)
    shares: NDArray | None = None
    if options.method == "kmeans":
        progress(f"running k-means on all {n:,} rows, read in blocks, k = {options.n_clusters} ...")
        result, labels = clusters.run_kmeans(features, None, options, sample)
    else:
        result = clusters.run_tree(
            features,
            metric=str(options.metric),
            seed=options.seed,
            k=options.n_clusters,
            shown=sample,
            progress=progress,
        )
        assert result.tree is not None
        labels, shares = result.tree.labels_.astype(np.int32), result.tree.probabilities_
    result = clusters.with_silhouette(features[sample], result, options)
    small = np.unique(result.cluster_labels[result.outliers])
    metrics = {
        **result.metrics,
        **clusters.scores(true_labels, labels),
        "outliers": int(np.isin(labels, small).sum()),
        "cluster_sizes": clusters.sizes_of(labels),
    }
    used = {"all": n, "files": len(features.files), "in_report": len(sample)}
    return LargeClustering(sample, result._replace(metrics=metrics), labels, shares, used)
