"""Clusters, metrics, and provenance in words, for the terminal and the report."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cluster_jax.clustering.verdict import MIN_ROWS
from cluster_jax.core.names import counted
from cluster_jax.evaluation.options import FINDERS

# Number of clusters that a summary lists, the largest ones.
NAMED = 20
# Scores of `metrics.partition.scores` that every table shows.
SCORES = ("acc", "nmi", "ari", "ami")
TITLES = {"tree": "tree", "gridshift": "GridShift", "kmeans": "k-means"}
# Keys of the results that read better as other words.
_WORDS = {
    "gridshift": "GridShift",
    "kmeans": "k-means",
    "knn": "k-NN accuracy, k =",
    "linear_probe": "linear probe accuracy",
    "gradient_share": "gradient's share of a sampled view's way",
    "nrcc": "NRCC",
    "nmi": "NMI",
    "n_classes": "classes",
    "discovery": "novel class discovery:",
    "labeled_acc": "ACC on known classes",
    "novel_acc": "ACC on novel classes",
    "all_acc": "ACC on all classes",
    "kmeans_before_acc": "ACC of k-means before training",
    "images_per_second": "training images per second",
}


def tally(metrics: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the numbers of large and small clusters; small clusters consist of outliers.

    Args:
        metrics: metrics of one algorithm; without "n_large", as for k-means, all clusters are
            large.
    """
    large = metrics.get("n_large", metrics["n_clusters"])
    return large, metrics["n_clusters"] - large


def number(large: int, small: int) -> str:
    """Formats the numbers of large and small clusters: "12", or "12 and 3 small"."""
    return f"{large:,} and {small:,} small" if small else f"{large:,}"


def groups(large: int, small: int, noun: str) -> str:
    """Formats both numbers of clusters with a singular noun: "12 clusters and 3 small ones"."""
    text = counted(large, noun)
    if small:
        return f"{text} and {counted(small, 'small one')}"
    return text


def capital(text: str) -> str:
    """Puts the first letter of a text in upper case."""
    return text[:1].upper() + text[1:]


def shown(metrics: Mapping[str, Any]) -> str:
    """Returns the name of the algorithm whose clusters are shown.

    Args:
        metrics: metrics of all algorithms, by name, at least one; other entries of the results
            come after them. If it has one of `FINDERS`, that is the result; else its first key,
            the user-defined clusterer or, where nothing else clustered, k-means.
    """
    return next((name for name in FINDERS if name in metrics), next(iter(metrics)))


def verdict(metrics: Mapping[str, Any], noun: str, group: str = "cluster") -> str | None:
    """Returns a sentence if the number of clusters is uncertain, else None.

    Args:
        metrics: metrics of one algorithm; k-means has no verdict, and {} has none.
        noun: "photos", "images" or "rows".
        group: the word for a cluster of them.
    """
    answer = metrics.get("verdict")
    gap = metrics.get("gap")
    if is_too_few(metrics):
        return (
            f"There are fewer than {MIN_ROWS} different {noun}, too few to look for a number of "
            f"{group}s: give it instead."
        )
    if answer == "one_cluster":
        return f"The {noun} form one {group}: no split separates them clearly."
    if answer != "unclear":
        return None
    if "gap" in metrics and metrics["n_clusters"] == 1:
        return (
            f"No clear answer: no split separates the {noun} clearly, which does not prove that "
            f"they form one {group}."
        )
    clusters = counted(metrics["n_clusters"], f"{group} is", f"{group}s are")
    doubt = f"some {group}s may belong together, or have parts"
    if gap is None and "gap" in metrics:  # The tree's clusters by density have no gap.
        return f"No clear answer: the {clusters} a best guess, because {doubt}."
    if gap is None:
        return f"No clear answer: the {noun} may form one {group} or none (see the report)."
    return (
        f"No clear answer: the {clusters} a best guess. Their silhouette is {gap:.2f} higher than "
        f"it would be without {group}s, but {doubt}."
    )


def is_too_few(metrics: Mapping[str, Any]) -> bool:
    """Returns whether the tree had fewer rows than it needs to look for a number of clusters."""
    judged = metrics.get("verdict") == "one_cluster"
    return judged and metrics.get("rows_clustered", MIN_ROWS) < MIN_ROWS


def doubt(metrics: Mapping[str, Any]) -> str | None:
    """Returns why novel classes may be unreliable, judged without labels, or None.

    Args:
        metrics: see `discovery.discover`.
    """
    used = metrics["novel"]["n_clusters"]
    total = metrics["novel_classes"]
    if metrics.get("undecided"):
        highest = f"its highest probability is {metrics['confidence']:.3f} on average"
        return f"the novel head is undecided: {highest}"
    if used < total:
        return f"the novel head uses {used} of its {total} classes"
    return None


def format_score(value: float | None) -> str:
    """Formats a score with three decimals; None as a dash."""
    return "-" if value is None else f"{value:.3f}"


def table_lines(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Returns a line for each row of a table, with its columns below each other.

    Args:
        rows: cells, of each row as many.
        left: the columns whose cells begin below each other; those of the others end so.

    Example:
        >>> table_lines([("", "k"), ("Tree", "12")])
        ['       k', 'Tree  12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        sized = zip(row, widths, strict=True)
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(sized)]
        lines.append("  ".join(cells).rstrip())
    return lines


def run_table(results: Mapping[str, Any]) -> str:
    """Returns the metrics of a run as a table; for a run of `cluster` its largest clusters, too.

    Args:
        results: content of its `results.json`.
    """
    metrics = results["metrics"]
    data = results["provenance"].get("data")
    scores = metrics[shown(metrics)]
    discovery = metrics.get("discovery")
    noun, group = "images", "cluster"
    if data is None or data["name"] == "features":
        noun = "rows"
    elif data["name"] == "folder" and not results["provenance"].get("steps"):
        noun, group = "photos", "group"
    entries = {name: metrics.get(name) for name in ("knn", "linear_probe", "gradient_share")}
    entries |= metrics.get("own", {})
    entries |= {"images_per_second": results.get("images_per_second")}
    is_clear = shown(metrics) == "tree" and scores.get("verdict") == "clear"
    sentences = [f"The {group}s are clearly apart." if is_clear else verdict(scores, noun, group)]
    sentences += [f"watch: {finding['text']}" for finding in results.get("watch", ())]
    if discovery:
        entries["discovery"] = {**discovery, "novel": None, "undecided": None}  # said by `doubt`
        reason = doubt(discovery)
        sentences += [reason and f"{reason}: the clusters may be better than its classes"]
    if "cluster_sizes" in scores:
        lines = [*_score_table(results, (*SCORES, "silhouette")), "", *_largest_clusters(scores)]
    else:
        lines = _score_table(results, SCORES, group)
        entries = {"outliers": scores.get("outliers") or None, **entries}
    named = table_lines(_named(entries), left=(0, 1))
    return "\n".join([*lines, *filter(None, sentences), *named])


def _score_table(
    results: Mapping[str, Any], scores: Sequence[str], group: str = "cluster"
) -> list[str]:
    """Returns a line of titles, and one per clustering: its number of clusters and its scores.

    Args:
        results: content of `results.json`.
        scores: keys of the scores in the metrics; those that need labels are left out if there are
            none.
        group: the word for a cluster.
    """
    if not is_scored(results):
        scores = [score for score in scores if score not in SCORES]
    titles = [score.upper() if score in SCORES else score for score in scores]
    rows = [("", f"{group}s", *titles)]
    k = "number" if group == "group" else "k"
    for name, clusters, origin, values in score_rows(results, scores):
        rows.append((f"{name} ({k} {origin})", clusters, *map(format_score, values)))
    return table_lines(rows)


def _largest_clusters(metrics: Mapping[str, Any]) -> list[str]:
    """Returns lines about the clusters: their number, each of the largest ones, and the others.

    Args:
        metrics: metrics of one algorithm of a run of embeddings, with "cluster_sizes".
    """
    large, small = tally(metrics)
    sizes = metrics["cluster_sizes"]
    matching = metrics.get("matching", {})
    rows = sum(sizes.values())
    purity = metrics.get("cluster_purity")
    # Large clusters come first, because a cluster is large by its size.
    order = sorted(sizes, key=lambda c: (-sizes[c], int(c)))
    listed = []
    for c in order[: min(large, NAMED)]:
        pure = "" if purity is None else f"purity {purity[c]:.3f}"
        match = f", matched with {matching[c]}" if c in matching else ""
        size, noun = counted(sizes[c], "row").split()
        listed.append(("cluster", c, size, noun, f"{sizes[c] / rows:.1%}", pure + match))
    lines = [f"Found {groups(large, small, 'cluster')} in {counted(rows, 'row')}."]
    lines += table_lines(listed, left=(0, 3, 5))
    if large > NAMED:
        lines.append(f"and {large - NAMED:,} more of at most {counted(sizes[order[NAMED]], 'row')}")
    if small:
        outliers = counted(metrics["outliers"], "row is an outlier", "rows are outliers")
        most = f"of at most {counted(sizes[order[large]], 'row')}"
        lines.append(f"and {small:,} small, {most}, too small to count: {outliers}")
    return lines


def score_rows(
    results: Mapping[str, Any], scores: Sequence[str] = SCORES
) -> list[tuple[str, str, str, list[float | None]]]:
    """Returns (name, number of clusters, origin of the number, scores) of each clustering.

    The origin is "found", "given", "corrected" or "as found by ..."; "" if it is not known.

    Args:
        results: content of `results.json`.
        scores: keys of the scores in the metrics; one that is missing there is None.
    """
    origins = results["provenance"].get("number_of_clusters", {})
    metrics = results["metrics"]
    if metrics.get("discovery"):
        metrics = {"novel head": metrics["discovery"]["novel"], **metrics}
        origins = {"novel head": "given", **origins}
    rows = []
    for key, entry in metrics.items():
        if isinstance(entry, Mapping) and "n_clusters" in entry:
            values = [entry.get(score) for score in scores]
            rows.append((entry_name(key), number(*tally(entry)), origins.get(key, ""), values))
    return rows


def is_scored(results: Mapping[str, Any]) -> bool:
    """Returns whether a clustering has scores, which need labels."""
    return any(score is not None for *_, row in score_rows(results) for score in row)


def _named(entries: Mapping[str, Any], *path: str) -> list[tuple[str, str]]:
    """Returns names and values of the entries of nested mappings, except None."""
    named = []
    for key, value in entries.items():
        if isinstance(value, Mapping):
            named += _named(value, *path, key)
        elif value is not None:
            named.append((entry_name(*path, key), format_value(value)))
    return named


def entry_name(*path: str) -> str:
    """Returns the path of keys to an entry of the results in words, such as "NMI"."""
    text = " ".join(_WORDS.get(key, key.replace("_", " ")) for key in path)
    return text if text.startswith("k-") else capital(text)  # k-means, k-NN


def format_value(value: float | None) -> str:
    """Formats a number of the results; None, NaN and infinities as a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.0005:  # three decimals would round it to zero
        return f"{value:.4g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
