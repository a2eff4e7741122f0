"""Writes the outputs of a trained network: clusters, metrics, tables and the report."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from cluster_jax.clustering.tree import cluster_linkage
from cluster_jax.core import arrays, io
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.evaluation import (
    assignments,
    discovery,
    duplicates,
    evaluate,
    report,
    report_data,
    suggestions,
)
from cluster_jax.evaluation.discovery import Discovery
from cluster_jax.evaluation.evaluate import EvalConfig, Evaluation
from cluster_jax.nets.config import BUNDLED
from cluster_jax.pipeline import build, clusters_file, provenance
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.config import RunConfig
from cluster_jax.pipeline.stages import Stage
from cluster_jax.training import log, watch


class _Features(NamedTuple):
    """Stored embeddings, each `{"backbone": [n, d], ...}`.

    Attributes:
        train: the training images by the trained network.
        test: the held-out test images by the trained network, or None.
        initial: the training images by the network with which the last stage started, if that came
            from an earlier stage or run, or None.
    """

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] | None
    initial: dict[str, np.ndarray] | None


def write_outputs(
    stage: Stage,
    values: dict[str, Any],
    started: float,
    progress: Callable[[str], None],
    cut_short: bool = False,
) -> dict[str, Any]:
    """Clusters the stored embedding, writes all outputs and prints the metrics.

    Args:
        stage: the last stage.
        values: the config as JSON values.
        started: `time.perf_counter()` at the start of the run.
        progress: prints a message.
        cut_short: whether the training is to go on later.

    Returns:
        The content of `results.json`.
    """
    trained = time.perf_counter()
    config, run, workdir = stage.built.config, stage.built.training, stage.workdir
    features = _read_features(workdir)
    clustered, embedding = _unlabeled(run.dataset, features.train)
    if not run.schedule.total:
        embedding = {"backbone": embedding["backbone"]}  # the projector is random
    section = with_novel_k(config, run.dataset)
    evaluation = evaluate.evaluate(embedding, clustered.labels, section, seed=config.seed)
    discovered = _discover(stage.built, features)
    repeated = None
    shown = run.dataset.shown
    if shown is not None:
        repeated = duplicates.find(shown.fetch, features.train[section.features])
    records = log.read(workdir)
    results = {
        "provenance": {
            **provenance.describe(config, section, run.dataset, clustered, run.schedule.total),
            "cut_short": cut_short,
        },
        "metrics": {
            **evaluation.metrics,
            "gradient_share": _last(records, "gradient_share"),
            "discovery": None if discovered is None else discovered.metrics,
        },
        "duplicates": None if repeated is None else duplicates.counts(repeated),
        "suggested_names": _suggested_names(config, embedding, evaluation, discovered),
        "watch": [f._asdict() for f in watch.findings(records, run.schedule.total)],
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": trained - started,
            "cluster": time.perf_counter() - trained,
        },
        "config": values,
    }
    linkage = _linkage(evaluation, embedding[section.features])
    stored = _stored_clusters(evaluation, linkage, discovered, run.dataset)
    clusters_file.write(workdir, stored)
    table = assignments.images_csv(run.dataset, evaluation, discovered)
    io.write(workdir / workdirs.ASSIGNMENTS, table)
    if repeated is not None:
        table = assignments.duplicates_csv(run.dataset, repeated)
        io.write(workdir / workdirs.DUPLICATES, table)
    data = _report_data(stage.name, results, records, evaluation, discovered, clustered)
    if discovered is not None:
        linkage = cluster_linkage(embedding[section.features], discovered.cluster_labels)
    data = data._replace(linkage=linkage)
    if shown is not None and repeated is not None and repeated.n_groups:
        # Of all images, also where only the unlabeled ones are clustered.
        data = data._replace(
            duplicates=duplicates.Shown(repeated, shown.fetch, run.dataset.sources)
        )
    report.write_report(workdir / workdirs.REPORT, data)
    # Written last, because its presence marks the run as finished.
    io.write_json(workdir / workdirs.RESULTS, results, checksum=True)
    progress(provenance.table(results))
    progress(f"\nreport       {workdir / workdirs.REPORT}")
    progress(f"assignments  {workdir / workdirs.ASSIGNMENTS}")
    progress(f"metrics      {workdir / workdirs.RESULTS}")
    return io.read_json(workdir / workdirs.RESULTS)


def _suggested_names(
    config: RunConfig,
    embedding: dict[str, np.ndarray],
    evaluation: Evaluation,
    discovered: Discovery | None,
) -> dict[int, list[str]] | None:
    """Names for the clusters, where the features are those of the bundled network."""
    network = config.network
    if network.weights != BUNDLED or not network.is_frozen() or discovered is not None:
        return None
    return suggestions.suggest(embedding["backbone"], evaluation.cluster_labels)


def _read_features(workdir: epath.Path) -> _Features:
    def read(name: str) -> dict[str, np.ndarray] | None:
        file = workdir / name
        return io.read_arrays(file) if file.exists() else None

    return _Features(
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


def _discover(built: build.BuiltRun, features: _Features) -> discovery.Discovery | None:
    """Classes and metrics of novel class discovery; None for other methods."""
    dataset = built.training.dataset
    if "novel" not in features.train or dataset.known is None:
        return None

    def outputs(
        embedding: dict[str, np.ndarray], labels: np.ndarray | None
    ) -> discovery.NetworkOutputs:
        rows = arrays.normalize_rows(embedding["backbone"])
        return discovery.NetworkOutputs(rows, embedding["labeled"], embedding["novel"], labels)

    initial, test = features.initial, None
    if features.test is not None and built.test is not None:
        test = outputs(features.test, built.test.labels)
    train, scores = outputs(features.train, dataset.labels), None
    if built.config.method.learns_clusters:
        scores = discovery.spread_probabilities(train, dataset.known, dataset.nearest)
    return discovery.discover(
        train,
        dataset.known,
        None if initial is None else arrays.normalize_rows(initial["backbone"]),
        test,
        scores=scores,
        n_init=built.config.eval.kmeans.n_init,
        seed=built.config.seed,
    )


def _stored_clusters(
    evaluation: Evaluation, linkage: np.ndarray, discovered: Discovery | None, dataset: Dataset
) -> clusters_file.StoredClusters:
    stored = clusters_file.StoredClusters(
        points=evaluation.points,
        centers=evaluation.centers,
        cluster_labels=evaluation.cluster_labels,
        distances=evaluation.distances,
        outliers=evaluation.outliers,
        kmeans_labels=evaluation.kmeans_labels,
        novelty_threshold=np.asarray(evaluation.novelty_threshold),
        linkage=linkage,
    )
    if evaluation.bandwidth is not None:
        stored = stored._replace(bandwidth=np.asarray(evaluation.bandwidth))
    if evaluation.tree is not None:
        stored = stored.with_tree(evaluation.tree)
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
    if evaluation.tree is not None:
        return evaluation.tree.cluster_linkage_
    return cluster_linkage(features, evaluation.cluster_labels)


def _report_data(
    name: str,
    results: dict,
    records: list[dict],
    evaluation: evaluate.Evaluation,
    discovered: discovery.Discovery | None,
    dataset: Dataset,
) -> report.ReportData:
    """Data of the report; after novel class discovery the novel classes are its clusters."""
    result = evaluation if discovered is None else discovered
    return report.ReportData(
        title=name,
        results=io.plain(results),
        history=records,
        points=report_data.with_two_axes(evaluation.points),
        cluster_labels=result.cluster_labels,
        distances=result.distances,
        outliers=evaluation.outliers if discovered is None else None,
        true_labels=dataset.labels,
        label_names=dataset.label_names,
        fetch_images=None if dataset.shown is None else dataset.shown.fetch,
        sources=dataset.sources,
        curve=evaluation.curve,
        skipped=dataset.skipped,
        linkage=None,
        duplicates=None,
        is_smooth_tree=discovered is None and evaluation.tree is not None,
        membership=None if discovered is not None else evaluation.membership,
    )


def _last(records: list[dict], name: str) -> float | None:
    values = [r[name] for r in records if r.get(name) is not None]
    return values[-1] if values else None


def _speed(records: list[dict]) -> float | None:
    """Median images per second over the log without its first line, which includes compilation."""
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None
