"""Inference with a trained run: embed new images and assign clusters.

Needs the workdir only, neither the training images nor the data set that they came from.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from jax.sharding import Mesh

from cluster_jax.clustering import out_of_sample
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import discovery, summary
from cluster_jax.methods.base import Method
from cluster_jax.pipeline import build
from cluster_jax.pipeline import embed as embedder
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig, read_config
from cluster_jax.training import checkpoint

# Images of a forward pass. One size for every call, the last pass filled up: sums of another shape
# round differently, and the features of an image would depend on how many came with it.
BATCH = 64


class TrainedRun(NamedTuple):
    """The outputs of a finished run.

    Attributes:
        workdir: its folder.
        config: its config.
        results: what `results.json` holds.
        images: what `images.json` holds: size, shape and statistics of the training images.
        features: float32 `[n, d]`, rows of length one, as they were clustered.
        clusters: what `clusters.npz` holds.
        known: of novel class discovery: names of the known classes, else None. `features` and
            `clusters` are then those of the unlabeled images.
        everything: features of all training images; the same as `features` where `known` is None.
    """

    workdir: epath.Path
    config: RunConfig
    results: Mapping[str, Any]
    images: Mapping[str, Any]
    features: np.ndarray
    clusters: workdirs.StoredClusters
    known: tuple[str, ...] | None
    everything: np.ndarray


class Trained(NamedTuple):
    """A network with its weights, on the devices of `mesh`."""

    method: Method
    params: Any
    model_state: Any
    mesh: Mesh


class Assignment(NamedTuple):
    """Where new images belong.

    Attributes:
        labels: int64 `[m]`, the cluster; by `classify` str `[m]`, the class.
        distances: float64 `[m]`: to the center of the cluster, in bandwidths of GridShift's space.
            By `place_kmeans` and `classify` Euclidean, between rows of length one and the mean
            of those of the cluster or class.
        is_novel: bool `[m]`: farther from every training image than 99 % of those are from each
            other (`out_of_sample.novelty_threshold`), so the label says little.
    """

    labels: np.ndarray
    distances: np.ndarray
    is_novel: np.ndarray


def read(workdir: epath.PathLike) -> TrainedRun:
    """Reads the outputs of a run.

    Raises:
        InputError: no such folder, or the run in it is not finished.
    """
    workdir = epath.Path(workdir).expanduser()
    if not (workdir / workdirs.CONFIG).exists():
        raise InputError(f"{workdir} holds no run; give the --workdir of a run of cluster_jax.main")
    results = workdirs.finished_results(workdir, (workdirs.CLUSTERS,))
    if results is None:
        raise InputError(
            f"the run in {workdir} is not finished; its own command with --workdir={workdir} "
            "finishes it"
        )
    config = read_config(workdir)
    images = io.read_json(workdir / workdirs.IMAGES)
    everything = arrays.normalize_rows(
        io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING)[config.eval.features]
    )
    clusters = workdirs.read_clusters(workdir)
    known = None if clusters.class_labels is None else tuple(images["known"]["names"])
    rows = clusters.unlabeled_rows
    features = everything if rows is None else everything[rows]
    return TrainedRun(workdir, config, results, images, features, clusters, known, everything)


def check(run: TrainedRun) -> None:
    """Raises an `InputError` if new images cannot be placed in the run's clusters."""
    if run.config.eval.reduce.method == "tsne":
        raise InputError(
            "Runs that used t-SNE cannot assign new images; run the same command again with "
            "--config.eval.reduce.method=umap"
        )


def restore(run: TrainedRun) -> Trained:
    """The trained network, from the last checkpoint.

    Raises:
        InputError: there is none, or it is of another network than `config.json` says.
    """
    training = build.rebuild_run(run.config, run.images).training
    state = checkpoint.read(
        run.workdir / "checkpoints", build.abstract_state(training), training.schedule.total
    )
    return Trained(training.method, state.params, state.model_state, training.mesh)


def embed(run: TrainedRun, trained: Trained, dataset: Dataset) -> np.ndarray:
    """Features of images as they are clustered: float32 `[m, d]`, rows of length one.

    Those of an image do not depend on the images beside it.
    """
    batch = -(-BATCH // trained.mesh.size) * trained.mesh.size
    last = dataset.size - 1
    filled = dataset._replace(
        size=-(-dataset.size // batch) * batch,
        images=None,
        fetch=lambda index: dataset.fetch(np.minimum(index, last)),
    )
    features = embedder.embed(
        trained.method,
        trained.params,
        trained.model_state,
        filled,
        batch_size=batch,
        mesh=trained.mesh,
    )
    return arrays.normalize_rows(features[run.config.eval.features][: dataset.size])


def place(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """GridShift's clusters for features of new images; rows do not affect each other.

    Where the features were reduced to a map, the training rows nearest to a new one, as many as
    the map was made with (`eval.reduce.n_neighbors`), vote on its label and give it a place in the
    map. Where they were not, GridShift itself follows the row to its mode.

    Args:
        run: its clusters.
        rows: float32 `[m, d]`, as `embed` makes them.

    Raises:
        InputError: the run was reduced by t-SNE.
        ValueError: rows of another size than the run's.
    """
    check(run)
    section, stored = run.config.eval, run.clusters
    if section.reduce.method == "none":
        gridshift = section.gridshift
        grid = GridShift(float(stored.bandwidth), stop=gridshift.stop, max_iter=gridshift.max_iter)
        found = grid.fit(stored.points).locate(rows)
        near = out_of_sample.neighbors(rows, run.features, 1)
        return Assignment(found.labels, found.distances, _unlike(run, near))
    near = out_of_sample.neighbors(rows, run.features, section.reduce.n_neighbors)
    labels = out_of_sample.vote(near, stored.cluster_labels)
    places = out_of_sample.position(near, stored.cluster_labels, labels, stored.points)
    apart = arrays.distances_to_centers(places, stored.centers, labels)
    return Assignment(labels, apart / float(stored.bandwidth), _unlike(run, near))


def classify(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """Class of new images by a run of novel class discovery, each by itself.

    The nearest training images vote.

    Args:
        run: with known classes.
        rows: float32 `[m, d]`, as `embed` makes them.
    """
    near = out_of_sample.neighbors(rows, run.everything, discovery.VOTERS)
    classes = out_of_sample.vote(near, class_labels(run))
    threshold = run.clusters.class_novelty_threshold
    is_novel = near.distances[:, 0] > np.asarray(threshold, np.float64)
    return Assignment(class_names(run, classes), class_distances(run, rows, classes), is_novel)


def class_labels(run: TrainedRun) -> np.ndarray:
    """Class of every training image by novel class discovery, int32 `[n]`, known ones first.

    Raises:
        ValueError: the run has no known classes.
    """
    if run.clusters.class_labels is None:
        raise ValueError(f"{run.workdir} must be a run of novel class discovery; got another")
    return run.clusters.class_labels


def class_names(run: TrainedRun, classes: np.ndarray) -> np.ndarray:
    """Str `[m]`: a known class by its name, the j-th novel one as "novel j"."""
    return np.asarray([discovery.name(c, run.known or ()) for c in classes])


def class_distances(run: TrainedRun, rows: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Euclidean distance of unit rows to the mean of the training rows of their class."""
    return arrays.distances_to_cluster_means(rows, classes, run.everything, class_labels(run))


def warn_of_doubts(run: TrainedRun) -> None:
    """Warns the caller of an estimator's `fit` where the novel classes may mean little."""
    doubt = summary.doubt(run.results["metrics"]["discovery"])
    if doubt is not None:
        warnings.warn(f"{doubt}; see the report's clusters", UserWarning, stacklevel=5)


def place_kmeans(run: TrainedRun, rows: np.ndarray) -> Assignment:
    """The same for the clusters of k-means, by the votes of the nearest training rows.

    Distances are Euclidean, between rows of length one and the mean of the cluster's.
    """
    labels = run.clusters.kmeans_labels
    near = out_of_sample.neighbors(rows, run.features, run.config.eval.reduce.n_neighbors)
    chosen = out_of_sample.vote(near, labels)
    return Assignment(chosen, kmeans_distances(run, rows, chosen), _unlike(run, near))


def kmeans_distances(run: TrainedRun, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Euclidean distance of unit rows to the mean of the training rows of their label."""
    return arrays.distances_to_cluster_means(rows, labels, run.features, run.clusters.kmeans_labels)


def _unlike(run: TrainedRun, near: out_of_sample.Neighbors) -> np.ndarray:
    return near.distances[:, 0] > float(run.clusters.novelty_threshold)
