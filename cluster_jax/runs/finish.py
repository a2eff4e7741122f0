"""From features to a state of a run with its results and its map."""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax.clustering import custom
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import arrays, checks, hosts
from cluster_jax.core.devices import say
from cluster_jax.data.datasets import Dataset
from cluster_jax.data.images import select
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation import clusters, evaluate, maps, own, suggestions
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import FINDERS
from cluster_jax.evaluation.stages import NOWHERE, Stages
from cluster_jax.nets import pretrained
from cluster_jax.nets.config import LITE2
from cluster_jax.report import duplicates
from cluster_jax.report.duplicates import Duplicates
from cluster_jax.runs import measured, novel, provenance
from cluster_jax.runs import run as records
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Embeddings
from cluster_jax.runs.next_state import Numbers, Step, find, next_state, with_rows
from cluster_jax.runs.run import Run
from cluster_jax.training import watch
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, RunConfig

# The most images of a streamed set without files that are read again to find copies.
MOST_STREAMED = 100_000


class Embedded(NamedTuple):
    """Images and their embeddings, which are not clustered yet.

    Attributes:
        inputs: the n readable images.
        features: the embeddings of these images, and of the test images, by file, see
            `embedding_files`.
        clustered: the m images that are clustered, all n of them but in novel class discovery.
        embedding: `{"backbone": [m, d], ...}`, the embedding of the m images.
        repeated: duplicates among the n images; None: there are no pictures to compare.
        started: what `time.perf_counter` returned before the search for duplicates.
    """

    inputs: Inputs[AnyConfig]
    features: Embeddings
    clustered: Dataset
    embedding: dict[str, np.ndarray]
    repeated: Duplicates | None
    started: float


def embedded(
    inputs: Inputs[AnyConfig], features: Embeddings, groups: NDArray | None = None
) -> Embedded:
    """Returns the readable images; in novel class discovery the unlabeled ones are clustered.

    Args:
        inputs: all images, also those that cannot be read.
        features: embeddings by file, see `embedding_files.read`.
        groups: see `find_duplicates`.

    Raises:
        InputError: `eval.features` names no part of the embedding.
    """
    started = time.perf_counter()
    config, dataset, test = inputs
    dataset = readable_images(dataset, features[workdirs.TRAIN_EMBEDDING])
    if test is not None:
        test = readable_images(test, features[workdirs.TEST_EMBEDDING])
    inputs = inputs._replace(dataset=dataset, test=test)
    features = {name: readable_rows(embedding) for name, embedding in features.items()}
    embedding = features[workdirs.TRAIN_EMBEDDING]
    checks.one_of("eval.features", config.eval.features, tuple(embedding))
    repeated = find_duplicates(dataset, embedding[config.eval.features], groups)
    clustered = dataset
    if (unlabeled := _unlabeled(dataset)) is not None:
        clustered = select(dataset, unlabeled)
        embedding = {name: rows[unlabeled] for name, rows in embedding.items()}
    return Embedded(inputs, features, clustered, embedding, repeated, started)


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


def first(made: Embedded, workdir: epath.Path, images: Mapping[str, Any]) -> tuple[Run, Run]:
    """Returns an empty run, and the same run with all images, which have no cluster yet.

    Args:
        made: the images.
        workdir: folder of the run.
        images: content of its `images.json`.
    """
    config, dataset, _ = made.inputs
    kind = "training" if isinstance(config, RunConfig) else "photos"
    before = records.empty(kind, workdir, config.values, images)
    after = dataclasses.replace(
        with_rows(before, dataset.size),
        store=made.features[workdirs.TRAIN_EMBEDDING][config.eval.features],
        names=dataset.sources,
        facts=None if dataset.facts is None else dataset.facts(np.arange(dataset.size)),
        truth=dataset.labels,
        label_names=dataset.label_names,
        shown=_unlabeled(dataset),
        skipped=dataset.skipped,
    )
    return before, after


def clustered(
    made: Embedded,
    before: Run,
    after: Run,
    old: NDArray,
    numbers: Numbers = "kept",
    stages: Stages = NOWHERE,
) -> tuple[Run, Clustering]:
    """Returns the next state of a run of images, and the clusters that were found in them.

    Args:
        made: the images of `after`.
        before: the state before, perhaps an empty one.
        after: see `next_state`, like `old`.
        old: int `[l]`.
        numbers: see `next_state.Step`.
        stages: where an interrupted evaluation has kept clusters.

    Raises:
        InputError: a user-defined clusterer did not return a cluster for each row.
    """
    originals = None
    is_of_files = made.inputs.dataset.load is not None
    if made.repeated is not None and is_of_files and after.shown is None:
        # The features of a smaller copy are often too far from its original's to tell it by them.
        originals = duplicates.originals(made.repeated, made.inputs.dataset.size)
    config = made.inputs.config
    unit = arrays.normalize_rows(made.embedding[config.eval.features])
    step = Step(numbers, originals)
    if config.eval.method == "tree":
        clustering = find(after, old, unit, step)
    else:
        clustering = _clustering(unit, config, stages)
    return next_state(before, after, old, unit, step, clustering), clustering


def _clustering(unit: NDArray, config: AnyConfig, stages: Stages) -> Clustering:
    """Returns the clusters of unit rows `[m, d]` by another method than the tree."""
    section = config.eval
    most = section.sample_of(len(unit), jax.process_count())

    def found() -> Clustering:
        if most is None:
            return clusters.find(unit, section, seed=config.seed)
        say(f"{section.method} clusters a sample of {most:,} of the {len(unit):,} rows")
        mesh = hosts.mesh_of_all()
        return clusters.find_by_sample(unit, section, seed=config.seed, most=most, mesh=mesh)

    return clusters.from_arrays(stages.arrays("clusters", lambda: clusters.to_arrays(found())))


def complete(
    made: Embedded,
    run: Run,
    clustering: Clustering,
    *,
    steps: int = 0,
    log: Sequence[dict] = (),
    seconds: float,
    stages: Stages = NOWHERE,
) -> Run:
    """Returns a run with its results, clusters of k-means and duplicates; writes nothing.

    In novel class discovery the novel classes become its clusters, see `novel.with_classes`.

    Args:
        made: the images.
        run: a run with their clusters; its results are replaced.
        clustering: the clusters that were found, of which those of the run were made.
        steps: number of training steps; 0: nothing was trained.
        log: lines of the log of the training; empty: there are no speed and no warnings in it.
        seconds: seconds that the training and the embedding took.
        stages: where an interrupted evaluation has kept its results.
    """
    config, dataset, _ = made.inputs
    section = novel.with_n_classes(config, dataset)
    labels = run.labels[run.rows]
    truth = made.clustered.labels
    if truth is not None and (truth < 0).any():
        truth = None  # Some are unknown; `measured` takes the others.
    evaluation = evaluate.evaluate(
        made.embedding,
        clustering._replace(cluster_labels=labels, metrics=measured.scores(run)),
        truth,
        section,
        seed=config.seed,
        test=_probe_test(made),
        stages=stages,
    )
    discovered = novel.discover(made.inputs, made.features)
    repeated = made.repeated
    if repeated is not None:  # What a person keeps of its copies stays.
        kept = np.flatnonzero(run.columns["kept"]).tolist()
        repeated = duplicates.with_picked(repeated, kept)
    suggested = suggested_names(run, made.embedding["backbone"], labels)
    # A cluster keeps its suggestions: with each new photo, others would come first.
    suggested = {key: run.suggested.get(key, words) for key, words in suggested.items()}
    run = dataclasses.replace(
        run,
        suggested=suggested,
        kmeans_labels=evaluation.kmeans_labels,
        duplicates=repeated,
        source=_source(made),
    )
    results = {
        "provenance": provenance.describe(config, section, dataset, made.clustered, steps),
        "metrics": {
            **evaluation.metrics,
            "gradient_share": _last(log, "gradient_share"),
            "discovery": None if discovered is None else discovered.metrics,
        },
        "duplicates": None,
        "suggested_names": suggested or None,
        "watch": [f._asdict() for f in watch.findings(log, steps)],
        "images_per_second": _speed(log),
        "seconds": {
            "train_and_embed": seconds,
            "cluster": time.perf_counter() - made.started,
        },
    }
    if discovered is not None:
        run = novel.with_classes(run, discovered, dataset)
    return measured.measured(dataclasses.replace(run, results=results))


def _source(made: Embedded) -> dict[str, Any]:
    """Returns what was read, and which files of one's own were used, `Run.source`."""
    config, dataset, _ = made.inputs
    return {
        "ignored": dict(dataset.ignored),
        "clustered": made.clustered.size,
        "finder": custom.file_hash(config.eval.method, FINDERS),
        "metrics": own.files(config.eval.metrics),
    }


def with_map(run: Run) -> Run:
    """Returns a run with a map, which is drawn now if no page has needed one before.

    Raises:
        InputError: the run does not store its features and has no tree.
    """
    if run.points is not None:
        return run
    say("drawing the map")
    how = {**run.options.reduce_options, "seed": run.config["seed"]}
    if isinstance(run.placer, ByTree):
        points = maps.of_tree(run.placer.smoother.smooth, run.placer.leaves[run.rows], **how)
    else:
        points = maps.drawn(run.features, **how)
    return dataclasses.replace(run, points=points)


def suggested_names(run: Run, rows: NDArray, labels: NDArray) -> Mapping[int, Sequence[str]]:
    """Suggests three names for each cluster, by the classes of ImageNet that the network knows.

    The result is empty if the network was trained by the run, or is not EfficientNet-Lite2.

    Args:
        run: the run.
        rows: features `[m, d]` as the network has made them, not normalized.
        labels: int `[m]`, their clusters; -1, no cluster, gets no names.
    """
    if run.is_trained or pretrained.weights_of(run.config["encoder"]) != LITE2:
        return {}
    is_in = labels != NO_CLUSTER
    return suggestions.suggest(rows[is_in], labels[is_in])


def _probe_test(made: Embedded) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns features `[t, d]` and classes `[t]` of test images for the linear probe, or None.

    The result is None without labeled test images, and in novel class discovery.
    """
    config, dataset, test = made.inputs
    if dataset.partial_labels is not None or test is None or test.labels is None:
        return None
    return made.features[workdirs.TEST_EMBEDDING][config.eval.features], test.labels


def _last(log: Sequence[dict], name: str) -> float | None:
    """Returns the last value of a key in the log that is not None; None if there is none."""
    return next((r[name] for r in reversed(log) if r.get(name) is not None), None)


def _speed(log: Sequence[dict]) -> float | None:
    """Returns the median of images per second in the log; None for an empty log.

    The first line, which includes the compilation, counts only if it is the only one.
    """
    speeds = [r["images_per_second"] for r in log[1:] or log]
    return statistics.median(speeds) if speeds else None
