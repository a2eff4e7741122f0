"""Novel class discovery in a run: the novel classes as its clusters."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering.placing import ByVotes, Voters
from cluster_jax.clustering.tree import linkage_of_means
from cluster_jax.core import arrays
from cluster_jax.data.datasets import Dataset
from cluster_jax.discovery import scores as discovery
from cluster_jax.discovery import splits
from cluster_jax.discovery.scores import Discovery, NetworkOutputs
from cluster_jax.evaluation.options import EvalConfig
from cluster_jax.runs import measured
from cluster_jax.runs import workdir as workdirs
from cluster_jax.runs.embedding_files import Embeddings
from cluster_jax.runs.run import Run
from cluster_jax.training.build import Inputs
from cluster_jax.training.config import AnyConfig, RunConfig


def with_n_classes(config: AnyConfig, run: Run) -> EvalConfig:
    """Returns the section `eval` with the number of novel classes as that of clusters of k-means.

    It is returned unchanged without novel class discovery, and if it sets that number itself.

    Args:
        config: the config of the run.
        run: the run.
    """
    section = config.eval
    if run.shown is None or section.kmeans.n_clusters is not None:
        return section
    assert isinstance(config, RunConfig)
    kmeans = dataclasses.replace(section.kmeans, n_clusters=config.method.novel_classes)
    return dataclasses.replace(section, kmeans=kmeans)


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


def with_classes(run: Run, discovered: Discovery, dataset: Dataset) -> Run:
    """Returns a run whose clusters are the known classes and, after them, the novel ones.

    Its results have the metrics of the discovery. The nearest images vote for the class of a new
    one. What the clusters by `eval.method` have beside their scores, such as probabilities, is
    dropped.

    Args:
        run: the run, whose clusters were found by `eval.method`.
        discovered: the novel classes of the m unlabeled images.
        dataset: the n images, with the known classes of those that have one.
    """
    assert dataset.partial_labels is not None
    names = splits.known_names(dataset)
    columns = run.columns.copy()
    columns["label"] = dataset.partial_labels
    columns["label"][run.rows] = len(names) + discovered.cluster_labels
    columns["found"] = columns["label"]
    voters = Voters(run.all_features, "cosine", discovered.novelty_threshold)
    metrics = {**run.results["metrics"], "discovery": discovered.metrics}
    run = dataclasses.replace(
        run,
        results={**run.results, "metrics": metrics},
        columns=columns,
        known_classes=tuple(names),
        placer=ByVotes(columns["label"], discovery.VOTERS, voters),
        tree=None,
        linkage=linkage_of_means(run.features, discovered.cluster_labels),
        distances=discovered.distances,
        outliers=np.zeros(len(run.rows), bool),
        probabilities=None,
        next_label=int(columns["label"].max()) + 1,
    )
    return measured.measured(run)
