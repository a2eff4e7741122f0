"""Read access to a finished run: its files, its clusters, and the labels of its images."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import smooth_tree
from cluster_jax.clustering.smooth import Smoother
from cluster_jax.clustering.tree import cluster_linkage
from cluster_jax.core import arrays, io
from cluster_jax.core.checks import InputError
from cluster_jax.evaluation import assignments, discovery
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig, read_config
from cluster_jax.pipeline.embed import readable_rows


class StoredClusters(NamedTuple):
    """Content of `clusters.npz` for the n images that were clustered, of N training images.

    `eval.method` found the clusters; the tree of m sampled images, their sharp rows and the
    probabilities are None for GridShift, the bandwidth is None for the tree.

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
            `clustering.smooth_tree.cluster_linkage` and `clustering.tree.cluster_linkage`.
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

    points: NDArray
    centers: NDArray
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    kmeans_labels: NDArray
    novelty_threshold: NDArray
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
    all_features = arrays.normalize_rows(readable_rows(embedding)[config.eval.features])
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


def class_labels(run: TrainedRun) -> NDArray:
    """Class of every training image by novel class discovery, int32 `[n]`, known ones first.

    Raises:
        ValueError: the run has no known classes.
    """
    if run.clusters.class_labels is None:
        raise ValueError(
            f"{run.workdir} must be a run of novel class discovery; got another method"
        )
    return run.clusters.class_labels


def class_names(run: TrainedRun, classes: NDArray) -> NDArray:
    """Names of classes, str `[m]`: a known class by its name, the j-th novel one as "novel j"."""
    return np.asarray([discovery.name(c, run.known or ()) for c in classes])


def class_distances(run: TrainedRun, rows: NDArray, classes: NDArray) -> NDArray:
    """Euclidean distance of unit rows to the mean of the training rows of their class."""
    return arrays.distances_to_cluster_means(rows, classes, run.all_features, class_labels(run))


def kmeans_distances(run: TrainedRun, rows: NDArray, labels: NDArray) -> NDArray:
    """Euclidean distance of unit rows to the mean of the training rows of their label."""
    return arrays.distances_to_cluster_means(rows, labels, run.features, run.clusters.kmeans_labels)


class Fitted(NamedTuple):
    """The fitted attributes, see `ImageClusterer`; there they end with an underscore."""

    labels: NDArray
    distances: NDArray
    outliers: NDArray
    n_clusters: int
    linkage: NDArray
    tree: NDArray | None = None
    probabilities: NDArray | None = None


def found(run: TrainedRun) -> Fitted:
    """The clusters that were found without being told their number."""
    stored = run.clusters
    return Fitted(
        stored.cluster_labels.astype(np.int64),
        stored.distances.astype(np.float64),
        stored.outliers,
        len(np.unique(stored.cluster_labels[~stored.outliers])),
        stored.linkage,
        stored.tree,
        stored.probabilities,
    )


def given(run: TrainedRun) -> Fitted:
    """The clusters of k-means."""
    labels = run.clusters.kmeans_labels.astype(np.int64)
    return Fitted(
        labels,
        kmeans_distances(run, run.features, labels),
        run.clusters.outliers,
        len(np.unique(labels)),
        cluster_linkage(run.features, labels),
    )


def classes(run: TrainedRun) -> Fitted:
    """The classes of novel class discovery, by name; the novel ones are counted."""
    codes, unlabeled = class_labels(run), run.clusters.unlabeled_rows
    labels = class_names(run, codes)
    outliers = np.zeros(len(codes), bool)
    outliers[unlabeled] = run.clusters.outliers
    return Fitted(
        labels,
        class_distances(run, run.all_features, codes),
        outliers,
        len(np.unique(codes[unlabeled])),
        cluster_linkage(run.all_features, labels),
    )
