"""Levels of a run's clusters: the tree of groups that modes found, and its other cuts."""

import numpy as np
from numpy.typing import NDArray

from cluster_jax.clustering import grouping
from cluster_jax.core.checks import InputError
from cluster_jax.pipeline.inference import TrainedRun


def cut(run: TrainedRun, *, k: int | None = None, level: float | None = None) -> NDArray:
    """Labels of the clustered images at a cut of the tree, as `clustering.modes.ModeTree.cut`.

    Args:
        run: a run with `eval.method` "modes".
        k: number of groups; with no `level` either, the clusters.
        level: certainty from which splits are kept.

    Returns:
        int64 `[n]`.

    Raises:
        InputError: the run has no tree, or `k` or `level` is out of range.
    """
    labels, sampled = run.clusters.cluster_labels.astype(np.int64), run.clusters.tree
    if sampled is None:
        raise InputError(
            "eval.method must be 'modes' to cut the tree of groups; got 'gridshift', which has none"
        )

    def rows() -> tuple[NDArray, NDArray]:
        prepared = grouping.prepare(run.features, run.config.eval.reduce.metric)
        return prepared.rows, run.clusters.points.astype(np.float64)

    return grouping.at_level(sampled, labels, rows, k=k, level=level)
