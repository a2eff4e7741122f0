"""What the report's templates draw: curves of the training, labels by clusters, and the tree."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.optimize import linear_sum_assignment

from cluster_jax.metrics import partition
from cluster_jax.report.report_data import Cluster, evenly_spaced

MAX_CURVE_STEPS = 1_000
MAX_TABLE_SIDE = 40


class Curve(NamedTuple):
    """A logged scalar.

    Attributes:
        name: its key in the log.
        steps: the steps at which it was finite.
        first, last, low, high: its values there.
        path: its line in SVG, 100 wide and 40 high; values that are not finite are gaps.
    """

    name: str
    steps: list[int]
    first: float
    last: float
    low: float
    high: float
    path: str


def finite(value: object) -> float | None:
    """Returns `value` as a float; None for NaN, infinities, and what is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None


def training_curves(history: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns the logged scalars, the loss first; without those that never were finite.

    A step that was logged twice (by a run that was resumed) counts once, with its last value.

    Args:
        history: logged lines, each with `step` and scalars.
    """
    names = dict.fromkeys(["loss"])
    for line in history:
        names |= dict.fromkeys(name for name in line if name != "step")
    curves = []
    for name in names:
        values = {int(line["step"]): finite(line[name]) for line in history if name in line}
        if any(value is not None for value in values.values()):
            curves.append(_curve(name, dict(sorted(values.items()))))
    return curves


def _curve(name: str, values: Mapping[int, float | None]) -> Curve:
    """Draws one scalar, thinned to `MAX_CURVE_STEPS`."""
    known = {step: value for step, value in values.items() if value is not None}
    low, high = min(known.values()), max(known.values())
    width, height = max(values) - min(values), high - low
    path, is_down = "", False
    every = list(values.items())
    for i in evenly_spaced(len(values), MAX_CURVE_STEPS).tolist():
        step, value = every[i]
        if value is not None:
            x = 100 * (step - min(values)) / (width or 1)
            y = 40 * (high - value) / (height or 1)
            # A value between two gaps is a dot: a line of no length.
            path += f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}" + ("" if is_down else "h0")
        is_down = value is not None
    first, *_, last = *known.values(), *known.values()
    return Curve(name, list(known), first, last, low, high, path)


def label_table(
    true_labels: NDArray, label_names: Sequence[str], cluster_labels: NDArray
) -> dict[str, Any]:
    """Counts labels by clusters, in the order of the best one-to-one matching.

    Unmatched ones follow in their own order: labels by number, clusters by size. Beyond
    `MAX_TABLE_SIDE` rows or columns are left out.

    Args:
        true_labels: int `[n]`.
        label_names: name of each true label.
        cluster_labels: int `[n]`.

    Returns:
        "clusters"; "rows", of each label its name, the counts, and their sum; and whether any are
        "left_out".
    """
    table, labels, clusters = partition.contingency(true_labels, cluster_labels)
    in_order = np.arange(len(labels)), np.argsort(-table.sum(axis=0), kind="stable")
    matched = linear_sum_assignment(table[:, in_order[1]], maximize=True)
    rows, columns = (
        np.concatenate([order[pairs], np.delete(order, pairs)])[:MAX_TABLE_SIDE]
        for order, pairs in zip(in_order, matched, strict=True)
    )
    names = [label_names[label] for label in labels[rows].tolist()]
    counts, totals = table[np.ix_(rows, columns)].tolist(), table[rows].sum(axis=1).tolist()
    return {
        "clusters": clusters[columns].tolist(),
        "rows": list(zip(names, counts, totals, strict=True)),
        "left_out": max(table.shape) > MAX_TABLE_SIDE,
    }


def tree_record(linkage: NDArray, clusters: Sequence[Cluster]) -> dict[str, Any]:
    """Records the tree of the clusters, from which the page's script draws it and its cuts.

    At n groups these are the ones of `clustering.cut_tree(linkage, n)`.

    Args:
        linkage: float `[k - 1, 4]`; leaf i is the cluster with the i-th lowest number.
        clusters: all k > 1 clusters.

    Returns:
        "leaves", the clusters in an order in which no branches cross; "merges", the pairs of nodes
        that are merged, the nearest pair first, where a node is the position of a leaf, or the
        number of leaves plus the number of an earlier merge; and "heights", the distance of each.
    """
    order = hierarchy.leaves_list(linkage)
    numbers = sorted(cluster.id for cluster in clusters)
    nodes = np.concatenate([np.argsort(order), np.arange(len(order), 2 * len(order) - 1)])
    return {
        "leaves": [numbers[leaf] for leaf in order.tolist()],
        "merges": nodes[linkage[:, :2].astype(int)].tolist(),
        "heights": linkage[:, 2].tolist(),
    }
