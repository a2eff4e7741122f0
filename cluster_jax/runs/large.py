"""Clustering of features that do not fit into memory."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import knn
from cluster_jax.core.arrays import normalize_rows
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
        shares: float32 `[n]`, probability of the cluster, or its share in the votes on each row, 1
            for the rows of the sample; None for k-means of all rows.
        rows_used: how many rows were used for what.
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
        InputError: the features or an option cannot be used.
    """
    values, k = features[sample_rows(features, options.seed)], options.n_clusters
    check_k("n_clusters", k, len(features), "rows")
    within = dataclasses.replace(options, n_clusters=None if k is None else min(k, len(values)))
    resolved = resolve(values, within)
    if options.method == "gridshift" or (options.method == "kmeans" and resolved.reduce != "none"):
        check_k("n_clusters", k, len(values), "rows of the sample")
    return dataclasses.replace(resolved, n_clusters=k)


def cluster_shards(
    features: Shards,
    true_labels: NDArray | None,
    options: ClusterOptions,
    progress: Callable[[str], None],
) -> LargeClustering:
    """Clusters features that are read block by block.

    k-means without a reduction clusters all rows, see `clustering.kmeans_blocks`, and so does
    SmoothTree. Otherwise a random sample of 10,000 rows is clustered, and every other row takes the
    cluster with the most votes, weighted by 1 / distance, of the `n_neighbors` rows of the sample
    that are nearest to it.

    Args:
        features: finite rows `[n, d]`.
        true_labels: int `[n]`, used for scores only, or None.
        options: from `resolve_large`.
        progress: called with one line of text at each step.
    """
    n, sample = len(features), sample_rows(features, options.seed)
    values, used = features[sample], {"all": n, "files": len(features.files)}
    shares: NDArray | None = None
    if options.method == "kmeans" and options.reduce == "none":
        progress(f"running k-means on all {n:,} rows, read in blocks, k = {options.n_clusters} ...")
        result, labels = clusters.run_kmeans(features, None, options, sample)
        result = clusters.with_silhouette(values, result, options)
        used = {**used, "clustered": n}
    elif options.method == "tree":
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
        result = clusters.with_silhouette(values, result, options)
        used = {**used, "clustered": n}
    else:
        progress(f"clustering a random sample of {len(sample):,} of {n:,} rows ...")
        labels_of_sample = None if true_labels is None else true_labels[sample]
        result = clusters.cluster(values, labels_of_sample, options, progress)
        votes, shown = _voter(values, result, options), 0
        labels, shares = np.empty(n, np.int32), np.empty(n, np.float32)
        for rows, block in features.blocks():
            block_shares = votes(block)
            labels[rows], shares[rows] = block_shares.argmax(axis=1), block_shares.max(axis=1)
            if rows.stop * 10 // n > shown:
                shown = rows.stop * 10 // n
                progress(f"placed {rows.stop:,} of {n:,} rows by their neighbors in the sample")
        labels[sample], shares[sample] = result.cluster_labels, 1
        used = {**used, "clustered": len(sample), "placed_by_neighbors": n - len(sample)}
    small = np.unique(result.cluster_labels[result.outliers])
    metrics = {
        **result.metrics,
        **clusters.scores(true_labels, labels),
        "outliers": int(np.isin(labels, small).sum()),
        "cluster_sizes": clusters.sizes_of(labels),
    }
    used["in_report"] = len(sample)
    return LargeClustering(sample, result._replace(metrics=metrics), labels, shares, used)


def _voter(
    values: NDArray, result: Clustering, options: ClusterOptions
) -> Callable[[NDArray], NDArray]:
    """Makes a function that lets the sample's rows `values` vote on others: `[m, d] -> [m, k]`."""
    prepared = normalize_rows if options.metric == "cosine" else np.asarray
    voters = prepared(values)

    def votes(rows: NDArray) -> NDArray:
        near = knn.nearest(prepared(rows), voters, options.n_neighbors)
        return knn.vote(near, result.cluster_labels)

    return votes
