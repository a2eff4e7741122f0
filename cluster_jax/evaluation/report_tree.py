"""The tree of clusters in the report: a dendrogram, and the groups at a cut."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy.cluster import hierarchy

from cluster_jax.evaluation import plots
from cluster_jax.evaluation.report_data import STYLED_CLUSTERS, Cluster


class ClusterTree(NamedTuple):
    """The tree of the drawn clusters, the `STYLED_CLUSTERS` largest.

    Attributes:
        leaves: the drawn clusters from left to right.
        merges: pairs of nodes, the nearest first; nodes are the positions of leaves, then merges.
        heights: distance at which each pair merges.
        n_hidden: clusters that are not drawn.
    """

    leaves: list[Cluster]
    merges: list[tuple[int, int]]
    heights: list[float]
    n_hidden: int

    def to_json(self) -> dict[str, Any]:
        """The record from which the page's script lists the groups at a cut."""
        leaves = [{"id": c.id, "color": c.color, "symbol": c.symbol} for c in self.leaves]
        return {"leaves": leaves, "merges": self.merges, "heights": self.heights}


def build_tree(linkage: NDArray, clusters: Sequence[Cluster]) -> ClusterTree | None:
    """The tree without the branches of clusters that are not drawn; None for a single cluster.

    Args:
        linkage: float `[k - 1, 4]`; leaf i is the cluster with the i-th lowest number.
        clusters: all k clusters, largest first.

    Raises:
        ValueError: the tree has another number of clusters.
    """
    if len(linkage) != len(clusters) - 1:
        raise ValueError(
            f"linkage must have one row less than there are clusters, {len(clusters) - 1}; got "
            f"{len(linkage)}"
        )
    if len(clusters) == 1:
        return None
    drawn = {cluster.id for cluster in clusters[:STYLED_CLUSTERS]}
    by_id = sorted(clusters, key=lambda cluster: cluster.id)
    order = [i for i in hierarchy.leaves_list(linkage).tolist() if by_id[i].id in drawn]
    # The node of the drawn tree for each node of the whole one, None below hidden clusters only.
    nodes: list[int | None] = [None] * len(clusters)
    for position, leaf in enumerate(order):
        nodes[leaf] = position
    merges: list[tuple[int, int]] = []
    heights: list[float] = []
    for first, second, height, _ in linkage.tolist():
        left, right = nodes[int(first)], nodes[int(second)]
        if left is None or right is None:
            nodes.append(right if left is None else left)
            continue
        nodes.append(len(order) + len(merges))
        merges.append((left, right))
        heights.append(height)
    leaves = [by_id[i] for i in order]
    return ClusterTree(leaves, merges, heights, len(clusters) - len(leaves))


def tree_figure(tree: ClusterTree, measure: str) -> go.Figure:
    """The dendrogram: leaves with their numbers and colors below, distances upward.

    Args:
        tree: from `build_tree`.
        measure: what the distances are.
    """
    k = len(tree.leaves)
    x, y = [float(i) for i in range(k)], [0.0] * k
    branch_x: list[float | None] = []
    branch_y: list[float | None] = []
    for (left, right), height in zip(tree.merges, tree.heights, strict=True):
        branch_x += [x[left], x[left], x[right], x[right], None]
        branch_y += [y[left], height, height, y[right], None]
        x.append((x[left] + x[right]) / 2)
        y.append(height)
    line = {"color": "var(--soft)", "width": 1.5}
    branches = go.Scatter(x=branch_x, y=branch_y, mode="lines", line=line, hoverinfo="skip")
    joints = go.Scatter(
        x=x[k:],
        y=y[k:],
        mode="markers",
        marker={"color": "var(--soft)", "size": 6},
        hovertemplate=f"{measure} %{{y:.3g}}<extra></extra>",
    )
    leaves = go.Scatter(
        x=x[:k],
        y=y[:k],
        mode="markers",
        marker={
            "color": [cluster.color for cluster in tree.leaves],
            "symbol": [cluster.symbol for cluster in tree.leaves],
            "size": 11,
        },
        cliponaxis=False,
        customdata=[[cluster.id, len(cluster.members)] for cluster in tree.leaves],
        hovertemplate="Cluster %{customdata[0]}: %{customdata[1]:,}<extra></extra>",
    )
    top = max(np.max(tree.heights), 1e-9)
    return go.Figure(
        [branches, joints, leaves],
        {
            "template": plots.TEMPLATE,
            "xaxis": {
                "title": {"text": "cluster"},
                "tickvals": list(range(k)),
                "ticktext": [str(cluster.id) for cluster in tree.leaves],
                "showgrid": False,
                "range": [-0.5, k - 0.5],
            },
            "yaxis": {"title": {"text": measure}, "range": [0, float(top) * 1.08]},
        },
    )
