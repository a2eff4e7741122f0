"""Where new rows belong among the clusters of a run, other cuts of its tree, and similar images."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import stable_ids
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.clustering.placing import ByTree, Placing
from cluster_jax.core import checks, knn
from cluster_jax.core.checks import InputError
from cluster_jax.report import duplicates
from cluster_jax.runs.next_state import of_copies
from cluster_jax.runs.run import Run


class Nearest(NamedTuple):
    """The c images of a run most similar to each of l new images, the most similar first.

    Attributes:
        indices: int64 `[l, c]`, positions among the n images of the run.
        similarities: float64 `[l, c]`, cosine similarity of the features.
        files: str `[l, c]`, `Run.names` of these images; None if the run has no names.
    """

    indices: NDArray
    similarities: NDArray
    files: NDArray | None


def place(run: Run, x: NDArray, labels: NDArray | None = None) -> Assignment:
    """Returns a current cluster for each new row.

    Each row is assigned independently of the others. With `labels=None`, a copy or near copy of
    an image about which a person has decided gets the cluster of that image. A row of embeddings
    that equals several rows of the run gets the cluster that it has after an update.

    Args:
        run: the run.
        x: the rows, float `[l, d]`.
        labels: int64 `[n]`, the clusters at another cut of the tree; None: the current ones.

    Raises:
        InputError: the rows are not finite, or the run cannot place new ones, see
            `check_places`.
    """
    placer = check_places(run)
    if labels is not None:
        return placer.place(x, labels)
    labels = _labels_of_placer(run)
    if labels is not None and not run.is_of_images and isinstance(placer, ByTree):
        labels = _of_equal_rows(run, placer, labels)
    return _as_decided(run, x, placer.place(x, labels))


def _labels_of_placer(run: Run) -> NDArray | None:
    """Returns the present labels; None if the placer itself has them."""
    if run.placer is not None and np.array_equal(run.placer.labels, run.labels):
        return None
    return run.labels


def _of_equal_rows(run: Run, placer: ByTree, labels: NDArray) -> NDArray:
    """Returns labels in which the row of each leaf has that of a new row that is equal to it.

    A person may have put equal rows into several clusters. An update gives a new one the cluster of
    most of them, and then that of most of those, with the new one, that are not fixed: equal rows
    that are not fixed stay together, see `tree_fit.numbered`.

    Args:
        run: a run of embeddings.
        placer: its placer; rows of a micro-cluster are not equal.
        labels: int64 `[n]`, the present clusters.
    """
    if placer.smoother.counts is not None:
        return labels
    is_in = placer.labels != NO_CLUSTER  # Rows of zeros alone are in no leaf.
    is_free = is_in & ~run.columns["decided"] & ~np.isin(labels, list(run.held))
    ids, codes = np.unique(labels, return_inverse=True)
    every, free = np.zeros((2, len(placer.sample), len(ids)), np.int64)
    for votes, rows in ((every, is_in), (free, is_free)):
        np.add.at(votes, (placer.leaves[rows], codes[rows]), 1)
    free[np.arange(len(free)), every.argmax(axis=1)] += 1
    labels = labels.copy()
    labels[placer.sample] = ids[free.argmax(axis=1)]
    return labels


def _as_decided(run: Run, x: NDArray, placed: Assignment) -> Assignment:
    """Returns an assignment in which copies of images that a person has decided follow these.

    An image that a person has moved lies among images of another cluster, which would outvote
    it. For what a copy is see `duplicates.near_threshold`. It follows as a new one does in an
    update, see `next_state.of_copies`. Embeddings have no copies.

    Args:
        run: the run.
        x: the new rows, float `[l, d]`.
        placed: the assignment of these rows by the placer.
    """
    if not run.columns["decided"].any() or not run.is_of_images:
        return placed
    near = knn.nearest(x, run.features, 1, metric="cosine")
    wanted = of_copies(run)[near.indices[:, 0]]
    if (wanted == stable_ids.NEW).all():
        return placed
    distinct = run.placer.sample if isinstance(run.placer, ByTree) else slice(None)
    threshold = duplicates.near_threshold(run.features[distinct])
    is_copy = (wanted != stable_ids.NEW) & (1 - near.distances[:, 0] >= threshold)
    placed = placed._replace(labels=np.where(is_copy, wanted, placed.labels))
    if (sure := placed.membership) is None:
        return placed
    return placed._replace(
        probabilities=np.where(is_copy, placed.labels != NO_CLUSTER, sure.probabilities),
        second_labels=np.where(is_copy, NO_CLUSTER, sure.second_labels),
        second_probabilities=np.where(is_copy, 0.0, sure.second_probabilities),
    )


def probabilities(run: Run, x: NDArray) -> NDArray:
    """Computes the probability of each cluster for new rows `[l, d]`: float64 `[l, k]`.

    The columns are the distinct values of `labels`, ascending: if a row of the run is in no
    cluster, the first column is that of -1, and 0: the probabilities are those of clusters.

    Raises:
        InputError: the run has no tree, or is one of novel class discovery.
    """
    return _tree(run, "give probabilities").probabilities(x, _labels_of_placer(run))


def cut(run: Run, *, n_clusters: int | None = None) -> NDArray:
    """Returns the group of each row at another cut of the tree, int64 `[n]`, -1 for none.

    No more groups than clusters are unions of the current clusters, and a union has the lowest
    number of its clusters. As long as an update only adds rows to clusters, the unions stay. More
    groups are those of the tree of the last clustering, which ignores corrections; they are
    numbered by size, the largest is 0.

    Args:
        run: the run.
        n_clusters: number of groups; None: the current clusters with their own numbers.

    Raises:
        InputError: the run has no tree or is one of novel class discovery, or `n_clusters` is
            out of range.
    """
    placer = _tree(run, "cut")
    if n_clusters is None:
        return run.labels.copy()
    assert run.tree is not None
    checks.whole("n_clusters", n_clusters, 1, len(run.tree) + 1)
    if n_clusters <= len(run.linkage) + 1:
        return trees.unions(run.linkage, run.labels, n_clusters)
    labels = placer.labels
    if run.store is not None:  # A row that a person has marked as wrong is in the tree.
        is_in = placer.smoother.has_direction(run.features)
        labels = np.where(is_in, 0, NO_CLUSTER)
    return trees.cut(run.tree, labels, placer.leaves, n_clusters)


def check_places(run: Run) -> Placing:
    """Returns what places new rows.

    Raises:
        InputError: the run used t-SNE, whose map has no place for them.
    """
    if run.placer is None:
        flag = "--config.eval.reduce=umap" if run.is_of_images else "--reduce=umap"
        raise InputError(
            f"{run.workdir} used t-SNE, whose map has no place for new rows; run its command "
            f"with {flag} in another folder"
        )
    return run.placer


def _tree(run: Run, what: str) -> ByTree:
    """Returns the placer by the tree; `what` completes "method must be 'tree' to ...".

    Raises:
        InputError: the run has no tree, or is one of novel class discovery.
    """
    if run.known_classes is not None:
        raise InputError(
            f"y must be None to {what}, which classes do not follow; got classes: fit again "
            "without them"
        )
    if run.tree is None or not isinstance(run.placer, ByTree):
        key = "eval.method" if run.is_of_images else "method"
        raise InputError(f"{key} must be 'tree' to {what}; got {run.method!r}")
    return run.placer


def nearest(run: Run, x: NDArray, count: int) -> Nearest:
    """Finds the images most similar to each of new rows `[l, d]`, by the cosine of features.

    There are `count` for each row, or all n if the run has fewer; of equally similar ones the
    first in the run comes first.

    Raises:
        InputError: the run does not store its features.
    """
    near = knn.nearest(x, run.features, count, metric="cosine")
    named = None if run.names is None else np.asarray(run.names)[near.indices]
    return Nearest(near.indices, 1 - near.distances, named)
