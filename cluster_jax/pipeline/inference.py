"""Inference with a finished run: embeds new images and assigns them to its clusters.

Only the workdir of the run is needed, not its training images.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cluster_jax.clustering import out_of_sample, smooth_tree
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.core import arrays, ops
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import discovery
from cluster_jax.methods.base import Method
from cluster_jax.pipeline import build, embedder, pretrained_features, trained_run
from cluster_jax.pipeline import embed as embedding
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.trained_run import TrainedRun
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states
from cluster_jax.training.state import State

# Images per forward pass, the same for every call, with the last pass padded: arrays of a different
# shape round differently, so the features of an image would depend on the number of images.
BATCH = 64


# Images -> features float32 [m, d], unit rows.
Embed = Callable[[Dataset], np.ndarray]
# Images -> the input of the network: the images, or their features by the section `embedder`.
Prepare = Callable[[Dataset], Dataset]


class Assignment(NamedTuple):
    """Clusters or classes assigned to new images.

    Attributes:
        labels: int64 `[m]`, the cluster; from `classify` str `[m]`, the class.
        distances: float64 `[m]`, distance to the center of the cluster, for GridShift in the map
            and in bandwidths, for the tree between sharp rows; from `place_kmeans` and `classify`
            the Euclidean distance between unit rows and the mean of the cluster or class.
        is_novel: bool `[m]`: farther from every training image than 99 % of these are from their
            nearest other one (`out_of_sample.novelty_threshold`), so that the label means little.
    """

    labels: np.ndarray
    distances: np.ndarray
    is_novel: np.ndarray


class Nearest(NamedTuple):
    """The training images most similar to each of m images, the most similar first.

    Attributes:
        indices: int64 `[m, n]`, positions among the training images.
        similarities: float64 `[m, n]`, cosine similarity of the features.
        files: their paths relative to their folder, str `[m, n]`; None if they have no files.
    """

    indices: np.ndarray
    similarities: np.ndarray
    files: np.ndarray | None


def check(run: TrainedRun) -> None:
    """Raises an `InputError` if the run cannot assign new images to its clusters."""
    if run.config.eval.reduce.method == "tsne" and run.clusters.smoother is None:
        raise InputError(
            "Runs that used t-SNE cannot assign new images; run the same command again with "
            "--config.eval.reduce.method=umap"
        )


def make_embed(run: TrainedRun) -> Embed:
    """The network of a run: the trained one, or the pretrained one where nothing was trained.

    The features of an image do not depend on the other images.

    Returns:
        A function from images to their features as they are clustered, float32 `[m, d]`, unit rows.

    Raises:
        InputError: the checkpoint is missing, damaged, or was written by a different network; or
            the weights of the pretrained network cannot be read or are others than in the run.
    """
    mesh = states.make_mesh()
    forward, prepare = _trained(run, mesh) if run.is_trained else _frozen(run, mesh)
    batch_size = -(-BATCH // mesh.size) * mesh.size

    def embed(dataset: Dataset) -> np.ndarray:
        last = dataset.size - 1
        padded = dataset._replace(
            size=-(-dataset.size // batch_size) * batch_size,
            images=None,
            fetch=lambda index: dataset.fetch(np.minimum(index, last)),
        )
        embedded = embedding.embed(
            forward, prepare(padded), batch_size=batch_size, mesh=mesh, n_images=dataset.size
        )
        return arrays.normalize_rows(embedded[run.config.eval.features])

    return embed


def _trained(run: TrainedRun, mesh: Mesh) -> tuple[embedding.Forward, Prepare]:
    """The network of the checkpoint that was evaluated."""
    method, state = _restored(run)
    forward = embedding.forward_of(method, state.params, state.model_state, mesh)
    return forward, embedder.for_new_images(run.config, run.images["shape"][-1], mesh)


def _restored(run: TrainedRun) -> tuple[Method, State]:
    assert run.workdir is not None
    training = build.rebuild_run(run.config, run.images).training
    step = run.results["provenance"]["steps"]
    state = checkpoint.read(run.workdir / checkpoint.FOLDER, build.abstract_state(training), step)
    return training.method, state


def _pretrained(run: TrainedRun, mesh: Mesh) -> pretrained_features.FrozenNetwork:
    """The pretrained network, whose weights are loaded again."""
    augment = build.standardization(run.config.augment, run.images)
    config = dataclasses.replace(run.config, augment=augment)
    network = pretrained_features.make(config, config.network, run.images["shape"][-1], mesh)
    if network.checksum != run.images[workdirs.WEIGHTS]:
        raise InputError(
            f"network.weights must be those of the run; got {config.network.weights}, which has "
            "other values now: restore the file, or run the command of the run in another --workdir"
        )
    return network


def _frozen(run: TrainedRun, mesh: Mesh) -> tuple[embedding.Forward, Prepare]:
    network = _pretrained(run, mesh)

    def forward(images: jax.Array, index: jax.Array) -> dict[str, np.ndarray]:
        return {"backbone": network.forward(images, index)["features"][:, 0]}

    return forward, lambda dataset: dataset


def encoder(run: TrainedRun) -> Callable[[jax.Array], jax.Array]:
    """The network of a run as one pure function, for export.

    Returns:
        A function from images of the run's size, uint8 `[b, H, W, C]`, to their features as they
        are clustered, float32 `[b, d]`, unit rows.

    Raises:
        InputError: the run is on features, or see `make_embed`.
    """
    shape, mesh = run.images["shape"], states.make_mesh(1)
    if len(shape) == 2:
        raise InputError("the run to export must be one on images; got a run on features")
    if not run.is_trained:
        represent = _pretrained(run, mesh).represent
        return lambda images: ops.l2_normalize(represent(images))
    method, state = _restored(run)
    params, model_state = jax.device_get((state.params, state.model_state))
    prepare = None
    if run.config.embedder is not None:
        prepare = embedder.make_network(run.config, shape[-1], mesh, views=False).represent

    def encode(images: jax.Array) -> jax.Array:
        x = images if prepare is None else ops.l2_normalize(prepare(images))[:, None]
        return ops.l2_normalize(method.embed(params, model_state, x)[run.config.eval.features])

    return encode


def nearest(run: TrainedRun, rows: np.ndarray, n: int) -> Nearest:
    """The `n` training images most similar to each image; ties go to the lower index.

    Args:
        run: the trained run.
        rows: float32 `[m, d]`, features from `embed`.
        n: capped at the number of training images.
    """
    found, names = out_of_sample.neighbors(rows, run.all_features, n), trained_run.files(run)
    named = None if names is None else np.asarray(names)[found.indices]
    return Nearest(found.indices, 1 - found.distances, named)


def place(run: TrainedRun, rows: np.ndarray, labels: np.ndarray | None = None) -> Assignment:
    """Assigns new images to the clusters that were found, each independently of the others.

    For the tree the nearest training images among sharp rows vote, as in `SmoothTree.predict`; for
    GridShift the nearest `eval.reduce.n_neighbors` by cosine vote and determine the position in the
    map. Without a map, GridShift shifts each row to its mode.

    Args:
        run: the trained run.
        rows: float32 `[m, d]`, features from `embed`.
        labels: int64 `[n]`, of the training images at another cut of the tree; None: the clusters
            of the run.

    Raises:
        InputError: the run used t-SNE.
        ValueError: the rows have a different size from the run's features.
    """
    check(run)
    section, stored = run.config.eval, run.clusters
    if stored.smoother is not None:
        return _place_by_tree(run, rows, labels)
    bandwidth = 1.0 if stored.bandwidth is None else float(stored.bandwidth)
    if section.method == "gridshift" and section.reduce.method == "none":
        gridshift = section.gridshift
        grid = GridShift(bandwidth, stop=gridshift.stop, max_iter=gridshift.max_iter)
        location = grid.fit(stored.points).locate(rows)
        neighbors = out_of_sample.neighbors(rows, run.features, 1)
        return Assignment(location.labels, location.distances, _is_novel(run, neighbors))
    neighbors = out_of_sample.neighbors(rows, run.features, section.reduce.n_neighbors)
    assigned = out_of_sample.vote(neighbors, stored.cluster_labels)
    positions = out_of_sample.position(neighbors, stored.cluster_labels, assigned, stored.points)
    distances = arrays.distances_to_centers(positions, stored.centers, assigned)
    return Assignment(assigned, distances / bandwidth, _is_novel(run, neighbors))


def _place_by_tree(run: TrainedRun, rows: np.ndarray, labels: np.ndarray | None) -> Assignment:
    stored = run.clusters
    smoother, sample, centers = stored.smoother, stored.sample, stored.centers
    assert smoother is not None  # Checked by the caller.
    assert sample is not None
    if labels is None:
        labels = stored.cluster_labels
    else:
        centers = arrays.cluster_means(smoother.project(run.features), labels)
    assigned = smooth_tree.votes(smoother, labels[sample], rows).argmax(axis=1)
    distances = arrays.distances_to_centers(smoother.project(rows), centers, assigned)
    neighbors = out_of_sample.neighbors(rows, run.features, 1)
    return Assignment(assigned, distances, _is_novel(run, neighbors))


def classify(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """Assigns new images to the classes of novel class discovery, each independently.

    The nearest training images vote on the class.

    Args:
        run: a run with known classes.
        rows: float32 `[m, d]`, features from `embed`.
    """
    neighbors = out_of_sample.neighbors(rows, run.all_features, discovery.VOTERS)
    classes = out_of_sample.vote(neighbors, trained_run.class_labels(run))
    threshold = run.clusters.class_novelty_threshold
    is_novel = neighbors.distances[:, 0] > np.asarray(threshold, np.float64)
    names = trained_run.class_names(run, classes)
    return Assignment(names, trained_run.class_distances(run, rows, classes), is_novel)


def place_kmeans(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """Assigns new images to the clusters of k-means by a vote of the nearest training images.

    For the tree, on whose smooth rows k-means runs, they are the nearest among sharp rows.
    Distances are Euclidean, between unit rows and the mean of the cluster.
    """
    n_neighbors = run.config.eval.reduce.n_neighbors
    neighbors = out_of_sample.neighbors(rows, run.features, n_neighbors)
    smoother, sample, labels = (
        run.clusters.smoother,
        run.clusters.sample,
        run.clusters.kmeans_labels,
    )
    if smoother is not None and sample is not None:
        labels = smooth_tree.votes(smoother, labels[sample], rows).argmax(axis=1)
    else:
        labels = out_of_sample.vote(neighbors, labels)
    distances = trained_run.kmeans_distances(run, rows, labels)
    return Assignment(labels, distances, _is_novel(run, neighbors))


def _is_novel(run: TrainedRun, neighbors: out_of_sample.Neighbors) -> np.ndarray:
    return neighbors.distances[:, 0] > float(run.clusters.novelty_threshold)
