"""The outputs of a run: clusters, metrics, tables and the report."""

import dataclasses
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering.tree import cluster_linkage
from cluster_jax.core import arrays, io
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
from cluster_jax.evaluation.discovery import Discovery
from cluster_jax.evaluation.evaluate import Evaluation
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.nets.config import BUNDLED
from cluster_jax.pipeline import provenance
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import Inputs
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.embed import readable_images, readable_rows
from cluster_jax.pipeline.trained_run import StoredClusters, image_folder, write_clusters
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
        results: content of `results.json`, JSON values.
        clusters: content of `clusters.npz`.
        tables: content of each table, by the name of its file.
        report: data of the report.
    """

    results: dict[str, Any]
    clusters: StoredClusters
    tables: dict[str, str]
    report: report.ReportData


def cluster(
    inputs: Inputs,
    features: Features,
    values: dict[str, Any],
    *,
    name: str,
    steps: int,
    records: list[dict],
    started: float,
    cut_short: bool = False,
) -> Outputs:
    """Clusters and scores embeddings; writes nothing.

    Args:
        inputs: the images.
        features: their embeddings.
        values: the config as JSON values.
        name: title of the report.
        steps: number of training steps; 0: nothing was trained.
        records: log of the training.
        started: `time.perf_counter()` at the start of the run.
        cut_short: whether the training is to go on later.
    """
    trained = time.perf_counter()
    inputs, features = _readable(inputs, features)
    config, dataset, _ = inputs
    clustered, embedding = _unlabeled(dataset, features.train)
    section = with_novel_k(config, dataset)
    evaluation = evaluate.evaluate(embedding, clustered.labels, section, seed=config.seed)
    discovered = _discover(inputs, features)
    repeated, shown = None, dataset.shown
    if shown is not None:
        repeated = duplicates.find(shown.fetch, features.train[section.features])
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
        "suggested_names": _suggested_names(config, embedding, evaluation, discovered),
        "watch": [f._asdict() for f in watch.findings(records, steps)],
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": trained - started,
            "cluster": time.perf_counter() - trained,
        },
        "config": values,
    }
    results = io.plain(results)
    linkage = _linkage(evaluation, embedding[section.features])
    tables = {workdirs.ASSIGNMENTS: assignments.images_csv(dataset, evaluation, discovered)}
    data = _report_data(name, results, records, evaluation, discovered, clustered)
    shown_linkage = linkage
    if discovered is not None:
        shown_linkage = cluster_linkage(embedding[section.features], discovered.cluster_labels)
    folder = image_folder(config.data.name, config.data.dir)
    data = data._replace(linkage=shown_linkage, folder=folder)
    likeness = clusters.rows_of_likeness(evaluation.clustering.tree, embedding[section.features])
    data = data._replace(features=likeness)
    if repeated is not None and shown is not None:
        tables[workdirs.DUPLICATES] = assignments.duplicates_csv(dataset, repeated)
        if repeated.n_groups:
            # Of all images, also where only the unlabeled ones are clustered.
            rows = None if dataset.known is None else np.flatnonzero(dataset.known < 0)
            found = duplicates.Shown(repeated, shown.fetch, dataset.sources, rows)
            data = data._replace(duplicates=found)
    stored = _stored_clusters(evaluation, linkage, discovered, dataset)
    return Outputs(results, stored, tables, data)


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
    initial = None if features.initial is None else readable_rows(features.initial)
    dataset, test = readable_images(inputs.dataset, features.train), inputs.test
    rows = Features(readable_rows(features.train), features.test, initial)
    if test is not None and features.test is not None:
        test = readable_images(test, features.test)
        rows = rows._replace(test=readable_rows(features.test))
    return inputs._replace(dataset=dataset, test=test), rows


def _suggested_names(
    config: RunConfig,
    embedding: dict[str, np.ndarray],
    evaluation: Evaluation,
    discovered: Discovery | None,
) -> dict[int, list[str]] | None:
    """Suggested names of the clusters, where the bundled network made the features."""
    network = config.network
    if network.weights != BUNDLED or not network.is_frozen() or discovered is not None:
        return None
    return suggestions.suggest(embedding["backbone"], evaluation.clustering.cluster_labels)


def read_features(workdir: epath.Path) -> Features:
    """The embeddings in a workdir."""

    def read(name: str) -> dict[str, np.ndarray] | None:
        file = workdir / name
        return io.read_arrays(file) if file.exists() else None

    return Features(
        io.read_arrays(workdir / workdirs.TRAIN_EMBEDDING),
        read(workdirs.TEST_EMBEDDING),
        read(workdirs.INITIAL_EMBEDDING),
    )


def with_novel_k(config: RunConfig, dataset: Dataset) -> EvalConfig:
    """The section `eval`; in novel class discovery k-means uses the number of novel classes."""
    classes, kmeans = config.method.novel_classes, config.eval.kmeans
    if dataset.known is None or classes is None or kmeans.k is not None:
        return config.eval
    return dataclasses.replace(config.eval, kmeans=dataclasses.replace(kmeans, k=classes))


def _unlabeled(
    dataset: Dataset, features: dict[str, np.ndarray]
) -> tuple[Dataset, dict[str, np.ndarray]]:
    """The images and features to cluster: all, or the unlabeled ones in novel class discovery."""
    if dataset.known is None:
        return dataset, features
    unlabeled = np.flatnonzero(dataset.known < 0)
    return select(dataset, unlabeled), {name: rows[unlabeled] for name, rows in features.items()}


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

    initial, test = features.initial, None
    if features.test is not None and test_images is not None:
        test = outputs(features.test, test_images.labels)
    train, scores = outputs(features.train, dataset.labels), None
    if config.method.learns_clusters:
        scores = discovery.spread_probabilities(train, dataset.known, dataset.nearest)
    return discovery.discover(
        train,
        dataset.known,
        None if initial is None else arrays.normalize_rows(initial["backbone"]),
        test,
        scores=scores,
        n_init=config.eval.kmeans.n_init,
        seed=config.seed,
    )


def _stored_clusters(
    evaluation: Evaluation, linkage: np.ndarray, discovered: Discovery | None, dataset: Dataset
) -> StoredClusters:
    found, tree = evaluation.clustering, evaluation.clustering.tree
    bandwidth = found.metrics.get("bandwidth")
    stored = StoredClusters(
        points=found.points,
        centers=found.centers,
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        kmeans_labels=evaluation.kmeans_labels,
        novelty_threshold=np.asarray(evaluation.novelty_threshold),
        linkage=linkage,
        bandwidth=None if bandwidth is None else np.asarray(bandwidth),
    )
    if tree is not None:
        smoother, membership = tree.smoother_, tree.membership_
        stored = stored._replace(
            tree=tree.linkage_,
            sample=tree.sample_,
            mean=smoother.mean,
            components=smoother.components,
            sharp=smoother.sharp,
            is_cosine=np.asarray(smoother.is_cosine),
            probabilities=membership.probabilities,
            runners_up=membership.runners_up,
            runner_up_probabilities=membership.runner_up_probabilities,
        )
    if dataset.known is not None:
        stored = stored._replace(unlabeled_rows=np.flatnonzero(dataset.known < 0))
    if discovered is not None:
        stored = stored._replace(
            class_labels=discovered.classes,
            class_novelty_threshold=np.asarray(discovered.novelty_threshold),
        )
    return stored


def _linkage(evaluation: Evaluation, features: np.ndarray) -> np.ndarray:
    """The tree of the clusters that were found, or one by the likeness of their means."""
    if evaluation.clustering.tree is not None:
        return evaluation.clustering.tree.cluster_linkage_
    return cluster_linkage(features, evaluation.clustering.cluster_labels)


def _report_data(
    name: str,
    results: dict,
    records: list[dict],
    evaluation: evaluate.Evaluation,
    discovered: discovery.Discovery | None,
    dataset: Dataset,
) -> report.ReportData:
    """Data of the report; after novel class discovery the novel classes are its clusters."""
    found = evaluation.clustering
    data = report.ReportData(
        title=name,
        results=results,
        history=records,
        points=found.points,
        cluster_labels=found.cluster_labels,
        distances=found.distances,
        outliers=found.outliers,
        true_labels=dataset.labels,
        label_names=dataset.label_names,
        fetch_images=None if dataset.shown is None else dataset.shown.fetch,
        sources=dataset.sources,
        curve=found.curve,
        skipped=dataset.skipped,
        membership=found.membership,
    )
    if discovered is None:
        return data
    return data._replace(
        cluster_labels=discovered.cluster_labels,
        distances=discovered.distances,
        outliers=None,
        membership=None,
    )


def _last(records: list[dict], name: str) -> float | None:
    values = [r[name] for r in records if r.get(name) is not None]
    return values[-1] if values else None


def _speed(records: list[dict]) -> float | None:
    """Median images per second over the log without its first line, which includes compilation."""
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None
