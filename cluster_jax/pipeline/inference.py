"""A finished run: its files, its clusters, and how new images get theirs.

Only the workdir of the run is needed, not its training images.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import gridshift, out_of_sample, placing, smooth_tree
from cluster_jax.clustering import tree as trees
from cluster_jax.clustering.base import NO_CLUSTER, Assignment
from cluster_jax.clustering.gridshift import BandwidthCurve
from cluster_jax.clustering.membership import Membership
from cluster_jax.clustering.placing import ByTree, ByVotes, Placing, Voters, voters
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, buckets, checks, io
from cluster_jax.core.checks import InputError
from cluster_jax.core.config import parse_section
from cluster_jax.data import folder as image_files
from cluster_jax.data.decode import Item
from cluster_jax.data.images import Dataset, select, without
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery import splits
from cluster_jax.encoding import embed as embeddings
from cluster_jax.encoding.encoder import Encoder
from cluster_jax.evaluation.clusters import Clustering, clusterer
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.nets.pretrained import Preprocessing
from cluster_jax.pipeline import build
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import AnyConfig, PhotosConfig, read_config
from cluster_jax.report import decisions, duplicates, report_data
from cluster_jax.report.decisions import Decisions

# The gray that stands for an image whose file is gone.
GRAY = 128

# Fields of `StoredClusters` that are those of its `Membership`.
_OF_MEMBERSHIP = ("probabilities", "runners_up", "runner_up_probabilities")

# The array of `clusterer.npz` that is not stored there.
_FEATURES = "voters.rows"


class StoredClusters(NamedTuple):
    """Content of `clusters.npz` for the n images that were clustered, of N training images.

    `eval.method` found the clusters; the tree of m leaves and the probabilities are None for
    GridShift, the bandwidth is None for the tree. The map and the clusters of k-means are None in a
    run in memory that nobody has asked for them.

    Attributes:
        points: float32 `[n, p]`, the map.
        cluster_labels: int32 `[n]`.
        distances: float32 `[n]`, to the center of the cluster, in bandwidths if there is one.
        outliers: bool `[n]`, images of clusters too small to count.
        kmeans_labels: int32 `[n]`, clusters of k-means.
        linkage: float64 `[k - 1, 4]`, the tree of the clusters, in SciPy's form, see
            `clustering.tree.cluster_linkage` and `linkage_of_means` there.
        bandwidth: float64 `[]`, side length of GridShift's cells.
        scan: float64 `[3, b]`, bandwidths, numbers of clusters and scores of GridShift's scan; None
            for a bandwidth that was given.
        unlabeled_rows: int64 `[n]`, indices of the clustered images; None: all were clustered.
        class_labels: int32 `[N]`, classes of novel class discovery, or None.
        class_novelty_threshold: float64 `[]`, `out_of_sample.novelty_threshold` of all training
            images, or None.
        tree: float64 `[m - 1, 4]`, `SmoothTree.linkage_`.
        probabilities: float64 `[n]`, of the cluster.
        runners_up: int64 `[n]`, the second likeliest cluster, -1 for none.
        runner_up_probabilities: float64 `[n]`.
        sources: str `[N]`, path of each training image relative to its folder; None: no files.
        skipped: str `[s]`, those of the files that cannot be read; None: no files.
        contents: uint8 `[N, 32]`, see `data.images.contents`; None: no files.
    """

    points: NDArray | None
    cluster_labels: NDArray
    distances: NDArray
    outliers: NDArray
    linkage: NDArray
    kmeans_labels: NDArray | None = None
    bandwidth: NDArray | None = None
    scan: NDArray | None = None
    unlabeled_rows: NDArray | None = None
    class_labels: NDArray | None = None
    class_novelty_threshold: NDArray | None = None
    tree: NDArray | None = None
    probabilities: NDArray | None = None
    runners_up: NDArray | None = None
    runner_up_probabilities: NDArray | None = None
    sources: NDArray | None = None
    skipped: NDArray | None = None
    contents: NDArray | None = None

    @property
    def membership(self) -> Membership | None:
        """The clusters and how sure they are, or None."""
        if self.probabilities is None:
            return None
        sure = (self.probabilities, self.runners_up, self.runner_up_probabilities)
        return Membership(self.cluster_labels, *map(np.asarray, sure))


def stored_clusters(clustering: Clustering, features: NDArray) -> StoredClusters:
    """Collects the clusters by `eval.method` of the images that were clustered, to be stored.

    Args:
        clustering: the clusters.
        features: float `[n, d]`, as the network made them.
    """
    tree, bandwidth = clustering.tree, clustering.metrics.get("bandwidth")
    stored = StoredClusters(
        points=clustering.points.astype(np.float32) if clustering.points.size else None,
        cluster_labels=clustering.cluster_labels,
        distances=clustering.distances,
        outliers=clustering.outliers,
        linkage=clustering.linkage(features),
        bandwidth=None if bandwidth is None else np.asarray(bandwidth),
        scan=None if clustering.curve is None else np.array(clustering.curve[:3], np.float64),
    )
    if tree is None:
        return stored
    _, *member = (
        clustering.membership if clustering.membership and clustering.has_ids else tree.membership_
    )
    return stored._replace(tree=tree.linkage_, **dict(zip(_OF_MEMBERSHIP, member, strict=True)))


def new_clusterer(clustering: Clustering, features: NDArray, section: EvalConfig) -> Placing | None:
    """Makes what places new images in clusters by `eval.method`.

    Args:
        clustering: the clusters.
        features: unit rows `[n, d]` of the clustered images.
        section: the section `eval`.
    """
    tree, distinct = clustering.tree, features
    if tree is not None and len(features) <= smooth_tree.MAX_ROWS:
        distinct = features[tree.sample_]  # Of copies one counts.
    training_rows = Voters(features, "cosine", out_of_sample.novelty_threshold(distinct))
    return clusterer(
        clustering._replace(points=clustering.points.astype(np.float32)),
        training_rows,
        method=section.method,
        reduce=section.reduce.method,
        n_neighbors=section.reduce.n_neighbors,
    )


def stored_curve(run: "TrainedRun") -> BandwidthCurve | None:
    """Reads GridShift's scan over bandwidths; None if there is none."""
    if run.clusters.scan is None:
        return None
    bandwidths, counts, scores = run.clusters.scan
    n_clusters, best = counts.astype(np.int64), int((bandwidths == run.clusters.bandwidth).argmax())
    others = gridshift.runners_up(bandwidths, n_clusters, scores, best)
    verdict = run.results["metrics"]["gridshift"]["verdict"]
    return BandwidthCurve(bandwidths, n_clusters, scores, best, verdict, others)


def write_clusters(
    workdir: epath.Path, clusters: StoredClusters, placed_by: Placing | None
) -> None:
    """Writes `clusters.npz` and `clusterer.npz`, without the features, which have their file."""
    fields = {name: value for name, value in clusters._asdict().items() if value is not None}
    stored = {} if placed_by is None else placing.to_arrays(placed_by)
    stored.pop(_FEATURES, None)
    io.write_arrays(workdir / workdirs.CLUSTERER, stored)
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
        clusterer: what places new images in them; None for GridShift on a map of t-SNE.
        known_classes: names of the known classes in novel class discovery, otherwise None. With
            them, `features` and `clusters` are of the unlabeled images alone.
        all_features: float32 `[N, d]`, features of all training images; the same as `features` if
            `known` is None.
        computed: the clusters that the run found; `clusters` are those that a person has corrected.
        decisions: what a person has decided about them.
    """

    workdir: epath.Path | None
    config: AnyConfig
    results: Mapping[str, Any]
    images: Mapping[str, Any]
    features: NDArray
    clusters: StoredClusters
    clusterer: Placing | None
    known_classes: tuple[str, ...] | None
    all_features: NDArray
    computed: decisions.Clusters
    decisions: Decisions = Decisions()

    @property
    def names(self) -> dict[str, str]:
        """A cluster, as text, or a novel class -> its name: a person's, or the suggested one."""
        text = str if self.known_classes is None else splits.novel_name
        named = {text(cluster): name for cluster, name in self.decisions.named.items()}
        return {**report_data.suggested_names(self.results), **named}

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
        return _read(buckets.path(workdir))
    except io.DamagedFile as error:
        raise InputError(
            f"{error}, or run the command of the run again, which makes it again where it can"
        ) from error


def _read(workdir: epath.Path) -> TrainedRun:
    file = workdir / workdirs.CONFIG
    problem = None
    if not workdir.exists():
        problem = "which does not exist"
    elif not file.exists():
        problem = f"which is no folder of a run: it has no {workdirs.CONFIG}"
    elif "eval" not in workdirs.read_values(file):
        problem = "a folder of the command `cluster`, which has no images"
    if problem:
        raise InputError(f"the workdir must be that of a finished run; got {workdir}, {problem}")
    needed = (workdirs.CLUSTERS, workdirs.CLUSTERER, workdirs.IMAGES, workdirs.TRAIN_EMBEDDING)
    results = workdirs.finished_results(workdir, needed)
    if results is None:
        raise InputError(
            f"the run in {workdir} is not finished; run its command again with --workdir={workdir}"
        )
    images = workdirs.read_values(workdir / workdirs.IMAGES)
    config = read_config(workdir)
    place = workdirs.located(config.data.dir, workdir, images)
    if place != config.data.dir:
        values = {**config.values, "data": {**config.values["data"], "dir": place}}
        data = dataclasses.replace(config.data, dir=place)
        config = dataclasses.replace(config, data=data, values=values)
    embedding = io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING)
    clusters, stored = read_clusters(workdir), io.read_arrays(workdir / workdirs.CLUSTERER)
    run = join(workdir, config, results, images, embedding, clusters, None)
    if not stored:
        return run
    return run._replace(clusterer=placing.from_arrays({**stored, _FEATURES: run.features}))


def join(
    workdir: epath.Path | None,
    config: AnyConfig,
    results: Mapping[str, Any],
    images: Mapping[str, Any],
    embedding: Mapping[str, NDArray],
    clusters: StoredClusters,
    placed_by: Placing | None,
) -> TrainedRun:
    """Joins the parts of a run, see `TrainedRun`, with the features of all images."""
    all_features = arrays.normalize_rows(embeddings.readable_rows(embedding)[config.eval.features])
    known_classes = None if clusters.class_labels is None else tuple(images["known"]["names"])
    rows = clusters.unlabeled_rows
    features = all_features if rows is None else all_features[rows]
    computed = computed_clusters(clusters, known_classes)
    decided = Decisions() if workdir is None else decisions.read_workdir(workdir, computed)
    run = TrainedRun(
        workdir,
        config,
        results,
        images,
        features,
        clusters,
        placed_by,
        known_classes,
        all_features,
        computed,
        decided,
    )
    return run._replace(clusters=_corrected(run))


def with_decisions(run: TrainedRun, decided: Decisions) -> TrainedRun:
    """Returns a run in a workdir, corrected by these decisions instead of those that it has."""
    assert run.workdir is not None
    run = run._replace(clusters=read_clusters(run.workdir), decisions=decided)
    return run._replace(clusters=_corrected(run))


def computed_clusters(
    stored: StoredClusters, known_classes: Sequence[str] | None
) -> decisions.Clusters:
    """Returns the clusters that a run found, or its novel classes, for decisions about them."""
    labels, rows = stored.cluster_labels, stored.unlabeled_rows
    if known_classes is not None:
        labels = _given(stored.class_labels)[rows] - len(known_classes)
    names = tuple(map(str, range(len(labels))))
    if stored.sources is not None:
        names = tuple((stored.sources if rows is None else stored.sources[rows]).tolist())
    run = decisions.digest(names, labels)
    return decisions.Clusters(names, labels, stored.distances, "image", run)


def _corrected(run: TrainedRun) -> StoredClusters:
    """Returns the clusters, or novel classes, as a person has corrected them."""
    stored, decided = run.clusters, run.decisions
    if decided == Decisions():
        return stored
    labels = decided.labels(run.computed)
    if run.known_classes is not None:
        classes = _given(stored.class_labels).copy()
        classes[stored.unlabeled_rows] = np.where(
            labels < 0, labels, len(run.known_classes) + labels
        )
        return stored._replace(class_labels=classes)
    is_decided = decided.is_decided(run.computed)
    corrected = stored._replace(cluster_labels=labels, outliers=stored.outliers & ~is_decided)
    if (member := stored.membership) is None:
        return corrected
    _, *member_now = decisions.decided_membership(decided, run.computed, member)
    return corrected._replace(**dict(zip(_OF_MEMBERSHIP, member_now, strict=True)))


def files(run: TrainedRun) -> tuple[str, ...] | None:
    """Lists the training images' paths relative to their folder; None if they have no files.

    Raises:
        InputError: an older version of the package wrote the run, without them.
    """
    sources = run.clusters.sources
    if sources is None and run.config.data.name == "folder":
        raise workdirs.older_version(str(run.workdir))
    return None if sources is None else tuple(sources.tolist())


def words(run: TrainedRun, sources: Sequence[str] | None) -> tuple[str, str]:
    """Returns what an image and a cluster are called, as in the report of the run.

    Args:
        run: the run.
        sources: files of the images, which may be new ones; or None.
    """
    is_photo = sources is not None and not steps(run)
    return ("photo", "group") if is_photo else ("image", "cluster")


def steps(run: TrainedRun) -> int:
    """Returns the steps of the training of a run."""
    return run.results.get("provenance", {}).get("steps") or 0


def training_images(run: TrainedRun) -> Dataset:
    """Loads a run's readable training images in its order; `skipped` are the unreadable files.

    Files that have come since are left out; images whose files are gone are gray, and are listed
    in `skipped` as well.

    Raises:
        InputError: the images cannot be loaded.
    """
    data = dataclasses.replace(run.config.data, cache_mb=0.0)  # few are shown
    if data.name == "folder" and data.dir and not any(map(os.path.exists, data.dir.split("\n"))):
        place = image_files.shown(data.dir)
        raise InputError(
            f"the images of {run.workdir} must be in {place}; got no such folder: name the new "
            f"place by `cluster-jax update --workdir={run.workdir} FOLDER`"
        )
    words = {"data.dir": "the folder of the run"}
    with checks.named(words):
        dataset = build.load_training_images(run.config, data)
    names, unreadable = files(run), run.clusters.skipped
    if names is not None and dataset.sources is not None:
        listed = {*names, *_given(unreadable).tolist()}
        rows = [i for i, name in enumerate(dataset.sources) if name in listed]
        dataset = select(dataset, np.array(rows, np.int64))
        dataset = without(dataset, ~np.isin(np.array(dataset.sources), names))
    if names is not None and dataset.sources is not None and dataset.size:
        dataset = with_gaps(dataset, names)
    if (dataset.size, dataset.sources) != (len(run.all_features), names):
        raise InputError(
            f"the images of {run.workdir} must be as they were to be shown again; got others: "
            "restore them"
        )
    return dataset


def with_gaps(dataset: Dataset, names: tuple[str, ...]) -> Dataset:
    """Returns the images of these names in their order; those that are not there are gray."""
    place = {name: i for i, name in enumerate(dataset.sources or ())}
    gone = np.array([name not in place for name in names])
    if names == dataset.sources:
        return dataset
    rows = np.array([place.get(name, 0) for name in names])
    whole = select(dataset, rows)

    def fetch(indices: NDArray) -> NDArray:
        return np.where(gone[indices][:, None, None, None], GRAY, whole.fetch(indices)).astype("u1")

    def load(i: int) -> Item:
        if gone[i] or whole.load is None:
            raise FileNotFoundError(names[i])
        return whole.load(i)

    def facts(indices: NDArray) -> NDArray:
        assert whole.facts is not None
        known = whole.facts(indices)
        known[gone[indices]] = np.zeros((), known.dtype)
        return known

    skipped = tuple((name, report_data.GONE) for name in np.array(names)[gone].tolist())
    return whole._replace(
        sources=names,
        fetch=fetch,
        load=load,
        facts=facts,
        images=None,
        skipped=dataset.skipped + skipped,
    )


def image_folder(name: str, folder: str | None, sources: Sequence[str] | None) -> str | None:
    """Returns the URI of the local image folder, where a page shows images in full size, or None.

    Args:
        name: `data.name` of the run.
        folder: its `data.dir`.
        sources: names of the images in it.
    """
    if name != "folder" or folder is None or "://" in folder:
        return None
    root = image_files.root(folder).resolve()
    return None if root.is_file() else root.as_uri() + "/"


def cut(run: TrainedRun, *, k: int | None = None, level: float | None = None) -> NDArray:
    """Cuts the tree: labels of the clustered images, int64 `[n]`, as `SmoothTree.cut`.

    Args:
        run: a run with `eval.method` "tree".
        k: number of groups; with no `level` either, the clusters.
        level: height, as a fraction of the highest merge; merges above it are undone.

    Groups at another level are those of the clusters that were found, before any correction.

    Raises:
        InputError: the run has no tree, or `k` or `level` is out of range.
    """
    stored, tree = run.clusters, run.clusterer
    if stored.tree is None or not isinstance(tree, ByTree):
        raise InputError(
            f"eval.method must be 'tree' to cut the tree of groups; got {run.config.eval.method!r}"
        )
    if k is None and level is None:
        return stored.cluster_labels.astype(np.int64)
    return trees.cut(stored.tree, tree.labels, tree.leaves, k=k, level=level)


def class_names(run: TrainedRun, classes: NDArray) -> NDArray:
    """Names classes, str `[m]`: a known class by its name, the j-th novel one as "novel j"."""
    return np.asarray([discovery.name(c, run.known_classes or ()) for c in classes])


def fitted(run: TrainedRun) -> tuple[StoredClusters, int]:
    """Returns the clusters, or the classes of novel class discovery, by name, in their place.

    Returns:
        The clusters, and the number of those that count, or of novel classes.
    """
    stored = run.clusters
    if not run.known_classes:
        counted = np.unique(stored.cluster_labels[~stored.outliers])
        return stored, int((counted != decisions.NO_CLUSTER).sum())
    codes, unlabeled = _given(stored.class_labels), stored.unlabeled_rows
    outliers = np.zeros(len(codes), bool)
    outliers[unlabeled] = stored.outliers
    stored = _with_labels(stored, run.all_features, codes)
    stored = stored._replace(cluster_labels=class_names(run, codes), outliers=outliers)
    return stored, len(np.unique(codes[unlabeled]))


def with_kmeans(run: TrainedRun) -> TrainedRun:
    """Returns a run whose clusters are those of k-means, without a person's decisions."""
    stored, n_neighbors = run.clusters, run.config.eval.reduce.n_neighbors
    stored = _with_labels(stored, run.features, _given(stored.kmeans_labels))
    placed_by = ByVotes(stored.cluster_labels, n_neighbors, voters(run.features, "cosine"))
    return run._replace(clusters=stored, clusterer=placed_by, decisions=Decisions())


def _with_labels(stored: StoredClusters, features: NDArray, labels: NDArray) -> StoredClusters:
    """Returns other clusters of these features, all of which count."""
    means = arrays.cluster_means(features, labels)
    return stored._replace(
        cluster_labels=labels,
        distances=arrays.distances_to_centers(features, means, labels),
        outliers=np.zeros(len(labels), bool),
        linkage=linkage_of_means(features, labels),
        tree=None,
        probabilities=None,
    )


def _given(array: NDArray | None) -> NDArray:
    assert array is not None  # What its caller needs is there.
    return array


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
    if run.known_classes is None and run.clusterer is None:
        raise InputError(
            "Runs that used t-SNE cannot assign new images; run the same command again with "
            "--config.eval.reduce.method=umap"
        )


def encoder(run: TrainedRun) -> Encoder:
    """Returns the encoder of a run: the trained one, or where nothing was trained the pretrained.

    Raises:
        InputError: its file is missing or damaged; or the weights of the pretrained network cannot
            be read or are others than in the run.
    """
    config, images = run.config, run.images
    if run.is_trained:
        assert run.workdir is not None
        file = run.workdir / workdirs.ENCODER
        if not file.exists():
            raise InputError(
                f"{file} must be there to embed new images; got none: run the command of the run "
                f"again with --workdir={run.workdir}, which makes it of the last checkpoint"
            )
        return Encoder.load(file)
    assert isinstance(config, PhotosConfig)
    prepared = parse_section(Preprocessing, "preprocessing", images["preprocessing"])
    rebuilt = build.encoder_of(config, prepared)
    if rebuilt.checksum != images[workdirs.WEIGHTS]:
        raise InputError(
            f"encoder must be that of the run; got {config.encoder}, which has other values now: "
            "restore the file, or run the command of the run in another folder"
        )
    return rebuilt


def nearest(run: TrainedRun, rows: NDArray, n: int) -> Nearest:
    """Finds the `n` training images most similar to each image; ties go to the lower index.

    Args:
        run: the trained run.
        rows: float32 `[m, d]`, features from `encoder`.
        n: capped at the number of training images.
    """
    neighbors, names = out_of_sample.neighbors(rows, run.all_features, n), files(run)
    named = None if names is None else np.asarray(names)[neighbors.indices]
    return Nearest(neighbors.indices, 1 - neighbors.distances, named)


def place(run: TrainedRun, rows: NDArray, labels: NDArray | None = None) -> Assignment:
    """Assigns new images to clusters or, in novel class discovery, to classes.

    Each image is assigned independently of the others. A copy of an image of which a person has
    decided goes where that one is. A class is that of most of the nearest training images.

    Args:
        run: a run that passes `check`.
        rows: float32 `[m, d]`, features from `encoder`.
        labels: int64 `[n]`, of the training images at another cut of the tree; None: the clusters
            of the run.

    Raises:
        InputError: the rows have a different size from the run's features.
    """
    if run.known_classes:
        training_rows = Voters(
            run.all_features, "cosine", float(_given(run.clusters.class_novelty_threshold))
        )
        by_class = ByVotes(_given(run.clusters.class_labels), discovery.VOTERS, training_rows)
        classes = by_class.place(rows)
        return classes._replace(labels=class_names(run, classes.labels))
    assert run.clusterer is not None  # See `check`.
    decided = _decided_labels(run)
    if labels is not None or decided is None:
        return run.clusterer.place(rows, labels)
    return _as_decided(run, rows, run.clusterer.place(rows, decided))


def _as_decided(run: TrainedRun, rows: NDArray, placed: Assignment) -> Assignment:
    """Places copies of images of which a person has decided, see `duplicates.near_threshold`.

    Those that a person has moved lie among others, which would outvote them.
    """
    is_decided = run.decisions.is_decided(run.computed)
    if not is_decided.any():
        return placed
    near = out_of_sample.neighbors(arrays.normalize_rows(rows), run.features, 1)
    if not is_decided[near.indices[:, 0]].any():
        return placed
    distinct = run.clusterer.sample if isinstance(run.clusterer, ByTree) else slice(None)
    threshold = duplicates.near_threshold(run.features[distinct])
    nearest = near.indices[:, 0]
    is_copy = is_decided[nearest] & (1 - near.distances[:, 0] >= threshold)
    labels = np.where(is_copy, run.clusters.cluster_labels[nearest], placed.labels)
    placed = placed._replace(labels=labels)
    if (sure := placed.membership) is None:
        return placed
    certain = zip(_OF_MEMBERSHIP, sure[1:], (1.0, NO_CLUSTER, 0.0), strict=True)
    return placed._replace(**{name: np.where(is_copy, to, now) for name, now, to in certain})


def probabilities(run: TrainedRun, rows: NDArray) -> NDArray:
    """Computes the probability of each cluster, ascending, for new images: float64 `[m, k]`.

    Args: see `place`.

    Raises:
        InputError: the run has no tree of groups.
    """
    if run.known_classes or not isinstance(run.clusterer, ByTree):
        what = "y must be None" if run.known_classes else "eval.method must be 'tree'"
        value = "classes" if run.known_classes else run.config.eval.method
        raise InputError(f"{what} for probabilities of new images; got {value}")
    return run.clusterer.probabilities(rows, _decided_labels(run))


def _decided_labels(run: TrainedRun) -> NDArray | None:
    """Returns the training images' clusters as corrected; None: as they were found."""
    return None if run.decisions == Decisions() else run.clusters.cluster_labels
