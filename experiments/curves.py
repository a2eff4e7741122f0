"""Scores at several points of a training: NRCC's Figure 4, NCC's Figure A7.

A run with this `function` keeps the checkpoints that its config asks for; each is embedded and
clustered as the end of a run is.
"""

import dataclasses

import numpy as np
from etils import epath

from cluster_jax.evaluation.evaluate import evaluate
from cluster_jax.runs import build
from cluster_jax.runs.config import RunConfig
from cluster_jax.runs.trainings import embed_all
from cluster_jax.training import checkpoint


def measure(config: RunConfig, workdir: epath.Path) -> dict[str, dict[str, dict[str, float]]]:
    """Scores after each checkpoint, under its percent of the training.

    They are ACC of the clusters found, NMI of k-means with k given and the smallest of its clusters
    in units of the largest, 5-NN, and the standard deviation of unit projections.
    """
    built = build.build_run(config)
    training, folder = built.training, workdir / checkpoint.FOLDER
    options, found = dataclasses.replace(config.eval, linear_probe=None), {}
    for step in checkpoint.steps(folder):
        state = checkpoint.read(folder, build.abstract_state(training), step)
        embedding = embed_all(built, training.dataset, state)
        made = evaluate(embedding, training.dataset.labels, options, seed=config.seed)
        sizes = np.bincount(made.kmeans_labels)
        found[f"{100 * step / training.total_steps:.0f}"] = {
            "acc": made.metrics[options.method]["acc"],
            "nmi": made.metrics["kmeans"]["nmi"],
            "5-nn": made.metrics["knn"]["5"],
            "std": made.metrics["collapse"]["projection"]["std"],
            "n_min/n_max": float(sizes.min() / sizes.max()),
        }
    return {"after": found}
