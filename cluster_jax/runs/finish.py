"""From features to clusters, scores, a map, and the files of a run."""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import membership, placing, tree_fit
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree, Placing, Voters
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays, checks, hosts, io
from cluster_jax.core.devices import say
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation import clusters, evaluate, suggestions
from cluster_jax.evaluation.clusters import MIN_CLUSTER_ROWS, Clustering
from cluster_jax.evaluation.options import ClusterOptions
from cluster_jax.evaluation.stages import NOWHERE, Stages
from cluster_jax.nets import pretrained
from cluster_jax.nets.config import LITE2
from cluster_jax.report import duplicates, report, summary
from cluster_jax.report.duplicates import Duplicates
from cluster_jax.runs import novel, provenance
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.run import COLUMNS, Run
from cluster_jax.runs.store import Embeddings
from cluster_jax.training import watch
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig

# The most images of a streamed set without files that are read again to find copies.
MOST_STREAMED = 100_000


class Found(NamedTuple):
    """Clusters of embeddings, neither scored nor drawn.

    Attributes:
        inputs: the n readable images.
        features: the embeddings of these images, and of the test images, by file, see `store`.
        clustered: the m images that were clustered, all n of them but in novel class discovery.
        embedding: `{"backbone": [m, d], ...}`, the embedding of the m images.
        clustering: the clusters of the m images.
        repeated: duplicates among the n images; None: there are no pictures to compare.
        started: what `time.perf_counter` returned before the search for duplicates.
    """

    inputs: Inputs[AnyConfig]
    features: Embeddings
    clustered: Dataset
    embedding: dict[str, np.ndarray]
    clustering: Clustering
    repeated: Duplicates | None
    started: float


def cluster(inputs: Inputs[AnyConfig], features: Embeddings, stages: Stages = NOWHERE) -> Found:
    """Returns the clusters of the readable images; in novel class discovery, of the unlabeled ones.

    Args:
        inputs: all images, also those that cannot be read.
        features: embeddings by file, see `begin.read_features`.
        stages: where an interrupted evaluation has kept clusters.

    Raises:
        InputError: `eval.features` names no part of the embedding, or a user-defined clusterer did
            not return a cluster for each row.
    """
    started = time.perf_counter()
    config, dataset, test = inputs
    dataset = readable_images(dataset, features[workdirs.TRAIN_EMBEDDING])
    if test is not None:
        test = readable_images(test, features[workdirs.TEST_EMBEDDING])
    inputs = inputs._replace(dataset=dataset, test=test)
    features = {name: readable_rows(embedding) for name, embedding in features.items()}
    embedding = features[workdirs.TRAIN_EMBEDDING]
    unlabeled = _unlabeled(dataset)
    checks.one_of("eval.features", config.eval.features, tuple(embedding))
    originals = None
    repeated = find_duplicates(dataset, embedding[config.eval.features])
    if repeated is not None and dataset.load is not None and unlabeled is None:
        # The features of a smaller copy are often too far from its original's to tell it by them.
        originals = duplicates.originals(repeated, dataset.size)
    clustered = dataset
    if unlabeled is not None:
        clustered = select(dataset, unlabeled)
        embedding = {name: rows[unlabeled] for name, rows in embedding.items()}
    unit = arrays.normalize_rows(embedding[config.eval.features])
    clustering = _clustering(unit, config, originals, stages)
    return Found(inputs, features, clustered, embedding, clustering, repeated, started)


def _clustering(
    unit: NDArray, config: AnyConfig, originals: NDArray | None, stages: Stages
) -> Clustering:
    """Returns the clusters of unit rows `[m, d]`, those of the tree always anew; see `cluster`."""
    section = config.eval
    if section.method == "tree":
        return clusters.find(unit, section, seed=config.seed, originals=originals)
    most = section.sample_of(len(unit), jax.process_count())

    def found() -> Clustering:
        if most is None:
            return clusters.find(unit, section, seed=config.seed, originals=originals)
        say(f"{section.method} clusters a sample of {most:,} of the {len(unit):,} rows")
        mesh = hosts.mesh_of_all()
        return clusters.find_by_sample(unit, section, seed=config.seed, most=most, mesh=mesh)

    return clusters.from_arrays(stages.arrays("clusters", lambda: clusters.to_arrays(found())))


def _unlabeled(dataset: Dataset) -> NDArray | None:
    """Returns the indices of the unlabeled images, int64; None without novel class discovery."""
    partial_labels = dataset.partial_labels
    if partial_labels is None:
        return None
    return np.flatnonzero(partial_labels < 0)


def find_duplicates(
    dataset: Dataset, features: NDArray, before: NDArray | None = None
) -> Duplicates | None:
    """Returns duplicates among images; None for features of a file.

    Args:
        dataset: the images. Indices in the result are those in this set.
        features: features of all images, float `[n, d]`.
        before: see `duplicates.find`.
    """
    if dataset.shown is None:
        return None
    if dataset.facts is None and dataset.images is None and dataset.size > MOST_STREAMED:
        say(f"no search for duplicates: {dataset.size:,} images would be read again")
        return None
    say("looking for duplicates")
    return duplicates.find(dataset.shown, features, before)


def as_run(found: Found, workdir: epath.Path, images: Mapping[str, Any]) -> Run:
    """Returns the first state of a run without results, which `complete` adds.

    It has a map only if the method has clustered the points of a map.

    Args:
        found: the clusters.
        workdir: folder of the run.
        images: content of its `images.json`.
    """
    config, dataset, _ = found.inputs
    clustering = found.clustering
    unlabeled = _unlabeled(dataset)
    labels = np.full(dataset.size, NO_CLUSTER)
    labels[slice(None) if unlabeled is None else unlabeled] = clustering.cluster_labels
    rows = found.embedding[config.eval.features]
    return first_state(
        clustering,
        labels,
        workdir=workdir,
        config=config.values,
        images=images,
        store=found.features[workdirs.TRAIN_EMBEDDING][config.eval.features],
        names=dataset.sources,
        linkage=clustering.linkage(rows),
        placer=placer_of(clustering, arrays.normalize_rows(rows), config.eval, of_images=True),
        facts=None if dataset.facts is None else dataset.facts(np.arange(dataset.size)),
        truth=dataset.labels,
        label_names=dataset.label_names,
        shown=unlabeled,
        skipped=dataset.skipped,
        duplicates=found.repeated,
    )


def first_state(clustering: Clustering, labels: NDArray, **known: Any) -> Run:
    """Returns a state of a run, not yet numbered, with clusters and without results.

    Args:
        clustering: clusters of the m rows that are described.
        labels: int `[n]`, clusters of all rows, -1 for none.
        known: further attributes of `Run`; those without a default are required.
    """
    columns = np.zeros(len(labels), COLUMNS)
    columns["row"] = np.arange(len(labels))
    columns["label"] = columns["found"] = labels
    points = clustering.points
    sure = (None, None, None) if clustering.membership is None else clustering.membership[1:]
    return Run(
        number=0,
        made_by="first",
        results={},
        columns=columns,
        distances=clustering.distances,
        outliers=clustering.outliers,
        next_label=int(labels.max(initial=-1)) + 1,
        points=points.astype(np.float32) if points.size else None,
        probabilities=sure[0],
        second_labels=sure[1],
        second_probabilities=sure[2],
        tree=None if clustering.tree is None else clustering.tree.linkage,
        **known,
    )


def placer_of(
    clustering: Clustering, x: NDArray, options: ClusterOptions, *, of_images: bool
) -> Placing | None:
    """Returns what assigns new images or rows to clusters; None if a map of t-SNE was clustered.

    Args:
        clustering: the clusters.
        x: float `[m, d]`, the rows that `clustering` describes; of images unit rows.
        options: how the rows were clustered, with a metric.
        of_images: whether the rows are features of images: new ones are then compared with all of
            them, which the run stores anyway, and not with those that the tree keeps.
    """
    tree = clustering.tree
    metric = str(options.metric)
    if tree is not None and not of_images:
        return tree.placer
    distinct = rows = arrays.normalize_rows(x) if metric == "cosine" else x
    if tree is not None and len(x) <= tree_fit.MAX_ROWS:
        distinct = rows[tree.sample]  # Of copies one counts.
    known = Voters(rows, metric, placing.novelty_threshold(distinct, metric))
    return clusters.clusterer(clustering, known, options)


def _judged(metrics: dict[str, Any], steps: int) -> dict[str, Any]:
    """Returns the metrics; after a training the verdict "clear" is replaced by None.

    A training drives its own images apart, also within a kind: all 15 runs of
    `experiments/log.md` were clear at an ARI of 0.25 to 0.50.

    Args:
        metrics: metrics of all algorithms, by name.
        steps: number of training steps; 0: nothing was trained.
    """
    tree = metrics.get("tree")
    if not steps or tree is None or tree["verdict"] != "clear":
        return metrics
    return {**metrics, "tree": {**tree, "verdict": None}}


def complete(
    found: Found,
    run: Run,
    *,
    steps: int = 0,
    records: Sequence[dict] = (),
    seconds: float,
    stages: Stages = NOWHERE,
) -> Run:
    """Returns a run with its results, clusters of k-means and duplicates; writes nothing.

    In novel class discovery the novel classes become its clusters, see `novel.with_classes`.

    Args:
        found: the clusters.
        run: a run with these clusters, see `as_run`; its results are replaced.
        steps: number of training steps; 0: nothing was trained.
        records: lines of the log of the training; empty: there are no speed and no warnings in it.
        seconds: seconds that the training and the embedding took.
        stages: where an interrupted evaluation has kept its results.
    """
    config, dataset, _ = found.inputs
    clustering = found.clustering
    test = _probe_test(found)
    section = novel.with_n_classes(config, dataset)
    evaluation = evaluate.evaluate(
        found.embedding,
        clustering,
        found.clustered.labels,
        section,
        seed=config.seed,
        test=test,
        stages=stages,
    )
    discovered = novel.discover(found.inputs, found.features)
    repeated = found.repeated
    if repeated is not None:  # What a person keeps of its copies stays.
        kept = np.flatnonzero(run.columns["kept"]).tolist()
        repeated = duplicates.with_picked(repeated, kept)
    results = {
        "provenance": provenance.describe(config, section, dataset, found.clustered, steps),
        "metrics": {
            **_judged(evaluation.metrics, steps),
            "gradient_share": _last(records, "gradient_share"),
            "discovery": None if discovered is None else discovered.metrics,
        },
        "duplicates": None if repeated is None else duplicates.counts(repeated),
        "suggested_names": suggested_names(
            config.values, found.embedding["backbone"], clustering.cluster_labels
        ),
        "watch": [f._asdict() for f in watch.findings(records, steps)],
        "images_per_second": _speed(records),
        "seconds": {
            "train_and_embed": seconds,
            "cluster": time.perf_counter() - found.started,
        },
    }
    run = dataclasses.replace(run, kmeans_labels=evaluation.kmeans_labels, duplicates=repeated)
    if discovered is not None and dataset.partial_labels is not None:
        rows = found.embedding[config.eval.features]
        run = novel.with_classes(run, discovered, dataset.partial_labels, rows)
    results["doubtful_images"] = _count_doubtful(run)
    return dataclasses.replace(run, results=io.plain(results))


def _count_doubtful(run: Run) -> int | None:
    """Returns the number of doubtful images, see `report.doubtful`; None without probabilities."""
    if run.membership is None:
        return None
    is_copy = duplicates.are_copies(run.duplicates, run.rows)
    is_decided = run.columns["decided"][run.rows]
    return int(report.is_doubtful(run.membership, is_copy, is_decided).sum())


def with_map(run: Run, features: NDArray | None = None) -> Run:
    """Returns a run with a map, which is drawn now if no page has needed one before.

    Args:
        run: the run.
        features: float `[m, d]`, the features of the rows that are described; ignored if the run
            stores its features. Without both, a row lies on the point of its leaf in the tree.

    Raises:
        InputError: the run does not store its features and has no tree.
    """
    if run.points is not None:
        return run
    say("drawing the map")
    if run.store is not None:
        features = run.features
    seed = run.config["seed"]
    how = run.options.reduce_options
    if isinstance(run.placer, ByTree):
        leaves = run.placer.leaves
        if run.known is None:  # Else only images without a known class are in the tree.
            leaves = leaves[run.rows]
        points = clusters.map_of_tree(run.placer.smoother, leaves, features, seed=seed, **how)
    else:
        points = clusters.drawn(run.features, seed=seed, **how).astype(np.float32)
    return dataclasses.replace(run, points=points)


def suggested_names(
    config: Mapping[str, Any], rows: NDArray, labels: NDArray
) -> dict[int, list[str]] | None:
    """Suggests three names for each cluster, by the classes of ImageNet that the network knows.

    The result is None if the network was trained by the run, or is not EfficientNet-Lite2.

    Args:
        config: config of the run.
        rows: features `[m, d]` as the network has made them, not normalized.
        labels: int `[m]`, their clusters; -1, no cluster, gets no names.
    """
    if "train" in config or pretrained.weights_of(config["encoder"]) != LITE2:
        return None
    is_in = labels != NO_CLUSTER
    return suggestions.suggest(rows[is_in], labels[is_in])


def described(run: Run) -> Run:
    """Returns a run whose distances, outliers, probabilities and linkage suit its present labels.

    Rows whose cluster a person has decided have probability 1 and are no outliers; clusters of
    `Run.held` are never too small to count. A run without probabilities gets none.
    """
    rows = run.rows
    x = run.likeness
    labels = run.labels[rows]
    decided = run.columns["decided"][rows]
    is_in = labels != NO_CLUSTER
    ids, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    means = arrays.cluster_means(x, codes)
    features = run.features if run.store is not None else x
    largest = sizes[ids != NO_CLUSTER].max(initial=0)
    is_small = (sizes < min(MIN_CLUSTER_ROWS, largest))[codes]
    is_small &= ~np.isin(labels, list(run.held))
    origins = run.results["provenance"].get("number_of_clusters", {})
    if origins.get(run.method) == "given" or run.known is not None:
        is_small[:] = False  # Every cluster counts.
    run = dataclasses.replace(
        run,
        distances=arrays.distances_to_centers(x, means, codes).astype(np.float32),
        outliers=is_small & is_in & ~decided,
        linkage=linkage_of_means(features[is_in], labels[is_in]),
    )
    if run.probabilities is None or not isinstance(run.placer, ByTree):
        return run
    ids, leaves = placing.coded(run.labels[run.placer.sample])
    around = membership.shares(run.placer.smoother, leaves)
    sure = membership.of_known_rows(ids, labels, around[run.placer.leaves[rows]])
    shares = None
    if run.shares is not None:
        of_all = membership.of_known_rows(ids, run.labels, around[run.placer.leaves])
        shares = np.where(run.columns["decided"], 1.0, of_all.probabilities).astype(np.float32)
    return dataclasses.replace(
        run,
        shares=shares,
        probabilities=np.where(decided, 1.0, sure.probabilities),
        second_labels=np.where(decided, NO_CLUSTER, sure.second_labels),
        second_probabilities=np.where(decided, 0.0, sure.second_probabilities),
    )


def scored(run: Run) -> Run:
    """Returns a run whose results suit its present clusters; writes nothing.

    The numbers of doubtful images and of duplicates are always counted anew, the scores only if a
    person has corrected clusters, which names alone do not. In the accuracy, images in no cluster
    count as wrong.
    """
    results = dict(run.results)
    results["doubtful_images"] = _count_doubtful(run)
    if run.duplicates is not None:
        results["duplicates"] = duplicates.counts(run.duplicates)
    if not run.is_corrected:
        return dataclasses.replace(run, results=results)
    metrics = dict(results["metrics"])
    origins = dict(results["provenance"])
    rows = np.arange(len(run.columns)) if run.known is None else run.rows
    truth = run.labels_for_scores
    truth = None if truth is None else truth[rows]
    scores = clusters.scores(truth, run.labels[rows])
    if metrics.get("discovery"):
        metrics["discovery"] = {**metrics["discovery"], "novel": scores}
    else:
        method = summary.shown(metrics)
        labels = run.labels[run.rows]
        small = np.setdiff1d(labels[run.outliers], labels[~run.outliers])
        metrics[method] = {**scores, "n_large": scores["n_clusters"] - len(small)}
        numbers = origins.get("number_of_clusters", {})
        origins["number_of_clusters"] = {**numbers, method: "corrected"}
    results = {**results, "metrics": metrics, "provenance": origins}
    return dataclasses.replace(run, results=io.plain(results))


def _probe_test(found: Found) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns features `[t, d]` and classes `[t]` of test images for the linear probe, or None.

    The result is None without labeled test images, and in novel class discovery.
    """
    config, dataset, test = found.inputs
    if dataset.partial_labels is not None or test is None or test.labels is None:
        return None
    return found.features[workdirs.TEST_EMBEDDING][config.eval.features], test.labels


def _last(records: Sequence[dict], name: str) -> float | None:
    """Returns the last value of a key in the log that is not None; None if there is none."""
    return next((r[name] for r in reversed(records) if r.get(name) is not None), None)


def _speed(records: Sequence[dict]) -> float | None:
    """Returns the median of images per second in the log; None for an empty log.

    The first line, which includes the compilation, counts only if it is the only one.
    """
    speeds = [r["images_per_second"] for r in records[1:] or records]
    return statistics.median(speeds) if speeds else None
