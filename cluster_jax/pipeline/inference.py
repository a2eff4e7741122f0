"""Inference with a trained run: embed new images and assign clusters.

Needs only the workdir of the run, not its training images.
"""

import csv
import dataclasses
import io as text_io
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering import out_of_sample, smooth_tree
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import assignments, discovery, summary
from cluster_jax.pipeline import build, clusters_file, outputs, pretrained_features
from cluster_jax.pipeline import embedder as embedders
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig, read_config
from cluster_jax.pipeline.embed import embed as embed_dataset
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states

# Images per forward pass, the same for every call, with the last pass padded: arrays of a different
# shape round differently, so the features of an image would depend on the number of images.
BATCH = 64


class TrainedRun(NamedTuple):
    """The outputs of a finished run.

    Attributes:
        workdir: folder of the run; None: it is in memory.
        config: config of the run.
        results: content of `results.json`.
        images: content of `images.json`: size, shape and statistics of the training images.
        features: float32 `[n, d]`, unit rows, as they were clustered.
        clusters: content of `clusters.npz`.
        known: names of the known classes in novel class discovery, otherwise None. With known
            classes, `features` and `clusters` are those of the unlabeled images.
        all_features: float32 `[N, d]`, features of all training images; the same as `features` if
            `known` is None.
        sources: of a run in memory, the paths of the training images, or None.
    """

    workdir: epath.Path | None
    config: RunConfig
    results: Mapping[str, Any]
    images: Mapping[str, Any]
    features: np.ndarray
    clusters: clusters_file.StoredClusters
    known: tuple[str, ...] | None
    all_features: np.ndarray
    sources: tuple[str, ...] | None = None

    @property
    def is_trained(self) -> bool:
        """Whether the network was trained, so that its weights are in the workdir."""
        return workdirs.WEIGHTS not in self.images


# Images -> features float32 [m, d], unit rows.
Embed = Callable[[Dataset], np.ndarray]
# (images, images per forward pass, number of images that are wanted) -> their features.
EmbedBatches = Callable[[Dataset, int, int], np.ndarray]


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


def read(workdir: epath.PathLike) -> TrainedRun:
    """Reads the outputs of a run.

    Raises:
        InputError: the folder has no run, or the run is not finished or has a damaged file.
    """
    if not isinstance(workdir, str | os.PathLike):
        raise InputError(f"path must be the workdir of a finished run; got {workdir!r}")
    try:
        return _read(workdir)
    except io.DamagedFile as error:
        raise InputError(
            f"{error}, or run the command of the run again, which makes it again where it can"
        ) from error


def _read(workdir: epath.PathLike) -> TrainedRun:
    workdir = epath.Path(workdir).expanduser()
    if not (workdir / workdirs.CONFIG).exists():
        raise InputError(
            f"the workdir must be that of a finished run; got {workdir}, which has none"
        )
    if "network" not in workdirs.read_values(workdir / workdirs.CONFIG):
        raise InputError(
            "the workdir must be that of a training, which has a network for new images; got "
            f"{workdir}, which the command cluster has written"
        )
    needed = (workdirs.CLUSTERS, workdirs.IMAGES, workdirs.TRAIN_EMBEDDING)
    results = workdirs.finished_results(workdir, needed)
    if results is None:
        raise InputError(
            f"the run in {workdir} is not finished; run its command again with --workdir={workdir}"
        )
    config = read_config(workdir)
    images = workdirs.read_values(workdir / workdirs.IMAGES)
    embedding = io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING)
    clusters = clusters_file.read(workdir)
    return _joined(workdir, config, results, images, embedding, clusters)


def in_memory(
    inputs: build.Inputs,
    images: Mapping[str, Any],
    features: outputs.Features,
    made: outputs.Outputs,
) -> TrainedRun:
    """A run of a pretrained network, which has no workdir.

    Args:
        inputs: the images.
        images: what `images.json` would hold.
        features: embeddings of the images.
        made: the outputs of the run.
    """
    run = _joined(None, inputs.config, made.results, images, features.train, made.clusters)
    return run._replace(sources=inputs.dataset.sources)


def _joined(
    workdir: epath.Path | None,
    config: RunConfig,
    results: Mapping[str, Any],
    images: Mapping[str, Any],
    embedding: Mapping[str, np.ndarray],
    clusters: clusters_file.StoredClusters,
) -> TrainedRun:
    all_features = arrays.normalize_rows(embedding[config.eval.features])
    known = None if clusters.class_labels is None else tuple(images["known"]["names"])
    rows = clusters.unlabeled_rows
    features = all_features if rows is None else all_features[rows]
    return TrainedRun(workdir, config, results, images, features, clusters, known, all_features)


def files(run: TrainedRun) -> tuple[str, ...] | None:
    """Paths of the training images relative to their folder; None if they have no files."""
    if run.workdir is None or run.config.data.name != "folder":
        return run.sources
    file = run.workdir / workdirs.ASSIGNMENTS
    if not file.exists():
        raise InputError(
            f"{file} must name the training images; got no such file: run the command of the run "
            "again with another --config.eval value, or restore it from a copy"
        )
    table = file.read_bytes().decode("utf-8", "replace")
    rows = csv.DictReader(text_io.StringIO(table))
    names = tuple(
        assignments.unescaped(row["image"]) for row in rows if row.get("image") is not None
    )
    if len(names) != len(run.all_features):
        raise io.DamagedFile(file, f"it does not name the {len(run.all_features):,} images")
    return names


def check(run: TrainedRun) -> None:
    """Raises an `InputError` if the run cannot assign new images to its clusters."""
    if run.config.eval.reduce.method == "tsne" and run.clusters.smoother is None:
        raise InputError(
            "Runs that used t-SNE cannot assign new images; run the same command again with "
            "--config.eval.reduce.method=umap"
        )


def embedder(run: TrainedRun) -> Embed:
    """The network of a run: the trained one, or the pretrained one where nothing was trained.

    The features of an image do not depend on the other images.

    Returns:
        A function from images to their features as they are clustered, float32 `[m, d]`, unit rows.

    Raises:
        InputError: the checkpoint is missing, damaged, or was written by a different network; or
            the weights of the pretrained network cannot be read or are others than in the run.
    """
    embed_batches = _trained(run) if run.is_trained else _frozen(run)

    def embed(dataset: Dataset) -> np.ndarray:
        mesh = states.make_mesh()
        batch = -(-BATCH // mesh.size) * mesh.size
        last = dataset.size - 1
        padded = dataset._replace(
            size=-(-dataset.size // batch) * batch,
            images=None,
            fetch=lambda index: dataset.fetch(np.minimum(index, last)),
        )
        return arrays.normalize_rows(embed_batches(padded, batch, dataset.size))

    return embed


def _trained(run: TrainedRun) -> EmbedBatches:
    """The network of the checkpoint that was evaluated."""
    assert run.workdir is not None
    training = build.rebuild_run(run.config, run.images).training
    step = run.results["provenance"]["steps"]
    state = checkpoint.read(run.workdir / checkpoint.FOLDER, build.abstract_state(training), step)
    as_features = embedders.for_new_images(run.config, run.images["shape"][-1], training.mesh)

    def embed(padded: Dataset, batch: int, n_images: int) -> np.ndarray:
        features = embed_dataset(
            training.method,
            state.params,
            state.model_state,
            as_features(padded),
            batch_size=batch,
            mesh=training.mesh,
            n_images=n_images,
        )
        return features[run.config.eval.features]

    return embed


def _frozen(run: TrainedRun) -> EmbedBatches:
    """The pretrained network, whose weights are loaded again."""
    config, mesh = run.config, states.make_mesh()
    augment = build.standardization(config.augment, run.images)
    config = dataclasses.replace(config, augment=augment)
    network = pretrained_features.of_run(config, run.images["shape"][-1], mesh)
    if network.checksum != run.images[workdirs.WEIGHTS]:
        raise InputError(
            f"network.weights must be those of the run; got {config.network.weights}, which has "
            "other values now: restore the file, or run the command of the run in another --workdir"
        )

    def embed(padded: Dataset, batch: int, n_images: int) -> np.ndarray:
        rows = pretrained_features.embed(padded, network.embed, batch, mesh, None, n_images)
        return rows[:, 0]

    return embed


def nearest(run: TrainedRun, rows: np.ndarray, n: int) -> Nearest:
    """The `n` training images most similar to each image; ties go to the lower index.

    Args:
        run: the trained run.
        rows: float32 `[m, d]`, features from `embed`.
        n: capped at the number of training images.
    """
    found, names = out_of_sample.neighbors(rows, run.all_features, n), files(run)
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


def cut(run: TrainedRun, *, k: int | None = None, level: float | None = None) -> np.ndarray:
    """Labels of the clustered images at a cut of the tree, int64 `[n]`, as `SmoothTree.cut`.

    Args:
        run: a run with `eval.method` "tree".
        k: number of groups; with no `level` either, the clusters.
        level: height, as a fraction of the highest merge; merges above it are undone.

    Raises:
        InputError: the run has no tree, or `k` or `level` is out of range.
    """
    stored = run.clusters
    if stored.tree is None or stored.sample is None:
        raise InputError(
            "eval.method must be 'tree' to cut the tree of groups; got 'gridshift', which has none"
        )
    labels = stored.cluster_labels.astype(np.int64)
    if k is None and level is None:
        return labels
    return smooth_tree.cut(stored.tree, stored.sample, labels, k=k, level=level)


def classify(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """Assigns new images to the classes of novel class discovery, each independently.

    The nearest training images vote on the class.

    Args:
        run: a run with known classes.
        rows: float32 `[m, d]`, features from `embed`.
    """
    neighbors = out_of_sample.neighbors(rows, run.all_features, discovery.VOTERS)
    classes = out_of_sample.vote(neighbors, class_labels(run))
    threshold = run.clusters.class_novelty_threshold
    is_novel = neighbors.distances[:, 0] > np.asarray(threshold, np.float64)
    return Assignment(class_names(run, classes), class_distances(run, rows, classes), is_novel)


def class_labels(run: TrainedRun) -> np.ndarray:
    """Class of every training image by novel class discovery, int32 `[n]`, known ones first.

    Raises:
        ValueError: the run has no known classes.
    """
    if run.clusters.class_labels is None:
        raise ValueError(
            f"{run.workdir} must be a run of novel class discovery; got another method"
        )
    return run.clusters.class_labels


def class_names(run: TrainedRun, classes: np.ndarray) -> np.ndarray:
    """Names of classes, str `[m]`: a known class by its name, the j-th novel one as "novel j"."""
    return np.asarray([discovery.name(c, run.known or ()) for c in classes])


def class_distances(run: TrainedRun, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Euclidean distance of unit rows to the mean of the training rows of their class."""
    return arrays.distances_to_cluster_means(rows, classes, run.all_features, class_labels(run))


def warn_of_doubts(run: TrainedRun) -> None:
    """Warns the caller of the estimator's `fit` if the novel classes are doubtful."""
    doubt = summary.doubt(run.results["metrics"]["discovery"])
    if doubt is not None:
        warnings.warn(f"{doubt}; see the report's clusters", UserWarning, stacklevel=4)


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
    return Assignment(labels, kmeans_distances(run, rows, labels), _is_novel(run, neighbors))


def kmeans_distances(run: TrainedRun, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Euclidean distance of unit rows to the mean of the training rows of their label."""
    return arrays.distances_to_cluster_means(rows, labels, run.features, run.clusters.kmeans_labels)


def _is_novel(run: TrainedRun, neighbors: out_of_sample.Neighbors) -> np.ndarray:
    return neighbors.distances[:, 0] > float(run.clusters.novelty_threshold)
