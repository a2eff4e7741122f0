"""The outputs of a run: clusters, metrics, tables and the report."""

import dataclasses
import os
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering.placing import ByTree, Placing
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, buckets, checks, io
from cluster_jax.core.devices import say
from cluster_jax.core.names import counted
from cluster_jax.data import folder as image_files
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import contents, photo_facts, select
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery import splits
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation import clusters, evaluate, suggestions
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.nets.config import LITE2
from cluster_jax.pipeline import inference, provenance, snapshots
from cluster_jax.pipeline import workdir as workdirs
from cluster_jax.pipeline.build import BuiltRun, Inputs
from cluster_jax.pipeline.config import AnyConfig, PhotosConfig, RunConfig
from cluster_jax.pipeline.inference import StoredClusters, TrainedRun
from cluster_jax.report import assignments, decisions, duplicates, report, summary
from cluster_jax.report.assignments import Table
from cluster_jax.report.decisions import NO_CLUSTER, Decisions
from cluster_jax.report.report_data import GONE
from cluster_jax.training import watch
from cluster_jax.training.progress import read_log

# Embeddings of a run, each `{"backbone": [n, d], ...}`, by the name of their file in a workdir:
# `workdir.TRAIN_EMBEDDING` and, if there are any, `TEST_EMBEDDING` and `INITIAL_EMBEDDING`.
Embeddings = Mapping[str, dict[str, np.ndarray]]


class Outputs(NamedTuple):
    """Everything that a run writes once its images are embedded.

    Attributes:
        results: content of `results.json`.
        clusters: content of `clusters.npz`.
        clusterer: content of `clusterer.npz`.
        tables: content of each table, by the name of its file.
        report: data of the report.
    """

    results: Mapping[str, Any]
    clusters: StoredClusters
    clusterer: Placing | None
    tables: dict[str, str]
    report: report.ReportData


class ClusteredRun(NamedTuple):
    """Clusters of embeddings, neither scored nor drawn.

    Attributes:
        inputs: the readable images.
        features: their embeddings.
        clustered: the images that were clustered.
        embedding: of these images.
        clustering: their clusters.
        clusterer: what places new images in them.
        stored: content of `clusters.npz`, as far as it is known.
        repeated: duplicates among all images, if the clustering needed them.
        seconds: time that was spent.
    """

    inputs: Inputs[AnyConfig]
    features: Embeddings
    clustered: Dataset
    embedding: dict[str, np.ndarray]
    clustering: Clustering
    clusterer: Placing | None
    stored: StoredClusters
    repeated: duplicates.Duplicates | None
    seconds: float


def cluster(inputs: Inputs[AnyConfig], features: Embeddings) -> ClusteredRun:
    """Clusters the embeddings of images; in novel class discovery, of the unlabeled ones."""
    started = time.perf_counter()
    inputs, features = _readable(inputs, features)
    config, dataset, _ = inputs
    embedding, unlabeled = features[workdirs.TRAIN_EMBEDDING], _unlabeled(dataset)
    checks.one_of("eval.features", config.eval.features, tuple(embedding))
    rows = embedding[config.eval.features]
    repeated = originals = None
    if config.eval.method == "tree" and dataset.load is not None and unlabeled is None:
        # The features of a smaller copy are often too far from its original's to tell it by them.
        repeated = find_duplicates(config, dataset, features)
    if repeated is not None:
        originals = duplicates.originals(repeated, len(rows))
    unit = arrays.normalize_rows(rows if unlabeled is None else rows[unlabeled])
    clustering = clusters.find(unit, config.eval, seed=config.seed, originals=originals)
    return collect(inputs, features, clustering, repeated, started)


def collect(
    inputs: Inputs[AnyConfig],
    features: Embeddings,
    clustering: Clustering,
    repeated: duplicates.Duplicates | None,
    started: float,
) -> ClusteredRun:
    """Builds the run of a clustering, see `ClusteredRun`; `started` is when the work began."""
    config, dataset, _ = inputs
    clustered, embedding = dataset, features[workdirs.TRAIN_EMBEDDING]
    if (unlabeled := _unlabeled(dataset)) is not None:
        clustered = select(dataset, unlabeled)
        embedding = {name: rows[unlabeled] for name, rows in embedding.items()}
    rows = embedding[config.eval.features]
    placed_by = inference.new_clusterer(clustering, arrays.normalize_rows(rows), config.eval)
    stored = inference.stored_clusters(clustering, rows)._replace(unlabeled_rows=unlabeled)
    if dataset.sources is not None:
        skipped = np.array([f for f, _ in dataset.skipped if not f.endswith("/")], str)
        stored = stored._replace(sources=np.array(dataset.sources), skipped=skipped)
    run = inputs, features, clustered, embedding, clustering, placed_by, stored, repeated
    return ClusteredRun(*run, time.perf_counter() - started)


def _unlabeled(dataset: Dataset) -> NDArray | None:
    """Returns the rows that are clustered in novel class discovery; None: all are."""
    partial_labels = dataset.partial_labels
    return None if partial_labels is None else np.flatnonzero(partial_labels < 0)


def find_duplicates(
    config: AnyConfig,
    dataset: Dataset,
    features: Embeddings,
) -> duplicates.Duplicates | None:
    """Finds duplicates among the images; None if there are no images to show."""
    if dataset.shown is None:
        return None
    say("looking for duplicates")
    return _duplicates(dataset, features[workdirs.TRAIN_EMBEDDING][config.eval.features])


def _duplicates(dataset: Dataset, features: NDArray) -> duplicates.Duplicates:
    """Finds duplicates among the images whose files are there; `features` `[n, d]` are of all."""
    assert dataset.shown is not None
    gone = {name for name, why in dataset.skipped if why == GONE}
    names = dataset.sources or range(dataset.size)
    here = np.array([i for i, name in enumerate(names) if name not in gone], np.int64)
    repeated = duplicates.find(select(dataset.shown, here), features[here])
    return repeated._replace(images=here[repeated.images])


def _judged(metrics: dict[str, Any], steps: int) -> dict[str, Any]:
    """Metrics in which no clusters are "clear" after a training.

    A training drives its own images apart, also within a kind: all 15 runs of
    `experiments/log.md` were clear at an ARI of 0.25 to 0.50.
    """
    tree = metrics.get("tree")
    if not steps or tree is None or tree["verdict"] != "clear":
        return metrics
    return {**metrics, "tree": {**tree, "verdict": None}}


def describe(
    run: ClusteredRun,
    *,
    steps: int = 0,
    records: Sequence[dict] = (),
    seconds: float,
    cut_short: bool = False,
) -> Outputs:
    """Scores and draws clusters; writes nothing.

    Args:
        run: the clusters.
        steps: number of training steps; 0: nothing was trained.
        records: log of the training.
        seconds: time that the embeddings took, with the training.
        cut_short: whether the training is to go on later.
    """
    started = time.perf_counter()
    (config, dataset, _), features, clustered = run.inputs, run.features, run.clustered
    section, embedding = with_novel_k(config, dataset), run.embedding
    say("drawing the map")
    evaluation = evaluate.evaluate(
        embedding,
        clustered.labels,
        section,
        seed=config.seed,
        clustering=run.clustering,
        test=_probe_test(run),
    )
    discovered, clustering = _discover(run.inputs, features), evaluation.clustering
    repeated = run.repeated
    if repeated is None:
        repeated = find_duplicates(config, dataset, features)
    results = {
        "provenance": {
            **provenance.describe(config, section, dataset, clustered, steps),
            "cut_short": cut_short,
        },
        "metrics": {
            **_judged(evaluation.metrics, steps),
            "gradient_share": _last(records, "gradient_share"),
            "discovery": None if discovered is None else discovered.metrics,
        },
        "duplicates": None if repeated is None else duplicates.counts(repeated),
        "suggested_names": _suggested_names(config, embedding, clustering),
        "doubtful_images": report.count_doubtful(clustering.membership),
        "watch": [f._asdict() for f in watch.findings(records, steps)],
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": seconds,
            "cluster": run.seconds + time.perf_counter() - started,
        },
        "config": config.values,
    }
    stored = run.stored._replace(points=clustering.points, kmeans_labels=evaluation.kmeans_labels)
    if stored.contents is None and dataset.facts is not None:
        stored = stored._replace(contents=contents(dataset))
    facts = photo_facts(dataset)
    table = assignments.images_csv(dataset, evaluation, discovered, facts)
    tables = {workdirs.ASSIGNMENTS: table}
    if repeated is not None:
        tables[workdirs.DUPLICATES] = assignments.duplicates_csv(dataset.sources, repeated)
    run = run._replace(stored=stored, clustering=clustering, repeated=repeated)
    run, data = _drawn(run, discovered, io.plain(results), records)
    return Outputs(data.results, run.stored, run.clusterer, tables, data)


def _suggested_names(
    config: AnyConfig, embedding: Mapping[str, NDArray], clustering: Clustering
) -> dict[int, list[str]] | None:
    """Suggests names of clusters where the network is one of photos that comes with its classes."""
    if not isinstance(config, PhotosConfig) or config.network.weights != LITE2:
        return None
    return suggestions.suggest(embedding["backbone"], clustering.cluster_labels)


def _drawn(
    run: ClusteredRun,
    discovered: discovery.Discovery | None,
    results: Mapping[str, Any],
    records: Sequence[dict],
) -> tuple[ClusteredRun, report.ReportData]:
    """Returns the run, with the classes of a discovery, and the data of its report."""
    (config, dataset, _), stored, shown = run.inputs, run.stored, run.clustering
    rows, linkage = run.embedding[config.eval.features], stored.linkage
    known_classes, unlabeled, groups = None, stored.unlabeled_rows, None
    if discovered is not None:  # The novel classes are the clusters of the report.
        known_classes, labels = splits.known_names(dataset), discovered.cluster_labels
        stored = stored._replace(
            class_labels=discovered.classes,
            class_novelty_threshold=np.asarray(discovered.novelty_threshold),
        )
        linkage = linkage_of_means(rows, labels)
        shown = shown._replace(
            cluster_labels=labels,
            distances=discovered.distances,
            outliers=np.zeros(len(labels), bool),
            membership=None,
        )
    if run.repeated is not None and run.repeated.n_groups:
        # Of all images, also where only the unlabeled ones are clustered.
        groups = duplicates.Shown(run.repeated, dataset.sources, unlabeled)
    data = _report_data(
        config,
        run.clustered,
        results,
        shown,
        history=records,
        features=clusters.rows_of_likeness(run.clustering.tree, rows),
        linkage=linkage,
        run=inference.computed_clusters(stored, known_classes).run,
        facts=photo_facts(dataset if unlabeled is None else select(dataset, unlabeled)),
        duplicates=groups,
    )
    return run._replace(stored=stored), data


def _report_data(
    config: AnyConfig,
    clustered: Dataset,
    results: Mapping[str, Any],
    clustering: Clustering,
    **more: Any,
) -> report.ReportData:
    """Collects the report's data, with what is known of the images that were clustered."""
    return report.ReportData(
        title=_title(config),
        results=results,
        clustering=clustering,
        true_labels=clustered.labels,
        label_names=clustered.label_names,
        fetch_images=None if clustered.shown is None else clustered.shown.fetch,
        sources=clustered.sources,
        folder=inference.image_folder(config.data.name, config.data.dir, clustered.sources),
        skipped=clustered.skipped,
        **more,
    )


def stored_report(
    run: TrainedRun, table: Table, repeated: duplicates.Shown | None = None
) -> report.ReportData:
    """Collects the report's data for a finished run, with what a person has decided since.

    Args:
        run: of images.
        table: its `assignments.csv`.
        repeated: duplicates among them; None: they are looked for.

    Raises:
        InputError: the images of the run are not where they were.
    """
    stored, decided, computed = run.clusters, run.decisions, run.computed
    dataset = every = inference.training_images(run)
    if stored.unlabeled_rows is not None:
        dataset = select(every, stored.unlabeled_rows)
    rows = run.features
    if isinstance(run.clusterer, ByTree):
        rows = run.clusterer.smoother.project(rows)
    labels, distances, linkage = decided.labels(computed), stored.distances, stored.linkage
    results = run.results
    if decided.is_of_members or run.known_classes is not None:
        _, codes = np.unique(labels, return_inverse=True)
        means = arrays.cluster_means(rows, codes)
        distances = arrays.distances_to_centers(rows, means, codes)
        is_in = labels != NO_CLUSTER
        linkage = linkage_of_means(run.features[is_in], labels[is_in])
    results = decided_results(results, dataset.labels, decided, computed)
    assert stored.points is not None
    clustering = Clustering(
        metrics={},
        points=stored.points,
        centers=np.empty((0, 0)),  # Nothing is placed.
        cluster_labels=labels,
        distances=distances,
        outliers=stored.outliers if run.known_classes is None else np.zeros(len(labels), bool),
        curve=inference.stored_curve(run),
        membership=stored.membership if run.known_classes is None else None,
    )
    assert run.workdir is not None
    if repeated is None and every.shown is not None:
        found = _duplicates(every, run.all_features)
        repeated = duplicates.Shown(found, every.sources, stored.unlabeled_rows)
    if repeated is not None:
        repeated = duplicates.with_picked(repeated, decided.kept)
    data = _report_data(
        run.config,
        dataset,
        results,
        clustering,
        history=read_log(run.workdir),
        features=rows,
        linkage=linkage,
        duplicates=repeated if repeated and repeated.duplicates.n_groups else None,
        facts=photo_facts(dataset),
        changes=snapshots.changes(run.workdir, computed.names),
        **decided_fields(decided, computed, run.workdir),
    )
    return data


def decided_fields(
    decided: Decisions, computed: decisions.Clusters, workdir: epath.PathLike
) -> dict[str, Any]:
    """Returns what a run's report says of a person's decisions, and how new ones are applied."""
    return {
        "names": {str(cluster): name for cluster, name in decided.named.items()},
        "is_decided": decided.is_decided(computed),
        "next_cluster": decided.next_cluster(computed),
        "run": computed.run,
        "command": correction_command(workdir),
    }


def correction_command(workdir: epath.PathLike) -> str:
    """Returns the command that applies a file that a run's page has saved, from its folder."""
    path = str(workdir) if "://" in str(workdir) else os.path.abspath(workdir)
    return f"cluster-jax report {shlex.quote(path)} --corrections=corrections.csv"


def decided_results(
    results: Mapping[str, Any],
    true_labels: np.ndarray | None,
    decided: Decisions,
    computed: decisions.Clusters,
) -> dict[str, Any]:
    """Scores corrected clusters; images in no cluster are in none right.

    Names alone change no score.
    """
    if not decided.is_of_members:
        return dict(results)
    metrics, provenance_ = dict(results["metrics"]), dict(results["provenance"])
    scores = clusters.scores(true_labels, decided.labels(computed))
    if metrics.get("discovery"):
        metrics["discovery"] = {**metrics["discovery"], "novel": scores}
    else:
        method = summary.shown(metrics)
        metrics[method] = scores
        origins = provenance_.get("number_of_clusters", {})
        provenance_["number_of_clusters"] = {**origins, method: "corrected"}
    return {**results, "metrics": metrics, "provenance": provenance_}


def _title(config: AnyConfig) -> str:
    """Names a run by its folder or file of images; by its config if it trains or has neither."""
    name = _name_of_files(config)
    if name is None:
        return config.name
    return f"{name}, {config.name}" if isinstance(config, RunConfig) else name


def _name_of_files(config: AnyConfig) -> str | None:
    """Names the user's own folder or file of images; None for a data set that has a name."""
    if config.data.dir is None or config.data.name not in ("folder", "arrays", "features"):
        return None
    if config.data.name == "folder":
        return image_files.root(config.data.dir).resolve().name
    return epath.Path(str(workdirs.normalized(config.data.dir))).resolve().name


def write(
    workdir: epath.Path,
    outputs: Outputs,
    *,
    shown: epath.PathLike | None = None,
    with_report: bool = True,
) -> None:
    """Writes the outputs of a run into its workdir, with or without the report.

    Args:
        workdir: where they are written.
        outputs: of the run.
        shown: what the page calls the workdir; None: as it is.
        with_report: whether to write the page.
    """
    file, there = workdir / decisions.DECISIONS, buckets.names(workdir)
    if file.name in there and not decisions.is_of(file, outputs.report.run):
        file.replace(workdir / workdirs.OLD_DECISIONS)
    inference.write_clusters(workdir, outputs.clusters, outputs.clusterer)
    for name, table in outputs.tables.items():
        io.write(workdir / name, table)
    data = outputs.report._replace(command=correction_command(shown or workdir))
    if with_report:
        report.write_report(workdir / workdirs.REPORT, data)
    elif workdirs.REPORT in there:  # A page of earlier clusters would mislead.
        (workdir / workdirs.REPORT).unlink()
    # Written last, because its presence marks the run as finished.
    io.write_json(workdir / workdirs.RESULTS, outputs.results, checksum=True)


def _readable(
    inputs: Inputs[AnyConfig], features: Embeddings
) -> tuple[Inputs[AnyConfig], Embeddings]:
    """Removes the files that could not be read from images and embeddings."""
    dataset, test = readable_images(inputs.dataset, features[workdirs.TRAIN_EMBEDDING]), inputs.test
    if test is not None and workdirs.TEST_EMBEDDING in features:
        test = readable_images(test, features[workdirs.TEST_EMBEDDING])
    rows = {name: readable_rows(embedding) for name, embedding in features.items()}
    return inputs._replace(dataset=dataset, test=test), rows


def read_features(workdir: epath.Path) -> Embeddings:
    """Reads the embeddings in a workdir."""
    names = (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING, workdirs.INITIAL_EMBEDDING)
    there = buckets.names(workdir)
    return {n: io.read_arrays(workdir / n) for n in names if n in there}


def with_novel_k(config: AnyConfig, dataset: Dataset) -> EvalConfig:
    """Returns the section `eval`, with the number of novel classes for k-means in discovery."""
    kmeans = config.eval.kmeans
    if dataset.partial_labels is None or not isinstance(config, RunConfig) or kmeans.k is not None:
        return config.eval
    if (classes := config.method.novel_classes) is None:
        return config.eval
    return dataclasses.replace(config.eval, kmeans=dataclasses.replace(kmeans, k=classes))


def _discover(inputs: Inputs[AnyConfig], features: Embeddings) -> discovery.Discovery | None:
    """Discovers novel classes, with metrics; None for other methods than novel class discovery."""
    config, dataset, test_images = inputs
    trained, tested = (features.get(n) for n in (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING))
    before = features.get(workdirs.INITIAL_EMBEDDING)
    if trained is None or "novel" not in trained or dataset.partial_labels is None:
        return None

    def outputs(
        embedding: dict[str, np.ndarray], labels: np.ndarray | None
    ) -> discovery.NetworkOutputs:
        rows = arrays.normalize_rows(embedding["backbone"])
        return discovery.NetworkOutputs(rows, embedding["labeled"], embedding["novel"], labels)

    train, test, scores = outputs(trained, dataset.labels), None, None
    if tested is not None and test_images is not None:
        test = outputs(tested, test_images.labels)
    assert isinstance(config, RunConfig)
    if config.method.learns_clusters:
        scores = discovery.spread_probabilities(train, dataset.partial_labels, dataset.nearest)
    return discovery.discover(
        train,
        dataset.partial_labels,
        None if before is None else arrays.normalize_rows(before["backbone"]),
        test,
        scores=scores,
        n_init=config.eval.kmeans.n_init,
        seed=config.seed,
    )


def _probe_test(run: ClusteredRun) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns features and classes of test images; None without any, and in class discovery."""
    (config, dataset, test), rows = run.inputs, run.features.get(workdirs.TEST_EMBEDDING)
    if dataset.partial_labels is not None or test is None or test.labels is None or rows is None:
        return None
    return rows[config.eval.features], test.labels


def _last(records: Sequence[dict], name: str) -> float | None:
    return next((r[name] for r in reversed(records) if r.get(name) is not None), None)


def _speed(records: Sequence[dict]) -> float | None:
    """Computes median images per second over the log but its first line, which has compilation."""
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None


def print_start(
    inputs: Inputs[AnyConfig], trainings: Sequence[BuiltRun] = (), workdir: epath.Path | None = None
) -> None:
    """Prints the images, the work and the devices of a run."""
    config, dataset, _ = inputs
    noun = "row" if dataset.shown is None else "image"
    name = checks.one_line(_name_of_files(config) or dataset.name)
    if not trainings:
        work = f"compared by a network trained on other photos ({config.network.name}),"
    else:
        lengths = " + ".join(f"{stage.training.total_steps:,}" for stage in trainings)
        work = f"{lengths} steps of {counted(trainings[-1].config.train.batch_size, noun)}"
    say(
        f"{counted(dataset.size, noun)} of {name}, {work} on {jax.device_count()} x "
        f"{jax.devices()[0].device_kind}" + ("" if workdir is None else f"\nworkdir {workdir}")
    )
    print_skipped(dataset.skipped)
    for note in dataset.notes:
        say(checks.sentence(note))


def print_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Prints the number of files that cannot be read; a note of the data set names the folders."""
    if files := sum(not name.endswith("/") for name, _ in skipped):
        say(f"{counted(files, 'file')} cannot be read; see the report")
