"""A finished run: its files, its clusters, and how new images get theirs.

Only the workdir of the run is needed, not its training images.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh
from numpy.typing import NDArray

from cluster_jax.clustering import out_of_sample, smooth_tree
from cluster_jax.clustering.gridshift import GridShift
from cluster_jax.clustering.out_of_sample import Neighbors
from cluster_jax.clustering.smooth import Smoother
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, io, ops
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.evaluation import assignments, discovery
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.methods.base import Method
from cluster_jax.pipeline import build
from cluster_jax.pipeline import embed as embeddings
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig, read_config
from cluster_jax.pipeline.parts import Parts
from cluster_jax.training import checkpoint
from cluster_jax.training import state as states
from cluster_jax.training.state import State

# Images per forward pass, the same for every call, with the last pass padded: arrays of a different
# shape round differently, so the features of an image would depend on the number of images.
BATCH = 64

# Images, and where parts are kept until all is done, for the caller to remove (None: nowhere) ->
# features float32 [m, d], unit rows. Of several processes each has its own images.
Embed = Callable[..., NDArray]
# Images -> the input of the network: the images, or their features by the section `embedder`.
Prepare = Callable[[Dataset], Dataset]


# Fields of `StoredClusters` that are those of the tree's smoother, and of its `Membership`.
_OF_SMOOTHER = ("mean", "components", "sharp", "is_cosine")
_OF_MEMBERSHIP = ("probabilities", "runners_up", "runner_up_probabilities")


class StoredClusters(NamedTuple):
    """Content of `clusters.npz` for the n images that were clustered, of N training images.

    `eval.method` found the clusters; the tree of m sampled images, their sharp rows and the
    probabilities are None for GridShift, the bandwidth is None for the tree. The map, the
    clusters of k-means and the threshold of novelty are None in a run in memory that nobody has
    asked for them.

    Attributes:
        points: float32 `[n, p]`, the map.
        centers: float64 `[k, c]`, of the clusters in the space in which they were found: the map,
            and for the tree its sharp rows.
        cluster_labels: int32 `[n]`.
        distances: float32 `[n]`, to the center of the cluster, in bandwidths if there is one.
        outliers: bool `[n]`, images of clusters too small to count.
        kmeans_labels: int32 `[n]`, clusters of k-means.
        novelty_threshold: float64 `[]`, see `clustering.out_of_sample.novelty_threshold`.
        linkage: float64 `[k - 1, 4]`, the tree of the clusters, in SciPy's form, see
            `clustering.smooth_tree.cluster_linkage` and `clustering.tree.linkage_of_means`.
        bandwidth: float64 `[]`, side length of GridShift's cells.
        unlabeled_rows: int64 `[n]`, indices of the clustered images; None: all were clustered.
        class_labels: int32 `[N]`, classes of novel class discovery, or None.
        class_novelty_threshold: float64 `[]`, the threshold of all training images, or None.
        tree: float64 `[m - 1, 4]`, `SmoothTree.linkage_`.
        sample: int64 `[m]`, `SmoothTree.sample_`.
        mean, components, sharp, is_cosine: of its `smooth.Smoother`, by which new images are
            assigned.
        probabilities: float64 `[n]`, of the cluster.
        runners_up: int64 `[n]`, the second likeliest cluster, -1 for none.
        runner_up_probabilities: float64 `[n]`.
    """

    points: NDArray | None
    centers: NDArray
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    kmeans_labels: NDArray | None
    novelty_threshold: NDArray | None
    linkage: NDArray
    bandwidth: NDArray | None = None
    unlabeled_rows: NDArray | None = None
    class_labels: NDArray | None = None
    class_novelty_threshold: NDArray | None = None
    tree: NDArray | None = None
    sample: NDArray | None = None
    mean: NDArray | None = None
    components: NDArray | None = None
    sharp: NDArray | None = None
    is_cosine: NDArray | None = None
    probabilities: NDArray | None = None
    runners_up: NDArray | None = None
    runner_up_probabilities: NDArray | None = None

    @property
    def smoother(self) -> Smoother | None:
        """The representation in which the tree was found, or None."""
        if self.mean is None or self.components is None or self.sharp is None:
            return None
        sharp = self.sharp
        return Smoother(self.mean, self.components, bool(self.is_cosine), sharp, (), sharp)


def stored_clusters(found: Clustering, features: NDArray) -> StoredClusters:
    """The clusters by `eval.method` of the images that were clustered.

    Args:
        found: the clusters.
        features: float `[n, d]`, as the network made them.
    """
    tree, bandwidth = found.tree, found.metrics.get("bandwidth")
    stored = StoredClusters(
        points=found.points.astype(np.float32) if found.points.size else None,
        centers=found.centers,
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        kmeans_labels=None,
        novelty_threshold=None,
        linkage=(
            linkage_of_means(features, found.cluster_labels)
            if tree is None
            else tree.cluster_linkage_
        ),
        bandwidth=None if bandwidth is None else np.asarray(bandwidth),
    )
    if tree is None:
        return stored
    _, *membership = tree.membership_
    smoother = {name: np.asarray(getattr(tree.smoother_, name)) for name in _OF_SMOOTHER}
    stored = stored._replace(tree=tree.linkage_, sample=tree.sample_, **smoother)
    return stored._replace(**dict(zip(_OF_MEMBERSHIP, membership, strict=True)))


def write_clusters(workdir: epath.Path, clusters: StoredClusters) -> None:
    """Writes `clusters.npz`."""
    fields = {name: value for name, value in clusters._asdict().items() if value is not None}
    io.write_arrays(workdir / workdirs.CLUSTERS, fields)


def read_clusters(workdir: epath.Path) -> StoredClusters:
    """Reads `clusters.npz`.

    Raises:
        InputError: another version of the package wrote it.
    """
    try:
        return StoredClusters(**io.read_arrays(workdir / workdirs.CLUSTERS))
    except TypeError as error:
        raise workdirs.older_version(workdir) from error


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
            classes, `features` and `clusters` are of the unlabeled images alone.
        all_features: float32 `[N, d]`, features of all training images; the same as `features` if
            `known` is None.
        sources: of a run in memory, the paths of the training images, or None.
    """

    workdir: epath.Path | None
    config: RunConfig
    results: Mapping[str, Any]
    images: Mapping[str, Any]
    features: NDArray
    clusters: StoredClusters
    known: tuple[str, ...] | None
    all_features: NDArray
    sources: tuple[str, ...] | None = None

    @property
    def is_trained(self) -> bool:
        """Whether the network was trained, so that its weights are in the workdir."""
        return workdirs.WEIGHTS not in self.images


def read(workdir: epath.PathLike) -> TrainedRun:
    """Reads the outputs of a run.

    Raises:
        InputError: the folder has no run, or the run is not finished or has a damaged file.
    """
    if not isinstance(workdir, str | os.PathLike):
        raise InputError(f"path must be the workdir of a finished run; got {workdir!r}")
    try:
        return _read(epath.Path(workdir).expanduser())
    except io.DamagedFile as error:
        raise InputError(
            f"{error}, or run the command of the run again, which makes it again where it can"
        ) from error


def _read(workdir: epath.Path) -> TrainedRun:
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
    clusters = read_clusters(workdir)
    return join(workdir, config, results, images, embedding, clusters)


def join(
    workdir: epath.Path | None,
    config: RunConfig,
    results: Mapping[str, Any],
    images: Mapping[str, Any],
    embedding: Mapping[str, NDArray],
    clusters: StoredClusters,
    sources: tuple[str, ...] | None = None,
) -> TrainedRun:
    """The parts of a run, see `TrainedRun`, with the features of all images."""
    all_features = arrays.normalize_rows(embeddings.readable_rows(embedding)[config.eval.features])
    known = None if clusters.class_labels is None else tuple(images["known"]["names"])
    rows = clusters.unlabeled_rows
    features = all_features if rows is None else all_features[rows]
    return TrainedRun(
        workdir, config, results, images, features, clusters, known, all_features, sources
    )


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
    _, rows = assignments.read(file)
    names = tuple(
        assignments.unescaped(row["image"]) for row in rows if row.get("image") is not None
    )
    if len(names) != len(run.all_features):
        raise io.DamagedFile(file, f"it does not name the {len(run.all_features):,} images")
    return names


def image_folder(name: str, folder: str | None) -> str | None:
    """URI of the local folder of the images, where a page shows them in full size, or None.

    Args:
        name: `data.name` of the run.
        folder: its `data.dir`.
    """
    if name != "folder" or folder is None or "://" in folder:
        return None
    return pathlib.Path(folder).expanduser().resolve().as_uri() + "/"


def cut(run: TrainedRun, *, k: int | None = None, level: float | None = None) -> NDArray:
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


def class_names(run: TrainedRun, classes: NDArray) -> NDArray:
    """Names of classes, str `[m]`: a known class by its name, the j-th novel one as "novel j"."""
    return np.asarray([discovery.name(c, run.known or ()) for c in classes])


class Fitted(NamedTuple):
    """The fitted attributes, see `ImageClusterer`; there they end with an underscore."""

    labels: NDArray
    distances: NDArray
    outliers: NDArray
    n_clusters: int
    linkage: NDArray
    tree: NDArray | None = None
    probabilities: NDArray | None = None


def fitted(run: TrainedRun, *, by_kmeans: bool) -> Fitted:
    """The clusters that were found, those of k-means, or the classes of novel class discovery."""
    stored, every = run.clusters, run.all_features
    if run.known:
        codes, unlabeled = _given(stored.class_labels), stored.unlabeled_rows
        labels, outliers = class_names(run, codes), np.zeros(len(codes), bool)
        outliers[unlabeled] = stored.outliers
        distances = arrays.distances_to_cluster_means(every, codes, every, codes)
        n_novel = len(np.unique(codes[unlabeled]))
        return Fitted(labels, distances, outliers, n_novel, linkage_of_means(every, labels))
    if by_kmeans:
        labels = _given(stored.kmeans_labels).astype(np.int64)
        distances = arrays.distances_to_cluster_means(run.features, labels, run.features, labels)
        linkage, n_clusters = linkage_of_means(run.features, labels), len(np.unique(labels))
        return Fitted(labels, distances, stored.outliers, n_clusters, linkage)
    return Fitted(
        stored.cluster_labels.astype(np.int64),
        stored.distances.astype(np.float64),
        stored.outliers,
        len(np.unique(stored.cluster_labels[~stored.outliers])),
        stored.linkage,
        stored.tree,
        stored.probabilities,
    )


def _given(array: NDArray | None) -> NDArray:
    assert array is not None  # What its caller needs is there.
    return array


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

    labels: NDArray
    distances: NDArray
    is_novel: NDArray


class Nearest(NamedTuple):
    """The training images most similar to each of m images, the most similar first.

    Attributes:
        indices: int64 `[m, n]`, positions among the training images.
        similarities: float64 `[m, n]`, cosine similarity of the features.
        files: their paths relative to their folder, str `[m, n]`; None if they have no files.
    """

    indices: NDArray
    similarities: NDArray
    files: NDArray | None


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

    Raises:
        InputError: the checkpoint is missing, damaged, or was written by a different network; or
            the weights of the pretrained network cannot be read or are others than in the run.
    """
    mesh = states.make_mesh().local_mesh
    forward, prepare = _trained(run, mesh) if run.is_trained else _frozen(run, mesh)
    batch_size = -(-BATCH // jax.device_count()) * mesh.size

    def embed(dataset: Dataset, kept: Parts | None = None) -> NDArray:
        last = dataset.size - 1
        padded = dataset._replace(
            size=-(-dataset.size // batch_size) * batch_size,
            images=None,
            fetch=lambda index: dataset.fetch(np.minimum(index, last)),
        )
        embedded = embeddings.embed(
            forward,
            prepare(padded),
            batch_size=batch_size,
            mesh=mesh,
            rows=range(dataset.size),
            kept=kept,
        )
        return arrays.normalize_rows(embedded[run.config.eval.features])

    return embed


def _trained(run: TrainedRun, mesh: Mesh) -> tuple[embeddings.Forward, Prepare]:
    """The network of the checkpoint that was evaluated."""
    method, state = _restored(run)
    weights = jax.device_get((state.params, state.model_state))  # from the mesh of all processes
    params, model_state = jax.device_put(weights, states.replicated(mesh))
    forward = embeddings.forward_of(method, params, model_state, mesh)
    return forward, embeddings.for_new_images(run.config, run.images["shape"][-1], mesh)


def _restored(run: TrainedRun) -> tuple[Method, State]:
    assert run.workdir is not None
    training = build.rebuild_run(run.config, run.images).training
    step = run.results["provenance"]["steps"]
    state = checkpoint.read(run.workdir / checkpoint.FOLDER, build.abstract_state(training), step)
    return training.method, state


def _pretrained(run: TrainedRun, mesh: Mesh) -> embeddings.FrozenNetwork:
    """The pretrained network, whose weights are loaded again."""
    augment = build.standardization(run.config.augment, run.images)
    config = dataclasses.replace(run.config, augment=augment)
    network = embeddings.pretrained(config, run.images["shape"][-1], mesh)
    if network.checksum != run.images[workdirs.WEIGHTS]:
        raise InputError(
            f"network.weights must be those of the run; got {config.network.weights}, which has "
            "other values now: restore the file, or run the command of the run in another folder"
        )
    return network


def _frozen(run: TrainedRun, mesh: Mesh) -> tuple[embeddings.Forward, Prepare]:
    network = _pretrained(run, mesh)

    def forward(images: jax.Array, index: jax.Array) -> dict[str, NDArray]:
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
        prepare = embeddings.pretrained(run.config, shape[-1], mesh).represent

    def encode(images: jax.Array) -> jax.Array:
        x = images if prepare is None else ops.l2_normalize(prepare(images))[:, None]
        return ops.l2_normalize(method.embed(params, model_state, x)[run.config.eval.features])

    return encode


def nearest(run: TrainedRun, rows: NDArray, n: int) -> Nearest:
    """The `n` training images most similar to each image; ties go to the lower index.

    Args:
        run: the trained run.
        rows: float32 `[m, d]`, features from `embed`.
        n: capped at the number of training images.
    """
    found, names = out_of_sample.neighbors(rows, run.all_features, n), files(run)
    named = None if names is None else np.asarray(names)[found.indices]
    return Nearest(found.indices, 1 - found.distances, named)


def place(run: TrainedRun, rows: NDArray, labels: NDArray | None = None) -> Assignment:
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
    section, stored, smoother = run.config.eval, run.clusters, run.clusters.smoother
    if smoother is not None:
        centers = stored.centers
        if labels is not None:
            centers = arrays.cluster_means(smoother.project(run.features), labels)
        labels = (stored.cluster_labels if labels is None else labels)[_given(stored.sample)]
        assigned = smooth_tree.votes(smoother, labels, rows).argmax(axis=1)
        distances = arrays.distances_to_centers(smoother.project(rows), centers, assigned)
        neighbors = out_of_sample.neighbors(rows, run.features, 1)
        return Assignment(assigned, distances, _is_novel(run, neighbors))
    bandwidth, points = float(_given(stored.bandwidth)), _given(stored.points)
    if section.reduce.method == "none":
        gridshift = section.gridshift
        grid = GridShift(bandwidth, stop=gridshift.stop, max_iter=gridshift.max_iter)
        location = grid.fit(points).locate(rows)
        neighbors = out_of_sample.neighbors(rows, run.features, 1)
        return Assignment(location.labels, location.distances, _is_novel(run, neighbors))
    neighbors = out_of_sample.neighbors(rows, run.features, section.reduce.n_neighbors)
    assigned = out_of_sample.vote(neighbors, stored.cluster_labels)
    positions = out_of_sample.position(neighbors, stored.cluster_labels, assigned, points)
    distances = arrays.distances_to_centers(positions, stored.centers, assigned)
    return Assignment(assigned, distances / bandwidth, _is_novel(run, neighbors))


def classify(run: TrainedRun, rows: NDArray) -> Assignment:
    """Assigns new images to the classes of novel class discovery, each independently.

    The nearest training images vote on the class.

    Args:
        run: a run with known classes.
        rows: float32 `[m, d]`, features from `embed`.
    """
    of_training = _given(run.clusters.class_labels)
    threshold = run.clusters.class_novelty_threshold
    neighbors = out_of_sample.neighbors(rows, run.all_features, discovery.VOTERS)
    classes = out_of_sample.vote(neighbors, of_training)
    is_novel = neighbors.distances[:, 0] > np.asarray(threshold, np.float64)
    distances = arrays.distances_to_cluster_means(rows, classes, run.all_features, of_training)
    return Assignment(class_names(run, classes), distances, is_novel)


def place_kmeans(run: TrainedRun, rows: NDArray) -> Assignment:
    """Assigns new images to the clusters of k-means by a vote of the nearest training images.

    Distances are Euclidean, between unit rows and the mean of the cluster.
    """
    of_training = _given(run.clusters.kmeans_labels)
    n_neighbors = run.config.eval.reduce.n_neighbors
    neighbors = out_of_sample.neighbors(rows, run.features, n_neighbors)
    labels = out_of_sample.vote(neighbors, of_training)
    distances = arrays.distances_to_cluster_means(rows, labels, run.features, of_training)
    return Assignment(labels, distances, _is_novel(run, neighbors))


def _is_novel(run: TrainedRun, neighbors: Neighbors) -> NDArray:
    threshold = run.clusters.novelty_threshold
    if threshold is None:
        threshold = np.asarray(out_of_sample.novelty_threshold(run.features))
    return neighbors.distances[:, 0] > float(threshold)
