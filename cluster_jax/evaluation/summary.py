"""Text summaries of clusters and metrics, for the terminal and the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from cluster_jax.clustering.smooth_tree import CLEAR_GAP
from cluster_jax.evaluation.options import CLUSTERINGS

# Number of clusters that a summary lists, the largest ones.
NAMED = 20
# Scores of `metrics.partition.scores` that every table shows.
SCORES = ("acc", "nmi", "ari", "ami")
# Width of the first column of the tables.
_LABEL = 28
TITLES = {"tree": "tree", "gridshift": "GridShift", "kmeans": "k-means"}


def tally(metrics: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of large and of small clusters; small clusters consist of outliers.

    Args:
        metrics: metrics of one algorithm; for k-means, all clusters are large.
    """
    large = metrics.get("n_large", metrics["n_clusters"])
    return large, metrics["n_clusters"] - large


def number(large: int, small: int) -> str:
    """Numbers of large and small clusters as text: "12", or "12 and 3 small"."""
    return f"{large:,} and {small:,} small" if small else f"{large:,}"


def groups(large: int, small: int, noun: str) -> str:
    """Numbers of large and small clusters with a noun: "12 clusters and 3 small ones"."""
    text = f"{large:,} {noun}" if large == 1 else f"{large:,} {noun}s"
    if not small:
        return text
    return f"{text} and {small:,} small " + ("one" if small == 1 else "ones")


def shown(metrics: Mapping[str, Any]) -> str:
    """Name of the algorithm whose clusters are shown: the one that finds k, else k-means.

    Args:
        metrics: metrics of all algorithms, by name.
    """
    return next(name for name in CLUSTERINGS if name in metrics)


def verdict(metrics: Mapping[str, Any], noun: str) -> str | None:
    """A sentence if the number of clusters is uncertain, else None.

    Args:
        metrics: metrics of one algorithm; k-means has no verdict.
        noun: "images" or "rows".
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
    """The reason why novel classes may be unreliable, judged without labels, or None.

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
    """A score with three decimals, or a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def run_table(results: Mapping[str, Any]) -> str:
    """The metrics of a run as lines of text.

    Args:
        results: content of its `results.json`.
    """
    metrics = results["metrics"]
    found = metrics[shown(metrics)]
    noun = "rows" if results["provenance"]["data"]["name"] == "features" else "images"
    lines = _score_table(results, SCORES)
    if found.get("outliers"):
        lines.append(_entry("outliers", f"{found['outliers']:,}"))
    sentence = verdict(found, noun)
    lines += [] if sentence is None else [sentence]
    lines += [f"watch: {finding['text']}" for finding in results.get("watch", ())]
    accuracies = [f"{k}: {format_score(v)}" for k, v in metrics["knn"].items() if v is not None]
    if accuracies:
        lines.append(_entry("k-NN accuracy", ", ".join(accuracies)))
    if metrics["linear_probe"] is not None:
        lines.append(_entry("linear probe accuracy", format_score(metrics["linear_probe"])))
    if metrics.get("discovery") is not None:
        lines += _discovery(metrics["discovery"])
    if metrics.get("gradient_share") is not None:
        lines.append(_entry("gradient's share of a sample", f"{metrics['gradient_share']:.2g}"))
    if results["images_per_second"]:
        lines.append(_entry("training speed", f"{results['images_per_second']:,.0f} images/s"))
    return "\n".join(lines)


def cluster_table(results: Mapping[str, Any]) -> str:
    """Metrics and largest clusters of the command `cluster` as lines of text.

    Args:
        results: content of its `results.json`.
    """
    (metrics,) = results["metrics"].values()
    large, small = tally(metrics)
    rows = sum(metrics["cluster_sizes"].values())
    sentence = verdict(metrics, "rows")
    return "\n".join(
        [
            *_score_table(results, (*SCORES, "silhouette")),
            "",
            f"Found {groups(large, small, 'cluster')} in {rows:,} row{'' if rows == 1 else 's'}.",
            *_largest_clusters(metrics, large, small),
            *([] if sentence is None else [sentence]),
        ]
    )


def _score_table(results: Mapping[str, Any], scores: Sequence[str]) -> list[str]:
    """A line of titles, and a line for each clustering: its number of clusters and its scores."""
    metrics, origins = results["metrics"], results["provenance"]["number_of_clusters"]
    titles = [score.upper() if score in SCORES else score for score in scores]
    rows = [("", "clusters", *titles)]
    for name, title in TITLES.items():
        if name in metrics:
            cells = [format_score(metrics[name][score]) for score in scores]
            rows.append((f"{title} (k {origins[name]})", number(*tally(metrics[name])), *cells))
    first, second = (max(len(row[i]) for row in rows) for i in range(2))
    return [
        f"{label:<{max(_LABEL, first)}}{count:>{second + 1}}"
        + "".join(f"{cell:>{len(title) + 5}}" for title, cell in zip(titles, cells, strict=True))
        for label, count, *cells in rows
    ]


def _entry(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _discovery(metrics: Mapping[str, Any]) -> list[str]:
    novel, test = metrics["novel"], metrics["test"]
    score = format_score
    lines = [
        _entry(
            "novel classes (given)",
            f"{metrics['novel_classes']}: ACC {score(novel['acc'])}, NMI {score(novel['nmi'])}; "
            f"k-means at the start: ACC {score(metrics['kmeans_before_acc'])}",
        ),
        _entry(
            "labeled classes",
            f"ACC {score(metrics['labeled_acc'])}; all: ACC {score(metrics['all_acc'])}",
        ),
    ]
    sentence = doubt(metrics)
    if sentence is not None:
        lines.append(f"{sentence}: the clusters may be better than its classes")
    if test is not None:
        lines.append(
            _entry(
                "test images",
                f"novel: ACC {score(test['novel_acc'])}, labeled: {score(test['labeled_acc'])}, "
                f"all, part unknown: {score(test['all_acc'])}",
            )
        )
    return lines


def _largest_clusters(metrics: Mapping[str, Any], large: int, small: int) -> list[str]:
    """Lines for the largest clusters, and one line each for the other large and the small ones."""
    sizes, matching = metrics["cluster_sizes"], metrics.get("matching", {})
    rows, purity = sum(sizes.values()), metrics.get("cluster_purity")
    # Large clusters come first, because a cluster is large by its size.
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
