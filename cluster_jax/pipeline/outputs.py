"""The outputs of a run: clusters, metrics, tables and the report."""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering import out_of_sample
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, checks, io
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.evaluation import (
    assignments,
    clusters,
    discovery,
    duplicates,
    evaluate,
    report,
    suggestions,
)
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.nets.config import BUNDLED
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import Inputs
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import readable_images, readable_rows
from cluster_jax.pipeline.inference import (
    StoredClusters,
    image_folder,
    stored_clusters,
    write_clusters,
)
from cluster_jax.training import watch


class Features(NamedTuple):
    """Embeddings of a run, each `{"backbone": [n, d], ...}`.

    Attributes:
        train: the training images by the network.
        test: the held-out test images by the network, or None.
        initial: the training images by the network with which the last stage started, if that came
            from an earlier stage or run, or None.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] | None = None
    initial: dict[str, np.ndarray] | None = None


class Outputs(NamedTuple):
    """Everything that a run writes once its images are embedded.

    Attributes:
        results: content of `results.json`.
        clusters: content of `clusters.npz`.
        tables: content of each table, by the name of its file.
        report: data of the report.
    """

    results: Mapping[str, Any]
    clusters: StoredClusters
    tables: dict[str, str]
    report: report.ReportData


class Found(NamedTuple):
    """Clusters of embeddings, neither scored nor drawn.

    Attributes:
        inputs: the readable images.
        features: their embeddings.
        clustered: the images that were clustered.
        embedding: of these.
        clustering: their clusters.
        stored: content of `clusters.npz`, as far as it is known.
        seconds: time that was spent.
    """

    inputs: Inputs
    features: Features
    clustered: Dataset
    embedding: dict[str, np.ndarray]
    clustering: Clustering
    stored: StoredClusters
    seconds: float


def cluster(inputs: Inputs, features: Features) -> Found:
    """Clusters the embeddings of images; in novel class discovery, of the unlabeled ones."""
    started = time.perf_counter()
    inputs, features = _readable(inputs, features)
    config, dataset, _ = inputs
    unlabeled, clustered, embedding = None, dataset, features.train
    if dataset.known is not None:
        unlabeled = np.flatnonzero(dataset.known < 0)
        clustered = select(dataset, unlabeled)
        embedding = {name: rows[unlabeled] for name, rows in features.train.items()}
    checks.one_of("eval.features", config.eval.features, tuple(embedding))
    rows = embedding[config.eval.features]
    found = clusters.find(arrays.normalize_rows(rows), config.eval, seed=config.seed)
    stored = stored_clusters(found, rows)._replace(unlabeled_rows=unlabeled)
    seconds = time.perf_counter() - started
    return Found(inputs, features, clustered, embedding, found, stored, seconds)


def describe(
    found: Found,
    values: dict[str, Any],
    *,
    name: str,
    steps: int = 0,
    records: Sequence[dict] = (),
    seconds: float,
    cut_short: bool = False,
) -> Outputs:
    """Scores and draws clusters; writes nothing.

    Args:
        found: the clusters.
        values: the config as JSON values.
        name: title of the report.
        steps: number of training steps; 0: nothing was trained.
        records: log of the training.
        seconds: time that the embeddings took, with the training.
        cut_short: whether the training is to go on later.
    """
    started = time.perf_counter()
    (config, dataset, _), features, clustered = found.inputs, found.features, found.clustered
    section, embedding = with_novel_k(config, dataset), found.embedding
    evaluation = evaluate.evaluate(
        embedding, clustered.labels, section, seed=config.seed, found=found.clustering
    )
    discovered, clustering = _discover(found.inputs, features), evaluation.clustering
    rows, shown, repeated = embedding[section.features], dataset.shown, None
    if shown is not None:
        repeated = duplicates.find(shown.fetch, features.train[section.features])
    names, net = None, config.network
    if net.weights == BUNDLED and net.is_frozen() and discovered is None:
        names = suggestions.suggest(embedding["backbone"], clustering.cluster_labels)
    results = {
        "provenance": {
            **provenance.describe(config, section, dataset, clustered, steps),
            "cut_short": cut_short,
        },
        "metrics": {
            **evaluation.metrics,
            "gradient_share": _last(records, "gradient_share"),
            "discovery": None if discovered is None else discovered.metrics,
        },
        "duplicates": None if repeated is None else duplicates.counts(repeated),
        "suggested_names": names,
        "watch": [f._asdict() for f in watch.findings(records, steps)],
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": seconds,
            "cluster": found.seconds + time.perf_counter() - started,
        },
        "config": values,
    }
    threshold = out_of_sample.novelty_threshold(arrays.normalize_rows(rows))
    stored = found.stored._replace(
        points=clustering.points,
        kmeans_labels=evaluation.kmeans_labels,
        novelty_threshold=np.asarray(threshold),
    )
    tables = {workdirs.ASSIGNMENTS: assignments.images_csv(dataset, evaluation, discovered)}
    shown_clusters, linkage = clustering, stored.linkage
    if discovered is not None:  # The novel classes are the clusters of the report.
        stored = stored._replace(
            class_labels=discovered.classes,
            class_novelty_threshold=np.asarray(discovered.novelty_threshold),
        )
        labels = discovered.cluster_labels
        linkage = linkage_of_means(rows, labels)
        shown_clusters = clustering._replace(
            cluster_labels=labels,
            distances=discovered.distances,
            outliers=np.zeros(len(labels), bool),
            membership=None,
        )
    data = report.ReportData(
        title=name,
        results=io.plain(results),
        clustering=shown_clusters,
        history=records,
        true_labels=clustered.labels,
        label_names=clustered.label_names,
        fetch_images=None if clustered.shown is None else clustered.shown.fetch,
        sources=clustered.sources,
        folder=image_folder(config.data.name, config.data.dir),
        skipped=clustered.skipped,
        features=clusters.rows_of_likeness(clustering.tree, rows),
        linkage=linkage,
    )
    if repeated is not None and shown is not None:
        tables[workdirs.DUPLICATES] = assignments.duplicates_csv(dataset, repeated)
        if repeated.n_groups:
            # Of all images, also where only the unlabeled ones are clustered.
            unlabeled = found.stored.unlabeled_rows
            groups = duplicates.Shown(repeated, shown.fetch, dataset.sources, unlabeled)
            data = data._replace(duplicates=groups)
    return Outputs(data.results, stored, tables, data)


def write(workdir: epath.Path, outputs: Outputs) -> None:
    """Writes the outputs of a run into its workdir."""
    write_clusters(workdir, outputs.clusters)
    for name, table in outputs.tables.items():
        io.write(workdir / name, table)
    report.write_report(workdir / workdirs.REPORT, outputs.report)
    # Written last, because its presence marks the run as finished.
    io.write_json(workdir / workdirs.RESULTS, outputs.results, checksum=True)


def _readable(inputs: Inputs, features: Features) -> tuple[Inputs, Features]:
    """The images and embeddings without files that could not be read."""
    others = (part and readable_rows(part) for part in features[1:])
    rows = Features(readable_rows(features.train), *others)
    test = inputs.test
    if test is not None and features.test is not None:
        test = readable_images(test, features.test)
    dataset = readable_images(inputs.dataset, features.train)
    return inputs._replace(dataset=dataset, test=test), rows


def read_features(workdir: epath.Path) -> Features:
    """The embeddings in a workdir."""
    names = (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING, workdirs.INITIAL_EMBEDDING)
    train, *others = (workdir / name for name in names)
    read = [io.read_arrays(file) if file.exists() else None for file in others]
    return Features(io.read_arrays(train), *read)


def with_novel_k(config: RunConfig, dataset: Dataset) -> EvalConfig:
    """The section `eval`; in novel class discovery k-means uses the number of novel classes."""
    classes, kmeans = config.method.novel_classes, config.eval.kmeans
    if dataset.known is None or classes is None or kmeans.k is not None:
        return config.eval
    return dataclasses.replace(config.eval, kmeans=dataclasses.replace(kmeans, k=classes))


def _discover(inputs: Inputs, features: Features) -> discovery.Discovery | None:
    """Classes and metrics of novel class discovery; None for other methods."""
    config, dataset, test_images = inputs
    if "novel" not in features.train or dataset.known is None:
        return None

    def outputs(
        embedding: dict[str, np.ndarray], labels: np.ndarray | None
    ) -> discovery.NetworkOutputs:
        rows = arrays.normalize_rows(embedding["backbone"])
        return discovery.NetworkOutputs(rows, embedding["labeled"], embedding["novel"], labels)

    train, test, scores = outputs(features.train, dataset.labels), None, None
    if features.test is not None and test_images is not None:
        test = outputs(features.test, test_images.labels)
    if config.method.learns_clusters:
        scores = discovery.spread_probabilities(train, dataset.known, dataset.nearest)
    before = features.initial
    return discovery.discover(
        train,
        dataset.known,
        None if before is None else arrays.normalize_rows(before["backbone"]),
        test,
        scores=scores,
        n_init=config.eval.kmeans.n_init,
        seed=config.seed,
    )


def _last(records: Sequence[dict], name: str) -> float | None:
    return next((r[name] for r in reversed(records) if r.get(name) is not None), None)


def _speed(records: Sequence[dict]) -> float | None:
    """Median images per second over the log without its first line, which includes compilation."""
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None
