"""Clusters and metrics in words and lines of text, for the terminal and the report."""

from collections.abc import Mapping
from typing import Any

from cluster_jax.clustering.smooth_tree import CLEAR_GAP
from cluster_jax.evaluation.options import CLUSTERINGS

# Clusters listed in a summary, the largest first.
NAMED = 20
# Scores of a clustering in every table, from `metrics.partition.scores`.
SCORES = ("acc", "nmi", "ari", "ami")
TITLES = {"tree": "tree", "gridshift": "GridShift", "kmeans": "k-means"}


def tally(metrics: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of clusters that count and of small ones; k-means has no small ones.

    Args:
        metrics: metrics of one algorithm.
    """
    large = metrics.get("n_large", metrics["n_clusters"])
    return large, metrics["n_clusters"] - large


def number(large: int, small: int) -> str:
    """The number of clusters that count and, where there are any, of small ones."""
    return f"{large:,} and {small:,} small" if small else f"{large:,}"


def groups(large: int, small: int, noun: str) -> str:
    """Clusters that count and, where there are any, small ones in words."""
    text = f"{large:,} {noun}" if large == 1 else f"{large:,} {noun}s"
    if not small:
        return text
    return f"{text} and {small:,} small " + ("one" if small == 1 else "ones")


def shown(metrics: Mapping[str, Any]) -> str:
    """The algorithm whose clusters are shown: what found their number, else k-means.

    Args:
        metrics: metrics of all algorithms, by name.
    """
    return next(name for name in CLUSTERINGS if name in metrics)


def verdict(metrics: Mapping[str, Any], noun: str) -> str | None:
    """A sentence where the clusters that were found are not clear, else None.

    Args:
        metrics: metrics of GridShift, the tree, or k-means, which has no verdict.
        noun: plural of what was clustered: "images" or "rows".
    """
    if metrics.get("verdict") == "one cluster":
        return f"The {noun} form one cluster: no split separates them clearly."
    if metrics.get("verdict") == "no clear answer":
        if metrics.get("gap") is None:
            return f"No clear answer: the {noun} may form one cluster or none (see the report)."
        k, gap = metrics["n_clusters"], metrics["gap"]
        return (
            f"No clear answer: the {k} clusters are a best guess, separated by a silhouette of "
            f"{gap:.2f} more than parts of one cluster (clear: {CLEAR_GAP})."
        )
    return None


def doubt(metrics: Mapping[str, Any]) -> str | None:
    """Why the novel classes may be unreliable, judged without labels, or None.

    Args:
        metrics: see `discovery.discover`.
    """
    used, count = metrics["novel"]["n_clusters"], metrics["novel_classes"]
    if metrics.get("undecided"):
        return (
            "the novel head is undecided: its highest probability is "
            f"{metrics['confidence']:.3f} on average"
        )
    return f"the novel head uses {used} of its {count} classes" if used < count else None


def format_score(value: float | None) -> str:
    """A score, or a dash where there is none."""
    return "-" if value is None else f"{value:.3f}"


def cluster_table(results: Mapping[str, Any]) -> str:
    """Metrics and largest clusters of the command `cluster` as lines of text.

    Args:
        results: what its `results.json` holds.
    """
    ((method, metrics),) = results["metrics"].items()
    origin = results["provenance"]["number_of_clusters"][method]
    title = f"{TITLES[method]} (k {origin})"
    scores = {score.upper(): score for score in SCORES} | {"silhouette": "silhouette"}
    cells = "".join(
        f"{format_score(metrics[key]):>{len(name) + 5}}" for name, key in scores.items()
    )
    large, small = tally(metrics)
    count = number(large, small)
    width = max(len(count), len("clusters"))
    rows = sum(metrics["cluster_sizes"].values())
    # It is about the clusters that are found without k.
    sentence = None if origin == "given" else verdict(metrics, "rows")
    return "\n".join(
        [
            f"{'':21}{'clusters':>{width}}" + "".join(f"     {name}" for name in scores),
            f"{title:21}{count:>{width}}{cells}",
            "",
            f"Found {groups(large, small, 'cluster')} in {rows:,} row{'' if rows == 1 else 's'}.",
            *_largest_clusters(metrics, large, small),
            *([] if sentence is None else [sentence]),
        ]
    )


def _largest_clusters(metrics: Mapping[str, Any], large: int, small: int) -> list[str]:
    """A line for each of the largest clusters that count, and one for all others."""
    sizes, matching = metrics["cluster_sizes"], metrics.get("matching", {})
    rows, purity = sum(sizes.values()), metrics.get("cluster_purity")
    # A cluster counts by its size, so in this order the clusters that count come first.
    order = sorted(sizes, key=lambda c: (-sizes[c], int(c)))
    lines = []
    for c in order[: min(large, NAMED)]:
        share = f"{sizes[c]:>12,} {'row ' if sizes[c] == 1 else 'rows'}{sizes[c] / rows:>8.1%}"
        pure = "" if purity is None else f"   purity {purity[c]:.3f}"
        match = f", matched with {matching[c]}" if c in matching else ""
        lines.append(f"cluster {c:>6}{share}{pure}{match}")
    if large > NAMED:
        lines.append(f"and {large - NAMED:,} more of at most {sizes[order[NAMED]]:,} rows")
    if small:
        lines.append(
            f"and {small:,} small, of at most {sizes[order[large]]:,} rows, too small to count: "
            f"{metrics['outliers']:,} rows are outliers"
        )
    return lines
