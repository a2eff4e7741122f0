"""From features to a state of a run with its results and its map."""

import dataclasses
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from numpy.typing import NDArray

from cluster_jax import __version__
from cluster_jax.clustering import custom
from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByTree
from cluster_jax.core import checks, hosts, io
from cluster_jax.core.devices import say
from cluster_jax.data.datasets import Dataset
from cluster_jax.encoding.embed import readable_images, readable_rows
from cluster_jax.evaluation import clusters, evaluate, maps, suggestions
from cluster_jax.evaluation.clusters import Clustering
from cluster_jax.evaluation.options import FINDERS, EvalConfig
from cluster_jax.evaluation.stages import Stages
from cluster_jax.nets import pretrained
from cluster_jax.nets.config import LITE2
from cluster_jax.report import duplicates
from cluster_jax.runs import claims, measured, provenance, start
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Embeddings
from cluster_jax.runs.next_state import Now, Numbers, find, next_state, with_rows
from cluster_jax.runs.run import Run
from cluster_jax.training import watch
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, RunConfig, parse_config

# The most images of a streamed set without files that are read again to find copies.
MOST_STREAMED = 100_000


def readable(
    inputs: Inputs[RunConfig], features: Embeddings
) -> tuple[Inputs[RunConfig], Embeddings]:
    """Returns the images that can be read, and their embeddings; prints how many cannot.

    Args:
        inputs: all images, also those that cannot be read.
        features: embeddings by file, see `embedding_files.read`.

    Raises:
        InputError: `eval.features` names no part of the embedding.
    """
    config, dataset, test = inputs
    dataset = readable_images(dataset, features[workdirs.TRAIN_EMBEDDING])
    if test is not None:
        test = readable_images(test, features[workdirs.TEST_EMBEDDING])
    features = {name: readable_rows(embedding) for name, embedding in features.items()}
    parts = tuple(features[workdirs.TRAIN_EMBEDDING])
    checks.one_of("eval.features", config.eval.features, parts)
    if dataset.skipped != inputs.dataset.skipped:
        start.print_skipped(dataset.skipped)
    return inputs._replace(dataset=dataset, test=test), features


def first(
    inputs: Inputs[AnyConfig], store: NDArray, workdir: epath.Path, images: Mapping[str, Any]
) -> tuple[Run, Run]:
    """Returns an empty run, and the same run with all images, which have no cluster yet.

    Args:
        inputs: the images, without those that cannot be read.
        store: float `[n, d]`, their features.
        workdir: folder of the run.
        images: content of its `images.json`.
    """
    config, dataset, _ = inputs
    kind = "training" if isinstance(config, RunConfig) else "photos"
    before = Run(kind, workdir, config.values, images, store=store[:0])
    after = dataclasses.replace(
        with_rows(before, dataset.size),
        source={"ignored": dict(dataset.ignored)},
        store=store,
        names=dataset.sources,
        facts=None if dataset.facts is None else dataset.facts(np.arange(dataset.size)),
        truth=dataset.labels,
        label_names=dataset.label_names,
        skipped=dataset.skipped,
    )
    return before, after


class Made(NamedTuple):
    """What the network of a run has made beside the features in its store.

    Attributes:
        embedding: `{"backbone": [n, d], ...}`.
        test: features `[t, d]` and classes `[t]` of test images for the linear probe, or None.
        steps: number of training steps; 0: nothing was trained.
        log: lines of the log of the training; empty: there are no speed and no warnings in it.
    """

    embedding: Mapping[str, NDArray]
    test: tuple[NDArray, NDArray] | None = None
    steps: int = 0
    log: Sequence[dict] = ()


def next_of_images(before: Run, now: Now, numbers: Numbers, made: Made, started: float) -> Run:
    """Returns the next state of a run of images with its results.

    Images are read only to compare the whole pictures of those that are nearly the same.

    Args:
        before: the state before, perhaps an empty one.
        now: the images of now.
        numbers: how the clusters get their numbers.
        made: what the network has made of them.
        started: what `time.perf_counter` returned before the training or the embedding.

    Raises:
        InputError: a user-defined clusterer did not return a cluster for each row.
    """
    began = time.perf_counter()
    now = now._replace(after=with_duplicates(before, now.after, now.pictures))
    unit = now.after.features
    stages = _stages(now.after, unit)
    if now.after.method == "tree":
        clustering = find(now.after, unit, numbers)
    else:
        clustering = _clustering(unit, parse_config(now.after.config), stages)
    run = next_state(before, now, unit, numbers, clustering)
    run = _complete(run, clustering, made, stages)
    seconds = {"train_and_embed": began - started, "cluster": time.perf_counter() - began}
    return dataclasses.replace(run, results={**run.results, "seconds": seconds})


def _stages(run: Run, unit: NDArray) -> Stages:
    """Returns where the stages of an evaluation are kept until its state is written.

    Args:
        run: the images of now, with the config that is asked for.
        unit: float `[n, d]`, their features.
    """
    file = custom.file_hash(run.method, FINDERS)
    about = json.dumps(io.plain([run.config, file, __version__, jax.process_count()]))
    truth = b"" if run.truth is None else run.truth.tobytes()
    made_from = workdirs.fingerprint(np.ascontiguousarray(unit).data, truth, about.encode())
    return Stages(run.workdir / workdirs.STAGES, made_from)


def with_duplicates(before: Run, after: Run, images: Dataset | None) -> Run:
    """Returns a run with the duplicates among its images.

    Those of the same images without files stay: only a first run has more of these than thumbnails.

    Args:
        before: the state before, perhaps an empty one.
        after: `before` with the images of now.
        images: these; None: the run is of features that have none.
    """
    rows, now = before.columns["row"], after.columns["row"]
    if images is None or (images.load is None and np.array_equal(rows, now)):
        return after
    if images.facts is None and images.images is None and images.size > MOST_STREAMED:
        say(f"no search for duplicates: {images.size:,} images would be read again")
        return after
    say("looking for duplicates")
    groups = np.full(max(rows.max(initial=-1), now.max(initial=-1)) + 1, -1)
    groups[rows] = duplicates.groups_of(before.copies, len(rows))
    found = duplicates.find(images, after.features, groups[now])
    return dataclasses.replace(after, copies=found)


def _clustering(unit: NDArray, config: AnyConfig, stages: Stages) -> Clustering:
    """Returns the clusters of unit rows `[n, d]` by another method than the tree."""
    section = config.eval
    most = section.sample_of(len(unit), jax.process_count())

    def found() -> Clustering:
        if most is None:
            return clusters.find(unit, section, seed=config.seed)
        say(f"{section.method} clusters a sample of {most:,} of the {len(unit):,} rows")
        mesh = hosts.mesh_of_all()
        return clusters.find_by_sample(unit, section, seed=config.seed, most=most, mesh=mesh)

    return clusters.from_arrays(stages.arrays("clusters", lambda: clusters.to_arrays(found())))


def _complete(run: Run, clustering: Clustering, made: Made, stages: Stages) -> Run:
    """Returns a run with its results, but for the times, and clusters of k-means; writes nothing.

    Args:
        run: a run with its clusters; its results are replaced.
        clustering: the clusters that were found, of which those of the run were made.
        made: what the network has made of its images.
        stages: where an interrupted evaluation of these features has kept its results.
    """
    # The clusters say how many k-means makes.
    of_labels = workdirs.fingerprint(stages.fingerprint.encode(), run.labels.tobytes())
    stages = stages._replace(fingerprint=of_labels)
    config = parse_config(run.config)
    section = _with_n_classes(config, run)
    truth = run.truth
    if truth is not None and (truth < 0).any():
        truth = None  # Some are unknown; `measured` takes the others.
    shown = clustering._replace(cluster_labels=run.labels, metrics=measured.scores(run))
    evaluation = evaluate.evaluate(
        made.embedding, shown, truth, section, seed=config.seed, test=made.test, stages=stages
    )
    suggested = suggested_names(run, made.embedding["backbone"])
    assert run.store is not None
    sample = config.eval.sample_of(len(run.store), jax.process_count())
    # A cluster keeps its suggestions: with each new photo, others would come first.
    suggested = {key: run.suggested.get(key, words) for key, words in suggested.items()}
    run = dataclasses.replace(
        run,
        suggested=suggested,
        kmeans_labels=evaluation.kmeans_labels,
        asked=claims.asked(run.config["eval"], sample),
    )
    results = {
        "provenance": provenance.describe(run, section, made.steps),
        "metrics": {
            **evaluation.metrics,
            "gradient_share": _last(made.log, "gradient_share"),
            "discovery": None,
        },
        "suggested_names": suggested or None,
        "watch": [finding._asdict() for finding in watch.findings(made.log, made.steps)],
        "images_per_second": _speed(made.log),
    }
    return measured.measured(dataclasses.replace(run, results=results))


def _with_n_classes(config: AnyConfig, run: Run) -> EvalConfig:
    """Returns the section `eval` with the number of novel classes as that of clusters of k-means.

    It is returned unchanged without novel class discovery, and if it sets that number itself.

    Args:
        config: the config of the run.
        run: the run.
    """
    section = config.eval
    if run.images.get("known") is None or section.kmeans.n_clusters is not None:
        return section
    assert isinstance(config, RunConfig)
    kmeans = dataclasses.replace(section.kmeans, n_clusters=config.method.novel_classes)
    return dataclasses.replace(section, kmeans=kmeans)


def with_map(run: Run) -> Run:
    """Returns a run with a map, which is drawn now if no page has needed one before.

    Raises:
        InputError: the run does not store its features and has no tree.
    """
    if run.points is not None:
        return run
    say("drawing the map")
    how = {**run.options.reduce_options, "seed": run.config["seed"]}
    if run.known_classes is not None:
        how["method"] = "tsne"  # By UMAP the known classes of ImageNet would take hours.
    if isinstance(run.placer, ByTree):
        points = maps.of_tree(run.placer.smoother.smooth, run.placer.leaves[run.rows], **how)
    else:
        points = maps.drawn(run.features, **how)
    return dataclasses.replace(run, points=points)


def suggested_names(run: Run, rows: NDArray) -> Mapping[int, Sequence[str]]:
    """Suggests three names for each cluster, by the classes of ImageNet that the network knows.

    The result is empty if the network was trained by the run, or is not EfficientNet-Lite2.

    Args:
        run: the run.
        rows: features `[n, d]` as the network has made them, not normalized. Those in no cluster
            do not count.
    """
    if run.is_trained or pretrained.weights_of(run.config["encoder"]) != LITE2:
        return {}
    is_in = run.labels != NO_CLUSTER
    return suggestions.suggest(rows[is_in], run.labels[is_in])


def probe_test(
    inputs: Inputs[AnyConfig], features: Embeddings
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns features `[t, d]` and classes `[t]` of test images for the linear probe, or None.

    The result is None without labeled test images, and in novel class discovery.

    Args:
        inputs: the images, see `readable`.
        features: their embeddings.
    """
    config, dataset, test = inputs
    if dataset.partial_labels is not None or test is None or test.labels is None:
        return None
    return features[workdirs.TEST_EMBEDDING][config.eval.features], test.labels


def _last(log: Sequence[dict], name: str) -> float | None:
    """Returns the last value of a key in the log that is not None; None if there is none."""
    return next((r[name] for r in reversed(log) if r.get(name) is not None), None)


def _speed(log: Sequence[dict]) -> float | None:
    """Returns the median of images per second in the log; None for an empty log.

    The first line, which includes the compilation, counts only if it is the only one.
    """
    speeds = [r["images_per_second"] for r in log[1:] or log]
    return statistics.median(speeds) if speeds else None
