"""Novel class discovery in a run: the novel classes as its clusters."""

import dataclasses
import re

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.base import NO_CLUSTER
from cluster_jax.clustering.placing import ByVotes, Voters
from cluster_jax.core import arrays
from cluster_jax.core.checks import InputError
from cluster_jax.data.datasets import Dataset
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery import splits
from cluster_jax.discovery.scores import Discovery, NetworkOutputs
from cluster_jax.runs import decisions, finish, measured
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Embeddings
from cluster_jax.runs.finish import Made
from cluster_jax.runs.next_state import Now
from cluster_jax.runs.run import Run
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, RunConfig


def check_names(dataset: Dataset) -> None:
    """Raises an `InputError` if tables could not tell a known class from others by its name."""
    if dataset.partial_labels is None:
        return
    for called in splits.known_names(dataset):
        if called in ("", "none") or re.fullmatch(r"novel \d+", called):
            raise InputError(
                "known classes must have names of their own: 'novel 0', 'novel 1', ... are those "
                f"of the novel classes, and 'none' and '' mean no class; got {called!r}"
            )


def discover(inputs: Inputs[AnyConfig], features: Embeddings) -> Discovery | None:
    """Returns the novel classes and their metrics; None without novel class discovery.

    Args:
        inputs: the readable images, and test images.
        features: the embeddings of these images, by file, see `embedding_files`.
    """
    config, dataset, test_images = inputs
    trained, tested = (features.get(n) for n in (workdirs.TRAIN_EMBEDDING, workdirs.TEST_EMBEDDING))
    before = features.get(workdirs.INITIAL_EMBEDDING)
    if trained is None or "novel" not in trained or dataset.partial_labels is None:
        return None

    def outputs(embedding: dict[str, NDArray], labels: NDArray | None) -> NetworkOutputs:
        rows = arrays.normalize_rows(embedding["backbone"])
        return NetworkOutputs(rows, embedding["labeled"], embedding["novel"], labels)

    train = outputs(trained, dataset.labels)
    test = None
    scores = None
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
        n_init=config.eval.n_init,
        seed=config.seed,
    )


def next_of_images(
    before: Run, now: Now, dataset: Dataset, made: Made, found: Discovery, started: float
) -> Run:
    """Returns the next state of a run whose clusters are the known classes and the novel ones.

    Its results have the metrics of the discovery, and those of the clusters that `eval.method`
    finds in the unlabeled images. Images stay in their clusters of the state before if a person has
    decided about them, or if the network finds the same class: what was merged stays merged. The
    nearest images vote for the class of a new one.

    Args:
        before: the state before, perhaps an empty one.
        now: the n images of now.
        dataset: these images, with the known classes of those that have one.
        made: what the network has made of them.
        found: their classes.
        started: see `finish.next_of_images`.
    """
    assert dataset.partial_labels is not None
    after = now.after
    rows = np.flatnonzero(dataset.partial_labels < 0)
    unlabeled = dataclasses.replace(
        Run(after.kind, after.workdir, after.config, after.images, store=after.store),
        columns=after.columns[rows],
        source=after.source,
        truth=None if after.truth is None else after.truth[rows],
        label_names=after.label_names,
        skipped=after.skipped,
    )
    empty = dataclasses.replace(unlabeled, columns=after.columns[:0])
    made = made._replace(embedding={name: x[rows] for name, x in made.embedding.items()})
    first = Now(unlabeled, np.arange(0))
    scored = finish.next_of_images(empty, first, "refit", made, started)
    columns = after.columns.copy()
    columns["found"] = found.classes
    kmeans_labels = np.full(len(columns), NO_CLUSTER, np.int32)
    kmeans_labels[rows] = np.asarray(scored.kmeans_labels)
    metrics = {**scored.results["metrics"], "discovery": found.metrics}
    voters = Voters(after.features, "cosine", found.novelty_threshold)
    run = dataclasses.replace(
        finish.with_duplicates(before, after, now.pictures),
        columns=columns,
        # Not of these images: all of a known class may be unreadable.
        known_classes=tuple(after.images["known"]["names"]),
    )
    run = decisions.folded(run, after.decisions)
    run = dataclasses.replace(
        run,
        results={**scored.results, "metrics": metrics},
        asked=scored.asked,
        fit=scored.fit,
        placer=ByVotes(run.labels, discovery.VOTERS, voters),
        kmeans_labels=kmeans_labels,
        tree=None,
        points=None,
        next_label=max(after.next_label, int(found.classes.max()) + 1),
        updates=after.updates + 1,
        events=(),
    )
    return measured.measured(measured.described(run))
